import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.spatial.transform import Rotation

from trace_ros.baselines.config import FilterNoise, FilterPrior
from trace_ros.baselines.invariant_filter import (
    ACCEL_BIAS,
    FEET,
    GYRO_BIAS,
    POSITION,
    ROTATION,
    SIZE,
    VELOCITY,
    InvariantFilter,
    quaternion,
    rotation_integrals,
)
from trace_ros.geometry import skew, so3_exp, so3_left_jacobian

GRAVITY = np.array([0.0, 0.0, -9.81])
NOISE = FilterNoise(gyro=1e-5, accel=1e-3, encoder=1e-6, gyro_bias=1e-10, accel_bias=1e-7)
NO_FEET = np.zeros((4, 3)), np.zeros((4, 3))
FOOT_NOISE = np.full((4, 3), 1e-4)
FOOT = np.array([[0.2, 0.15, -0.3], [0.2, -0.15, -0.3], [-0.2, 0.15, -0.3], [-0.2, -0.15, -0.3]])
JACOBIAN = np.tile(0.3 * np.eye(3), (4, 1, 1))
ALL = np.ones(4, dtype=bool)


def make_filter(noise: FilterNoise | None = None) -> InvariantFilter:
    return InvariantFilter(noise or NOISE, FilterPrior())


def matrix(state: InvariantFilter) -> np.ndarray:
    """The state as an element of SE_6(3)."""
    element = np.eye(9)
    element[:3, :3] = state.rotation
    element[:3, 3:] = state.points
    return element


def hat(error: np.ndarray) -> np.ndarray:
    """(21,) of the group as an element of its algebra."""
    element = np.zeros((9, 9))
    element[:3, :3] = skew(error[:3])
    element[:3, 3:] = error[3:].reshape(6, 3).T
    return element


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 0.049999, 0.050001, 0.3, 3.0])
def test_integrals_of_the_exponential(angle):
    vector = angle * np.array([0.48, -0.6, 0.64])
    turn, once, twice = rotation_integrals(vector)
    np.testing.assert_allclose(turn, so3_exp(vector), atol=1e-15)
    np.testing.assert_allclose(once, so3_left_jacobian(vector), atol=1e-13)
    # The double integral is the second block of the exponential of a block companion matrix.
    block = np.zeros((9, 9))
    block[:3, :3], block[:3, 3:6], block[3:6, 6:] = skew(vector), np.eye(3), np.eye(3)
    np.testing.assert_allclose(twice, expm(block)[:3, 6:], atol=1e-13)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 0.3, 3.0, np.pi - 1e-9, np.pi])
def test_quaternions_are_those_of_scipy(angle):
    for axis in (*np.eye(3), *-np.eye(3), [0.48, -0.6, 0.64], [-0.8, 0.0, 0.6]):
        rotation = Rotation.from_rotvec(angle * np.asarray(axis))
        found = quaternion(rotation.as_matrix())
        assert found[3] >= 0
        assert abs(found @ rotation.as_quat()) == pytest.approx(1, abs=1e-12)
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-12)


