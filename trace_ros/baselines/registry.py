"""The estimators by name."""

from __future__ import annotations

from pathlib import Path

from trace_ros.baselines.config import BaselineConfig, default_config
from trace_ros.baselines.front_end import ModelBasedEstimator
from trace_ros.baselines.iekf import Iekf, IekfSlipRejection
from trace_ros.baselines.learned import method_of
from trace_ros.baselines.leg_odometry import LegOdometry
from trace_ros.baselines.legolas import LegolasEstimator
from trace_ros.baselines.mlp import MlpEstimator
from trace_ros.baselines.nmn import NmnIekf
from trace_ros.errors import TraceError
from trace_ros.estimator.engines import DEFAULT_ENGINE
from trace_ros.estimator.estimator import NetworkAlone, TraceEstimator
from trace_ros.estimator.interface import Estimator
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings

TRACE = TraceEstimator.name
TRACE_NETWORK = NetworkAlone.name
NETWORKS = (TRACE, TRACE_NETWORK)
"""Those that make an estimate of TRACE's network."""
_MODEL_BASED: dict[str, type[ModelBasedEstimator]] = {
    kind.name: kind for kind in (Iekf, IekfSlipRejection, LegOdometry)
}
_LEARNED = {LegolasEstimator.name: "legolas.pt", NmnIekf.name: "nmn.pt", MlpEstimator.name: "mlp.pt"}
"""Files of their models, beside TRACE's."""
ESTIMATORS = (*NETWORKS, *_MODEL_BASED, *_LEARNED)
"""Names that `load_estimator` knows."""


def check_estimator(name: str) -> None:
    """Refuse an unknown name.

    Raises:
        TraceError: lists the known ones.
    """
    if name not in ESTIMATORS:
        raise TraceError(f"no estimator is called {name!r}: there are {', '.join(ESTIMATORS)}")


def default_model(name: str, robot: RobotDescription) -> Path:
    """What an estimator is made from unless told otherwise: weights for the robot, or a filter's numbers."""
    if name in _MODEL_BASED:
        return default_config()
    return models_directory() / robot.name / _LEARNED.get(name, "trace.pt")


def label(name: str, model: Path) -> str:
    """How results call an estimator: a network by its model, a filter by its name, with its file if that is its own."""
    if name not in _MODEL_BASED:
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
        model: by default the package's own. For the learned ones an exported model; with ``trace``, which is what is
            meant where nobody names an estimator, one of any method, whose estimator it then is; ``trace_network`` is
            the same without what the feet tell of the height. For the others a YAML file like
            ``config/baselines/iekf.yaml``.
        gaps: what ``trace`` does about pauses in the samples; the others start anew after one of 0.1 s.
        engine: what computes the network of ``trace`` (see `trace_ros.estimator.engines`).

    Raises:
        TraceError: unknown name, a file that is missing, broken or for another estimator or robot, or an engine that is
            not installed or that the estimator does not have.
    """
    check_estimator(name)
    path = model or default_model(name, robot)
    if name == TRACE:
        name = method_of(path)
        check_estimator(name)
    if name not in NETWORKS and engine != DEFAULT_ENGINE:
        raise TraceError(f"engine {engine}: the estimator {name} does not run in it; only {' and '.join(NETWORKS)} do")
    is_yaml = path.suffix in (".yaml", ".yml")
    if name not in _MODEL_BASED:
        if is_yaml:
            raise TraceError(f"{path}: the estimator {name} takes an exported model (.pt), not a YAML file")
        if name == LegolasEstimator.name:
            return LegolasEstimator.load(path, robot)
        if name == NmnIekf.name:
            return NmnIekf.load(path, robot)
        if name == MlpEstimator.name:
            return MlpEstimator.load(path, robot, gaps)
        kind = TraceEstimator if name == TRACE else NetworkAlone
        return kind.load(path, robot, gaps, engine)
    if not is_yaml:
        raise TraceError(f"{path}: the estimator {name} takes its numbers from a YAML file (docs/baselines.md)")
    return _MODEL_BASED[name](robot, BaselineConfig.load(path), str(path))
