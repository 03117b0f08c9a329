"""One training run spread over processes and machines with ``torchrun`` and DistributedDataParallel.

Each process (a rank) simulates its own environments and backpropagates through its own lanes; gradients are averaged,
so that all ranks hold the same weights. Rank 0 alone validates, logs and writes the checkpoint. Whatever ranks have to
decide alike (when to save, when to stop, how far the learning rate has fallen) comes from rank 0's clock or from all
of them together, so that none waits for another that is already gone. `ALONE` is the single process: every method is
then the plain thing, and no process group exists.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trace_ros.errors import TraceError

Device = Literal["cpu", "cuda"]
Result = TypeVar("Result")
Network = TypeVar("Network", bound=nn.Module)

# As long as a rank may be busy alone (rank 0 simulates and evaluates the held-out rollouts) before it counts as gone.
_PATIENCE = timedelta(minutes=30)
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_CPU = torch.device("cpu")
_LOST = ("gloo", "connection", "timed out", "timeout", "nccl", "socket")
"""Words by which a communication failure differs from a mistake of ours."""


class Share(NamedTuple):
    """What a rank's batch is of the ranks' joined batch.

    Attributes:
        fraction: its samples over those of all ranks.
        weight: what its loss is multiplied by before gradients are averaged: fraction times ranks.
        total: samples of all ranks.
    """

    fraction: float
    weight: float
    total: int


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: 0 .. world - 1.
        world: processes, 1 for a run in a single one.
        device: where the network computes.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = _CPU

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.world == 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which validates, logs and saves."""
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """This rank's own seed; rank 0 keeps the run's, so that alone it is the single-process run."""
        if self.rank == 0:
            return seed
        state = np.random.SeedSequence(seed, spawn_key=(self.rank,)).generate_state(1, np.uint64)[0]
        return int(state >> np.uint64(1))

    def folder(self, output: Path) -> Path:
        """Where this rank keeps its replay: rank 0 in the run's own folder, the others below it."""
        return output if self.rank == 0 else output / f"rank{self.rank}"

    def clock(self) -> float:
        """Rank 0's monotonic clock (s), the same number on all ranks."""
        now = time.monotonic()
        if self.alone:
            return now
        reading = torch.tensor([now], dtype=torch.float64)
        with self._together():
            dist.broadcast(reading, 0)
        return float(reading)

    def any(self, told: bool) -> bool:
        """Whether it is true on any rank."""
        if self.alone:
            return told
        flag = torch.tensor([told], dtype=torch.uint8)
        with self._together():
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def first(self, compute: Callable[[], Result]) -> Result:
        """What rank 0 computes, on all ranks.

        Raises:
            TraceError: rank 0's, on all ranks.
        """
        if self.alone:
            return compute()
        answer: list[Any] = [None, None]
        failure: TraceError | None = None
        if self.leads:
            try:
                answer[0] = compute()
            except TraceError as error:
                failure, answer[1] = error, str(error)
        with self._together():
            dist.broadcast_object_list(answer, 0)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise TraceError(f"rank {self.rank} ends with rank 0: {answer[1]}")
        return cast(Result, answer[0])

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value by rank on rank 0; an empty list on the others."""
        if self.alone:
            return [value]
        gathered: list[Any] | None = [None] * self.world if self.leads else None
        with self._together():
            dist.gather_object(value, gathered)
        return gathered or []

    def agree(self, values: dict[str, Any]) -> None:
        """Make sure that every rank was started with rank 0's settings, given by name.

        Raises:
            TraceError: some differ; on all ranks, so that none waits.
        """
        leading = self.first(lambda: values)
        differing = sorted(name for name, value in values.items() if leading.get(name) != value)
        if self.any(bool(differing)):
            what = f"differs from rank 0 in {', '.join(differing)}" if differing else "another rank's settings differ"
            raise TraceError(f"rank {self.rank}: {what}; start all ranks with the same command and config")

    def share(self, samples: int) -> Share:
        """What a batch with so many samples that count is of all ranks' batches."""
        if self.alone:
            return Share(1.0, 1.0, samples)
        total = torch.tensor([samples], dtype=torch.int64)
        with self._together():
            dist.all_reduce(total)
        fraction = samples / max(1, int(total))
        return Share(fraction, fraction * self.world, int(total))

    def mean(self, values: Tensor, share: Share) -> Tensor:
        """Mean over all ranks' samples of values (n,) that are means over each rank's own."""
        if self.alone:
            return values
        joined = values.double().cpu() * share.fraction
        with self._together():
            dist.all_reduce(joined)
        return joined

    def synchronised(self, network: Network) -> Callable[[Callable[[Network], Result]], Result]:
        """A way to compute with a network so that ``backward`` averages the gradients of all ranks.

        The function that is returned takes what to compute, for instance ``lambda network: network.sequence(...)``.
        One call belongs to one ``backward``, and every trainable parameter must take part. All ranks start from rank
        0's weights.
        """
        if self.alone:
            return lambda compute: compute(network)
        with self._together():
            return DistributedDataParallel(_Computation(network))

    def backward(self, loss: Tensor, share: Share) -> None:
        """Gradients of the loss over all ranks' samples, from this rank's mean over its own.

        A mean over the joined batch is the sum of the ranks' means, each times its fraction of the samples. All terms
        of the loss are such means (the drift loss weighs each sequence by its samples), so the averaged gradients are
        those of one process with the joined batch.
        """
        with self._together():
            (loss if self.alone else loss * share.weight).backward()

    def to_device(self, value: Any) -> Any:
        """Tensors, or named tuples of them, where the network computes."""
        if isinstance(value, Tensor):
            return value.to(self.device)
        return type(value)(*map(self.to_device, value)) if isinstance(value, tuple) else value

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Turns the failure of a communication into one line."""
        try:
            yield
        except RuntimeError as error:
            if self.alone or not any(word in str(error).lower() for word in _LOST):
                raise
            raise TraceError(
                f"rank {self.rank}: another rank has ended or cannot be reached ({_reason(error)}); "
                "start all again with --resume"
            ) from error


class _Computation(nn.Module):
    """Gives any computation with a network the name that DistributedDataParallel calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, compute: Callable[[nn.Module], Any]) -> Any:
        return compute(self.network)


