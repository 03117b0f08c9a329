"""Simulated rollouts kept in a folder, so that several trainings learn from the very same data without simulating anew.

The chunks are those that a run with the same seed would have simulated, see `trace_ros.training.replay`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from trace_ros.errors import TraceError
from trace_ros.evaluation.processes import spread
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.training.config import CommonTraining, ReplayConfig
from trace_ros.training.replay import VALIDATION_CHUNK, Replay, RolloutSource, simulate_chunk
from trace_ros.whole_files import whole_file

_MANIFEST = "rollouts.json"
VALIDATION_FILE = "validation.npy"
"""Held-out rollouts, beside the chunks."""


class KeptRollouts(BaseModel):
    """What a folder of rollouts holds (``rollouts.json``).

    Attributes:
        robot, robot_fingerprint: whose.
        seed: of the simulation.
        chunk: rollouts simulated together.
        chunks: how many times; 0 until all that were first asked for are there.
        rows: rows of each rollout.
        validation: held-out rollouts.
        simulation: config of the simulator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    robot: str
    robot_fingerprint: str
    seed: int
    chunk: int
    chunks: int
    rows: int
    validation: int
    simulation: dict[str, Any]

    def replay_config(self) -> ReplayConfig:
        """A replay that draws from all of them."""
        return ReplayConfig(capacity=self.chunk * self.chunks, minimum=1, chunk=self.chunk)


@dataclass(frozen=True)
class _Chunk:
    source: RolloutSource
    robot: RobotDescription
    seed: int
    number: int
    count: int
    rows: int
    path: Path


def keep_rollouts(
    folder: Path,
    robot: RobotDescription,
    source: RolloutSource,
    simulation: dict[str, Any],
    config: CommonTraining,
    seed: int,
    count: int,
    jobs: int = 1,
    progress: Callable[[float], None] | None = None,
) -> KeptRollouts:
    """Simulate rollouts into a folder; what is there already of the same kind stays, so it can be stopped and gone on.

    Args:
        folder: made where it is missing.
        robot: whom to simulate.
        source: simulates.
        simulation: the source's config as plain data.
        config: says how rollouts are packed, and how many are held out.
        seed: of the simulation.
        count: rollouts, rounded up to whole chunks of ``config.replay.chunk``.
        jobs: processes.
        progress: hears how many chunks are done.

    Raises:
        TraceError: the folder holds other rollouts, or cannot be written.
    """
    wanted = KeptRollouts(
        robot=robot.name,
        robot_fingerprint=robot.fingerprint,
        seed=seed,
        chunk=config.replay.chunk,
        chunks=-(-count // config.replay.chunk),
        rows=config.rows,
        validation=config.validation.rollouts,
        simulation=json.loads(json.dumps(simulation)),
    )
    begun = wanted.model_copy(update={"chunks": 0})
    if (folder / _MANIFEST).exists():
        there = read_manifest(folder)
        if there.model_copy(update={"chunks": wanted.chunks}) != wanted:
            raise TraceError(f"{folder}: holds rollouts of other settings; take another folder, or delete it")
        begun = there
        wanted = wanted.model_copy(update={"chunks": max(there.chunks, wanted.chunks)})
    elif any(folder.glob("chunk_*.npy")) or (folder / VALIDATION_FILE).exists():
        raise TraceError(f"{folder}: holds rollouts of unknown settings ({_MANIFEST} is missing); take another folder")
    replay = Replay(folder, wanted.replay_config())
    parts = [(VALIDATION_CHUNK, wanted.validation, folder / VALIDATION_FILE)]
    parts += [(number, wanted.chunk, replay.path(number)) for number in range(wanted.chunks)]
    missing = [
        _Chunk(source, robot, seed, number, size, wanted.rows, path)
        for number, size, path in parts
        if not path.exists()
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Before the first chunk, so that what was stopped is not gone on with by other settings.
        _write_manifest(folder, begun)
        spread(_simulate, missing, jobs, progress)
        _write_manifest(folder, wanted)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be written ({error.strerror})") from error
    return wanted


def _simulate(chunk: _Chunk, advance: Callable[[float], None]) -> None:
    advance(0.0)
    rollouts = simulate_chunk(chunk.source, chunk.robot, chunk.seed, chunk.number, chunk.count, chunk.rows)
    advance(0.99)
    with whole_file(chunk.path) as temporary, temporary.open("wb") as file:
        np.save(file, rollouts)


def _write_manifest(folder: Path, kept: KeptRollouts) -> None:
    with whole_file(folder / _MANIFEST) as temporary:
        temporary.write_text(kept.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> KeptRollouts:
    """What a folder holds.

    Raises:
        TraceError: no such folder, not complete, or damaged.
    """
    path = folder / _MANIFEST
    try:
        return KeptRollouts.model_validate_json(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); trace rollouts makes such a folder") from error
    except ValidationError as error:
        raise TraceError(f"{path}: {describe_validation_error(error)}") from error


def count_rollouts(folder: Path) -> tuple[int, int]:
    """Rollouts to train on, and held-out ones: fewer than were simulated, where some fell too soon.

    Raises:
        TraceError: a file is damaged.
    """
    kept = read_manifest(folder)
    replay = Replay(folder, kept.replay_config())
    path = folder / VALIDATION_FILE
    try:
        held_out = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TraceError(f"{path}: not readable ({error}); delete it and run trace rollouts again") from error
    return sum(replay.chunk(number).shape[0] for number in range(kept.chunks)), held_out.shape[0]


def check_rollouts(folder: Path, robot: RobotDescription, config: CommonTraining) -> KeptRollouts:
    """The manifest of a folder that a training of this robot with this config can use.

    Raises:
        TraceError: another robot, rows of another length, or files are missing.
    """
    kept = read_manifest(folder)
    if kept.robot_fingerprint != robot.fingerprint:
        raise TraceError(f"{folder}: rollouts of {kept.robot} ({kept.robot_fingerprint}), not of {robot.name}")
    if kept.rows != config.rows:
        raise TraceError(
            f"{folder}: rollouts of {kept.rows} rows, the config wants {config.rows} (rollout_samples, segment)"
        )
    if not kept.chunks:
        raise TraceError(f"{folder}: its rollouts are not complete; run trace rollouts again to complete them")
    replay = Replay(folder, kept.replay_config())
    for path in (folder / VALIDATION_FILE, *map(replay.path, range(kept.chunks))):
        if not path.exists():
            raise TraceError(f"{path}: is missing; run trace rollouts again to complete the folder")
    return kept


class NoSimulation:
    """Stands where a simulation process would, for a training on kept rollouts."""

    def __enter__(self) -> NoSimulation:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def want(self, chunk: int) -> None:
        """All chunks are there."""

    def check(self) -> None:
        """Nothing can fail."""
