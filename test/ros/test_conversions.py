"""Stamps and poses of messages; and the messages of rclpy through the streams, whatever they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from geometry_msgs.msg import PoseWithCovarianceStamped
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.clock import ClockType, ROSClock
from rclpy.time import Time
from sensor_msgs.msg import Imu, JointState

from trace_ros.errors import TraceError
from trace_ros.nodes.conversions import now_ns, pose_arrays, pose_deviations, set_stamp, stamp_to_ns
from trace_ros.robot import RobotDescription
from trace_ros.streams import SensorStreams, TimeJump

ROBOT = RobotDescription.load("go2")
NAMES = list(ROBOT.joint_names)
START = 1_000_000_000_000
ANY = st.floats(width=64)


def test_the_clock_is_the_systems_or_that_of_the_simulation() -> None:
    clock = ROSClock()
    assert abs(now_ns(clock) - clock.now().nanoseconds) < 1_000_000_000
    clock._set_ros_time_is_active(True)
    clock.set_ros_time_override(Time(seconds=5, clock_type=ClockType.ROS_TIME))
    assert now_ns(clock) == 5_000_000_000


@given(st.integers(0, (2**31 - 1) * 1_000_000_000 + 999_999_999))
def test_stamps_survive(stamp_ns: int) -> None:
    message = Imu()
    set_stamp(message.header.stamp, stamp_ns)
    assert stamp_to_ns(message.header.stamp) == stamp_ns


def imu_message(stamp: tuple[int, int], values: list[float], unknown: bool) -> Imu:
    message = Imu()
    message.header.stamp.sec, message.header.stamp.nanosec = stamp
    w, a = message.angular_velocity, message.linear_acceleration
    w.x, w.y, w.z, a.x, a.y, a.z = values
    message.linear_acceleration_covariance[0] = -1.0 if unknown else 0.0
    return message


def joint_message(stamp: tuple[int, int], names: list[str], arrays: tuple[list[float], ...]) -> JointState:
    message = JointState(name=names, position=arrays[0], velocity=arrays[1], effort=arrays[2])
    message.header.stamp.sec, message.header.stamp.nanosec = stamp
    return message


STAMPS = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1)) | st.tuples(
    st.just(1000), st.integers(0, 999_999_999)
)
IMU = st.builds(imu_message, STAMPS, st.lists(ANY, min_size=6, max_size=6), st.booleans())
JOINTS = st.builds(
    joint_message,
    STAMPS,
    st.lists(st.sampled_from([*NAMES, "", "x"]), max_size=14) | st.permutations(NAMES),
    st.tuples(*[st.lists(ANY, max_size=14) | st.lists(st.floats(-3, 3), min_size=12, max_size=12)] * 3),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(IMU | JOINTS, max_size=60))
def test_nothing_that_a_message_holds_is_an_exception(messages: list) -> None:
    streams = SensorStreams(ROBOT)
    last = None
    for number, message in enumerate(messages):
        add = streams.add_imu if isinstance(message, Imu) else streams.add_joints
        for event in add(message, START + number):
            if isinstance(event, TimeJump):
                last = None
                continue
            assert last is None or event.stamp_ns > last
            last = event.stamp_ns
            for values in (event.angular_velocity, event.linear_acceleration, event.joint_position):
                assert np.isfinite(values).all()
            for values in (event.joint_velocity, event.joint_torque):
                assert values is None or np.isfinite(values).all()
        assert "\n" not in streams.fault()
    streams.finish()


def test_a_pose_in_another_frame_is_refused() -> None:
    message = PoseWithCovarianceStamped()
    message.pose.pose.position.x = 1.0
    for frame in ("", "odom"):
        message.header.frame_id = frame
        position, orientation = pose_arrays(message, "odom")
        assert position.tolist() == [1.0, 0.0, 0.0]
        assert orientation.tolist() == [0.0, 0.0, 0.0, 1.0]
    message.header.frame_id = "map"
    with pytest.raises(TraceError, match="in frame 'map', expected 'odom'"):
        pose_arrays(message, "odom")


def test_the_deviations_of_a_pose() -> None:
    message = PoseWithCovarianceStamped()
    assert pose_deviations(message) == (0.0, 0.0)
    np.fill_diagonal(message.pose.covariance.reshape(6, 6), [0.04, 0.09, 0.01, 1.0, 1.0, 0.25])
    assert pose_deviations(message) == pytest.approx((0.3, 0.5))


@pytest.mark.parametrize("index", [0, 7, 14, 35])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300])
def test_a_covariance_that_is_none_is_refused(index: int, value: float) -> None:
    message = PoseWithCovarianceStamped()
    message.pose.covariance[index] = value
    with pytest.raises(TraceError, match=r"variances of x, y, z and heading are .*: expected 0 or more"):
        pose_deviations(message)


@pytest.mark.parametrize(
    ("position", "orientation", "complaint"),
    [
        ((math.nan, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), "position .* is none"),
        ((0.0, 1e10, 0.0), (0.0, 0.0, 0.0, 1.0), "position .* is none"),
        ((0.0, 0.0, -math.inf), (0.0, 0.0, 0.0, 1.0), "position .* is none"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), "orientation .* is none"),
        ((0.0, 0.0, 0.0), (0.0, math.nan, 0.0, 1.0), "orientation .* is none"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 1e300, 1.0), "orientation .* is none"),
    ],
)
def test_a_pose_that_is_none_is_refused(position: tuple, orientation: tuple, complaint: str) -> None:
    message = PoseWithCovarianceStamped()
    p, q = message.pose.pose.position, message.pose.pose.orientation
    (p.x, p.y, p.z), (q.x, q.y, q.z, q.w) = position, orientation
    with pytest.raises(TraceError, match=complaint):
        pose_arrays(message, "odom")
