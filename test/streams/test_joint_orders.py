"""Whatever the order of the joints in the messages, and whoever else is in them: the same odometry, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import feed, imu_message, joint_message

from trace_ros.baselines.registry import load_estimator
from trace_ros.logs import JOINTS, Sample
from trace_ros.robot import JointMessages, RobotDescription
from trace_ros.streams import Event, SensorStreams

START, STEP = 5_000_000_000, 2_000_000
COUNT = 40
EXTRA = ("arm_joint", "gripper", "FL_wheel_joint", "")

ROBOT = RobotDescription.load("go2")
FIRST, SECOND = ROBOT.joint_names[:2]
RENAMED = ROBOT.model_copy(
    update={"joint_messages": JointMessages(names={FIRST: "abad"}, sign={SECOND: -1}, offset={SECOND: 0.25})}
)
"""Names, signs and zeros of its own."""

RNG = np.random.default_rng(4)
GYRO, ACCEL = RNG.normal(0, 0.3, (COUNT, 3)), RNG.normal(0, 0.3, (COUNT, 3)) + (0.0, 0.0, 9.81)
POSITION = ROBOT.nominal_joint_positions + RNG.normal(0, 0.1, (COUNT, JOINTS))
VELOCITY, EFFORT = RNG.normal(0, 1.0, (COUNT, JOINTS)), RNG.normal(0, 5.0, (COUNT, JOINTS))


def run(
    robot: RobotDescription, publishers: Sequence[Sequence[str]], description: RobotDescription | None = None
) -> list[Event]:
    """Samples of a log whose joint states come from publishers, each with the names that it has, in its order.

    They are read by the robot's description, or by another.
    """
    messages: list[tuple[str, Any]] = []
    places = {name: slot for slot, name in enumerate(robot.reported_joint_names)}
    for k in range(COUNT):
        stamp_ns = START + STEP * k
        for names in publishers:
            rows = [
                [float(table[k, places[name]]) if name in places else 7.0 for name in names]
                for table in (POSITION, VELOCITY, EFFORT)
            ]
            messages.append(("joints", joint_message(stamp_ns, names, *rows)))
        messages.append(("imu", imu_message(stamp_ns, GYRO[k], ACCEL[k])))
    return feed(SensorStreams(description or robot), messages)


@st.composite
def publishers_of(draw: st.DrawFn, robot: RobotDescription) -> list[list[str]]:
    """All joints in any order, dealt out to one to four publishers, with others between."""
    names = draw(st.permutations(robot.reported_joint_names))
    owner = draw(st.lists(st.integers(0, draw(st.integers(0, 3))), min_size=JOINTS, max_size=JOINTS))
    dealt = [[name for name, own in zip(names, owner, strict=True) if own == number] for number in range(4)]
    found = [part for part in dealt if part]
    for name in draw(st.lists(st.sampled_from(EXTRA), unique=True)):
        part = found[draw(st.integers(0, len(found) - 1))]
        part.insert(draw(st.integers(0, len(part))), name)
    return found


def rows(samples: Sequence[Any]) -> list[bytes]:
    assert all(isinstance(sample, Sample) for sample in samples)
    names = ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque")
    return [b"".join(getattr(sample, name).tobytes() for name in names) for sample in samples]


def poses(robot: RobotDescription, samples: Sequence[Any]) -> list[bytes]:
    estimator = load_estimator("iekf", robot)
    found = [estimate for sample in samples if (estimate := estimator.step(sample)) is not None]
    return [item.position.tobytes() + item.orientation.tobytes() + item.velocity.tobytes() for item in found]


@pytest.mark.parametrize("robot", [ROBOT, RENAMED], ids=["by its URDF", "by names of its own"])
def test_any_order_among_any_others_from_any_publishers(robot: RobotDescription) -> None:
    expected = run(robot, [robot.reported_joint_names])
    assert [sample.stamp_ns for sample in expected if isinstance(sample, Sample)] == [
        START + STEP * k for k in range(COUNT)
    ]
    odometry = poses(robot, expected)
    assert len(set(odometry)) == COUNT - 29

    @settings(max_examples=60, deadline=None)
    @given(publishers_of(robot))
    def holds(publishers: list[list[str]]) -> None:
        samples = run(robot, publishers)
        assert rows(samples) == rows(expected)
        assert poses(robot, samples) == odometry

    holds()


def test_the_order_matters_where_names_are_wrong() -> None:
    """What the property above would see: two joints that have each other's names."""
    names = list(ROBOT.reported_joint_names)
    places = dict(zip(names, [names[1], names[0], *names[2:]], strict=True))
    swapped = RENAMED.model_copy(update={"joint_messages": JointMessages(names=places)})
    assert rows(run(ROBOT, [names], swapped)) != rows(run(ROBOT, [names]))
