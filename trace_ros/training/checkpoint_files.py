"""Checkpoints of runs as files: written whole or not at all, and refused in one line when they are something else."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trace_ros.errors import TraceError
from trace_ros.whole_files import DAMAGED_ARCHIVE, whole_file

MAX_BYTES = 2 * 1024**3
"""A checkpoint of these networks has megabytes; anything beyond this is another file."""


@dataclass(frozen=True)
class CheckpointKind:
    """What the checkpoints of one kind of run hold.

    Attributes:
        kind: is in the file.
        name: what users are told that it is, such as "training checkpoint".
        format: raised when older files can no longer be read.
        keys: that every such file has, beside ``format`` and ``kind``.
        absent: added to the error where there is no file: what to do.
    """

    kind: str
    name: str
    format: int
    keys: frozenset[str]
    absent: str = ""

    def save(self, path: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint, whole or not at all; its folder is created.

        Raises:
            TraceError: the file cannot be written.
        """
        try:
            with whole_file(path) as temporary:
                torch.save({"format": self.format, "kind": self.kind, **state}, temporary)
        except (OSError, RuntimeError) as error:
            raise TraceError(f"{path}: cannot be written ({error})") from error

    def load(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint of `save`; runs no code from the file.

        Raises:
            TraceError: missing, damaged, too large, another kind of file, incomplete, or of another format version.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            raise TraceError(f"{path}: no such {self.name}{self.absent}") from error
        if path.is_dir():
            raise TraceError(f"{path}: is a folder, expected a {self.name} (checkpoint.pt)")
        if size > MAX_BYTES:
            raise TraceError(f"{path}: {size} bytes are too many for a {self.name}")
        if not zipfile.is_zipfile(path):
            raise TraceError(f"{path}: not a {self.name}, or truncated")
        try:
            exported = _is_torchscript(path)
        except DAMAGED_ARCHIVE as error:
            raise TraceError(f"{path}: not a {self.name}, or truncated ({error})") from error
        if exported:
            raise TraceError(f"{path}: an exported model, expected a {self.name} (checkpoint.pt)")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # the unpickler raises whatever the bytes make it trip over
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TraceError(f"{path}: not a readable {self.name} ({reason})") from error
        if not isinstance(state, dict) or state.get("kind") != self.kind:
            raise TraceError(f"{path}: not a {self.name} of trace_ros")
        if state.get("format") != self.format:
            raise TraceError(f"{path}: checkpoint format {state.get('format')}, this version reads {self.format}")
        if missing := sorted(self.keys - set(state)):
            raise TraceError(f"{path}: lacks {', '.join(missing)}: not a complete {self.name}")
        return state


def _is_torchscript(path: Path) -> bool:
    """Whether an archive holds code, as exported models do and checkpoints never."""
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())
