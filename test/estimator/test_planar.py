"""The flat mode: known motions of a tilted body, seen from above."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.estimator.estimator import Estimate
from trace_ros.estimator.planar import PLANAR_VARIANCE, planar


def estimate(roll: float, pitch: float, yaw: float, velocity, turning=(0.0, 0.0, 0.0), seed: int = 0) -> Estimate:
    """An estimate whose fields the flat mode looks at; the covariances are any positive definite ones."""
    rng = np.random.default_rng(seed)
    pose, twist = rng.normal(size=(2, 6, 6))
    return Estimate(
        stamp_ns=1,
        position=np.array([1.0, 2.0, 3.0]),
        orientation=Rotation.from_euler("xyz", [roll, pitch, yaw]).as_quat(),
        velocity=np.asarray(velocity, dtype=float),
        angular_velocity=np.asarray(turning, dtype=float),
        attention=np.full(6, 1 / 6, dtype=np.float32),
        stationary=False,
        pose_covariance=pose @ pose.T + np.eye(6),
        twist_covariance=twist @ twist.T + np.eye(6),
    )


def test_a_level_body_keeps_its_motion() -> None:
    flat = planar(estimate(0, 0, 0.7, (1.0, 0.2, 0.5), (0.3, 0.2, 0.9)))
    np.testing.assert_allclose(flat.position, [1, 2, 0])
    np.testing.assert_allclose(flat.orientation, [0, 0, np.sin(0.35), np.cos(0.35)], atol=1e-12)
    np.testing.assert_allclose(flat.velocity, [1.0, 0.2, 0.0], atol=1e-12)
    np.testing.assert_allclose(flat.angular_velocity, [0, 0, 0.9], atol=1e-12)


def test_climbing_is_slower_on_the_map() -> None:
    """Nose up by 30 degrees (pitch is positive downwards): 1 m/s along the body is cos 30 on the ground."""
    flat = planar(estimate(0, -np.pi / 6, 1.0, (1.0, 0, 0)))
    np.testing.assert_allclose(flat.velocity, [np.cos(np.pi / 6), 0, 0], atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1, 1), st.floats(-1.2, 1.2), st.floats(-3, 3), st.integers(0, 1000))
def test_velocity_on_the_map_and_covariances(roll: float, pitch: float, yaw: float, seed: int) -> None:
    before = estimate(roll, pitch, yaw, (0.5, -0.3, 0.2), (0.1, 0.4, -0.2), seed)
    flat = planar(before)
    # In the odometry frame, the horizontal velocity is the one that the body has.
    true = Rotation.from_quat(before.orientation).apply(before.velocity)
    found = Rotation.from_quat(flat.orientation).apply(flat.velocity)
    np.testing.assert_allclose(found, [true[0], true[1], 0.0], atol=1e-9)
    turning = Rotation.from_quat(before.orientation).apply(before.angular_velocity)
    assert flat.angular_velocity[2] == pytest.approx(turning[2])
    assert Rotation.from_quat(flat.orientation).as_euler("xyz") == pytest.approx([0, 0, yaw], abs=1e-9)
    for covariance in (flat.pose_covariance, flat.twist_covariance):
        np.testing.assert_allclose(covariance, covariance.T, atol=1e-12)
        assert (np.linalg.eigvalsh(covariance) > 0).all()
        for axis in (2, 3, 4):
            assert covariance[axis, axis] == PLANAR_VARIANCE
    kept = np.ix_([0, 1, 5], [0, 1, 5])
    np.testing.assert_array_equal(flat.pose_covariance[kept], before.pose_covariance[kept])
    # Variance does not come from nowhere: the rotation keeps the trace, and less of it is left.
    assert np.trace(flat.twist_covariance[:2, :2]) <= np.trace(before.twist_covariance[:3, :3]) + 1e-9
