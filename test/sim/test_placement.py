"""Robots stay on their ground for the whole rollout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_ros.sim.rollout as rollout_module
from trace_ros.sim.backend import PhysicsTrace
from trace_ros.sim.placement import CommandedWay, farthest_reach
from trace_ros.sim.rollout import RolloutStatistics, SimulationConfig, simulate_rollouts
from trace_ros.sim.terrain import Terrain
from trace_ros.sim.terrain_generation import TERRAIN_KINDS
from trace_ros.sim.walk import FallConfig, Walk, first_departure

LIMITS = np.array([1.0, 0.5, 1.0])
HURRIED = {"standing": 0.0, "pause": 0.0, "onset": [0.2, 0.2], "stretch": [10.0, 10.0], "single_axis": 0.0}


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.floats(-3.2, 3.2), st.integers(10, 500))
def test_no_command_leads_beyond_the_reach(seed, yaw, steps):
    rng = np.random.default_rng(seed)
    commands = rng.uniform(-1, 1, (1, 3)) * LIMITS + np.zeros((steps, 3))
    commands[steps // 2 :] = rng.uniform(-1, 1, 3) * LIMITS
    way = CommandedWay.of(commands, yaw, 100.0)
    reach = farthest_reach(LIMITS, steps / 100.0)
    for corner in (way.low, way.high):
        assert np.linalg.norm(corner, ord=np.inf) <= reach
    # Begun where it says, the way is around the middle.
    start = way.start_on(Terrain("flat"))
    assert np.abs(np.concatenate((start + way.low, start + way.high))).max() <= way.half_extent
    assert (way.start_on(Terrain("stairs")) == 0).all()


def test_the_way_is_where_the_commands_lead():
    ahead = CommandedWay.of(np.tile([1.0, 0.0, 0.0], (200, 1)), np.pi / 2, 100.0)
    assert np.allclose((ahead.low, ahead.high), [[0, 0], [0, 2]], atol=1e-9)
    circle = CommandedWay.of(np.tile([1.0, 0.0, 1.0], (628, 1)), 0.0, 100.0)
    assert np.allclose((circle.low, circle.high), [[-1, 0], [1, 2]], atol=0.02)


class Spy(Walk):
    """Keeps what was simulated."""

    seen: list[tuple[list[Terrain], Walk]] = []  # noqa: RUF012

    def __init__(self, scenes, *others):
        super().__init__(scenes, *others)
        Spy.seen.append(([scene.terrain for scene in scenes], self))


def paths(go2, monkeypatch, kinds, commands, count, seed):
    """The ground of each robot and its way (S, 2), with all randomisation, every robot pushed."""
    data = SimulationConfig.load().model_dump()
    data |= {"duration": 3.0, "minimum_duration": 0.5}
    data["physics"] |= {"rate_hz": 1000}
    data["sampling"] = {}
    data["commands"] |= commands
    data["policy"] |= {"action_scale": [1.1, 1.2], "low_pass": [0.0, 0.3]}
    data["randomization"]["push"] |= {"probability": 1.0}
    for kind in TERRAIN_KINDS:
        data["terrain"][kind]["weight"] = 1.0 if kind in kinds else 0.0
    monkeypatch.setattr(rollout_module, "Walk", Spy)
    monkeypatch.setattr(Spy, "seen", [])
    config, statistics = SimulationConfig.model_validate(data), RolloutStatistics()
    list(simulate_rollouts(config, go2, seed, count, statistics))
    found = [
        (terrain, walk.trace.position[robot, :, :2])
        for terrains, walk in Spy.seen
        for robot, terrain in enumerate(terrains)
    ]
    return config, found, statistics


@pytest.fixture
def at_the_limits(monkeypatch):
    """Straight on, as fast as the policy may be told."""
    original = rollout_module.draw_commands

    def fastest(config, limits, duration, rate_hz, rng):
        commands = original(config, limits, duration, rate_hz, rng)
        return np.sign(commands) * limits * [1.0, 1.0, 0.0]

    monkeypatch.setattr(rollout_module, "draw_commands", fastest)


@pytest.mark.usefixtures("at_the_limits")
def test_the_fastest_robots_stay_far_from_the_end_of_the_ground(go2, policy, monkeypatch):
    """Commands at the limits, the liveliest policies, and pushes."""
    config, found, _ = paths(go2, monkeypatch, ("flat",), HURRIED, 12, 5)
    reach = farthest_reach(policy.command_limits, config.settle + config.duration)
    travelled = [np.linalg.norm(way[-1] - way[0]) for _, way in found]
    assert np.median(travelled) > 2.5
    # Even from the middle, which only stairs are walked from.
    assert max(np.abs(way - way[0]).max() for _, way in found) < reach - config.falls.edge


def test_robots_walk_on_the_blocks_that_they_were_given(go2, monkeypatch):
    _, found, _ = paths(go2, monkeypatch, ("random_steps", "perlin", "stairs"), HURRIED, 15, 6)
    assert {terrain.kind for terrain, _ in found} == {"random_steps", "perlin", "stairs"}
    for terrain, way in found:
        parts = terrain.boxes or terrain.height_fields
        on_them = np.isfinite(np.max([part.height_at(way[::50]) for part in parts], axis=0))
        assert on_them.mean() > 0.98


@pytest.mark.usefixtures("at_the_limits")
def test_a_rollout_ends_where_the_ground_does(go2, monkeypatch):
    monkeypatch.setattr(rollout_module, "farthest_reach", lambda *_: 1.5)
    config, found, statistics = paths(go2, monkeypatch, ("stairs",), HURRIED, 4, 7)
    gone = [np.abs(way).max() > terrain.half_size - config.falls.edge for terrain, way in found]
    assert sum(gone) >= 2
    assert statistics.fallen >= sum(gone)


def test_the_end_is_found_at_the_first_step_beyond():
    trace = PhysicsTrace.allocate(3, 10)
    trace.position[:, :, 1] = -np.arange(10)
    grounds = [Terrain("perlin", half_size=4.5), Terrain("flat"), Terrain("stairs", half_size=100.0)]
    assert first_departure(trace, grounds, FallConfig(edge=0.5)).tolist() == [5, 10, 10]


@pytest.fixture(autouse=True)
def _forget():
    yield
    Spy.seen.clear()
