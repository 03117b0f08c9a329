"""A training run in a process of its own, for the test that kills it: ``killed_run.py FOLDER``."""

import sys
from pathlib import Path

from pretraining import describe
from synthetic import SyntheticSource

from trace_ros.training.monitor import SilentMonitor
from trace_ros.training.pretrain import Pretraining

if __name__ == "__main__":
    Pretraining.start(describe(steps=60), SyntheticSource(samples=90), Path(sys.argv[1])).run(SilentMonitor())
