"""The methods that can be trained, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.training.config import CommonTraining, TrainingConfig, read_config
from trace_ros.training.learner import Learner
from trace_ros.training.legolas_learner import LegolasLearner, LegolasTraining
from trace_ros.training.mlp_learner import MlpLearner, MlpTraining
from trace_ros.training.nmn_learner import NmnLearner, NmnTraining
from trace_ros.training.trace_learner import TraceLearner

METHODS: dict[str, str] = {"trace": "trace", "legolas": "legolas", "nmn": "nmn", "mlp": "mlp"}
"""Default training config (``config/training``) of each method, by the name on the command line."""

_LEARNERS: dict[str, tuple[type[CommonTraining], type[Learner[Any, Any]]]] = {
    "trace": (TrainingConfig, TraceLearner),
    "legolas": (LegolasTraining, LegolasLearner),
    "nmn_iekf": (NmnTraining, NmnLearner),
    "mlp": (MlpTraining, MlpLearner),
}
"""Config and learner by the config's ``method``, which is the estimator's name."""


def load_training(config: str | Path, changes: Sequence[str] = ()) -> CommonTraining:
    """Read a training config of any method; its key ``method`` says which, ``trace`` by default.

    Args:
        config: name in ``config/training``, or path.
        changes: ``key=value``, see `CommonTraining.load`.

    Raises:
        TraceError: no such file, not YAML, no such method, or an unknown or bad key.
    """
    data, path = read_config(config, changes)
    return parse_training(data, " ".join((str(path), *changes))).beside(path)


def parse_training(data: Any, source: str) -> CommonTraining:
    """A training config from plain data; ``source`` is named in the error.

    Raises:
        TraceError: no such method, or an unknown or bad key.
    """
    method = data.get("method", "trace") if isinstance(data, dict) else "trace"
    if method not in _LEARNERS:
        raise TraceError(f"{source}: method {method!r} is none of {', '.join(_LEARNERS)}")
    return _LEARNERS[method][0].parse(data, source)


def learner_for(config: CommonTraining, robot: RobotDescription | None = None) -> Learner[Any, Any]:
    """What trains with a config; only a robot's rollouts need to know whose they are."""
    return _LEARNERS[config.method][1](config, robot)
