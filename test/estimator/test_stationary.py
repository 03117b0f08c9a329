"""The stationary clamp's decision, each condition and the dwell time."""

import numpy as np
import pytest

from trace_ros.estimator.stationary import StationaryDetector
from trace_ros.robot import StationaryThresholds

LIMITS = StationaryThresholds(angular_velocity=0.1, joint_velocity=0.2, acceleration=0.5, dwell=0.05, smoothing=0.0)
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


def test_noise_that_often_passes_a_threshold_does_not_break_a_stand():
    """A third of a threshold in standard deviation: of 18 readings, one is beyond in every few samples."""
    rng = np.random.default_rng(0)

    def held(limits: StationaryThresholds) -> np.ndarray:
        detector = StationaryDetector(limits)
        noisy = [
            (
                rng.normal(scale=0.03, size=3),
                rng.normal(scale=0.15, size=3) + [0, 0, 9.81],
                rng.normal(scale=0.07, size=12),
            )
            for _ in range(5000)
        ]
        return np.array([detector.update(i * 2_000_000, *readings) for i, readings in enumerate(noisy)])

    assert held(LIMITS).mean() < 0.5
    assert held(LIMITS.model_copy(update={"smoothing": 0.02}))[100:].all()


def test_smoothing_has_its_time_constant():
    """A joint at five times its limit is seen once 1 - exp(-t / 20 ms) passes 1/5: at the third sample."""
    detector = StationaryDetector(LIMITS.model_copy(update={"smoothing": 0.02}))
    still = STILL | {"joint_velocity": np.zeros(12)}
    assert run(detector, 40, **still)[-1]
    assert run(detector, 4, start=40, joint_velocity=np.full(12, 1.0)) == [True, True, False, False]
    detector.reset()
    assert run(detector, 26, **still)[-1]  # what was before the reset is forgotten
