"""Which estimators a benchmark compares, and what each is made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trace_ros.baselines.config import BaselineConfig
from trace_ros.baselines.learned import method_of
from trace_ros.baselines.mlp import MlpEstimator
from trace_ros.baselines.nmn import NmnFilterConfig, NmnIekf
from trace_ros.baselines.registry import (
    ESTIMATORS,
    TRACE,
    TRACE_NETWORK,
    check_estimator,
    default_model,
    load_estimator,
)
from trace_ros.errors import TraceError
from trace_ros.resources import read_yaml_on_base
from trace_ros.robot import RobotDescription

PAPER_METHODS = (TRACE, "iekf_sr", "legolas", "nmn_iekf")
"""What the paper compares, and what is compared unless told otherwise."""


@dataclass(frozen=True)
class Method:
    """One column of the comparison.

    What it is made from is read once; who has loaded it calls `check_unchanged`.

    Attributes:
        label: in rows and tables.
        estimator: of `trace_ros.baselines.registry.ESTIMATORS`.
        model: what it is made from: an exported model, or a filter's YAML file.
    """

    label: str
    estimator: str
    model: Path

    @cached_property
    def digest(self) -> str:
        """Changes with the model; of the file as it was when first asked for. Of a YAML file with what it is based on.

        Raises:
            TraceError: the file cannot be read.
        """
        try:
            content = (
                json.dumps(read_yaml_on_base(self.model), sort_keys=True).encode()
                if self.model.suffix in (".yaml", ".yml")
                else self.model.read_bytes()
            )
        except OSError as error:
            raise TraceError(f"{self.model}: cannot be read ({error.strerror})") from error
        return hashlib.sha256(content).hexdigest()

    @cached_property
    def numbers(self) -> str:
        """What the estimator reads besides its model, as JSON: of NMN-IEKF the filter's; of others nothing.

        Raises:
            TraceError: a file cannot be read.
        """
        if self.estimator != NmnIekf.name:
            return ""
        return BaselineConfig.load().model_dump_json() + NmnFilterConfig.load().model_dump_json()

    def check_unchanged(self) -> None:
        """Refuse files that are others than those of `digest` and `numbers`: results would stand under a wrong name.

        Raises:
            TraceError: they are, or cannot be read.
        """
        now = replace(self)  # has nothing in memory
        if (now.digest, now.numbers) != (self.digest, self.numbers):
            raise TraceError(f"{self.model}: was changed meanwhile; start again, what is complete is kept")


def variants_of_trace(methods: Sequence[Method]) -> tuple[list[str], list[str]]:
    """Labels of what is TRACE, and of what is an ablation of it; all others are baselines."""
    own = [method.label for method in methods if method.estimator == TRACE]
    return own, [method.label for method in methods if method.estimator in (TRACE_NETWORK, MlpEstimator.name)]


def choose_methods(names: Sequence[str] | None, robot: RobotDescription) -> tuple[list[Method], list[str]]:
    """The methods by name.

    Args:
        names: each an estimator (``iekf_sr``), one with a model of its own (``trace=my.pt``), or the same under a label
            (``without_losses:trace=my.pt``). None: those of `PAPER_METHODS` whose models are there.
        robot: whose models are taken.

    Returns:
        Methods, and a line for each that was left out.

    Raises:
        TraceError: unknown, without a model, not loadable for the robot, twice under one label, or none left.
    """
    methods, notes = [], []
    for name in PAPER_METHODS if names is None else names:
        method = _method(name, robot, by_default=names is None)
        if method is None:
            notes.append(f"{name} is left out: this version has no such estimator")
        elif not method.model.exists():
            where = f"{method.model}: no such file"
            if names is not None:
                raise TraceError(f"--methods {name}: {where}; train or give one: {method.estimator}=FILE")
            notes.append(f"{name} is left out: {where}")
        else:
            # A file says what it is of, as with ``trace evaluate --model``.
            methods.append(replace(method, estimator=method_of(method.model)) if method.estimator == TRACE else method)
    labels = [method.label for method in methods]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise TraceError(f"--methods: {repeated[0]!r} is there twice; give labels of their own: LABEL:ESTIMATOR=FILE")
    if not methods:
        raise TraceError(f"no method to compare: {'; '.join(notes) or 'none was named'}")
    for method in methods:  # a broken one must be known now, not after the simulation
        load_estimator(method.estimator, robot, method.model)
        method.check_unchanged()
    return methods, notes


def _method(name: str, robot: RobotDescription, by_default: bool) -> Method | None:
    before, given, file = name.partition("=")
    label, labelled, estimator = before.rpartition(":")
    if not all((estimator, label or not labelled, file or not given)):
        raise TraceError(f"--methods {name!r}: give ESTIMATOR, ESTIMATOR=FILE or LABEL:ESTIMATOR=FILE")
    if by_default and estimator not in ESTIMATORS:
        return None
    check_estimator(estimator)
    return Method(label or estimator, estimator, Path(file) if given else default_model(estimator, robot))
