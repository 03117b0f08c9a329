from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.estimator.gyro_bias import HALF_BELIEVED_S, GyroBias, gyro_biases, turn_per_joint
from trace_ros.robot import RobotDescription

RATE = 500
ROBOT = RobotDescription.load("go2")
KINEMATICS = ROBOT.kinematics
STANDING = ROBOT.nominal_joint_positions


def rest(gyro: GyroBias, reading: np.ndarray, seconds: float, joints: np.ndarray = STANDING) -> None:
    """A rest that ends with a moving sample; the first sample only tells where the legs are."""
    for _ in range(round(seconds * RATE) + 1):
        gyro.update(reading, joints, True, 1 / RATE)
    gyro.update(reading + 1.0, joints, False, 1 / RATE)


def legs_when_the_body_turned(turn: np.ndarray) -> np.ndarray:
    """(12,) rad: joints that keep the feet where they are when the body turns by ``turn`` (rad) from `STANDING`."""
    feet = KINEMATICS.forward(STANDING)[0]
    wanted = Rotation.from_rotvec(turn).inv().apply(feet)
    joints = STANDING.copy()
    for _ in range(20):
        at, jacobian, _ = KINEMATICS.forward_and_jacobians(joints)
        joints += np.concatenate([np.linalg.solve(jacobian[0, leg], (wanted - at[0])[leg]) for leg in range(4)])
    return joints


def test_standing_tells_the_bias_and_motion_keeps_it():
    rng = np.random.default_rng(1)
    bias = np.array([0.01, -0.02, 0.005])
    gyro = GyroBias(20.0, KINEMATICS)
    for _ in range(4 * RATE + 1):
        gyro.update(bias + rng.normal(0, 0.01, 3), STANDING + rng.normal(0, 0.001, 12), True, 1 / RATE)
    believed = 16 / (16 + HALF_BELIEVED_S**2)
    assert np.linalg.norm(gyro.value - believed * bias) < 4 * 0.01 / np.sqrt(4 * RATE) * np.sqrt(3)
    found = gyro.value
    moved = gyro.update(np.array([1.0, 2.0, 3.0]), STANDING, False, 1 / RATE)
    np.testing.assert_array_equal(gyro.value, found)
    np.testing.assert_allclose(moved, np.array([1.0, 2.0, 3.0]) - found)
    gyro.reset()
    np.testing.assert_array_equal(gyro.update(bias, STANDING, False, 1 / RATE), bias)


@pytest.mark.parametrize("axis", range(3))
def test_a_body_that_settles_above_its_feet_is_no_bias(axis: int):
    """1.2 s after standing up the body still turns, at 3 mrad/s here; the gyro's bias is 2 mrad/s about z."""
    rate, bias = np.zeros(3), np.array([0.0, 0.0, 0.002])
    rate[axis] = 0.003
    gyro = GyroBias(20.0, KINEMATICS)
    for sample in range(round(1.2 * RATE) + 1):
        joints = legs_when_the_body_turned(rate * sample / RATE)
        gyro.update(bias + rate, joints, True, 1 / RATE)
    believed = 1.2**2 / (1.2**2 + HALF_BELIEVED_S**2)
    np.testing.assert_allclose(gyro.value, believed * bias, atol=3e-5)


def test_short_rests_say_little():
    """Forty times a twentieth of a second in a slow step, at 30 mrad/s that legs do not tell; then one good rest."""
    gyro = GyroBias(20.0, KINEMATICS)
    for sign in [1.0, -1.0] * 20:
        rest(gyro, np.array([0.0, 0.0, sign * 0.03]), 0.05)
        assert np.linalg.norm(gyro.value) < 5e-4
    rest(gyro, np.array([0.0, 0.0, 0.004]), 5.0)
    np.testing.assert_allclose(gyro.value, [0, 0, 0.004], atol=2e-4)


def test_old_readings_fade():
    """After three memories of another bias little of the old one is left, in the same rest and from one to the next."""
    memory_s = 2.0
    for between in (True, False):
        gyro = GyroBias(memory_s, KINEMATICS)
        for _ in range(10 * RATE):
            gyro.update(np.full(3, 0.01), STANDING, True, 1 / RATE)
        if between:
            gyro.update(np.ones(3), STANDING, False, 1 / RATE)
        for _ in range(6 * RATE):
            gyro.update(np.full(3, 0.03), STANDING, True, 1 / RATE)
        unshrunk = gyro.value * (1 + HALF_BELIEVED_S**2 / memory_s**2)
        np.testing.assert_allclose(unshrunk, 0.03, atol=0.0015)


def test_it_can_be_switched_off():
    reading = np.array([0.01, 0.02, 0.03])
    gyro = GyroBias(0.0, KINEMATICS)
    for _ in range(RATE):
        np.testing.assert_array_equal(gyro.update(reading, STANDING, True, 0.002), reading)
    biases = gyro_biases(reading[None], STANDING[None], np.array([True]), np.array([0.002]), 0.0, KINEMATICS)
    np.testing.assert_array_equal(biases, np.zeros((1, 3)))


@given(st.integers(0, 2**32 - 1))
def test_turn_per_joint(seed: int):
    """Joints that hold the feet while the body turns give the turn; a body that shifts does not turn."""
    turn = np.random.default_rng(seed).normal(0, 0.005, 3)
    joints = legs_when_the_body_turned(turn)
    np.testing.assert_allclose(turn_per_joint(KINEMATICS, STANDING) @ (joints - STANDING), turn, atol=2e-4)
    _, jacobian, _ = KINEMATICS.forward_and_jacobians(STANDING)
    shift = np.concatenate([np.linalg.solve(jacobian[0, leg], turn) for leg in range(4)])
    np.testing.assert_allclose(turn_per_joint(KINEMATICS, STANDING) @ shift, 0.0, atol=1e-12)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.booleans(), st.floats(1e-4, 1.0)), max_size=60),
    st.sampled_from([0.0, 0.01, 0.5, 20.0]),
)
def test_many_readings_at_once_give_the_same(readings: list[tuple[float, bool, float]], memory_s: float):
    gyro = np.array([[value, -value, 0.5 * value] for value, _, _ in readings]).reshape(-1, 3)
    joints = STANDING + 0.1 * np.array([[value] * 12 for value, _, _ in readings]).reshape(-1, 12) * np.arange(12)
    still = np.array([at_rest for _, at_rest, _ in readings], dtype=bool)
    dt = np.array([interval for _, _, interval in readings])
    dt[:1] = 3600.0  # an hour's pause
    single, expected = GyroBias(memory_s, KINEMATICS), []
    for row, interval in enumerate(dt.tolist()):
        single.update(gyro[row], joints[row], bool(still[row]), interval)
        expected.append(single.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gyro_biases(gyro, joints, still, dt, memory_s, KINEMATICS)
    np.testing.assert_allclose(found, np.array(expected).reshape(-1, 3), atol=1e-12, rtol=1e-9)
