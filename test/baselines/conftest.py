import pytest
import torch

from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course
from trace_ros.sim.rollout import Rollout


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def go2() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="session")
def walked(go2) -> Rollout:
    """Eight seconds on level ground with the sensors' noise and biases: standing, then walking round a corner."""
    course = Course.load("demo").model_copy(
        update={
            "duration": 8.0,
            "phases": (Phase(stand=1.0), Phase(walk_to=(2.0, 0.0)), Phase(walk_to=(2.0, 2.0))),
            "patches": (),
        }
    )
    return simulate_course(course, go2, 5)
