"""The estimators by name."""

from __future__ import annotations

from pathlib import Path

from trace_ros.baselines.config import BaselineConfig, default_config
from trace_ros.baselines.front_end import ModelBasedEstimator
from trace_ros.baselines.iekf import Iekf, IekfSlipRejection
from trace_ros.baselines.leg_odometry import LegOdometry
from trace_ros.errors import TraceError
from trace_ros.estimator.engines import DEFAULT_ENGINE
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.interface import Estimator
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings

TRACE = TraceEstimator.name
_MODEL_BASED: dict[str, type[ModelBasedEstimator]] = {
    kind.name: kind for kind in (Iekf, IekfSlipRejection, LegOdometry)
}
ESTIMATORS = (TRACE, *_MODEL_BASED)
"""Names that `load_estimator` knows."""


def check_estimator(name: str) -> None:
    """Refuse an unknown name.

    Raises:
        TraceError: lists the known ones.
    """
    if name not in ESTIMATORS:
        raise TraceError(f"no estimator is called {name!r}: there are {', '.join(ESTIMATORS)}")


def default_model(name: str, robot: RobotDescription) -> Path:
    """What an estimator is made from unless told otherwise: TRACE's weights for the robot, or a filter's numbers."""
    return models_directory() / robot.name / "trace.pt" if name == TRACE else default_config()


def label(name: str, model: Path) -> str:
    """How results call an estimator: TRACE by its model, another one by its name, with its file if that is its own."""
    if name == TRACE:
        return str(model)
    return name if model == default_config() else f"{name}:{model}"


def load_estimator(
    name: str,
    robot: RobotDescription,
    model: Path | None = None,
    gaps: GapSettings | None = None,
    engine: str = DEFAULT_ENGINE,
) -> Estimator:
    """Make an estimator for a robot.

    Args:
        name: one of `ESTIMATORS`.
        robot: whose motion is estimated.
        model: by default the package's own. For ``trace`` an exported model, for the others a YAML file like
            ``config/baselines/iekf.yaml``.
        gaps: what ``trace`` does about pauses in the samples; the others start anew after one of 0.1 s.
        engine: what computes the network of ``trace`` (see `trace_ros.estimator.engines`).

    Raises:
        TraceError: unknown name, a file that is missing, broken or for another estimator or robot, or an engine that is
            not installed or that the estimator does not have.
    """
    check_estimator(name)
    if name != TRACE and engine != DEFAULT_ENGINE:
        raise TraceError(f"engine {engine}: the estimator {name} does not run in it; only {TRACE} does")
    path = model or default_model(name, robot)
    is_yaml = path.suffix in (".yaml", ".yml")
    if name == TRACE:
        if is_yaml:
            raise TraceError(f"{path}: the estimator {name} takes an exported model (.pt), not a YAML file")
        return TraceEstimator.load(path, robot, gaps, engine)
    if not is_yaml:
        raise TraceError(f"{path}: the estimator {name} takes its numbers from a YAML file (docs/baselines.md)")
    return _MODEL_BASED[name](robot, BaselineConfig.load(path), str(path))
