from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.estimator.gyro_bias import CONFIRMED_NS, HALF_BELIEVED_S, GyroBias, gyro_biases, turn_per_joint
from trace_ros.robot import RobotDescription

RATE = 500
ROBOT = RobotDescription.load("go2")
KINEMATICS = ROBOT.kinematics
STANDING = ROBOT.nominal_joint_positions


class Robot:
    """Feeds readings at 500 Hz."""

    def __init__(self, memory_s: float) -> None:
        self.gyro = GyroBias(memory_s, KINEMATICS)
        self.stamp_ns = 0

    def read(self, turn_rate: np.ndarray, joints: np.ndarray = STANDING, still: bool = True) -> np.ndarray:
        self.stamp_ns += 1_000_000_000 // RATE
        return self.gyro.update(self.stamp_ns, turn_rate, joints, still, 1 / RATE)

    def rest(self, turn_rate: np.ndarray, seconds: float, then_walk: bool = True) -> None:
        """Stands so long; the first reading tells only where the legs are, the last ones are never confirmed."""
        for _ in range(round((seconds + CONFIRMED_NS * 1e-9) * RATE) + 1):
            self.read(turn_rate)
        if then_walk:
            self.read(turn_rate + 1.0, still=False)


def legs_when_the_body_turned(turns: np.ndarray) -> np.ndarray:
    """(N, 12) rad: joints that keep the feet where they are when the body turns by (N, 3) rad from `STANDING`."""
    wanted = np.stack([Rotation.from_rotvec(turn).inv().apply(KINEMATICS.forward(STANDING)[0]) for turn in turns])
    joints = np.tile(STANDING, (len(turns), 1))
    for _ in range(5):
        at, jacobian, _ = KINEMATICS.forward_and_jacobians(joints)
        joints += np.linalg.solve(jacobian, (wanted - at)[..., None]).reshape(-1, 12)
    return joints


def believed(seconds: float) -> float:
    """Of the bias that one rest shows, the share that is believed; much shorter rests than the memory."""
    return seconds**2 / (seconds**2 + HALF_BELIEVED_S**2)


def test_standing_tells_the_bias_and_motion_keeps_it():
    rng = np.random.default_rng(1)
    bias = np.array([0.01, -0.02, 0.005])
    robot = Robot(20.0)
    for _ in range(4 * RATE + 51):
        robot.read(bias + rng.normal(0, 0.01, 3), STANDING + rng.normal(0, 0.001, 12))
    found = robot.gyro.value
    assert np.linalg.norm(found - believed(4.0) * bias) < 4 * 0.01 / np.sqrt(4 * RATE) * np.sqrt(3)
    moved = robot.read(np.array([1.0, 2.0, 3.0]), still=False)
    np.testing.assert_array_equal(robot.gyro.value, found)
    np.testing.assert_allclose(moved, np.array([1.0, 2.0, 3.0]) - found)
    robot.gyro.reset()
    np.testing.assert_array_equal(robot.read(bias), bias)


@pytest.mark.parametrize("axis", range(3))
def test_a_body_that_settles_above_its_feet_is_no_bias(axis: int):
    """1.2 s after standing up the body still turns, at 3 mrad/s here; the gyro's bias is 2 mrad/s about z."""
    rate, bias = np.zeros(3), np.array([0.0, 0.0, 0.002])
    rate[axis] = 0.003
    robot = Robot(20.0)
    for joints in legs_when_the_body_turned(rate * np.arange(round(1.3 * RATE) + 1)[:, None] / RATE):
        robot.read(bias + rate, joints)
    np.testing.assert_allclose(robot.gyro.value, believed(1.2) * bias, atol=3e-5)


def test_the_step_that_ends_a_rest_is_no_bias():
    """A foot begins to lift 90 ms before the readings tell, and the body turns at 40 mrad/s with it."""
    robot, bias = Robot(20.0), np.array([0.0, 0.0, 0.004])
    robot.rest(bias, 2.0, then_walk=False)
    before = robot.gyro.value
    lifted = STANDING.copy()
    for _ in range(round(0.09 * RATE)):
        lifted[:3] += 0.3 / RATE
        robot.read(bias + 0.04, lifted)
    robot.read(bias + 0.06, lifted, still=False)
    np.testing.assert_allclose(robot.gyro.value, bias * believed(2.0), atol=2e-5)
    np.testing.assert_allclose(before, bias * believed(2.0), atol=2e-5)


def test_legs_that_move_slowly_are_no_rest():
    """A robot lies, and its front knees bend at 0.2 rad/s for four seconds: standing legs would say that it pitches."""
    robot, bias = Robot(20.0), np.array([0.0, 0.0, 0.004])
    robot.rest(bias, 3.0)
    fold = np.tile([0.0, 0.1, -0.2], 4) * np.repeat([1.0, 1.0, 0.0, 0.0], 3)
    for sample in range(4 * RATE + 1):
        robot.read(bias, STANDING + fold * sample / RATE)
    robot.read(bias + 1.0, STANDING + fold * 4, still=False)
    np.testing.assert_allclose(robot.gyro.value, bias, atol=3e-4)


