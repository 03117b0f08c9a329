"""The checkpoint of a fine-tuning run: all that it needs to go on, in one file that appears whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trace_ros.training.checkpoint_files import CheckpointKind

_KEYS = frozenset({
    "robot", "config", "command", "model", "base", "logs", "network", "best", "optimiser", "epoch", "batch", "sums",
    "history", "updates", "samples", "elapsed_s",
})  # fmt: skip

FINETUNING_CHECKPOINT = CheckpointKind(
    kind="trace_ros fine-tuning",
    name="fine-tuning checkpoint",
    format=1,
    keys=_KEYS,
    absent="; leave --resume out to start a run",
)


def save_finetuning(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; see `CheckpointKind.save`."""
    FINETUNING_CHECKPOINT.save(path, state)


def load_finetuning(path: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_finetuning`; see `CheckpointKind.load`."""
    return FINETUNING_CHECKPOINT.load(path)


def weights_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits that tell one network's weights from another's."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