def test_propagation_is_exact_for_constant_input():
    """One step of 0.3 s against two thousand, and against a fine integration of the equations of motion."""
    gyro, accel = np.array([0.7, -1.1, 2.0]), np.array([3.0, -1.0, 11.0])
    start = Rotation.from_euler("xyz", (0.3, -0.2, 1.0)).as_matrix()
    filters = [make_filter(), make_filter()]
    for state, steps in zip(filters, (1, 2000), strict=True):
        state.begin(start, np.array([1.0, 2.0, 3.0]), 0.0)
        state.points[:, 0] = 0.5, -0.4, 0.3
        state.gyro_bias, state.accel_bias = np.array([0.1, -0.05, 0.02]), np.array([0.2, 0.1, -0.3])
        for _ in range(steps):
            state.propagate(gyro, accel, 0.3 / steps, *NO_FEET)
    np.testing.assert_allclose(filters[0].rotation, filters[1].rotation, atol=1e-12)
    np.testing.assert_allclose(filters[0].points, filters[1].points, atol=1e-12)

    rate, force = gyro - filters[0].gyro_bias, accel - filters[0].accel_bias
    n = 20000
    time = (np.arange(n) + 0.5) * 0.3 / n
    pull = (start @ so3_exp(time[:, None] * rate)) @ force + GRAVITY
    velocity = np.array([0.5, -0.4, 0.3]) + pull.sum(0) * 0.3 / n
    position = np.array([1.0, 2.0, 3.0]) + 0.3 * np.array([0.5, -0.4, 0.3]) + ((0.3 - time) @ pull) * 0.3 / n
    np.testing.assert_allclose(filters[0].rotation, start @ so3_exp(0.3 * rate), atol=1e-12)
    np.testing.assert_allclose(filters[0].velocity, velocity, atol=1e-8)
    np.testing.assert_allclose(filters[0].position, position, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_error_is_log_linear(seed):
    """Without bias errors, an error of any size moves as its logarithm under the covariance's own transition."""
    rng = np.random.default_rng(seed)
    truth, wrong = make_filter(), make_filter()
    for state in (truth, wrong):
        state.begin(Rotation.random(random_state=seed % 1000).as_matrix(), np.array([3.0, -2.0, 0.5]), 0.0)
        state.points[:, 0] = 0.4, 0.2, -0.1
        state.add(ALL, FOOT, JACOBIAN)
    error = np.zeros(SIZE)
    error[: FEET.stop] = rng.normal(0, 0.4, FEET.stop)
    wrong.points = truth.points.copy()
    wrong.rotation = truth.rotation.copy()
    wrong.move(error)
    np.testing.assert_allclose(matrix(wrong) @ np.linalg.inv(matrix(truth)), expm(hat(error[:21])), atol=1e-10)

    drift = np.zeros((21, 21))
    drift[VELOCITY, ROTATION], drift[POSITION, VELOCITY] = skew(GRAVITY), np.eye(3)
    elapsed = 0.0
    for _ in range(50):
        gyro, accel, dt = rng.normal(0, 2, 3), rng.normal(0, 5, 3) - GRAVITY, rng.uniform(0.001, 0.02)
        elapsed += dt
        for state in (truth, wrong):
            state.propagate(gyro, accel, dt, *NO_FEET)
    expected = expm(hat(expm(drift * elapsed) @ error[:21]))
    np.testing.assert_allclose(matrix(wrong) @ np.linalg.inv(matrix(truth)), expected, atol=1e-9)


def test_the_transition_carries_bias_errors_to_first_order():
    """The covariance after an interval, for an error of the biases alone, against states that have such errors."""
    rng = np.random.default_rng(5)
    gyro, accel, dt = np.array([0.5, -0.3, 0.8]), np.array([1.0, 2.0, 10.0]), 0.002
    quiet = FilterNoise(gyro=1e-30, accel=1e-30, contact=1e-30, gyro_bias=0, accel_bias=0)

    def moved(bias: np.ndarray) -> InvariantFilter:
        state = make_filter(quiet)
        state.begin(np.eye(3), np.array([5.0, 1.0, 0.3]), 0.0)
        state.points[:, 0] = 1.0, 0.5, 0.0
        state.add(ALL, FOOT, JACOBIAN)
        state.gyro_bias, state.accel_bias = bias[:3], bias[3:]
        state.covariance = np.zeros((SIZE, SIZE))
        state.covariance[GYRO_BIAS.start :, GYRO_BIAS.start :] = np.eye(6)
        for _ in range(100):
            state.propagate(gyro, accel, dt, *NO_FEET)
        return state

    truth = moved(np.zeros(6))
    for _ in range(5):
        bias = 1e-6 * rng.normal(size=6)
        error = matrix(moved(bias)) @ np.linalg.inv(matrix(truth))
        turn = Rotation.from_matrix(error[:3, :3]).as_rotvec()
        first_order = np.concatenate((turn, error[:3, 3:].T.ravel()))
        predicted = truth.covariance[:21, GYRO_BIAS.start :] @ bias
        np.testing.assert_allclose(first_order, predicted, atol=5e-3 * np.abs(predicted).max())


def test_a_correction_is_that_of_the_textbook():
    """Against the plain equations with inverse and Joseph form, written out for two standing feet."""
    rng = np.random.default_rng(6)
    state = make_filter()
    state.begin(so3_exp(np.array([0.1, -0.2, 0.7])), np.array([1.0, 0.0, 0.3]), 0.0)
    two = np.array([True, False, False, True])
    state.add(two, FOOT, JACOBIAN)
    root = rng.normal(0, 0.02, (SIZE, SIZE))
    state.covariance = state.covariance + root @ root.T
    state.covariance[12:18] = 0.0
    state.covariance[:, 12:18] = 0.0
    state.covariance[12:18, 12:18] = np.eye(6)
    seen = FOOT + rng.normal(0, 0.01, (4, 3))
    before, covariance = matrix(state), state.covariance.copy()
    rows, residual, noise = np.zeros((6, SIZE)), np.zeros(6), np.zeros((6, 6))
    for i, foot in enumerate((0, 3)):
        part = slice(3 * i, 3 * i + 3)
        rows[part, POSITION], rows[part, 9 + 3 * foot : 12 + 3 * foot] = -np.eye(3), np.eye(3)
        residual[part] = state.rotation @ seen[foot] + state.position - state.feet[foot]
        noise[part, part] = 1e-6 * 0.09 * np.eye(3)
    gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + noise)
    keep = np.eye(SIZE) - gain @ rows
    state.correct_feet(seen, JACOBIAN)
    np.testing.assert_allclose(state.covariance, keep @ covariance @ keep.T + gain @ noise @ gain.T, atol=1e-12)
    np.testing.assert_allclose(matrix(state), expm(hat((gain @ residual)[:21])) @ before, atol=1e-12)
    np.testing.assert_allclose(state.gyro_bias, (gain @ residual)[GYRO_BIAS], atol=1e-15)
    np.testing.assert_allclose(state.accel_bias, (gain @ residual)[ACCEL_BIAS], atol=1e-15)
    after = state.rotation @ seen[0] + state.position - state.feet[0]
    assert np.linalg.norm(after) < 0.2 * np.linalg.norm(residual[:3])


