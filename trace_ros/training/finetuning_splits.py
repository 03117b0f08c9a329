"""Which logs train, which choose the epoch and which judge: by log, never by window, and none in two of them.

Neighbouring windows of one log share ground, gait and temper of the sensors, and overlap; a split by window would judge
a network on what it was trained on. The same goes for a recording that is there twice under two names, or a piece of
one, so readings are compared and not names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog

Split = Literal["training", "validation", "test"]

_DECIMALS = 5
"""Of readings that are compared: tables of text may have rounded them."""

_IN_A_ROW = 3
"""Samples that must agree: single readings of a robot at rest are but a few steps of its sensors' resolution."""

_SHARED = 0.02
"""Part of the shorter log's readings from which on two logs are one recording; of two recordings none agree."""


@dataclass(frozen=True)
class NamedLog:
    """A log and where it stands.

    Attributes:
        path: as given.
        split: what it is for.
        log: as read.
        fingerprint: of its readings, whatever the file is called.
        notes: what was done about its reference, one line each.
    """

    path: Path
    split: Split
    log: SensorLog
    fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the file, without its folder."""
        return self.path.resolve().stem


def assign_splits(
    logs: Sequence[Path], validation: Sequence[Path], test: Sequence[Path]
) -> tuple[list[tuple[Path, Split]], str | None]:
    """Which path is for what. Without a validation log the last of the training logs becomes one.

    Returns:
        Paths with their splits, and what to tell about a log that was held back.

    Raises:
        TraceError: a path that is given twice, or no two logs to train and validate on.
    """
    training, held_back, note = list(logs), list(validation), None
    if not training:
        raise TraceError("trace finetune: no --logs to train on")
    given: dict[Path, str] = {}
    for option, paths in (("--logs", logs), ("--validation", validation), ("--test", test)):
        for path in paths:
            if (there := given.setdefault(path.resolve(), option)) != option:
                raise TraceError(f"{path}: is given with {there} and with {option}: a log is for one of them")
        if len({path.resolve() for path in paths}) < len(paths):
            raise TraceError(f"{option}: names a log twice")
    if not held_back:
        if len(training) < 2:
            raise TraceError(
                f"{training[0]}: is the only log, but another one must choose the best epoch: give --validation LOG"
            )
        held_back = [training.pop()]
        note = f"{held_back[0]} is held back for validation (--validation chooses another)"
    splits: list[tuple[Path, Split]] = [(path, "training") for path in training]
    splits += [(path, "validation") for path in held_back]
    splits += [(path, "test") for path in test]
    return splits, note


def readings(log: SensorLog) -> NDArray[np.void]:
    """The log's IMU readings, a few in a row each, as comparable values, each once, sorted."""
    rows = np.concatenate((log.angular_velocity, log.linear_acceleration), axis=1)
    rows = np.round(rows, _DECIMALS) + 0.0  # no negative zero
    count = len(rows) - _IN_A_ROW + 1
    rounded = np.ascontiguousarray(np.concatenate([rows[i : i + count] for i in range(_IN_A_ROW)], axis=1))
    return np.unique(rounded.view(np.dtype((np.void, rounded.itemsize * rounded.shape[1]))).ravel())


def fingerprint(log: SensorLog) -> str:
    """Of a log's IMU readings: 16 hexadecimal digits, the same for a copy under another name or of another kind."""
    return hashlib.sha256(readings(log).tobytes()).hexdigest()[:16]


def check_recordings(logs: Sequence[NamedLog]) -> None:
    """Refuse a recording that is there twice, under whatever name, whole or in part.

    Raises:
        TraceError: names both.
    """
    known = [(log, readings(log.log)) for log in logs]
    for index, (log, own) in enumerate(known):
        for other, theirs in known[:index]:
            shared = len(np.intersect1d(own, theirs, assume_unique=True))
            if shared > _SHARED * min(len(own), len(theirs)):
                what = "a training log" if log.split == other.split == "training" else f"a {other.split} log"
                raise TraceError(
                    f"{log.path}: the same recording as {other.path}, {what} ({shared} readings agree): "
                    "a recording is for one split, and once"
                )
