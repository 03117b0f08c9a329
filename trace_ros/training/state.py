"""Training checkpoints: everything a run needs to go on after a kill, in one file that appears whole or not at all."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from trace_ros.errors import TraceError
from trace_ros.whole_files import DAMAGED_ARCHIVE

FORMAT = 1
"""Of training checkpoints; raised when older files can no longer be read."""

MAX_BYTES = 2 * 1024**3
"""A checkpoint of this network has megabytes; anything beyond this is another file."""

_KEYS = {
    "format", "kind", "robot", "robot_fingerprint", "rate_hz", "seed", "config", "simulation", "budget", "command",
    "network", "averaged", "optimiser", "lanes", "torch_generator", "step", "samples", "elapsed_s", "validation",
}  # fmt: skip
_KIND = "trace_ros training checkpoint"


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        TraceError: the file cannot be written.
    """
    temporary = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"format": FORMAT, "kind": _KIND, **state}, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        raise TraceError(f"{path}: cannot be written ({error})") from error


def load_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_state`; runs no code from the file.

    Raises:
        TraceError: missing, damaged, too large, another kind of file, or another format version.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: no such training checkpoint") from error
    if path.is_dir():
        raise TraceError(f"{path}: is a folder, expected a training checkpoint (checkpoint.pt)")
    if size > MAX_BYTES:
        raise TraceError(f"{path}: {size} bytes are too many for a training checkpoint")
    if not zipfile.is_zipfile(path):
        raise TraceError(f"{path}: not a training checkpoint, or truncated")
    try:
        exported = _is_torchscript(path)
    except DAMAGED_ARCHIVE as error:
        raise TraceError(f"{path}: not a training checkpoint, or truncated ({error})") from error
    if exported:
        raise TraceError(f"{path}: an exported model, expected the checkpoint.pt of a training run")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises whatever the bytes make it trip over
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path}: not a readable training checkpoint ({reason})") from error
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise TraceError(f"{path}: not a training checkpoint of trace_ros")
    if state["format"] != FORMAT:
        raise TraceError(f"{path}: checkpoint format {state['format']}, this version reads {FORMAT}")
    if missing := sorted(_KEYS - set(state)):
        raise TraceError(f"{path}: lacks {', '.join(missing)}: not a complete training checkpoint")
    return state


def _is_torchscript(path: Path) -> bool:
    """Whether an archive holds code, as exported models do and checkpoints never."""
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())