def stand(state: InvariantFilter, steps: int, rng: np.random.Generator, changing: bool = False) -> None:
    """Feed a body that stands still, with noise; with ``changing``, feet come and go."""
    for step in range(steps):
        state.propagate(rng.normal(0, 0.01, 3), rng.normal(0, 0.1, 3) - GRAVITY, 0.002, FOOT_NOISE, np.zeros((4, 3)))
        if changing and step % 50 == 0:
            standing = rng.random(4) < 0.6
            state.drop(~standing)
        state.correct_feet(FOOT + rng.normal(0, 3e-4, (4, 3)), JACOBIAN)
        if changing and step % 50 == 0:
            state.add(standing, FOOT, JACOBIAN)


@pytest.mark.timeout(1800)  # six seconds on an idle core
def test_the_covariance_stays_symmetric_and_positive():
    """Forty thousand steps, 80 s, with feet that come and go."""
    state = make_filter()
    state.begin(np.eye(3), np.array([30.0, -20.0, 0.3]), 0.0)
    state.add(ALL, FOOT, JACOBIAN)
    rng = np.random.default_rng(7)
    for _ in range(8):
        stand(state, 5000, rng, changing=True)
        assert (state.covariance == state.covariance.T).all()
        assert np.linalg.eigvalsh(state.covariance).min() > 0
        np.testing.assert_allclose(state.rotation @ state.rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.norm(state.velocity) < 0.1
    assert np.abs(state.rotation[2, :2]).max() < 0.02


def test_yaw_and_position_are_not_observable_and_the_rest_is():
    state = make_filter()
    state.begin(np.eye(3), np.zeros(3), 0.0)
    state.add(ALL, FOOT, JACOBIAN)
    rng = np.random.default_rng(8)
    sigma = []
    for _ in range(3):
        stand(state, 1500, rng, changing=True)
        variance = np.diag(state.covariance)
        sigma.append(np.sqrt([*variance[ROTATION], variance[VELOCITY].max(), *variance[POSITION]]))
    early, _, late = np.array(sigma)
    assert (late[[2, 4, 5, 6]] > 1.2 * early[[2, 4, 5, 6]]).all()  # yaw, position
    assert (late[[0, 1, 3]] < 1.05 * early[[0, 1, 3]]).all()  # roll, pitch, velocity
    assert late[:2].max() < 0.01
    assert late[3] < 0.05


def test_no_measurement_tells_yaw_or_position():
    """A shift and a turn about the vertical change no residual, whatever the gain."""
    states = [make_filter(), make_filter()]
    turn = Rotation.from_euler("z", 1.1).as_matrix()
    for state, rotation, shift in zip(
        states, (np.eye(3), turn), (np.zeros(3), np.array([5.0, -3.0, 2.0])), strict=True
    ):
        state.begin(rotation @ so3_exp(np.array([0.1, 0.05, 0.0])), shift, 0.0)
        state.add(ALL, FOOT, JACOBIAN)
    rngs = [np.random.default_rng(9), np.random.default_rng(9)]
    # The prior is the same in the body's axes only if it is as wide in all directions, and at the body's own place.
    for state, rng in zip(states, rngs, strict=True):
        state.covariance[ROTATION, ROTATION] = 1e-3 * np.eye(3)
        lever = skew(state.position)
        for rows in (POSITION, *(slice(9 + 3 * i, 12 + 3 * i) for i in range(4))):
            state.covariance[rows, ROTATION] = 1e-3 * lever
            state.covariance[ROTATION, rows] = -1e-3 * lever
        for a in (6, 9, 12, 15, 18):
            for b in (6, 9, 12, 15, 18):
                state.covariance[a : a + 3, b : b + 3] = -1e-3 * lever @ lever + (1e-4 if a == b else 0) * np.eye(3)
        stand(state, 500, rng)
    np.testing.assert_allclose(states[1].rotation, turn @ states[0].rotation, atol=1e-7)
    np.testing.assert_allclose(states[1].velocity, turn @ states[0].velocity, atol=1e-7)
    np.testing.assert_allclose(states[1].position, turn @ states[0].position + [5.0, -3.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(states[1].gyro_bias, states[0].gyro_bias, atol=1e-8)


def test_feet_come_with_the_positions_uncertainty_and_go_without_a_trace():
    state = make_filter()
    state.begin(np.eye(3), np.array([2.0, 1.0, 0.3]), 0.5)
    before = state.covariance.copy()
    some = np.array([False, True, False, False])
    state.add(some, FOOT, JACOBIAN)
    np.testing.assert_allclose(state.feet[1], [2.2, 0.85, 0.0])
    np.testing.assert_array_equal(state.covariance[12:15, 6:9], before[6:9, 6:9])
    expected = before[6:9, 6:9] + 1e-6 * 0.09 * np.eye(3)
    np.testing.assert_allclose(state.covariance[12:15, 12:15], expected, atol=1e-15)
    state.add(some, FOOT + 1.0, JACOBIAN)  # stands already
    np.testing.assert_allclose(state.feet[1], [2.2, 0.85, 0.0])
    state.drop(ALL)
    np.testing.assert_array_equal(state.covariance, before)
    assert not state.standing.any()
    state.correct_feet(FOOT, JACOBIAN)  # none stands: nothing is told
    np.testing.assert_array_equal(state.covariance, before)


def test_a_loaded_foot_tells_less_about_height_and_as_much_about_the_rest():
    """Ground that yields: what a foot's height says counts the less, the more the foot bears."""
    told = []
    for variance in (None, np.zeros(4), np.array([0.01, 0.0, 0.0, 0.0]), np.full(4, 1e4)):
        state = make_filter()
        state.begin(np.eye(3), np.zeros(3), 0.3)
        state.add(ALL, FOOT, JACOBIAN)
        state.propagate(np.zeros(3), -GRAVITY, 0.1, FOOT_NOISE, np.zeros((4, 3)))
        seen = FOOT.copy()
        seen[0] += 0.05
        state.correct_feet(seen, JACOBIAN, variance)
        told.append((state.position.copy(), state.covariance[VELOCITY, VELOCITY].copy()))
    (plain, _), (same, _), (yielding, _), (none, spread) = told
    np.testing.assert_array_equal(plain, same)
    assert abs(yielding[2]) < 0.01 * abs(plain[2])
    np.testing.assert_allclose(yielding[:2], plain[:2], rtol=0.05)
    assert abs(none[2]) < 1e-5 < abs(none[0])
    assert spread[2, 2] > 20 * spread[0, 0]


def test_the_pose_covariance_is_that_of_sampled_states():
    """The prior that was asked for, at the body's own place, however far from the origin."""
    state = make_filter()
    state.begin(so3_exp(np.array([0.0, 0.0, 0.6])), np.array([40.0, -7.0, 0.3]), 0.2)
    covariance = state.pose_covariance(state.position)
    prior = FilterPrior()
    expected = [prior.position**2 + 0.04] * 3 + [prior.tilt**2, prior.tilt**2, prior.yaw**2]
    np.testing.assert_allclose(covariance, np.diag(expected), atol=1e-12)
    lever = np.array([0.3, 0.1, -0.05])
    there = state.pose_covariance(state.position + lever)
    moved = np.eye(6)
    moved[:3, 3:] = -skew(lever)
    np.testing.assert_allclose(there, moved @ np.diag(expected) @ moved.T, atol=1e-12)
