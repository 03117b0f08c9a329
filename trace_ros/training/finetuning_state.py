"""The checkpoint of a fine-tuning run: all that it needs to go on, in one file that appears whole or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trace_ros.errors import TraceError
from trace_ros.whole_files import whole_file

FORMAT = 1
"""Of these checkpoints; raised when older files can no longer be read."""

MAX_BYTES = 1024**3
"""A checkpoint has megabytes; anything beyond this is another file."""

_KIND = "trace_ros fine-tuning"
_KEYS = {
    "format", "kind", "robot", "config", "command", "base", "logs", "network", "best", "optimiser", "epoch", "batch",
    "sums", "history", "updates", "samples", "elapsed_s",
}  # fmt: skip


def save_finetuning(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        TraceError: the file cannot be written.
    """
    try:
        with whole_file(path) as temporary:
            torch.save({"format": FORMAT, "kind": _KIND, **state}, temporary)
    except (OSError, RuntimeError) as error:
        raise TraceError(f"{path}: cannot be written ({error})") from error


def load_finetuning(path: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_finetuning`; runs no code from the file.

    Raises:
        TraceError: missing, damaged, too large, another kind of file, or another format version.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such checkpoint of a fine-tuning run; leave --resume out to start one")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise TraceError(f"{path}: {size} bytes are too many for a checkpoint of fine-tuning")
    if not zipfile.is_zipfile(path):
        raise TraceError(f"{path}: not a checkpoint of fine-tuning, or truncated")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever the bytes make it trip over
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path}: not a readable checkpoint of fine-tuning ({reason})") from error
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise TraceError(f"{path}: not a checkpoint of trace finetune")
    if state["format"] != FORMAT:
        raise TraceError(f"{path}: checkpoint format {state['format']}, this version reads {FORMAT}")
    if missing := sorted(_KEYS - set(state)):
        raise TraceError(f"{path}: lacks {', '.join(missing)}: not a complete checkpoint")
    return state


def weights_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits that tell one network's weights from another's."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
