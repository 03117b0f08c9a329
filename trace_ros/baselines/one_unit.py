"""Models that are one unit's: on walks of any other they are worse, and whoever judges them there should know."""

from __future__ import annotations

from pathlib import Path

from trace_ros.baselines.registry import load_estimator
from trace_ros.estimator.joint_delay import joint_delay_of
from trace_ros.robot import RobotDescription


def of_one_unit(estimator: str, model: Path, robot: RobotDescription) -> str | None:
    """Words on a model that expects late joint readings, for walks whose joints are in time; None for any other.

    Args:
        estimator: name of `trace_ros.baselines.registry`.
        model: its file.
        robot: that walks.

    Raises:
        TraceError: it cannot be loaded.
    """
    late = joint_delay_of(load_estimator(estimator, robot, model))
    if not late:
        return None
    return f"{model} is one unit's, whose joints are {late * 1e3:g} ms late; those of these walks are not"
