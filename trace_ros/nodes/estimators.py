"""The estimator that the node runs: any of the registry's, made from the parameters, with what it has and lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trace_ros.baselines.registry import default_model, load_estimator
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.interface import Estimator, GapBound, Placeable, RateBound
from trace_ros.estimator.joint_delay import joint_delay_of
from trace_ros.estimator.observation import MAX_GAP_S
from trace_ros.logs import JOINTS, Sample
from trace_ros.nodes.parameters import Parameters
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings

_WARM_UP_SAMPLES = 100
"""TorchScript compiles and specialises during its first calls, which take a hundred times as long as the later ones."""

_USUAL_RATE_HZ = 500.0
"""Of samples to warm up an estimator that works at any rate."""


def make_estimator(parameters: Parameters, robot: RobotDescription) -> Estimator:
    """Load what ``estimator``, ``model``, ``engine`` and ``max_gap`` ask for, and warm it up on ``torch_threads``.

    Raises:
        TraceError: a file that is missing, broken or for another robot or estimator, or an engine that is not installed
            or that the estimator does not have.
    """
    torch.set_num_threads(parameters.integer("torch_threads"))
    name, model = parameters.text("estimator"), parameters.text("model")
    path = Path(model).expanduser() if model else default_model(name, robot)
    gaps = GapSettings(max_gap=parameters.number("max_gap"))
    estimator = load_estimator(name, robot, path, gaps, parameters.text("engine"))
    _warm_up(estimator, robot)
    return estimator


def rate_hz(estimator: Estimator) -> float | None:
    """Of the samples that an estimator was trained with, Hz; None where it works at any rate."""
    return estimator.rate_hz if isinstance(estimator, RateBound) else None


def max_gap_s(estimator: Estimator) -> float:
    """The longest pause in its samples, s, that an estimator bridges; after a longer one it starts anew."""
    return estimator.max_gap_s if isinstance(estimator, GapBound) else MAX_GAP_S


def joint_delay_s(estimator: Estimator, parameters: Parameters) -> float:
    """How late joint states are, s: as the parameters say, or else the model."""
    return (parameters.numbers("joint_delay") or [joint_delay_of(estimator)])[0]


def feet_are_told_by(estimator: Estimator) -> str:
    """What its ``estimator/foot_reliability`` holds: ``attention``, ``contact``, or nothing."""
    return next((what for what in ("attention", "contact") if what in estimator.outputs), "")


def facts(estimator: Estimator, parameters: Parameters) -> dict[str, str]:
    """What the diagnostics tell of an estimator that does not change while it runs."""
    if isinstance(estimator, TraceEstimator):
        card = estimator.model.card
        fits = f"yes: trained for {card.robot}, fingerprint {card.robot_fingerprint}"
    else:
        fits = "yes: checked when it was loaded"
    told = {
        "estimator": estimator.name,
        "model": estimator.source,
        "model fits": fits,
        "joint delay": f"{joint_delay_s(estimator, parameters) * 1e3:g} ms, by which joint states are put back",
        "foot reliability": feet_are_told_by(estimator) or f"not published: {estimator.name} tells nothing of the feet",
    }
    if isinstance(estimator, TraceEstimator):
        told["engine"] = parameters.text("engine")
    if "velocity" not in estimator.outputs:
        told["velocity"] = f"displacement over time: {estimator.name} tells no other"
    if "stationary" not in estimator.outputs:
        told["stationary"] = f"not told by {estimator.name}"
    return told


def shortcomings(estimator: Estimator, parameters: Parameters) -> list[str]:
    """What the parameters ask for and an estimator does not do, a line for the log each."""
    name = estimator.name
    lines = []
    if not feet_are_told_by(estimator):
        lines.append(f"{name} tells nothing of the feet: no estimator/foot_reliability")
    if parameters.number("max_gap") != (bridged := max_gap_s(estimator)):
        lines.append(f"max_gap is not for {name}: it starts anew after a pause of {bridged:g} s")
    if parameters.numbers("initial_pose") and not isinstance(estimator, Placeable):
        lines.append(f"initial_pose is not for {name}: it begins at zero; ~/set_pose moves it")
    return lines


def _warm_up(estimator: Estimator, robot: RobotDescription) -> None:
    step_ns = round(1e9 / (rate_hz(estimator) or _USUAL_RATE_HZ))
    for index in range(_WARM_UP_SAMPLES):
        # A gyro reading above the stationary threshold: the moving branch is the one to warm.
        estimator.step(
            Sample(
                index * step_ns,
                np.full(3, 10.0 * robot.stationary.angular_velocity),
                np.array((0.0, 0.0, 9.81)),
                robot.nominal_joint_positions,
                np.zeros(JOINTS),
                np.zeros(JOINTS),
            )
        )
    estimator.reset()
