from __future__ import annotations

import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trace_ros.estimator.gyro_bias import GyroBias, gyro_biases

RATE = 500


def test_standing_tells_the_bias_and_motion_keeps_it():
    rng = np.random.default_rng(1)
    bias = np.array([0.01, -0.02, 0.005])
    gyro = GyroBias(memory_s=20.0)
    for _ in range(2 * RATE):
        gyro.update(bias + rng.normal(0, 0.01, 3), True, 1 / RATE)
    assert np.linalg.norm(gyro.value - bias) < 4 * 0.01 / np.sqrt(2 * RATE) * np.sqrt(3)
    found = gyro.value
    moved = gyro.update(np.array([1.0, 2.0, 3.0]), False, 1 / RATE)
    np.testing.assert_array_equal(gyro.value, found)
    np.testing.assert_allclose(moved, np.array([1.0, 2.0, 3.0]) - found)
    gyro.reset()
    np.testing.assert_array_equal(gyro.update(bias, False, 1 / RATE), bias)


def test_old_readings_fade():
    """After three memories of another bias, a twentieth of the old one is left."""
    gyro = GyroBias(memory_s=1.0)
    for value, seconds in ((0.01, 10), (0.03, 3)):
        for _ in range(seconds * RATE):
            gyro.update(np.full(3, value), True, 1 / RATE)
    np.testing.assert_allclose(gyro.value, 0.03 - 0.02 * np.exp(-3), rtol=1e-3)


def test_it_can_be_switched_off():
    reading = np.array([0.01, 0.02, 0.03])
    np.testing.assert_array_equal(GyroBias(0.0).update(reading, True, 0.002), reading)
    biases = gyro_biases(reading[None], np.array([True]), np.array([0.002]), 0.0)
    np.testing.assert_array_equal(biases, np.zeros((1, 3)))


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.booleans(), st.floats(1e-4, 1.0)), max_size=60),
    st.sampled_from([0.0, 0.01, 0.5, 20.0]),
)
def test_many_readings_at_once_give_the_same(readings: list[tuple[float, bool, float]], memory_s: float):
    gyro = np.array([[value, -value, 0.5 * value] for value, _, _ in readings]).reshape(-1, 3)
    still = np.array([at_rest for _, at_rest, _ in readings], dtype=bool)
    dt = np.array([interval for _, _, interval in readings])
    dt[:1] = 3600.0  # an hour's pause
    single, expected = GyroBias(memory_s), []
    for reading, at_rest, interval in zip(gyro, still, dt.tolist(), strict=True):
        single.update(reading, bool(at_rest), interval)
        expected.append(single.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gyro_biases(gyro, still, dt, memory_s)
    np.testing.assert_allclose(found, np.array(expected).reshape(-1, 3), atol=1e-12)
