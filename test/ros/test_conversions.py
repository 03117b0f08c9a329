"""Stamps and poses in messages to numbers and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from geometry_msgs.msg import PoseWithCovarianceStamped
from hypothesis import given
from hypothesis import strategies as st
from sensor_msgs.msg import Imu

from trace_ros.errors import TraceError
from trace_ros.nodes.conversions import pose_arrays, pose_deviations, set_stamp, stamp_to_ns


@given(st.integers(0, (2**31 - 1) * 1_000_000_000 + 999_999_999))
def test_stamps_survive(stamp_ns: int) -> None:
    message = Imu()
    set_stamp(message.header.stamp, stamp_ns)
    assert stamp_to_ns(message.header.stamp) == stamp_ns


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
    message.pose.covariance[35] = -1.0
    assert pose_deviations(message)[1] == 0.0
    message.pose.covariance[35] = math.nan
    assert not math.isfinite(sum(pose_deviations(message)))
    message.pose.covariance[0] = math.inf
    assert pose_deviations(message)[0] == math.inf
