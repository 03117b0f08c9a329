"""What of a model is one unit's: on walks of any other it is worse, and whoever judges it there should know."""

from __future__ import annotations

from pathlib import Path

from trace_ros.baselines.registry import load_estimator
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.joint_delay import joint_delay_of
from trace_ros.robot import RobotDescription


def joint_delay_of_model(estimator: str, model: Path, robot: RobotDescription) -> float:
    """How late the joint readings are that a model expects, s.

    Args:
        estimator: name of `trace_ros.baselines.registry`.
        model: its file.
        robot: that walks.

    Raises:
        TraceError: it cannot be loaded.
    """
    return joint_delay_of(load_estimator(estimator, robot, model))


def of_one_unit(estimator: str, model: Path, robot: RobotDescription) -> str | None:
    """Words on a model that expects late joint readings or turned feet, for walks that have neither; else None.

    Args and errors as of `joint_delay_of_model`.
    """
    loaded, told = load_estimator(estimator, robot, model), []
    if late := joint_delay_of(loaded):
        told.append(f"{'joints' if late > 0 else 'IMU'} {abs(late) * 1e3:g} ms late")
    if isinstance(loaded, TraceEstimator) and loaded.height is not None and any(loaded.height.level):
        roll, pitch = loaded.height.level
        told.append(f"feet turned by {roll:+.4f} rad in roll, {pitch:+.4f} in pitch")
    if not told:
        return None
    return f"{model} is one unit's ({', '.join(told)}); the robots of these walks are others"
