"""Uneven ground for a policy's training: shared out, mapped, left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.policy_training.environment import WalkingEnvironment
from trace_ros.policy_training.grounds import GroundConfig, Grounds, shares
from trace_ros.robot import RobotDescription
from trace_ros.sim.scaling import RobotSize
from trace_ros.sim.terrain_generation import TERRAIN_KINDS


@pytest.fixture(scope="module")
def config() -> GroundConfig:
    """Each kind alike often, on little ground: maps of blocks take their time."""
    ground = PolicyTrainingConfig.load("climb").environment.ground
    assert ground is not None
    terrain = ground.terrain.model_dump()
    for kind in TERRAIN_KINDS:
        terrain[kind]["weight"] = 1.0
    small = {"start": 1.0, "leave": 1.5, "terrain": {**terrain, "blocks_per_side": 4}}
    return GroundConfig.model_validate({**ground.model_dump(), **small})


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=7).filter(lambda weights: sum(weights) > 1e-3), st.integers(1, 300)
)
def test_shares_are_as_the_weights(weights: list[float], count: int) -> None:
    drawn = shares(weights, count)
    assert len(drawn) == count
    number = np.bincount(drawn, minlength=len(weights))
    assert (np.abs(number - np.array(weights) / sum(weights) * count) < 1 + 1e-9).all()
    assert (np.diff(drawn) >= 0).all()


def test_every_kind_is_there_and_neighbours_fit_into_one_batch(config: GroundConfig) -> None:
    grounds = Grounds(config, 14, np.random.default_rng(1))
    assert sorted(terrain.kind for terrain in grounds.terrains) == sorted(2 * TERRAIN_KINDS)
    covered = [row for group in grounds.groups for row in range(group.start, group.stop)]
    assert covered == list(range(14))
    for group in grounds.groups:
        assert len({repr(terrain.structure) for terrain in grounds.terrains[group]}) == 1


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31))
def test_the_map_tells_the_height_of_the_ground(config: GroundConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grounds = Grounds(config, 7, rng)
    cells = rng.integers(-30, 31, (7, 5, 2)) * 0.05
    rows = np.arange(7)
    exact = [terrain.height_at(place) for terrain, place in zip(grounds.terrains, cells, strict=True)]
    # At most 1 cm beside a place of the map, which is looked up.
    np.testing.assert_allclose(grounds.height_at(rows, cells + rng.uniform(-0.01, 0.01, cells.shape)), exact)
    np.testing.assert_allclose(grounds.height_at(rows[3:], cells[3:, 0]), [heights[0] for heights in exact[3:]])


def test_a_state_that_blew_up_has_some_height(config: GroundConfig) -> None:
    grounds = Grounds(config, 7, np.random.default_rng(1))
    wild = np.tile([np.nan, 1e300], (7, 1))
    assert np.isfinite(grounds.height_at(np.arange(7), wild)).all()


def test_beyond_the_map_the_ground_has_a_height(config: GroundConfig) -> None:
    grounds = Grounds(config, 7, np.random.default_rng(1))
    for far in ([1e4, 0.0], [-1e4, 1e4], [0.0, -1e4]):
        assert np.isfinite(grounds.height_at(np.arange(7), np.tile(far, (7, 1)))).all()


def test_the_height_that_feet_swing_to_is_fitted_to_the_robot(
    robot: RobotDescription, exact: PolicyTrainingConfig, config: GroundConfig
) -> None:
    half = config.model_copy(update={"sized_for": RobotSize(mass=15.2, standing_height=2 * robot.standing_height)})
    rewards = exact.rewards.model_copy(update={"clearance_height": 0.1})
    heights = []
    for ground in (half, config.model_copy(update={"sized_for": None})):
        changed = {"environment": exact.environment.model_copy(update={"ground": ground}), "rewards": rewards}
        heights.append(WalkingEnvironment(robot, exact.model_copy(update=changed), 3)._rewards.clearance_height)
    assert heights == pytest.approx([0.05, 0.1])


def test_robots_start_within_and_are_told_when_they_leave(config: GroundConfig) -> None:
    grounds = Grounds(config, 7, np.random.default_rng(1))
    starts = grounds.draw_starts(np.arange(500) % 7, np.random.default_rng(2))
    assert 0.9 < np.abs(starts).max() <= 1.0
    np.testing.assert_array_equal(grounds.left(np.array([[0.0, -1.6], [1.4, 1.4]])), [True, False])
    level = Grounds(None, 2, np.random.default_rng(1))
    np.testing.assert_array_equal(level.left(np.full((2, 2), 1e6)), [False, False])


def test_robots_stand_on_whatever_ground_they_start_on(
    robot: RobotDescription, exact: PolicyTrainingConfig, config: GroundConfig
) -> None:
    given = {"robots": 14, "push_interval": 1e9, "ground": config}
    uneven = exact.model_copy(update={"environment": exact.environment.model_copy(update=given)})
    environment = WalkingEnvironment(robot, uneven, 3)
    for _ in range(25):
        step = environment.step(np.zeros((14, 12)))
        seen, known = environment.observe()
        assert not (step.done & ~step.timed_out).any()
    assert np.median(seen[:, 5]) < -0.98
    assert (seen[:, 5] < -0.8).all()  # with two feet on a step of 10 cm
    assert (known[:, 49:53].sum(axis=1) >= 3).all()  # feet on the ground
    # At the gains of walking its knees give way a little; beyond it the height is counted from the ground, which rises
    # by up to 0.2 m.
    lift = known[:, 48] / 10.0
    np.testing.assert_allclose(lift, np.median(lift), atol=0.04)
