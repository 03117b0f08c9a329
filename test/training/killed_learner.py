"""A training run of another method in a process of its own, for the test that kills it: ``METHOD ROLLOUTS FOLDER``."""

import sys
from pathlib import Path

from synthetic import SyntheticSource
from test_learners import describe_method

from trace_ros.training.monitor import SilentMonitor
from trace_ros.training.pretrain import Pretraining

if __name__ == "__main__":
    description = describe_method(sys.argv[1], 40, Path(sys.argv[2]))
    Pretraining.start(description, SyntheticSource(samples=90), Path(sys.argv[3])).run(SilentMonitor())
