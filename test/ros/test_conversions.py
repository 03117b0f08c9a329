"""Messages to arrays and back: whatever is in a message, it is used as it should be or refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from geometry_msgs.msg import PoseWithCovarianceStamped
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import Imu, JointState

from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import Estimate
from trace_ros.nodes.conversions import (
    BadMessageError,
    JointMapper,
    OutputMessages,
    imu_vectors,
    pose_arrays,
    set_stamp,
    stamp_to_ns,
)

NAMES = tuple(f"{leg}_{joint}" for leg in ("FL", "FR", "RL", "RR") for joint in ("hip", "thigh", "calf"))
ANY = st.floats(width=64)


@given(st.integers(0, (2**31 - 1) * 1_000_000_000 + 999_999_999))
def test_stamps_survive(stamp_ns: int) -> None:
    message = Imu()
    set_stamp(message.header.stamp, stamp_ns)
    assert stamp_to_ns(message.header.stamp) == stamp_ns


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY, min_size=6, max_size=6))
def test_imu(values: list[float]) -> None:
    message = Imu()
    w, a = message.angular_velocity, message.linear_acceleration
    w.x, w.y, w.z, a.x, a.y, a.z = values
    if all(abs(value) <= 1e6 for value in values):  # false for NaN
        _, angular, linear = imu_vectors(message)
        assert [*angular, *linear] == values
    else:
        with pytest.raises(BadMessageError) as caught:
            imu_vectors(message)
        assert caught.value.kind in ("not_finite", "absurd")


@pytest.mark.parametrize(("value", "kind"), [(1.001e6, "absurd"), (-1e300, "absurd"), (math.inf, "not_finite")])
def test_numbers_that_overflow_single_precision_are_refused(value: float, kind: str) -> None:
    message = Imu()
    message.linear_acceleration.z = value
    with pytest.raises(BadMessageError) as caught:
        imu_vectors(message)
    assert caught.value.kind == kind


@pytest.mark.parametrize("field", ["angular_velocity_covariance", "linear_acceleration_covariance"])
def test_an_imu_that_does_not_report_is_refused(field: str) -> None:
    message = Imu()
    getattr(message, field)[0] = -1.0
    with pytest.raises(BadMessageError, match="not reported"):
        imu_vectors(message)


@settings(max_examples=50, deadline=None)
@given(st.permutations([*NAMES, "arm_1", "arm_2"]), st.integers(0, 2**32 - 1))
def test_joints_are_found_by_name(names: list[str], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(3, len(names)))
    message = JointState(name=names, position=values[0], velocity=values[1], effort=values[2])
    joints = JointMapper(NAMES).convert(message)
    for found, row in ((joints.position, values[0]), (joints.velocity, values[1]), (joints.torque, values[2])):
        assert found is not None
        assert found.tolist() == [row[names.index(name)] for name in NAMES]


def test_the_order_of_names_may_change_between_messages() -> None:
    mapper = JointMapper(NAMES)
    for names in (list(NAMES), list(reversed(NAMES)), list(NAMES)):
        message = JointState(name=names, position=[float(NAMES.index(name)) for name in names])
        assert mapper.convert(message).position.tolist() == list(range(12))


def test_absent_arrays_and_unwanted_effort_are_none() -> None:
    joints = JointMapper(NAMES).convert(
        JointState(name=NAMES, position=[0.1] * 12, effort=[1.0] * 12), use_effort=False
    )
    assert joints.velocity is None
    assert joints.torque is None


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"name": NAMES[:-1]}, "missing_joints", "missing from the joint state: RR_calf; it has: FL_hip, FL_thigh"),
        ({"name": []}, "missing_joints", "it has: none"),
        ({"name": [*NAMES, "FL_hip"]}, "repeated_joints", "more than once in the joint state: FL_hip"),
        ({"position": []}, "wrong_length", "no positions"),
        ({"position": [0.0] * 11}, "wrong_length", "12 names but 11 values of position"),
        ({"velocity": [0.0] * 13}, "wrong_length", "12 names but 13 values of velocity"),
        ({"position": [*[0.0] * 11, math.nan]}, "not_finite", "the position of RR_calf"),
        ({"effort": [math.inf, *[0.0] * 11]}, "not_finite", "the effort of FL_hip"),
        ({"effort": [*[0.0] * 10, -1e30, 0.0]}, "absurd", "beyond 1e\\+06 in the effort of RR_thigh"),
    ],
)
def test_bad_joint_states_are_refused_by_name(change: dict, kind: str, text: str) -> None:
    message = JointState(**({"name": NAMES, "position": [0.0] * 12} | change))
    mapper = JointMapper(NAMES)
    for _ in range(2):  # the second message of a kind is refused like the first
        with pytest.raises(BadMessageError, match=text) as caught:
            mapper.convert(message)
        assert caught.value.kind == kind
    good = JointState(name=NAMES, position=[0.0] * 12)
    assert mapper.convert(good).position.tolist() == [0.0] * 12


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*NAMES, "", "x"]), max_size=14),
    st.tuples(*[st.lists(ANY, max_size=14)] * 3),
)
def test_any_joint_state_is_finite_or_refused(names: list[str], arrays: tuple[list[float], ...]) -> None:
    message = JointState(name=names, position=arrays[0], velocity=arrays[1], effort=arrays[2])
    try:
        joints = JointMapper(NAMES).convert(message)
    except BadMessageError as error:
        assert "\n" not in error.text
    else:
        for found in (joints.position, joints.velocity, joints.torque):
            assert found is None or (found.shape == (12,) and np.isfinite(found).all())


def test_an_estimate_fills_all_messages() -> None:
    covariances = np.arange(36.0).reshape(6, 6), np.arange(36.0).reshape(6, 6) + 100
    estimate = Estimate(
        12_000_000_034,
        np.array([1.0, 2.0, 3.0]),
        np.array([0.5, -0.5, 0.5, 0.5]),
        np.array([0.1, 0.2, 0.3]),
        np.array([0.4, 0.5, 0.6]),
        np.array([0.1, 0.2, 0.3, 0.25, 0.05, 0.1], dtype=np.float32),
        False,
        *covariances,
    )
    messages = OutputMessages("odom", "base_link")
    messages.fill(estimate)
    odometry, transform = messages.odometry, messages.transform
    assert (odometry.header.frame_id, odometry.child_frame_id) == ("odom", "base_link")
    assert (transform.header.frame_id, transform.child_frame_id) == ("odom", "base_link")
    for header in (odometry.header, transform.header):
        assert (header.stamp.sec, header.stamp.nanosec) == (12, 34)
    p, q = odometry.pose.pose.position, odometry.pose.pose.orientation
    assert (p.x, p.y, p.z, q.x, q.y, q.z, q.w) == (1.0, 2.0, 3.0, 0.5, -0.5, 0.5, 0.5)
    t, r = transform.transform.translation, transform.transform.rotation
    assert (t.x, t.y, t.z, r.x, r.y, r.z, r.w) == (1.0, 2.0, 3.0, 0.5, -0.5, 0.5, 0.5)
    v, w = odometry.twist.twist.linear, odometry.twist.twist.angular
    assert (v.x, v.y, v.z, w.x, w.y, w.z) == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    np.testing.assert_array_equal(odometry.pose.covariance, covariances[0].ravel())
    np.testing.assert_array_equal(odometry.twist.covariance, covariances[1].ravel())
    assert list(messages.foot_reliability.data) == pytest.approx([0.3, 0.25, 0.05, 0.1])
    assert messages.foot_reliability.layout.dim[0].label == "FL,FR,RL,RR"


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
