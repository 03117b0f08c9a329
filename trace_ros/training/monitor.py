"""What a training run tells: a progress bar on a terminal, plain lines elsewhere, TensorBoard scalars for both."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as _TimeRemaining

_LINE_INTERVAL_S = 30.0
_SCALAR_INTERVAL_S = 5.0
_BAR_TERMS = ("total", "estimation", "model", "foot", "drift")


class Monitor(Protocol):
    """Listens to a training run."""

    def waiting(self, have: int, need: int) -> None:
        """Simulation has ``have`` of the ``need`` rollouts that training starts with."""

    def step(self, step: int, samples: int, progress: float, scalars: Mapping[str, float]) -> None:
        """A gradient step is done; ``progress`` is the share of the budget that is spent."""

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Held-out figures."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class SilentMonitor:
    """Says nothing (tests, benchmarks)."""

    def waiting(self, have: int, need: int) -> None:
        """See `Monitor`."""

    def step(self, step: int, samples: int, progress: float, scalars: Mapping[str, float]) -> None:
        """See `Monitor`."""

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Monitor`."""

    def note(self, text: str) -> None:
        """See `Monitor`."""


class ConsoleMonitor:
    """Progress bar or plain lines on standard error, and TensorBoard in a folder. A context manager.

    A resumed run gives the step it goes on from: what a killed one wrote after its last checkpoint is then not shown.
    """

    def __init__(self, tensorboard: Path, resumed_at: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

        self._console = Console(stderr=True)
        self._live = self._console.is_terminal and sys.stderr.isatty()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            _TimeRemaining(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("simulating", total=1.0, text="")
        self._writer = SummaryWriter(str(tensorboard), flush_secs=30, purge_step=resumed_at + 1 if resumed_at else None)
        self._sums: dict[str, float] = {}
        self._count = 0
        self._line_at = self._scalar_at = 0.0
        self._rate_from: tuple[float, int] | None = None
        self._rate = 0.0
        self._samples = 0

    def __enter__(self) -> ConsoleMonitor:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._writer.close()

    def waiting(self, have: int, need: int) -> None:
        """See `Monitor`."""
        text = f"{have} of {need} rollouts simulated"
        self._bar.update(self._task, completed=have / need, text=text)
        if not self._live and self._due("_line_at", _LINE_INTERVAL_S):
            self.note(text)

    def step(self, step: int, samples: int, progress: float, scalars: Mapping[str, float]) -> None:
        """See `Monitor`."""
        now = time.monotonic()
        if self._rate_from is None:
            self._rate_from = (now, samples)
            self._bar.reset(self._task, description="training", total=1.0)
        elif (since := now - self._rate_from[0]) > 1.0:
            self._rate = (samples - self._rate_from[1]) / since
            # A rate over the last few seconds, once there are so many.
            if since > _SCALAR_INTERVAL_S:
                self._rate_from = (now, samples)
        self._samples = samples
        for name, value in scalars.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._count += 1
        terms = " ".join(f"{name} {self._mean(name):.4f}" for name in _BAR_TERMS if name in self._sums)
        text = f"step {step} {terms} {self._rate:,.0f} samples/s"
        self._bar.update(self._task, completed=progress, text=text)
        # Means since the last line, so that a line is no single noisy step.
        if self._due("_scalar_at", _SCALAR_INTERVAL_S):
            for name in self._sums:
                self._writer.add_scalar(f"train/{name}", self._mean(name), step)
            self._writer.add_scalar("train/samples_per_s", self._rate, step)
            line = " ".join(f"{name} {self._mean(name):.4g}" for name in self._sums)
            if not self._live and self._due("_line_at", _LINE_INTERVAL_S):
                self.note(f"{progress:6.1%} step {step} {line} {self._rate:,.0f} samples/s")
            self._sums, self._count = {}, 0

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """See `Monitor`."""
        if self._rate_from is not None:
            self._rate_from = (time.monotonic(), self._samples)  # the time that validation took is not training's
        for name, value in figures.items():
            self._writer.add_scalar(f"validation/{name}", value, step)
        self.note(f"step {step} held out: " + " ".join(f"{name} {value:.4g}" for name, value in figures.items()))

    def note(self, text: str) -> None:
        """See `Monitor`."""
        self._console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, highlight=False, soft_wrap=True)

    def _mean(self, name: str) -> float:
        return self._sums.get(name, 0.0) / max(1, self._count)

    def _due(self, name: str, interval: float) -> bool:
        now = time.monotonic()
        if now - getattr(self, name) < interval:
            return False
        setattr(self, name, now)
        return True
