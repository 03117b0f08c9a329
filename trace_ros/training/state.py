"""Training checkpoints: everything a run needs to go on after a kill, in one file that appears whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_ros.training.checkpoint_files import CheckpointKind

_KEYS = frozenset({
    "robot", "robot_fingerprint", "rate_hz", "seed", "config", "simulation", "budget", "command", "network",
    "averaged", "optimiser", "lanes", "torch_generator", "step", "samples", "elapsed_s", "validation",
})  # fmt: skip

TRAINING_CHECKPOINT = CheckpointKind(
    kind="trace_ros training checkpoint",
    name="training checkpoint",
    format=1,
    keys=_KEYS,
)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; see `CheckpointKind.save`."""
    TRAINING_CHECKPOINT.save(path, state)


def load_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_state`; see `CheckpointKind.load`."""
    return TRAINING_CHECKPOINT.load(path)
