"""A model with random weights: right in everything but its estimates."""

from __future__ import annotations

from pathlib import Path

import torch

from trace_ros.estimator.checkpoint import ModelCard, export_model
from trace_ros.estimator.network import VELOCITY, TraceNetwork
from trace_ros.robot import RobotDescription


def export_untrained(path: Path, robot: RobotDescription, name: str | None = None, speed: float = 0.0) -> Path:
    """Export it for a robot; ``name`` claims that it was trained for another one. It believes that the body moves ahead
    at ``speed`` (m/s), whatever it sees."""
    torch.manual_seed(0)
    card = ModelCard(
        robot=name or robot.name, robot_fingerprint=robot.fingerprint, rate_hz=500.0, command="none at all"
    )
    network = TraceNetwork()
    with torch.no_grad():
        network.head[-1].bias[VELOCITY.start] = speed
    export_model(network, card, path)
    return path
