import pytest

from trace_ros.robot import RobotDescription


@pytest.fixture(scope="session")
def go2() -> RobotDescription:
    return RobotDescription.load("go2")
