"""The stationary clamp's decision, each condition and the dwell time."""

import numpy as np
import pytest

from trace_ros.estimator.stationary import StationaryDetector
from trace_ros.robot import StationaryThresholds

LIMITS = StationaryThresholds(angular_velocity=0.1, joint_velocity=0.2, acceleration=0.5, dwell=0.05)
STILL = {
    "angular_velocity": np.array([0.05, 0.0, 0.05]),
    "linear_acceleration": np.array([0.0, 0.0, 9.9]),
    "joint_velocity": np.full(12, -0.1),
}


def run(detector: StationaryDetector, samples: int, start: int = 0, **changes) -> list[bool]:
    return [detector.update((start + i) * 2_000_000, **(STILL | changes)) for i in range(samples)]


def test_standing_counts_from_the_end_of_the_dwell_time():
    assert run(StationaryDetector(LIMITS), 40) == [False] * 25 + [True] * 15


@pytest.mark.parametrize(
    "change",
    [
        {"angular_velocity": np.array([0.08, 0.08, 0.0])},
        {"linear_acceleration": np.array([0.0, 0.0, 9.2])},
        {"linear_acceleration": np.array([0.0, 3.5, 9.81])},
        {"joint_velocity": np.array([0.0] * 11 + [-0.3])},
        {"joint_velocity": np.array([0.25] + [0.0] * 11)},
    ],
)
def test_each_condition_alone_breaks_it_and_the_dwell_starts_anew(change):
    detector = StationaryDetector(LIMITS)
    assert run(detector, 30)[-1]
    assert run(detector, 1, start=30, **change) == [False]
    assert run(detector, 30, start=31) == [False] * 25 + [True] * 5


def test_a_rotated_imu_at_rest_is_still():
    assert run(StationaryDetector(LIMITS), 40, linear_acceleration=np.array([9.81, 0.0, 0.0]))[-1]


def test_reset_forgets():
    detector = StationaryDetector(LIMITS)
    run(detector, 40)
    detector.reset()
    assert not run(detector, 25, start=40)[-1]
