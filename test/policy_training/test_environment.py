"""Robots that are told where to walk: on real physics."""

from __future__ import annotations

import numpy as np

from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.policy_training.environment import OBSERVED, PRIVILEGED, WalkingEnvironment
from trace_ros.policy_training.mirror import mirrored_actions, mirrored_observation, mirrored_privileged
from trace_ros.robot import RobotDescription

KICK = np.tile([0.3, -0.8, 1.2, -0.3, 0.4, -0.6], 2)


def test_a_robot_that_is_left_alone_stands(robot: RobotDescription, exact: PolicyTrainingConfig) -> None:
    environment = WalkingEnvironment(robot, exact, 1)
    for _ in range(50):
        step = environment.step(np.zeros((4, 12)))
        seen, known = environment.observe()
    assert (seen.shape, known.shape) == ((4, OBSERVED), (4, PRIVILEGED))
    assert not step.timed_out.any()
    # At the gains of walking its knees give way a little.
    assert (seen[:, 5] < -0.95).all()
    np.testing.assert_allclose(known[:, 45:48], 0.0, atol=0.1)  # m/s
    assert known[:, 49:53].all()  # all feet on the ground


def test_joints_are_seen_as_the_policy_file_says(robot: RobotDescription, exact: PolicyTrainingConfig) -> None:
    environment = WalkingEnvironment(robot, exact, 1)
    action = np.tile(KICK, (4, 1))
    for _ in range(5):
        environment.step(action)
    seen, _ = environment.observe()
    np.testing.assert_allclose(seen[:, 33:], action)
    moved = seen[:, 9:21]
    # The joints follow their targets: 0.25 rad for an action of 1, beside gravity's pull.
    assert np.corrcoef(moved[0], KICK)[0, 1] > 0.7


def test_a_fall_ends_the_episode_and_the_robot_starts_anew_alone(
    robot: RobotDescription, exact: PolicyTrainingConfig
) -> None:
    alone, beside = WalkingEnvironment(robot, exact, 1), WalkingEnvironment(robot, exact, 1)
    still, falling = np.zeros((4, 12)), np.zeros((4, 12))
    falling[0] = np.tile([0.0, 6.0, -6.0], 4)  # folds its legs
    ended = False
    for _ in range(100):
        alone.step(still)
        step = beside.step(falling)
        if step.done[0]:
            ended = True
            assert not step.timed_out[0]
            seen, known = beside.observe()
            np.testing.assert_allclose(seen[0, 9:21], 0.0, atol=1e-12)  # nominal joints again
            np.testing.assert_allclose(known[0, 45:48], 0.0, atol=1e-12)
            break
    assert ended
    # What happened to the first robot is nothing to the others.
    np.testing.assert_array_equal(beside.observe()[0][1:, :6], alone.observe()[0][1:, :6])


def test_an_episode_ends_by_its_time(robot: RobotDescription, exact: PolicyTrainingConfig) -> None:
    short = exact.model_copy(update={"environment": exact.environment.model_copy(update={"episode": 0.1})})
    environment = WalkingEnvironment(robot, short, 1)
    ended = np.zeros(4)
    for _ in range(10):
        step = environment.step(np.zeros((4, 12)))
        assert (step.done == step.timed_out).all()
        ended += step.done
    np.testing.assert_array_equal(ended, 2)  # every 5 steps of 20 ms


def test_the_mirrored_action_gives_the_mirrored_motion(robot: RobotDescription, exact: PolicyTrainingConfig) -> None:
    order, signs = mirrored_actions()
    rng = np.random.default_rng(3)
    one, other = WalkingEnvironment(robot, exact, 1), WalkingEnvironment(robot, exact, 1)
    for _ in range(2):  # in the air: where feet touch down, the least difference grows
        action = rng.normal(0.0, 1.5, (4, 12))
        one.step(action)
        other.step(signs * action[:, order])
    tables = (mirrored_observation(), mirrored_privileged())
    for (index, sign), mine, theirs in zip(tables, one.observe(), other.observe(), strict=True):
        mirrored = sign * mine[:, index]
        free = np.ones(len(index), dtype=bool)
        free[6:9] = False  # commands are drawn, not moved
        difference = np.abs(mirrored - theirs)[:, free]
        # A foot that just touches may do so on one side alone; a wrong sign or order would be seen everywhere.
        assert np.quantile(difference, 0.9) < 2e-3
        assert difference.max() < 0.05
        assert np.abs(mine - theirs)[:, free].max() > 0.5


def test_mirroring_twice_changes_nothing() -> None:
    for order, signs in (mirrored_actions(), mirrored_observation(), mirrored_privileged()):
        values = np.arange(1.0, len(order) + 1)
        once = signs * values[order]
        np.testing.assert_array_equal(signs * once[order], values)
        assert not np.array_equal(once, values)


def test_commands_stay_within_their_limits_and_some_are_zero(
    robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    many = small.model_copy(update={"environment": small.environment.model_copy(update={"robots": 64})})
    environment = WalkingEnvironment(robot, many, 5)
    told = environment.observe()[1][:, 6:9]
    assert (np.abs(told) <= many.environment.command_limits.array).all()
    assert 0 < (~told.any(axis=1)).sum() < 32
