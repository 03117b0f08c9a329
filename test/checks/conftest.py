from pathlib import Path

import pytest

from trace_ros.bags import write_bag
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course


@pytest.fixture(scope="session")
def go2() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="session")
def walk(go2: RobotDescription) -> SensorLog:
    """15 s: a robot stands, walks a bow, and stands, with the noise of its sensors."""
    phases = (
        Phase(stand=1.5),
        Phase(walk_to=(1.5, 0.0)),
        Phase(walk_to=(1.5, 1.5)),
        Phase(walk_to=(3.0, 1.5)),
        Phase(stand=2.0),
    )
    course = Course.load("demo").model_copy(update={"duration": 15.0, "phases": phases, "patches": ()})
    return simulate_course(course, go2, 0).measured


@pytest.fixture(scope="session")
def walk_bag(walk: SensorLog, go2: RobotDescription, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bags") / "walk"
    write_bag(path, walk, go2)
    return path
