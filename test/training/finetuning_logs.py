"""Short made-up logs with references, and a network whose outputs matter, for tests of fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from synthetic import rollout

from trace_ros.estimator.checkpoint import LoadedModel, ModelCard, export_model, load_model
from trace_ros.estimator.feet import foot_channels
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription
from trace_ros.training.dataset import measure_normalisation, pack, told_at_feet
from trace_ros.training.finetuning_config import FineTuningConfig
from trace_ros.training.finetuning_data import ReferencedLog, Track, make_track, network_steps

ROBOT = RobotDescription.load("go2")
QUICK = {
    "window": 0.3,
    "stride": 0.15,
    "loss": {"horizon": 0.05},
    "optimiser": {"learning_rate": 1e-4, "epochs": 2, "batch": 8, "segment": 60, "piece": 60},
    "reference": {"clean": False},
    "validation": {"horizon": 0.15, "spacing": 0.05},
}


def config(**changes: object) -> FineTuningConfig:
    """A run that takes a second; changes go into sections by name."""
    merged = {
        name: {**value, **changes.pop(name, {})} if isinstance(value, dict) else changes.pop(name, value)  # type: ignore[dict-item]
        for name, value in QUICK.items()
    }
    return FineTuningConfig.model_validate({**merged, **changes})


def log(seed: int, samples: int = 400, every: int = 20) -> SensorLog:
    """A made-up walk with a reference at a lower rate."""
    walk = rollout(seed, samples, noise=0.01).measured
    assert walk.reference is not None
    return replace(walk, reference=walk.reference.select(slice(None, None, every)))


def steady(seed: int) -> SensorLog:
    """The same of a body that goes ahead steadily: something that can be learned in seconds."""
    made = log(seed)
    assert made.reference is not None
    ahead = np.outer(made.reference.stamp_ns * 1e-9, (0.5, 0.1, 0.0))
    velocity = made.reference.rotation_world_body.inv().apply(np.tile((0.5, 0.1, 0.0), (len(ahead), 1)))
    return replace(made, reference=replace(made.reference, position=ahead, velocity=velocity))


def untrained(path: Path, joints: Literal["measured", "feet"] = "measured") -> LoadedModel:
    """A model that knows nothing but the scale of its inputs."""
    torch.manual_seed(1)
    rows = torch.from_numpy(np.stack([pack(rollout(seed, 300), ROBOT, 299) for seed in range(3)]))
    network = TraceNetwork(NetworkConfig(memory=1, joints=joints))
    rows = told_at_feet(rows, foot_channels(network.config, ROBOT))
    network.set_normalisation(*measure_normalisation(rows, network.config, 0.02))
    with torch.no_grad():  # outputs that matter, so that their feedback does
        network.get_parameter("head.4.weight").mul_(20)
        for name in ("query_norm.weight", "attention.query.weight", "accel_token.weight", "gru.weight_ih_l0"):
            network.get_parameter(name).mul_(4)
    card = ModelCard(
        robot=ROBOT.name, robot_fingerprint=ROBOT.fingerprint, rate_hz=500.0, command="none", network=network.config
    )
    export_model(network, card, path)
    return load_model(path)


def track(
    model: LoadedModel,
    seed: int = 0,
    settings: FineTuningConfig | None = None,
    made: SensorLog | None = None,
    piece: np.ndarray | None = None,
) -> Track:
    """A log of `log`, cut to windows."""
    made = log(seed) if made is None else made
    assert isinstance(made.reference, Trajectory)
    piece = np.zeros(len(made.reference), dtype=np.int64) if piece is None else piece
    return make_track(
        f"log {seed}", ReferencedLog(made, piece, ()), network_steps(made, model, ROBOT), settings or config()
    )
