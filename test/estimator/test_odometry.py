"""Pose integration against scipy, and a covariance that is valid and grows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.transform import Rotation

from trace_ros.estimator.odometry import ErrorModel, PoseIntegrator
from trace_ros.geometry import roll_pitch_yaw

increments = arrays(float, (20, 6), elements=st.floats(-0.4, 0.4))


@given(increments, arrays(float, 3, elements=st.floats(-3, 3)))
def test_integration_equals_composition_of_rigid_motions(steps, start):
    rotation, position = Rotation.from_rotvec(start), np.array([1.0, -2.0, 0.5])
    pose = PoseIntegrator()
    pose.set_pose(tuple(position), tuple(rotation.as_quat()))
    for step in steps:
        pose.advance(tuple(step[:3]), tuple(step[3:]), 0.002)
        position = position + rotation.apply(step[:3])
        rotation = rotation * Rotation.from_rotvec(step[3:])
    np.testing.assert_allclose(pose.position, position, atol=1e-12)
    assert (Rotation.from_quat(pose.orientation).inv() * rotation).magnitude() < 1e-7
    np.testing.assert_allclose(pose.roll_pitch, roll_pitch_yaw(rotation.as_quat())[:2], atol=1e-6)


def test_a_circle_closes():
    pose = PoseIntegrator()
    n = 31_416
    for _ in range(n):
        # The chord of each arc, in the frame before the turn.
        turn = 2 * np.pi / n
        pose.advance((np.sin(turn) / turn * 1e-4, (1 - np.cos(turn)) / turn * 1e-4, 0.0), (0.0, 0.0, turn), 0.002)
    np.testing.assert_allclose(pose.position, 0.0, atol=1e-9)
    assert abs(np.linalg.norm(pose.orientation) - 1) < 1e-12


@given(increments)
def test_covariance_stays_symmetric_positive_definite(steps):
    pose = PoseIntegrator()
    for step in np.tile(steps, (5, 1)):
        pose.advance(tuple(step[:3]), tuple(step[3:]), 0.002)
    assert np.isfinite(pose.covariance).all()
    np.testing.assert_array_equal(pose.covariance, pose.covariance.T)
    assert np.linalg.eigvalsh(pose.covariance).min() > 0


def test_position_and_heading_grow_while_tilt_stays_bounded():
    model = ErrorModel()
    pose = PoseIntegrator(model)
    history = []
    for _ in range(50_000):
        pose.advance((0.002, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
        history.append(np.diag(pose.covariance).copy())
    assert np.linalg.eigvalsh(pose.covariance).min() > 0
    history = np.array(history)
    assert (np.diff(history[:, [0, 1, 5]], axis=0) > 0).all()
    assert history[-1, 3] == pytest.approx(model.tilt**2, rel=1e-6)
    assert history[-1, 5] == pytest.approx(model.yaw_per_sqrt_second**2 * 100, rel=1e-2)


def test_heading_uncertainty_turns_into_sideways_uncertainty():
    """After d metres straight ahead with a heading error of sigma, the body is off by sigma * d to the side."""
    model = ErrorModel(position_per_sqrt_metre=1e-9, position_per_sqrt_second=1e-9, yaw_per_sqrt_second=1e-9, tilt=1e-9)
    pose = PoseIntegrator(model)
    pose.covariance[5, 5] = 0.01**2
    for _ in range(1000):
        pose.advance((0.01, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
    assert np.sqrt(pose.covariance[1, 1]) == pytest.approx(0.1, rel=1e-3)
    assert np.sqrt(pose.covariance[0, 0]) == pytest.approx(1e-3, rel=1e-3)


def test_errors_of_position_and_rotation_are_correlated_with_the_right_sign():
    """A heading that is off to the left ends to the left; a nose that is off downwards (+Y) ends lower."""
    pose = PoseIntegrator()
    for _ in range(1000):
        pose.advance((0.01, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
    assert pose.covariance[1, 5] > 0.5 * pose.covariance[5, 5] * 10
    assert pose.covariance[2, 4] < 0
    sideways = PoseIntegrator()
    for _ in range(1000):
        sideways.advance((0.0, 0.01, 0.0), (0.0, 0.0, 0.0), 0.002)
    assert sideways.covariance[0, 5] < 0
    assert sideways.covariance[2, 3] > 0


def test_covariance_is_that_of_many_walks_with_random_heading_errors():
    """Against simulation of the error itself, along a curve: all of x, y and yaw."""
    model = ErrorModel(position_per_sqrt_metre=1e-9, position_per_sqrt_second=1e-9, yaw_per_sqrt_second=0.02, tilt=1e-9)
    pose = PoseIntegrator(model)
    rng = np.random.default_rng(0)
    walks, dt, step, turn = 4000, 0.05, np.array([0.02, 0.003]), 0.01
    position, true_position = np.zeros((walks, 2)), np.zeros(2)
    heading, true_heading = rng.normal(0, 1e-3, walks), 0.0
    for _ in range(200):
        pose.advance((*step, 0.0), (0.0, 0.0, turn), dt)
        c, s = np.cos(heading), np.sin(heading)
        position += np.stack((c * step[0] - s * step[1], s * step[0] + c * step[1]), axis=1)
        c, s = np.cos(true_heading), np.sin(true_heading)
        true_position += (c * step[0] - s * step[1], s * step[0] + c * step[1])
        heading += turn + rng.normal(0, 0.02 * np.sqrt(dt), walks)
        true_heading += turn
    error = np.column_stack((position - true_position, heading - true_heading))
    chosen = pose.covariance[np.ix_([0, 1, 5], [0, 1, 5])]
    scale = np.sqrt(np.outer(np.diag(chosen), np.diag(chosen)))
    np.testing.assert_allclose(np.cov(error.T) / scale, chosen / scale, atol=0.1)


def test_widen_adds_variance_to_the_position_alone():
    pose = PoseIntegrator()
    before = pose.covariance.copy()
    pose.widen(0.3)
    np.testing.assert_allclose(np.diag(pose.covariance - before), [0.09] * 3 + [0] * 3)


@pytest.mark.parametrize(
    ("position", "orientation"),
    [
        ((0, 0, 0), (0, 0, 0, 0)),
        ((np.nan, 0, 0), (0, 0, 0, 1)),
        ((0, 0, 0), (0, np.inf, 0, 1)),
        ((0, np.inf, 0), (0, 0, 0, 1)),
    ],
)
def test_what_is_no_pose_is_refused_and_changes_nothing(position, orientation):
    pose = PoseIntegrator()
    pose.set_pose((1.0, 2.0, 3.0), (0.0, 0.0, 0.0, 1.0))
    with pytest.raises(ValueError, match="not a pose"):
        pose.set_pose(position, orientation)
    assert pose.position == (1.0, 2.0, 3.0)