ALONE = Ranks()
"""A run in a single process on the CPU."""


def launched_together() -> bool:
    """Whether ``torchrun`` (or what sets the same variables) started this process beside others."""
    return all(name in os.environ for name in _VARIABLES) and os.environ["WORLD_SIZE"] != "1"


@contextmanager
def joined(device: Device = "cpu") -> Iterator[Ranks]:
    """Join the ranks that ``torchrun`` has started; a process that it did not start is `ALONE`.

    Gradients travel over gloo on CPUs and nccl on GPUs; what ranks agree on always over gloo.

    Raises:
        TraceError: no such device, the variables make no sense, or the others cannot be reached.
    """
    local = _number("LOCAL_RANK") if launched_together() else 0
    place = _place(device, local)
    if not launched_together():
        yield Ranks(device=place)
        return
    if not dist.is_available():
        raise TraceError("this torch was built without torch.distributed; train in one process, or install another")
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    ranks = Ranks(rank, world, place)
    try:
        dist.init_process_group(backend, timeout=_PATIENCE, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TraceError(f"rank {rank} of {world}: cannot join the others at {where} ({_reason(error)})") from error
    yield ranks
    # Not after a failure: the others may be anywhere then, and closing in order would wait for them.
    dist.destroy_process_group()


def _reason(error: Exception) -> str:
    """The first sentence of a communication's failure, without the place in the library's source that comes first."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\]\s*", "", first).partition(". ")[0]


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise TraceError(f"{name}={text!r}: expected a whole number, as torchrun sets it")
    return int(text)


def _place(device: Device, local: int) -> torch.device:
    if device == "cpu":
        return _CPU
    count = torch.cuda.device_count()
    if local >= count:
        raise TraceError(f"--device cuda: this process needs GPU {local}, torch finds {count}; use --device cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