def test_what_a_long_rest_told_outlives_a_stir():
    """Forty seconds of standing, then one reading of one encoder 0.06 rad off, then a slow crouch."""
    robot, bias = Robot(20.0), np.array([0.01, -0.02, 0.005])
    robot.rest(bias, 40.0, then_walk=False)
    glitch = STANDING.copy()
    glitch[4] += 0.06
    robot.read(bias, glitch)
    np.testing.assert_allclose(robot.gyro.value, bias, rtol=0.02)
    for sample in range(2 * RATE):
        robot.read(bias, STANDING + np.tile([0.0, 0.05, -0.1], 4) * sample / RATE)
    np.testing.assert_allclose(robot.gyro.value, bias, rtol=0.02)


def test_a_reading_does_not_speak_for_a_pause():
    """A gap of 15 s within a rest, as a log with losses has it, and a noisy reading after it."""
    robot, bias = Robot(20.0), np.array([0.0, 0.0, 0.004])
    robot.rest(bias, 4.0, then_walk=False)
    robot.stamp_ns += 15_000_000_000
    robot.gyro.update(robot.stamp_ns, bias + 0.03, STANDING, True, 15.0)
    for _ in range(RATE):
        robot.read(bias)
    np.testing.assert_allclose(robot.gyro.value, bias, atol=3e-4)


def test_days_of_rest_lose_nothing():
    robot, bias = Robot(20.0), np.array([0.0, 0.0, 0.004])
    robot.rest(bias, 2.0, then_walk=False)
    robot.stamp_ns += 10**16
    robot.rest(bias, 30.0)
    np.testing.assert_allclose(robot.gyro.value, bias, atol=2e-5)


def test_short_rests_say_little():
    """Forty times a twentieth of a second in a slow step, at 30 mrad/s that legs do not tell; then one good rest."""
    robot = Robot(20.0)
    for sign in [1.0, -1.0] * 20:
        robot.rest(np.array([0.0, 0.0, sign * 0.03]), 0.05)
        assert np.linalg.norm(robot.gyro.value) < 2e-3
    robot.rest(np.array([0.0, 0.0, 0.004]), 5.0)
    np.testing.assert_allclose(robot.gyro.value, [0, 0, 0.004], atol=2e-4)


@pytest.mark.parametrize("between", [True, False])
def test_old_readings_fade(between: bool):
    """After six memories of another bias little of the old one is left, in the same rest and from one to the next."""
    memory_s = 2.0
    robot = Robot(memory_s)
    robot.rest(np.full(3, 0.01), 10.0, then_walk=between)
    robot.rest(np.full(3, 0.03), 12.0)
    np.testing.assert_allclose(robot.gyro.value / believed(memory_s), 0.03, atol=0.0015)


def test_it_can_be_switched_off():
    reading = np.array([0.01, 0.02, 0.03])
    robot = Robot(0.0)
    for _ in range(RATE):
        np.testing.assert_array_equal(robot.read(reading), reading)
    one = np.array([True])
    biases = gyro_biases(np.array([0]), reading[None], STANDING[None], one, np.array([0.002]), 0.0, KINEMATICS)
    np.testing.assert_array_equal(biases, np.zeros((1, 3)))


@given(st.integers(0, 2**32 - 1))
def test_turn_per_joint(seed: int):
    """Joints that hold the feet while the body turns give the turn; a body that shifts does not turn."""
    turn = np.random.default_rng(seed).normal(0, 0.005, 3)
    (joints,) = legs_when_the_body_turned(turn[None])
    np.testing.assert_allclose(turn_per_joint(KINEMATICS, STANDING) @ (joints - STANDING), turn, atol=2e-4)
    _, jacobian, _ = KINEMATICS.forward_and_jacobians(STANDING)
    shift = np.concatenate([np.linalg.solve(jacobian[0, leg], turn) for leg in range(4)])
    np.testing.assert_allclose(turn_per_joint(KINEMATICS, STANDING) @ shift, 0.0, atol=1e-12)


@given(
    st.lists(
        st.tuples(st.floats(-3, 3), st.sampled_from([True, True, True, False]), st.floats(1e-4, 0.2) | st.just(1.0)),
        max_size=60,
    ),
    st.sampled_from([0.0, 0.01, 0.5, 20.0]),
    st.sampled_from([0.0, 1e-3, 0.1]),
)
def test_many_readings_at_once_give_the_same(readings: list[tuple[float, bool, float]], memory_s: float, scale: float):
    gyro = np.array([[value, -value, 0.5 * value] for value, _, _ in readings]).reshape(-1, 3)
    joints = STANDING + scale * np.array([[value] * 12 for value, _, _ in readings]).reshape(-1, 12) * np.arange(12)
    still = np.array([at_rest for _, at_rest, _ in readings], dtype=bool)
    dt = np.array([interval for _, _, interval in readings])
    dt[:1] = 3600.0  # an hour's pause
    stamp_ns = np.cumsum(np.round(dt * 1e9).astype(np.int64))
    single, expected = GyroBias(memory_s, KINEMATICS), []
    for row, interval in enumerate(dt.tolist()):
        single.update(int(stamp_ns[row]), gyro[row], joints[row], bool(still[row]), interval)
        expected.append(single.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gyro_biases(stamp_ns, gyro, joints, still, dt, memory_s, KINEMATICS)
    np.testing.assert_allclose(found, np.array(expected).reshape(-1, 3), atol=1e-12, rtol=1e-9)
