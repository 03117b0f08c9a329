"""`SensorStreams` as a whole: what it tells of its inputs, time lines, and that a clear leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from test_mounting import transform
from wire import feed, imu_message, joint_message, samples_of

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.streams import SensorStreams, StreamSettings, TimeJump

ROBOT = RobotDescription.load("go2")
NAMES = list(ROBOT.joint_names)
MS = 1_000_000
START = 1_000_000 * MS


def pairs(count: int, start: int = START, names: list[str] | None = None):
    for k in range(count):
        yield "imu", imu_message(start + 2 * MS * k, (0.1 * k, 0.0, 0.0))
        yield "joints", joint_message(start + 2 * MS * k, NAMES if names is None else names)


def test_it_tells_which_name_fills_which_slot() -> None:
    streams = SensorStreams(ROBOT)
    assert "FR   FR_hip_joint, FR_thigh_joint, FR_calf_joint" in streams.mapping()
    assert streams.found() == ""
    feed(streams, pairs(2, names=["arm", *NAMES]))
    assert streams.found() == "all 12 joints found; 1 others ignored (arm)"
    assert streams.fault() == ""
    assert (streams.reports_velocity, streams.reports_effort) == (False, False)


def test_legs_of_several_publishers_are_found() -> None:
    streams = SensorStreams(ROBOT)
    for part in (NAMES[:6], NAMES[6:]):
        assert streams.found() == ""
        streams.add_joints(joint_message(START, part), 0)
    assert streams.found() == "all 12 joints found, by 2 publishers"


def test_missing_joints_are_a_fault_after_a_while() -> None:
    streams = SensorStreams(ROBOT)
    feed(streams, pairs(10, names=NAMES[:-1]), finish=False)
    assert streams.fault() == ""
    feed(streams, pairs(30, START + 20 * MS, NAMES[:-1]), finish=False)
    assert streams.fault().startswith("joint names missing from the joint states: RR_calf_joint; they have: FL_hip")
    feed(streams, pairs(10, START + 80 * MS))
    assert streams.fault() == ""


def test_two_clocks_are_a_fault() -> None:
    streams = SensorStreams(ROBOT)
    for k in range(100):
        streams.add_imu(imu_message(START + 2 * MS * k), 0)
        streams.add_joints(joint_message(START + 50_000 * MS + 2 * MS * k, NAMES), 0)
    assert "two clocks" in streams.fault()
    assert "+49.998 s apart" in streams.fault()


def test_one_fault_is_told_once_with_its_cause() -> None:
    told = []
    streams = SensorStreams(ROBOT, on_first=lambda kind, text: told.append((kind.name, text)))
    bad = [("imu", imu_message(START + MS * (2 * k + 101), (np.nan, 0.0, 0.0))) for k in range(5)]
    feed(streams, [*pairs(50), *bad])
    assert [name for name, _ in told] == ["imu_not_finite"]
    assert told[0][1].startswith("NaN or infinity in the IMU message: dropped; usually a driver")
    assert streams.tally.counts == {"imu_not_finite": 5}


def test_after_a_clear_all_is_as_at_the_start() -> None:
    messages = list(pairs(60))
    fresh = samples_of(feed(SensorStreams(ROBOT), messages))
    used = SensorStreams(ROBOT)
    feed(used, pairs(40, START + 70_000 * MS, list(reversed(NAMES))), finish=False)
    used.clear()
    events = feed(used, messages)
    assert not any(isinstance(event, TimeJump) for event in events)
    for one, other in zip(samples_of(events), fresh, strict=True):
        assert one.stamp_ns == other.stamp_ns
        np.testing.assert_array_equal(one.angular_velocity, other.angular_velocity)


def test_a_bag_that_loops_is_a_jump_between_its_samples() -> None:
    events = feed(SensorStreams(ROBOT), [*pairs(30, START + 60_000 * MS), *pairs(30)])
    kinds = [isinstance(event, TimeJump) for event in events]
    assert kinds == [False] * 30 + [True] + [False] * 30
    jump = events[30]
    assert isinstance(jump, TimeJump)
    assert jump.seconds == pytest.approx(-60.058)
    ignoring = SensorStreams(ROBOT, StreamSettings(reset_on_time_jump=False))
    assert len(feed(ignoring, [*pairs(30, START + 60_000 * MS), *pairs(30)])) == 30
    assert ignoring.tally.counts == {"imu_disordered": 30, "joints_disordered": 30}


def test_the_mounting_by_tf_is_waited_for() -> None:
    streams = SensorStreams(ROBOT, StreamSettings(imu_mounting="tf"))
    assert not feed(streams, pairs(20), finish=False)
    assert "no static transform from 'base_link' to the IMU's frame 'imu_link'" in streams.fault()
    turn = Rotation.from_euler("z", np.pi / 2)
    streams.add_transforms([transform("base_link", "imu_link", ROBOT.imu.position, turn)])
    samples = samples_of(feed(streams, pairs(20, START + 40 * MS)))
    assert len(samples) == 20
    np.testing.assert_allclose(samples[3].angular_velocity, [0.0, 0.3, 0.0], atol=1e-12)
    assert streams.fault() == ""


def test_a_mounting_that_the_urdf_lacks_is_refused_at_once() -> None:
    with pytest.raises(TraceError, match="no link 'head_imu' for the IMU"):
        SensorStreams(ROBOT, StreamSettings(imu_mounting="urdf", imu_frame="head_imu"))


STAMPS = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1))
NEAR = st.tuples(st.integers(2**31 - 3, 2**31 - 1), st.integers(0, 1_000_000_000))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), STAMPS | NEAR), max_size=60))
def test_any_stamps_give_samples_that_a_message_can_bear_in_order(messages: list) -> None:
    """A stamp's fields hold more than a time does: what is passed on must fit in a message again."""
    streams, last = SensorStreams(ROBOT), None
    for number, (is_imu, (seconds, nanoseconds)) in enumerate(messages):
        message = imu_message(0) if is_imu else joint_message(0, NAMES)
        message.header.stamp.sec, message.header.stamp.nanosec = seconds, nanoseconds
        for event in (streams.add_imu if is_imu else streams.add_joints)(message, START + MS * number):
            if isinstance(event, TimeJump):
                last = None
                continue
            assert 0 < event.stamp_ns < 2**31 * 1_000_000_000
            assert last is None or event.stamp_ns > last
            last = event.stamp_ns
