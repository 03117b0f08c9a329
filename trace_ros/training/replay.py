"""A bounded replay of recent rollouts, filled by one simulation process and kept on disk.

The process writes chunk after chunk of packed rollouts into a folder; training draws from the newest. Chunk k depends
on the seed and k alone, and being on disk it outlives a kill, so that a resumed run goes on with the same data.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections import OrderedDict
from collections.abc import Iterable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.training.config import ReplayConfig
from trace_ros.training.dataset import ROW_SIZE, SimulatedRollout, pack

_OPEN_CHUNKS = 64
"""Memory maps kept open; a chunk costs one file descriptor."""

VALIDATION_CHUNK = -1
"""Number of the chunk that is held out."""

_SPARE_CHUNKS = 4
"""Chunks kept beyond the capacity: lanes may still be inside rollouts that have just left the replay."""


class RolloutSource(Protocol):
    """Where rollouts come from; must be picklable, as it is sent to the simulation process."""

    def __call__(self, robot: RobotDescription, seed: int, count: int) -> Iterable[SimulatedRollout]:
        """Some rollouts, at most ``count``; a function of the arguments alone."""


def chunk_seed(seed: int, chunk: int) -> int:
    """The simulation seed of a chunk; validation data is chunk -1."""
    return int(np.random.SeedSequence((seed, chunk + 1)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def simulate_chunk(
    source: RolloutSource, robot: RobotDescription, seed: int, chunk: int, count: int, rows: int
) -> NDArray[np.float32]:
    """Simulate and pack one chunk. ``-> (at most count, rows, 72)``.

    Raises:
        TraceError: no rollout survived (every robot fell at once).
    """
    packed = [pack(rollout, robot, rows) for rollout in source(robot, chunk_seed(seed, chunk), count)]
    if not packed:
        raise TraceError(f"simulation: none of {count} rollouts lasted long enough to train on; check robot and policy")
    return np.stack(packed)


class Replay:
    """The chunks in a folder that training may draw from. Rollouts are numbered by (chunk, index)."""

    def __init__(self, directory: Path, config: ReplayConfig) -> None:
        self.directory = directory
        self._config = config
        self._open: OrderedDict[int, NDArray[np.float32]] = OrderedDict()
        self._newest = -1

    @property
    def capacity_chunks(self) -> int:
        """Chunks that training draws from."""
        return max(1, -(-self._config.capacity // self._config.chunk))

    @property
    def minimum_chunks(self) -> int:
        """Chunks to wait for before the first gradient step."""
        return min(self.capacity_chunks, max(1, -(-self._config.minimum // self._config.chunk)))

    def path(self, chunk: int) -> Path:
        """File of a chunk."""
        return self.directory / f"chunk_{chunk:06d}.npy"

    def write(self, chunk: int, rollouts: NDArray[np.float32]) -> None:
        """Add a chunk: appears whole or not at all, and drops what nobody may need any more."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # The process of a killed run may still be at the same chunk when a resumed run begins it anew.
        temporary = self.path(chunk).with_suffix(f".{os.getpid()}.partial")
        with temporary.open("wb") as file:
            np.save(file, rollouts)
        temporary.replace(self.path(chunk))
        self.path(chunk - self.capacity_chunks - _SPARE_CHUNKS).unlink(missing_ok=True)

    def newest(self) -> int:
        """Number of the newest chunk on disk, -1 without any."""
        while self.path(self._newest + 1).exists():
            self._newest += 1
        if self._newest < 0 and (present := sorted(self.directory.glob("chunk_*.npy"))):
            self._newest = int(present[-1].stem.removeprefix("chunk_"))
        return self._newest

    def chunk(self, number: int) -> NDArray[np.float32]:
        """A chunk's rollouts (n, rows, 72), mapped into memory.

        Raises:
            TraceError: the file is missing or damaged.
        """
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        path = self.path(number)
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise TraceError(f"{path}: not a readable chunk of rollouts ({error}); delete {path.parent}") from error
        if array.ndim != 3 or array.shape[2] != ROW_SIZE or array.dtype != np.float32:
            found = f"{array.dtype} {array.shape}"
            raise TraceError(f"{path}: holds {found}, expected rows of {ROW_SIZE}; delete {path.parent}")
        self._open[number] = array
        while len(self._open) > _OPEN_CHUNKS:
            self._open.popitem(last=False)
        return array

    def rollout(self, chunk: int, index: int) -> Tensor:
        """One packed rollout (rows, 72), copied."""
        return torch.from_numpy(np.array(self.chunk(chunk)[index]))

    def draw(self, newest: int, generator: torch.Generator) -> tuple[int, int]:
        """Choose a rollout from the chunks up to ``newest`` that the capacity holds."""
        oldest = max(0, newest - self.capacity_chunks + 1)
        number = int(torch.randint(oldest, newest + 1, (1,), generator=generator))
        index = int(torch.randint(self.chunk(number).shape[0], (1,), generator=generator))
        return number, index

    def wanted(self, rollouts_drawn: int) -> int:
        """Number of the newest chunk that training should have by now, from what it has drawn."""
        per_chunk = self._config.chunk * self._config.visits_per_sample
        return self.minimum_chunks - 1 + int(rollouts_drawn / per_chunk)


def _work(
    source: RolloutSource,
    robot: RobotDescription,
    seed: int,
    replay: Replay,
    count: int,
    rows: int,
    wanted: Synchronized[int],
    failure: multiprocessing.Queue[str],
) -> None:
    """Body of the simulation process: stay one chunk ahead of what is wanted, until the parent is gone."""
    # Ctrl-C and a launcher's SIGTERM to the whole group are the parent's to handle: it may still need rollouts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)  # when cores are short, gradients come first
    torch.set_num_threads(1)
    parent = os.getppid()
    try:
        while os.getppid() == parent:
            chunk = replay.newest() + 1
            if chunk > wanted.value:
                time.sleep(0.05)
                continue
            replay.write(chunk, simulate_chunk(source, robot, seed, chunk, count, rows))
    except TraceError as error:
        failure.put(str(error))
    except Exception as error:
        failure.put(f"simulation process: {type(error).__name__}: {error}")
        raise


class SimulationWorker:
    """One process that simulates chunks into a replay, as far ahead as `want` allows."""

    def __init__(
        self, source: RolloutSource, robot: RobotDescription, seed: int, replay: Replay, count: int, rows: int
    ) -> None:
        # A fresh interpreter: forking one that runs torch threads is not safe.
        context = multiprocessing.get_context("spawn")
        self._wanted = context.Value("q", replay.minimum_chunks - 1)
        self._failure: multiprocessing.Queue[str] = context.Queue()
        arguments = (source, robot, seed, replay, count, rows, self._wanted, self._failure)
        self._process = context.Process(target=_work, args=arguments, name="trace-simulation", daemon=True)

    def __enter__(self) -> SimulationWorker:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def want(self, chunk: int) -> None:
        """Simulate up to this chunk."""
        self._wanted.value = chunk

    def check(self) -> None:
        """Notice a dead process.

        Raises:
            TraceError: it failed; with its reason.
        """
        if self._process.is_alive():
            return
        try:
            reason = self._failure.get(timeout=1.0)
        except queue.Empty:
            reason = f"simulation process ended with exit code {self._process.exitcode}"
        raise TraceError(reason)
