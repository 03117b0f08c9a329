"""Targets reach the motors when they should."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.sim.actuation import DelayedTargets
from trace_ros.sim.backend import PhysicsConfig

PHYSICS = PhysicsConfig()
STEPS = PHYSICS.steps_per_control


def targets(number: int, robots: int) -> np.ndarray:
    return np.full((robots, 12), float(number)) + np.arange(robots)[:, None] * 1000


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.0, 0.05), min_size=1, max_size=4), st.sampled_from([1000, 2000, 4000]))
def test_each_robot_gets_its_targets_late_by_its_own_delay(delays, rate_hz):
    physics = PhysicsConfig(rate_hz=rate_hz)
    line = DelayedTargets(np.array(delays), physics)
    line.reset(targets(0, len(delays)))
    sent = [line.send(targets(1 + step, len(delays))) for step in range(12)]
    got = np.concatenate(sent, axis=1)[:, :, 0] - np.arange(len(delays))[:, None] * 1000
    for robot, delay in enumerate(delays):
        # Target k + 1 is sent at physics step k * S and holds from S steps after the one before.
        instant = np.arange(got.shape[1]) - round(delay * rate_hz)
        expected = np.maximum(instant // physics.steps_per_control + 1, 0)
        assert np.array_equal(got[robot], expected)


def test_without_delay_targets_hold_for_the_whole_control_step():
    line = DelayedTargets(np.zeros(2), PHYSICS)
    line.reset(targets(0, 2))
    arrived = line.send(targets(1, 2))
    assert arrived.shape == (2, STEPS, 12)
    assert (arrived == targets(1, 2)[:, None]).all()


def test_a_delay_is_finer_than_a_control_step():
    line = DelayedTargets(np.array([0.003]), PHYSICS)
    line.reset(targets(0, 1))
    arrived = line.send(targets(1, 1))[0, :, 0]
    assert arrived.tolist() == [0.0] * 6 + [1.0] * (STEPS - 6)


def test_what_was_returned_does_not_change_later():
    line = DelayedTargets(np.array([0.02]), PHYSICS)
    line.reset(targets(0, 1))
    first = line.send(targets(1, 1))
    kept = first.copy()
    line.send(targets(2, 1))
    assert np.array_equal(first, kept)
