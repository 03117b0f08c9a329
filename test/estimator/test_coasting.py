"""Time without samples: how the body goes on, and how uncertain it becomes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_ros.estimator.coasting import Coasting, _unseen
from trace_ros.estimator.odometry import PoseIntegrator
from trace_ros.streams.intervals import GapSettings

SETTINGS = GapSettings(max_gap=0.1, coast_time=0.5)
STILL = np.zeros(3)


def walking(
    velocity: tuple[float, float, float] = (1.0, 0.0, 0.0), turn_rate: float = 0.0
) -> tuple[PoseIntegrator, Coasting]:
    """A body that has moved like this for long, and what goes on with it."""
    pose = PoseIntegrator()
    coasting = Coasting(pose, SETTINGS)
    for _ in range(5000):
        coasting.remember(velocity, turn_rate, 0.002)
    return pose, coasting


def test_without_a_gap_nothing_moves() -> None:
    pose, coasting = walking()
    assert coasting.wait(0.002, STILL) == 1.0
    assert pose.position == (0.0, 0.0, 0.0)
    assert not coasting.active


def test_after_a_gap_the_body_goes_on_and_fades() -> None:
    pose, coasting = walking()
    coasting.begin(1.0, running=True)
    assert coasting.active
    left = coasting.wait(1.0, STILL)
    assert left == pytest.approx(math.exp(-2.0))
    assert pose.position[0] == pytest.approx(0.5 * (1.0 - math.exp(-2.0)), rel=1e-6)
    for _ in range(5000):
        coasting.wait(0.002, STILL)
    assert pose.position[0] == pytest.approx(0.5, rel=1e-4)  # 1 m/s that fades within 0.5 s leads no further


def test_the_heading_is_the_usual_turns_in_the_gap_and_the_gyros_after_it() -> None:
    pose, coasting = walking(turn_rate=0.4)
    coasting.begin(1.0, running=True)
    coasting.wait(1.0, np.array([0.0, 0.0, 9.0]))
    turned = 0.4 * 0.5 * (1.0 - math.exp(-2.0))
    assert 2 * math.atan2(pose.orientation[2], pose.orientation[3]) == pytest.approx(turned, rel=1e-4)
    for _ in range(50):
        coasting.wait(0.002, np.array([0.0, 0.0, 1.0]))
    assert 2 * math.atan2(pose.orientation[2], pose.orientation[3]) == pytest.approx(turned + 0.1, rel=1e-4)


def test_the_end_of_a_gap_widens_by_all_that_was_not_seen() -> None:
    pose, coasting = walking()
    before = np.diag(pose.covariance)
    coasting.begin(0.6, running=True)
    coasting.wait(0.6, STILL)
    coasting.begin(0.4, running=False)  # another gap before the window was full
    coasting.wait(0.4, STILL)
    coasting.end()
    after = np.diag(pose.covariance)
    position, heading = _unseen(1.0, 1.0, 1.0), _unseen(1.0, 2.0, 1.0)
    assert after[0] - before[0] == pytest.approx(position**2, rel=1e-9)
    assert after[5] - before[5] == pytest.approx(heading**2, rel=1e-9)
    assert not coasting.active
    assert not coasting.level_anew
    coasting.begin(2.5, running=True)  # counts anew
    assert coasting.level_anew
    coasting.reset()
    assert not coasting.active
    assert not coasting.level_anew


def test_a_bridge_widens_and_does_not_move() -> None:
    pose, coasting = walking()
    before = np.diag(pose.covariance)
    coasting.bridge(0.05)
    assert pose.position == (0.0, 0.0, 0.0)
    assert np.diag(pose.covariance)[0] - before[0] == pytest.approx(_unseen(0.05, 1.0, 1.0) ** 2)


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_what_is_unseen_grows_with_time_and_is_bounded_by_both(seconds: float, change: float, most: float) -> None:
    found = _unseen(seconds, change, most)
    assert 0.0 <= found <= most * seconds * (1 + 1e-12) + 1e-300
    assert found <= change * seconds * seconds / 2 * (1 + 1e-9) + 1e-300
    assert found <= _unseen(1.5 * seconds + 0.1, change, most) + 1e-9 * found + 1e-300
