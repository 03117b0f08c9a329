import pytest
from untrained import export_untrained

from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.robot import RobotDescription


@pytest.fixture(scope="session")
def estimator(tmp_path_factory) -> TraceEstimator:
    """An estimator with random weights."""
    robot = RobotDescription.load("go2")
    return TraceEstimator.load(export_untrained(tmp_path_factory.mktemp("model") / "trace.pt", robot), robot)
