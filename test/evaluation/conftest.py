import pytest
from untrained import export_untrained
from walks import drawn_walk

from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.robot import RobotDescription


@pytest.fixture(scope="session")
def estimator(tmp_path_factory) -> TraceEstimator:
    """An estimator with random weights."""
    robot = RobotDescription.load("go2")
    return TraceEstimator.load(export_untrained(tmp_path_factory.mktemp("model") / "trace.pt", robot), robot)


@pytest.fixture(scope="session")
def walks():
    """Walks with errors of `walks.TRUTH`; not to be changed."""
    return [drawn_walk(seed) for seed in range(40)]
