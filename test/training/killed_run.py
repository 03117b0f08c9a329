"""A training run in a process of its own, for the test that kills it: ``killed_run.py FOLDER``."""

import sys
from collections.abc import Mapping
from pathlib import Path

from pretraining import describe
from synthetic import SyntheticSource

from trace_ros.training.monitor import SilentMonitor
from trace_ros.training.pretrain import Pretraining


class CurveOnDisk(SilentMonitor):
    """Writes each step's loss to ``losses.txt`` before the run goes on, so that it outlives the kill."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "losses.txt").open("w")

    def step(self, _step: int, _samples: int, _progress: float, scalars: Mapping[str, float]) -> None:
        # In one write, so that no line is half there.
        self._file.write(f"{scalars['total']!r}\n")
        self._file.flush()


if __name__ == "__main__":
    # Not every step is saved: some are lost in the kill and repeated.
    description = describe(steps=60, checkpoint_interval=0.1)
    output = Path(sys.argv[1])
    Pretraining.start(description, SyntheticSource(samples=90), output).run(CurveOnDisk(output))
