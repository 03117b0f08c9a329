"""Joint velocity from joint positions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.estimator.differentiation import JointDifferentiator, differentiate
from trace_ros.estimator.observation import MAX_GAP_S

seconds = st.lists(st.floats(5e-4, 0.01), min_size=2, max_size=40)


def stamps(intervals: list[float]) -> np.ndarray:
    return np.cumsum([0, *(round(dt * 1e9) for dt in intervals)]).astype(np.int64)


def test_joints_that_turn_evenly_have_that_velocity_after_a_few_hundredths_of_a_second():
    for rate_hz in (200, 500):
        stamp_ns = (np.arange(rate_hz // 10) * (1_000_000_000 // rate_hz)).astype(np.int64)
        rate = np.linspace(-3, 3, 12)
        velocity = differentiate(stamp_ns, 0.5 + rate * stamp_ns[:, None] * 1e-9)
        np.testing.assert_array_equal(velocity[0], 0.0)
        np.testing.assert_allclose(velocity[-1], rate, atol=1e-9)


def test_half_of_a_step_in_velocity_has_arrived_when_50_hz_says():
    dt = 1e-4
    position = np.maximum(0.0, np.arange(-10, 400) * dt)[:, None]
    velocity = differentiate(stamps([dt] * 409), position)[10:, 0]
    arrived = np.argmax(velocity > 0.5) * dt
    np.testing.assert_allclose(arrived, np.log(2) / (2 * np.pi * 50.0), atol=1.1 * dt)


@settings(deadline=None, max_examples=50)
@given(seconds, st.integers(0, 2**31 - 1))
def test_it_stays_between_the_differences_seen(intervals, seed):
    stamp_ns = stamps(intervals)
    position = np.random.default_rng(seed).normal(size=(len(stamp_ns), 12))
    raw = np.diff(position, axis=0) / (np.diff(stamp_ns)[:, None] * 1e-9)
    velocity = differentiate(stamp_ns, position)
    assert (velocity.max(0) <= np.maximum(0.0, raw.max(0)) + 1e-9).all()
    assert (velocity.min(0) >= np.minimum(0.0, raw.min(0)) - 1e-9).all()


@settings(deadline=None, max_examples=30)
@given(seconds, st.integers(0, 2**31 - 1), st.floats(1.01 * MAX_GAP_S, 10.0))
def test_after_a_gap_it_starts_anew(intervals, seed, gap):
    stamp_ns = stamps([*intervals, gap, *intervals])
    half = len(stamp_ns) // 2
    position = np.random.default_rng(seed).normal(size=(len(stamp_ns), 12))
    whole = differentiate(stamp_ns, position)
    np.testing.assert_array_equal(whole[:half], differentiate(stamp_ns[:half], position[:half]))
    np.testing.assert_array_equal(whole[half:], differentiate(stamp_ns[half:], position[half:]))


def test_a_reset_forgets_and_results_are_the_callers_own():
    differentiator = JointDifferentiator()
    position = np.ones(12)
    differentiator.update(position, 0.002)
    position[:] = 2.0  # the caller's array may change: it was copied
    first = differentiator.update(position, 0.002)
    kept = first.copy()
    assert (first > 0).all()
    differentiator.update(np.zeros(12), 0.002)
    np.testing.assert_array_equal(first, kept)
    differentiator.reset()
    np.testing.assert_array_equal(differentiator.update(np.ones(12), 0.002), 0.0)


def test_no_samples_have_no_velocity():
    assert differentiate(np.zeros(0, np.int64), np.zeros((0, 12))).shape == (0, 12)
