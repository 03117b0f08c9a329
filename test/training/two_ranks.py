"""What the ranks of test_distributed.py do, each in a process of its own: ``two_ranks.py WHAT FOLDER``.

``agree``: gradients of a made-up batch, then an unbroken run, and one that rank 1 stops and all resume.
``die``: rank 1 kills itself in the middle of a run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from pretraining import Recorder, describe
from synthetic import SyntheticSource

from trace_ros.errors import TraceError
from trace_ros.estimator.network import TraceNetwork
from trace_ros.training.config import OptimiserConfig
from trace_ros.training.dataset import MOTION, PREFIX, ROW_SIZE, make_segment
from trace_ros.training.distributed import ALONE, Ranks, joined
from trace_ros.training.learner import LaneBatch
from trace_ros.training.pretrain import Pretraining, RunDescription

SOURCE = SyntheticSource(samples=90)
STEPS, STOPPED = 24, 9
LANES = 4
LENGTHS = (49, 40, 33, 49, 30, 31, 49, 32)
"""Rows that count of the made-up rollouts: the second rank has far fewer samples than the first."""


def unclipped(batch: int) -> RunDescription:
    """Plain float32 gradients."""
    optimiser = OptimiserConfig(warmup_steps=5, gradient_clip=0.0)
    return describe(steps=STEPS, batch=batch, precision="float32", optimiser=optimiser)


def made_up(lanes: slice) -> LaneBatch:
    """Some lanes of one batch of eight, of unequal lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = 0.3 * torch.randn(len(LENGTHS), 20 + PREFIX, ROW_SIZE, generator=generator)
    rows[..., 46] = 0.002
    rows[..., MOTION] *= 0.002  # increments of one sample
    for row, length in zip(rows, LENGTHS, strict=True):
        row[length:] = 0.0
    config = unclipped(LANES).config
    offsets = config.feedback.draw_offsets(len(LENGTHS), generator)
    segment = make_segment(rows, offsets, config.feedback, 1.0, generator)
    hidden = torch.randn(len(LENGTHS), 128, generator=generator)
    targets = type(segment.targets)(*(part[lanes] for part in segment.targets))
    return LaneBatch(type(segment)(segment.observations[lanes], targets), hidden[lanes])


def gradients(batch: LaneBatch, folder: Path, ranks: Ranks = ALONE) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Gradients and figures of a run's first step, if its lanes gave this batch."""
    run = Pretraining.start(unclipped(len(batch.hidden)), SOURCE, folder, ranks)
    run._with_network = ranks.synchronised(run.network)
    terms = run._gradient_step(batch)
    named = {name: value.grad for name, value in run.network.named_parameters() if value.grad is not None}
    return named, {**terms, "samples": run.samples}


def weights(network: TraceNetwork) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in network.state_dict().values()])


def agree(ranks: Ranks, folder: Path) -> None:
    """Saves everything that the test compares as ``rank<r>.pt``."""
    part = slice(LANES * ranks.rank, LANES * (ranks.rank + 1))
    gradient, terms = gradients(made_up(part), folder / "gradients", ranks)

    unbroken, losses = Pretraining.start(describe(steps=STEPS), SOURCE, folder / "unbroken", ranks), Recorder()
    assert unbroken.run(losses)
    first, again = Pretraining.start(describe(steps=STEPS), SOURCE, folder / "stopped", ranks), Recorder()
    assert not first.run(again, lambda: ranks.rank == 1 and first.step >= STOPPED)
    second = Pretraining.resume(describe(steps=STEPS), SOURCE, folder / "stopped", ranks)
    resumed_at = second.step
    assert second.run(again)
    other = describe(steps=STEPS, batch=LANES + ranks.rank)
    try:
        Pretraining.start(other, SOURCE, folder / "different", ranks)
        refused = ""
    except TraceError as error:
        refused = str(error)
    torch.save(
        {
            "gradients": gradient,
            "terms": terms,
            "losses": losses.losses,
            "rates": losses.rates,
            "validations": len(losses.figures),
            "resumed_at": resumed_at,
            "resumed_losses": again.losses,
            "weights": weights(unbroken.network),
            "averaged": weights(unbroken.evaluated_network()),
            "samples": unbroken.samples,
            "refused": refused,
        },
        folder / f"rank{ranks.rank}.pt",
    )


class Killer(Recorder):
    """Kills its process in the middle of the run."""

    def step(self, step: int, samples: int, progress: float, scalars: Mapping[str, float]) -> None:
        super().step(step, samples, progress, scalars)
        if step == STOPPED:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    try:
        with joined() as ranks:
            if what == "agree":
                agree(ranks, folder)
            else:
                monitor = Killer() if ranks.rank == 1 else Recorder()
                Pretraining.start(describe(steps=100_000), SOURCE, folder, ranks).run(monitor)
    except TraceError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
