"""What a step is worth: each term by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trace_ros.policy_training.config import PolicyTrainingConfig, RewardConfig
from trace_ros.policy_training.rewards import Motion, reward

TERMS = [name for name in RewardConfig.model_fields if not name.endswith(("_width", "_target", "_height"))]
STANDING = Motion(
    command=np.array([[0.5, 0.0, 0.0]]),
    velocity=np.array([[0.5, 0.0, 0.0]]),
    angular_velocity=np.zeros((1, 3)),
    gravity=np.array([[0.0, 0.0, -1.0]]),
    height=np.zeros(1),
    torque=np.zeros((1, 12)),
    joint_offset=np.zeros((1, 12)),
    joint_acceleration=np.zeros((1, 12)),
    action_change=np.zeros((1, 12)),
    contact=np.ones((1, 4), dtype=np.bool_),
    landed=np.zeros((1, 4), dtype=np.bool_),
    air_time=np.zeros((1, 4)),
    foot_speed=np.zeros((1, 4)),
    foot_lift=np.zeros((1, 4)),
)
SWINGING = replace(STANDING, contact=np.array([[True, True, True, False]]), foot_speed=np.full((1, 4), 2.0))


def only(**weights: float) -> RewardConfig:
    given = PolicyTrainingConfig.load("walk").rewards.model_dump()
    return RewardConfig(**{**given, **dict.fromkeys(TERMS, 0.0), **weights})


def row(value: float, index: int, size: int) -> np.ndarray:
    values = np.zeros((1, size))
    values[0, index] = value
    return values


@pytest.mark.parametrize(
    ("weights", "motion", "expected"),
    [
        ({"velocity": 2.0}, STANDING, 2.0),
        ({"velocity": 2.0, "velocity_width": 0.5}, replace(STANDING, velocity=row(1.0, 0, 3)), 2.0 * np.exp(-1.0)),
        ({"progress": 2.0}, STANDING, 1.0),
        ({"progress": 2.0}, replace(STANDING, velocity=row(0.1, 0, 3)), 0.2),
        ({"progress": 2.0}, replace(STANDING, velocity=row(0.9, 0, 3)), 1.0),  # no more than is asked
        ({"progress": 2.0}, replace(STANDING, velocity=row(0.4, 1, 3)), 0.0),  # beside it
        ({"progress": 2.0}, replace(STANDING, command=row(1.0, 2, 3)), 0.0),  # only turning is asked
        ({"progress": 2.0}, replace(STANDING, command=np.array([[0.3, -0.4, 0.0]])), 0.6),
        ({"turning": 1.0, "turning_width": 0.5}, replace(STANDING, angular_velocity=row(0.5, 2, 3)), np.exp(-1.0)),
        ({"heave": 3.0}, replace(STANDING, velocity=row(2.0, 2, 3)), 12.0),
        ({"rolling": 3.0}, replace(STANDING, angular_velocity=row(2.0, 1, 3)), 12.0),
        ({"rolling": 3.0}, replace(STANDING, angular_velocity=row(2.0, 2, 3)), 0.0),
        ({"tilt": 2.0}, replace(STANDING, gravity=row(0.5, 0, 3)), 0.5),
        ({"height": 100.0}, replace(STANDING, height=np.array([0.1])), 1.0),
        ({"torque": 2.0}, replace(STANDING, torque=row(0.5, 7, 12)), 0.5),
        ({"joint_acceleration": 0.1}, replace(STANDING, joint_acceleration=row(10.0, 7, 12)), 10.0),
        ({"action_rate": 2.0}, replace(STANDING, action_change=row(3.0, 7, 12)), 18.0),
        ({"hips": 2.0}, replace(STANDING, joint_offset=row(0.5, 3, 12)), 0.5),
        ({"hips": 2.0}, replace(STANDING, joint_offset=row(0.5, 4, 12)), 0.0),
        ({"posture": 2.0}, replace(STANDING, joint_offset=row(0.5, 4, 12)), 0.0),
        ({"posture": 2.0}, replace(STANDING, joint_offset=row(-0.5, 4, 12), command=np.zeros((1, 3))), 1.0),
        ({"slip": 2.0}, replace(STANDING, foot_speed=row(0.5, 2, 4)), 1.0),
        ({"slip": 2.0}, replace(STANDING, foot_speed=row(0.5, 2, 4), contact=np.zeros((1, 4), bool)), 0.0),
        ({"clearance": 3.0, "clearance_height": 0.1}, SWINGING, 0.06),  # the foot in the air, not those on the ground
        ({"clearance": 3.0, "clearance_height": 0.1}, replace(SWINGING, foot_lift=row(0.2, 3, 4)), 0.0),  # high enough
        ({"trot": 1.0}, STANDING, 0.0),
        ({"trot": 1.0}, replace(STANDING, contact=np.array([[True, False, False, True]])), 1.0),
        ({"trot": 1.0}, replace(STANDING, contact=np.array([[True, True, False, False]])), 0.0),
    ],
)
def test_terms(weights: dict[str, float], motion: Motion, expected: float) -> None:
    assert reward(motion, only(**weights), 0.02) == pytest.approx(0.02 * expected)


def test_a_landing_counts_once_whatever_the_step_takes() -> None:
    landed = replace(STANDING, landed=np.array([[True, False, False, False]]), air_time=np.full((1, 4), 0.5))
    assert reward(landed, only(air_time=2.0, air_time_target=0.2), 0.02) == pytest.approx(0.6)
    assert reward(landed, only(air_time=2.0, air_time_target=0.2), 0.01) == pytest.approx(0.6)


def test_it_never_falls_below_zero() -> None:
    assert reward(replace(STANDING, height=np.array([0.3])), only(height=-100.0, velocity=1.0), 0.02) == 0.0


def test_going_backwards_costs_as_much_as_going_ahead_brings() -> None:
    weights = only(progress=1.0, turning=1.0)
    still, back = (replace(STANDING, velocity=row(speed, 0, 3)) for speed in (0.0, -0.2))
    assert reward(back, weights, 1.0) - reward(still, weights, 1.0) == pytest.approx(-0.2)


def test_clumsy_steps_towards_the_command_are_worth_more_than_standing_still() -> None:
    """Else the robot never begins to walk: standing is the first thing that it learns."""
    config, duration = PolicyTrainingConfig.load("walk").rewards, 0.02
    still = replace(STANDING, velocity=np.zeros((1, 3)))
    gliding = replace(STANDING, velocity=row(0.1, 0, 3))  # of 0.5 m/s
    landing = replace(gliding, landed=np.array([[True, False, False, False]]), air_time=np.full((1, 4), 0.08))
    landings = 16  # in a second: four of each foot
    clumsy = (50 - landings) * reward(gliding, config, duration) + landings * reward(landing, config, duration)
    assert clumsy > 50 * reward(still, config, duration)
