"""Pose integration against scipy, and a covariance that is valid and grows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from scipy.spatial.transform import Rotation

from trace_ros.estimator.error_model import ErrorModel, LinearVelocityError, PoseCovariance
from trace_ros.estimator.odometry import PoseIntegrator
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


def all_silent(**changes) -> ErrorModel:
    """A model in which every source is silent but those given."""
    silent = 1e-9
    quiet = {
        "linear_velocity": {"base": (silent,) * 3, "per_speed": (0,) * 3, "per_rate": (0,) * 3, "per_doubt": (0,) * 3},
        "slow_share": (0, 0, 0),
        "yaw_per_sqrt_second": silent,
        "yaw_rate": 0,
        "tilt": silent,
    }
    return ErrorModel.model_validate(quiet | changes)


@settings(deadline=None)
@given(
    increments,
    arrays(float, 20, elements=st.floats(1e-4, 0.5)),
    arrays(float, 20, elements=st.floats(0, 1)),
    arrays(bool, 20),
    arrays(float, 3, elements=st.floats(-3, 3)),
)
def test_covariances_stay_symmetric_and_positive_definite(steps, times, doubts, held, start):
    pose = PoseIntegrator()
    pose.set_pose((1.0, -2.0, 0.5), tuple(Rotation.from_rotvec(start).as_quat()))
    for _ in range(5):
        for step, dt, doubt, still in zip(steps, times, doubts, held, strict=True):
            if still:
                pose.hold()
            else:
                pose.advance(tuple(step[:3]), tuple(step[3:]), dt, doubt)
            for covariance in (pose.covariance, pose.twist_covariance):
                assert np.isfinite(covariance).all()
                np.testing.assert_array_equal(covariance, covariance.T)
                np.linalg.cholesky(covariance)


@settings(deadline=None)
@given(
    increments,
    st.fixed_dictionaries(
        {
            "slow_share": st.tuples(*[st.floats(0, 3)] * 3),
            "slow_time": st.floats(1e-2, 1e3),
            "fast_time": st.tuples(*[st.floats(1e-3, 10)] * 3),
            "yaw_per_sqrt_second": st.floats(1e-4, 0.1),
            "yaw_rate": st.floats(0, 0.1),
            "yaw_rate_time": st.floats(1e-2, 1e3),
            "tilt": st.floats(1e-3, 0.3),
            "tilt_time": st.floats(1e-2, 1e3),
        }
    ),
)
def test_any_error_model_gives_a_positive_definite_covariance(steps, values):
    pose = PoseIntegrator(ErrorModel.model_validate(values))
    for step in np.tile(steps, (5, 1)):
        pose.advance(tuple(step[:3]), tuple(step[3:]), 0.02)
    np.linalg.cholesky(pose.covariance)


@given(increments)
def test_what_cannot_be_observed_never_becomes_more_certain(steps):
    """Not even when the body turns and goes back where it came from, which undoes some of the error in truth."""
    pose = PoseIntegrator()
    history = []
    for step in (*steps, *-steps[::-1]):
        pose.advance(tuple(step[:3]), tuple(step[3:]), 0.02)
        history.append(np.diag(pose.covariance)[[0, 1, 2, 5]])
    growth = np.diff(history, axis=0)
    assert (growth >= 0).all()
    assert (growth[:, 3] > 0).all()


def test_position_and_heading_grow_while_tilt_stays_bounded():
    model = ErrorModel()
    pose = PoseIntegrator(model)
    history = []
    for _ in range(50_000):
        pose.advance((0.002, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
        history.append(np.diag(pose.covariance))
    np.linalg.cholesky(pose.covariance)
    history = np.array(history)
    assert (np.diff(history[:, [0, 1, 2, 5]], axis=0) > 0).all()
    np.testing.assert_allclose(history[:, 3:5], model.tilt**2)


def test_standing_still_changes_nothing_but_the_twist():
    pose = PoseIntegrator()
    for _ in range(100):
        pose.advance((0.002, 0.0, 0.0), (0.0, 0.001, 0.002), 0.002, 0.5)
    before, moving = pose.covariance, pose.twist_covariance
    for _ in range(100):
        pose.hold()
    np.testing.assert_array_equal(pose.covariance, before)
    model = ErrorModel()
    standing = np.sqrt(np.diag(pose.twist_covariance))
    np.testing.assert_allclose(standing, (*model.standing_linear_velocity, *model.standing_angular_velocity))
    assert (np.diag(moving) > np.diag(pose.twist_covariance)).all()


def test_heading_uncertainty_turns_into_sideways_uncertainty():
    """After d metres straight ahead with a heading error of sigma, the body is off by sigma * d to the side."""
    pose = PoseIntegrator(all_silent())
    pose.widen(0.0, 0.01)
    for _ in range(1000):
        pose.advance((0.01, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
    assert np.sqrt(pose.covariance[1, 1]) == pytest.approx(0.1, rel=1e-2)
    assert np.sqrt(pose.covariance[0, 0]) == pytest.approx(1e-3, rel=1e-3)


def test_errors_of_position_and_rotation_are_correlated_with_the_right_sign():
    """A heading that is off to the left ends to the left; a nose that is off downwards (+Y) ends lower."""
    pose = PoseIntegrator(all_silent(tilt=0.02))
    pose.widen(0.0, 0.02)
    for _ in range(1000):
        pose.advance((0.01, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
    correlation = pose.covariance / np.sqrt(np.outer(np.diag(pose.covariance), np.diag(pose.covariance)))
    assert correlation[1, 5] > 0.99
    assert correlation[2, 4] < -0.9
    assert correlation[2, 3] == pytest.approx(0, abs=1e-12)
    sideways = PoseIntegrator(all_silent(tilt=0.02))
    sideways.widen(0.0, 0.02)
    for _ in range(1000):
        sideways.advance((0.0, 0.01, 0.0), (0.0, 0.0, 0.0), 0.002)
    assert sideways.covariance[0, 5] < 0
    assert sideways.covariance[2, 3] > 0
    # The body's own roll and pitch errors, seen along the fixed axes after a quarter turn.
    sideways.advance((0.0, 0.0, 0.0), (0.0, 0.0, np.pi / 2), 0.002)
    assert sideways.covariance[2, 4] > 0
    assert sideways.covariance[2, 3] == pytest.approx(0, abs=1e-12)


def test_covariance_is_that_of_many_walks_with_random_errors():
    """Against simulation of the errors themselves, along a curve: x, y, z, roll, pitch and yaw."""
    noise = {"base": (0.02, 0.01, 0.03), "per_speed": (0,) * 3, "per_rate": (0,) * 3, "per_doubt": (0,) * 3}
    model = ErrorModel.model_validate(
        {
            "linear_velocity": noise,
            "slow_share": (0.9, 0.8, 0.5),
            "slow_time": 3.0,
            "fast_time": (0.2, 0.3, 0.1),
            "yaw_per_sqrt_second": 0.01,
            "yaw_rate": 0.01,
            "yaw_rate_time": 4.0,
            "tilt": 0.03,
            "tilt_time": 5.0,
        }
    )
    pose = PoseIntegrator(model)
    rng = np.random.default_rng(0)
    walks, dt, step, turn = 6000, 0.05, np.array([0.02, 0.003]), 0.004
    slow, tilt, rate = rng.normal(size=(walks, 3)), rng.normal(size=(walks, 2)), rng.normal(size=walks)
    error, heading, true_heading = rng.normal(0, 1e-3, (walks, 3)), rng.normal(0, 1e-3, walks), 0.0
    sigma, share = np.array(noise["base"]), np.array(model.slow_share)

    def forget(source, time):
        keep = np.exp(-dt / time)
        return keep * source + np.sqrt(1 - keep**2) * rng.normal(size=source.shape)

    for _ in range(200):
        pose.advance((*step, 0.0), (0.0, 0.0, turn), dt)
        c, s = np.cos(true_heading), np.sin(true_heading)
        moved = np.array([c * step[0] - s * step[1], s * step[0] + c * step[1]])
        own = dt * share * sigma * slow
        own += np.sqrt(2 * np.array(model.fast_time) * dt) * sigma * rng.normal(size=(walks, 3))
        error[:, 0] += c * own[:, 0] - s * own[:, 1] - moved[1] * heading
        error[:, 1] += s * own[:, 0] + c * own[:, 1] + moved[0] * heading
        error[:, 2] += own[:, 2] + model.tilt * (tilt[:, 0] * step[1] - tilt[:, 1] * step[0])
        heading += model.yaw_rate * rate * dt + model.yaw_per_sqrt_second * np.sqrt(dt) * rng.normal(size=walks)
        true_heading += turn
        slow, tilt, rate = forget(slow, 3.0), forget(tilt, 5.0), forget(rate, 4.0)
    c, s = np.cos(true_heading), np.sin(true_heading)
    roll, pitch = model.tilt * (c * tilt[:, 0] - s * tilt[:, 1]), model.tilt * (s * tilt[:, 0] + c * tilt[:, 1])
    measured = np.cov(np.column_stack((error, roll, pitch, heading)).T)
    scale = np.sqrt(np.outer(np.diag(pose.covariance), np.diag(pose.covariance)))
    np.testing.assert_allclose(measured / scale, pose.covariance / scale, atol=0.06)


def test_many_poses_at_once_are_what_each_is_alone():
    model = ErrorModel()
    rng = np.random.default_rng(1)
    sigma = tuple(rng.uniform(0.01, 0.1, (3, 4)))
    heading, moved = rng.uniform(-3, 3, (50, 4)), rng.normal(0, 0.05, (50, 3, 4))
    together = PoseCovariance(model, np.maximum)
    for angle, step in zip(heading, moved, strict=True):
        together.propagate(np.cos(angle), np.sin(angle), tuple(step), sigma, 0.02)
    for one in range(4):
        alone = PoseCovariance(model)
        for angle, step in zip(heading[:, one], moved[:, :, one], strict=True):
            alone.propagate(np.cos(angle), np.sin(angle), tuple(step), tuple(s[one] for s in sigma), 0.02)
        np.testing.assert_allclose(alone.variances(), [np.broadcast_to(v, 4)[one] for v in together.variances()])


def test_twist_is_less_certain_the_more_happens():
    model = ErrorModel()
    pose = PoseIntegrator(model)

    def sigma(displacement, rotation, doubt):
        pose.set_pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        for _ in range(2):  # the second time without a change of the rate
            pose.advance(displacement, rotation, 0.002, doubt)
        return np.sqrt(np.diag(pose.twist_covariance))

    zero = (0.0, 0.0, 0.0)
    linear, angular = model.linear_velocity, model.angular_velocity
    np.testing.assert_allclose(sigma(zero, zero, 0.0), (*linear.base, *angular.base))
    for value, term in (
        (sigma((0.0, 2 * 0.002, 0.0), zero, 0.0), 2 * np.array(linear.per_speed)),
        (sigma(zero, (0.0, 3 * 0.002, 0.0), 0.0), 3 * np.array(linear.per_rate)),
        (sigma(zero, zero, 0.9), (0.9 - linear.usual_doubt) * np.array(linear.per_doubt)),
        (sigma(zero, zero, 0.1), np.zeros(3)),
    ):
        np.testing.assert_allclose(value[:3], np.hypot(linear.base, term))
        np.testing.assert_allclose(value[3:], angular.base)
    pose.set_pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
    pose.stay(zero, (0.0, 0.0, 0.004), 0.002)  # 2 rad/s within 2 ms
    expected = (*angular.base[:2], np.hypot(angular.base[2], 1000 * angular.per_acceleration[2]))
    np.testing.assert_allclose(np.sqrt(np.diag(pose.twist_covariance))[3:], expected)
    assert pose.position == zero


def test_ground_that_gives_way_makes_the_velocity_uncertain():
    """A body that heaves and is not shaken; how strongly it walks does not count, nor a stand in between."""
    more = {"per_yield": (0.02, 0.01, 0.3), "heave_per_shock": 0.005, "yield_time": 1.0, "per_speed": (0,) * 3}
    error = LinearVelocityError.model_validate(more | {"per_rate": (0,) * 3})
    pose = PoseIntegrator(ErrorModel(linear_velocity=error))

    def added(heave, shock, steps=4000):
        """What the later half of the steps adds to sigma; of m/s and rad/s^2, root mean squares."""
        found = []
        for step in range(steps):
            sign = 1 if step % 2 else -1  # of both; about 2 rad/s^2 for each rad/s within 2 ms
            pose.advance((0.0, 0.0, 0.002 * sign * heave), (0.0, 0.002 * sign * shock * 0.001, 0.0), 0.002)
            found.append(np.diag(pose.twist_covariance)[:3] - np.square(error.base))
        return np.sqrt(np.maximum(found[steps // 2 :], 0).mean(axis=0))

    assert not added(0.1, 30.0).any()
    for scale in (1.0, 0.2):
        pose.set_pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
        # Twice the usual heaving for the shocks: (4 - 1) / (4 + 1) of all.
        np.testing.assert_allclose(added(0.1 * scale, 10.0 * scale), 0.6 * np.array(error.per_yield), rtol=0.02)
    for _ in range(1000):
        pose.hold()
    np.testing.assert_allclose(np.sqrt(np.diag(pose.twist_covariance)[:3]), ErrorModel().standing_linear_velocity)
    np.testing.assert_allclose(added(0.02, 2.0, 2), 0.6 * np.array(error.per_yield), rtol=0.1)


def test_a_model_from_before_the_ground_was_judged_keeps_its_covariance():
    assert not any(LinearVelocityError.model_validate({"base": (0.01, 0.02, 0.03)}).per_yield)


def test_widen_adds_variance_to_position_and_heading():
    pose = PoseIntegrator()
    before = pose.covariance
    pose.widen(0.3)
    np.testing.assert_allclose(np.diag(pose.covariance - before), [0.09] * 3 + [0] * 3)
    pose.widen(0.0, 0.2)
    np.testing.assert_allclose(np.diag(pose.covariance - before), [0.09] * 3 + [0] * 2 + [0.04])
    np.linalg.cholesky(pose.covariance)


def test_a_nose_straight_up_has_a_covariance_too():
    pose = PoseIntegrator()
    pose.set_pose((0.0, 0.0, 0.0), tuple(Rotation.from_euler("y", -90, degrees=True).as_quat()))
    for _ in range(100):
        pose.advance((0.001, 0.0, 0.0), (0.0, 0.0, 0.0), 0.002)
    np.linalg.cholesky(pose.covariance)


def test_constants_of_the_first_version_give_the_defaults():
    first = {"position_per_sqrt_metre": 0.05, "yaw_per_sqrt_second": 0.01, "linear_velocity": 0.05}
    assert ErrorModel.model_validate(first) == ErrorModel()
    with pytest.raises(ValidationError, match="unknown"):
        ErrorModel.model_validate({"unknown": 1.0})


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
