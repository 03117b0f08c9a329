"""What leaves the node, field by field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trace_ros.estimator.estimator import Estimate
from trace_ros.nodes.messages import OutputMessages, reliability_of_feet


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
    messages.fill_feet(estimate.stamp_ns, reliability_of_feet(estimate))
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
    legs, stamp = messages.foot_reliability.layout.dim
    assert (legs.label, legs.size, legs.stride) == ("FL,FR,RL,RR", 4, 4)
    assert (stamp.label, stamp.size, stamp.stride) == ("stamp=12.000000034", 1, 1)

    filtered = replace(estimate, attention=None, contact=np.array([True, False, False, True]))
    assert reliability_of_feet(filtered) == [1.0, 0.0, 0.0, 1.0]
    assert reliability_of_feet(replace(estimate, attention=None)) == [0.0] * 4
