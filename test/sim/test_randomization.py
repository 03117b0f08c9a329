"""Commands, pushes, slips and ground: what is drawn lies where the configuration says."""

from dataclasses import replace

import numpy as np
import pytest

from trace_ros.sim.commands import CommandConfig, draw_commands, hold_phases
from trace_ros.sim.domain_randomization import (
    ContactRandomization,
    PushKind,
    PushRandomization,
    RandomizationConfig,
    SlipProcess,
    SlipSchedule,
    draw_dynamics,
    draw_pushes,
    draw_slips,
)
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.sim.terrain_generation import TERRAIN_KINDS, TerrainConfig, block_boxes, generate_terrain, perlin_heights

LIMITS = np.array([1.0, 0.5, 1.2])


def test_commands_stand_turn_and_go_sideways_and_backwards():
    rng = np.random.default_rng(0)
    drawn = [draw_commands(CommandConfig(), LIMITS, 5.0, 100.0, rng) for _ in range(1000)]
    standing = np.mean([not commands.any() for commands in drawn])
    assert standing == pytest.approx(0.1, abs=0.03)
    every = np.concatenate(drawn)
    assert (np.abs(every) <= LIMITS).all()
    assert every[:, 0].min() < -0.9
    assert every[:, 0].max() > 0.9
    single = (every != 0).sum(axis=1) == 1
    assert {int(axis) for axis in np.argmax(every[single] != 0, axis=1)} == {0, 1, 2}
    changes = [np.any(np.diff(commands, axis=0) != 0, axis=1).sum() for commands in drawn if commands.any()]
    assert np.mean(changes) > 1.5
    assert not np.concatenate([commands[:20] for commands in drawn]).any()  # none before the earliest onset


def test_every_way_of_moving_has_its_share():
    """In the recorded part of the default rollouts, but for those that go steadily ahead."""
    default = SimulationConfig.load()
    config = default.model_copy(update={"commands": default.commands.model_copy(update={"cruise": 0.0})})
    rng = np.random.default_rng(1)
    settle = round(config.settle * 100)
    drawn = [draw_commands(config.commands, LIMITS, 5.0, 100.0, rng)[settle:] for _ in range(2000)]
    every = np.concatenate(drawn)
    used = every != 0

    def share_of_time(axis: int, sign: float) -> float:
        alone = used[:, axis] & (used.sum(axis=1) == 1)
        return float((alone & (np.sign(every[:, axis]) == sign)).mean())

    shares = [share_of_time(axis, sign) for axis in range(3) for sign in (-1.0, 1.0)]
    assert min(shares) > 0.03  # forwards, backwards, to either side, and on the spot both ways round
    walking = [commands.any(axis=1).astype(int) for commands in drawn]
    assert np.mean([not steps.any() for steps in walking]) == pytest.approx(0.1, abs=0.03)
    assert np.mean([(np.diff(steps) == 1).any() for steps in walking]) > 0.15  # begins to walk
    assert np.mean([(np.diff(steps) == -1).any() for steps in walking]) > 0.1  # stops
    assert np.mean([np.diff(commands, axis=0).any() for commands in drawn]) > 0.7
    assert (np.abs(every).max(axis=0) > 0.98 * LIMITS).all()


def test_who_goes_steadily_keeps_fast_and_straight_for_seconds():
    default = SimulationConfig.load().commands
    assert 0 < default.cruise < 1
    config = default.model_copy(update={"cruise": 1.0, "standing": 0.0, "pause": 0.0})
    rng = np.random.default_rng(2)
    drawn = [draw_commands(config, LIMITS, 12.0, 100.0, rng) / LIMITS for _ in range(300)]
    walking = np.concatenate([commands[commands.any(axis=1)] for commands in drawn])
    assert (np.abs(walking[:, 0]) >= 0.4).all()
    assert np.abs(walking[:, 1]).max() <= 0.1
    assert np.abs(walking[:, 2]).max() <= 0.3
    assert np.mean(walking[:, 0] > 0) == pytest.approx(0.75, abs=0.08)
    changes = [int((np.diff(commands, axis=0) != 0).any(axis=1).sum()) for commands in drawn]
    assert max(changes) <= 3  # the first step, and a new command after four seconds or more


def test_holding_begins_after_a_while_of_standing():
    commands = np.zeros((10, 3))
    commands[4, 2] = 0.1
    assert hold_phases(commands, 0.02, 100.0).tolist() == [False] * 2 + [True] * 2 + [False] * 3 + [True] * 3


def test_pushes_are_within_their_bounds():
    rng = np.random.default_rng(1)
    config = PushRandomization(probability=1.0, vertical=0.0)
    pushes = np.stack([draw_pushes(config, 1.0, 5.0, 100.0, rng) for _ in range(200)])
    assert not pushes[..., 3:].any()
    force = np.linalg.norm(pushes[..., :3], axis=-1)
    assert not force[:, :99].any()
    pushed = force[force > 0]
    assert pushed.min() >= 10.0
    assert pushed.max() <= 100.0 + 1e-9
    assert force.any(axis=1).mean() > 0.9
    assert not draw_pushes(PushRandomization(probability=0.0), 0.0, 5.0, 100.0, rng).any()


def test_pushes_are_forces_and_torques_of_several_lengths():
    rng = np.random.default_rng(2)
    leaning = PushKind(share=0.5, force=(5.0, 20.0), torque=(1.0, 3.0), duration=(1.0, 1.5))
    config = PushRandomization(probability=1.0, vertical=0.0, torque=(6.0, 8.0), interval=(0.2, 0.3), longer=(leaning,))
    lengths: dict[bool, list[int]] = {False: [], True: []}
    axes = []
    for _ in range(100):
        push = draw_pushes(config, 0.0, 20.0, 100.0, rng)
        torque = np.linalg.norm(push[:, 3:], axis=1)
        active = np.concatenate(([False], torque > 0, [False]))
        edges = np.flatnonzero(np.diff(active.astype(int)))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            assert (push[start:end] == push[start]).all()  # constant while it lasts
            long = bool(torque[start] < 5)
            force = np.linalg.norm(push[start, :3])
            assert (5 <= force <= 20, 1 <= torque[start] <= 3) if long else (10 <= force <= 100)
            if end < len(push):
                lengths[long].append(end - start)
            axes.append(push[start, 3:] / torque[start])
    assert 4 <= min(lengths[False]) <= max(lengths[False]) <= 32
    assert 99 <= min(lengths[True]) <= max(lengths[True]) <= 152
    assert len(lengths[False]) / (len(lengths[False]) + len(lengths[True])) == pytest.approx(0.5, abs=0.06)
    assert np.abs(np.mean(axes, axis=0)).max() < 0.06  # no axis is preferred
    assert np.allclose(np.mean(np.square(axes), axis=0), 1 / 3, atol=0.04)


def test_shares_of_pushes_must_fit():
    kind = {"share": 0.6, "force": [1, 2], "duration": [1, 2]}
    with pytest.raises(ValueError, match=r"add up to 1.2, more than 1"):
        PushRandomization.model_validate({"longer": [kind, kind]})
    only = PushRandomization.model_validate({"probability": 1, "longer": [kind | {"share": 1.0}]})
    pushes = draw_pushes(only, 0.0, 100.0, 100.0, np.random.default_rng(3))
    assert np.linalg.norm(pushes[:, :2], axis=1).max() <= 2.0


def test_a_slip_lasts_until_the_foot_lifts():
    starts = np.zeros((6, 4), dtype=np.bool_)
    starts[[1, 2], [0, 1]] = True  # foot 1 is in the air at step 2
    schedule = SlipSchedule(starts, np.full((6, 4), 0.35))
    process = SlipProcess(np.array([0.8]), [schedule])
    down, lifted = np.array([[True, False, True, True]]), np.array([[False, False, True, True]])
    assert process.update(0, down) is None
    slipping = process.update(1, down)
    assert slipping is not None
    assert slipping.tolist() == [[0.35, 0.8, 0.8, 0.8]]
    assert process.update(2, down) is None
    after = process.update(3, lifted)
    assert after is not None
    assert after.tolist() == [[0.8] * 4]
    assert process.onsets.tolist() == [1]


def test_slips_start_as_often_as_the_paper_says():
    schedule = draw_slips(ContactRandomization(), 1000.0, 100.0, np.random.default_rng(2))
    assert schedule.starts.mean() == pytest.approx(0.01, rel=0.1)
    assert 0.3 <= schedule.friction.min() <= schedule.friction.max() <= 0.4


def test_dynamics_are_within_bounds_and_can_be_switched_off(go2, policy):
    rng = np.random.default_rng(3)
    config = RandomizationConfig()
    drawn = [draw_dynamics(config, go2, policy, True, rng) for _ in range(500)]
    friction = np.array([dynamics.foot_friction for dynamics in drawn])
    assert (friction.min(), friction.max()) == pytest.approx((0.4, 1.2), abs=0.02)
    assert all(dynamics.foot_damping_ratio == 1.0 and dynamics.actuator_delay == 0.0 for dynamics in drawn)
    assert all(dynamics.foot_impedance is None for dynamics in drawn)
    rough = [draw_dynamics(config, go2, policy, False, rng).foot_time_constant for _ in range(200)]
    assert max(rough) <= config.contact.time_constant_uneven[1]
    off = RandomizationConfig.model_validate(
        {
            "dynamics": {
                "base_mass": [0, 0],
                "base_com_offset": [0, 0, 0],
                "mass_scale": [1, 1],
                "inertia_scale": [1, 1],
                "motor_strength": [1, 1],
                "kp_scale": [1, 1],
                "kd_scale": [1, 1],
            }
        }
    )
    plain = draw_dynamics(off, go2, policy, True, rng)
    assert (plain.kp, plain.kd, plain.base_mass, plain.mass_scale) == (policy.kp, policy.kd, 0.0, 1.0)
    assert np.array_equal(plain.torque_limit, go2.torque_limits)


def test_low_friction_is_a_tail_below_the_papers_range(go2, policy):
    rng = np.random.default_rng(10)
    config = SimulationConfig.load().randomization
    friction = np.array([draw_dynamics(config, go2, policy, True, rng).foot_friction for _ in range(3000)])
    assert (friction.min(), friction.max()) == pytest.approx((0.15, 1.2), abs=0.01)
    assert (friction < 0.4).mean() == pytest.approx(0.15, abs=0.02)
    off = config.model_copy(update={"contact": config.contact.model_copy(update={"low_probability": 0.0})})
    assert min(draw_dynamics(off, go2, policy, True, rng).foot_friction for _ in range(500)) >= 0.4


def test_delay_damping_and_strength_are_drawn(go2, policy):
    rng = np.random.default_rng(11)
    config = RandomizationConfig.model_validate(
        {
            "contact": {"damping_ratio": [0.5, 1.5]},
            "dynamics": {
                "actuator_delay": [0.002, 0.01],
                "torque_constant": [0.8, 0.9],
                "kp_scale": [1, 1],
                "kd_scale": [1, 1],
            },
        }
    )
    drawn = [draw_dynamics(config, go2, policy, True, rng) for _ in range(500)]
    delay = np.array([dynamics.actuator_delay for dynamics in drawn])
    damping = np.array([dynamics.foot_damping_ratio for dynamics in drawn])
    assert (delay.min(), delay.max()) == pytest.approx((0.002, 0.01), abs=2e-4)
    assert (damping.min(), damping.max()) == pytest.approx((0.5, 1.5), abs=0.02)
    strength = np.array([dynamics.kp / policy.kp for dynamics in drawn])
    assert (strength.min(), strength.max()) == pytest.approx((0.8, 0.9), abs=0.01)
    assert np.allclose(strength, [dynamics.kd / policy.kd for dynamics in drawn])


def test_some_rollouts_have_another_kind_of_contact(go2, policy):
    rng = np.random.default_rng(12)
    other = {"probability": 0.3, "impedance": [0.2, 0.8], "damping_ratio": [2.0, 3.0]}
    config = RandomizationConfig.model_validate({"contact": {"other": other}})
    drawn = [draw_dynamics(config, go2, policy, True, rng) for _ in range(2000)]
    others = [dynamics for dynamics in drawn if dynamics.foot_impedance is not None]
    assert len(others) / len(drawn) == pytest.approx(0.3, abs=0.03)
    impedance = np.array([dynamics.foot_impedance for dynamics in others])
    damping = np.array([dynamics.foot_damping_ratio for dynamics in others])
    assert (impedance.min(), impedance.max()) == pytest.approx((0.2, 0.8), abs=0.01)
    assert (damping.min(), damping.max()) == pytest.approx((2.0, 3.0), abs=0.02)
    assert {dynamics.foot_damping_ratio for dynamics in drawn if dynamics.foot_impedance is None} == {1.0}


def test_another_contact_changes_nothing_else_and_switched_off_draws_nothing(go2, policy):
    """Courses from before the term have the robots, and what is drawn after them, that they had."""
    on = RandomizationConfig.model_validate({"contact": {"other": {"probability": 1.0}}})
    rngs = [np.random.default_rng(13) for _ in range(2)]
    plain = draw_dynamics(RandomizationConfig(), go2, policy, True, rngs[0])
    other = draw_dynamics(on, go2, policy, True, rngs[1])
    assert other.foot_impedance is not None
    same = replace(other, foot_impedance=None, foot_damping_ratio=plain.foot_damping_ratio)
    for name, value in vars(plain).items():
        assert np.array_equal(getattr(same, name), value), name
    # As many numbers as were drawn before this term was there.
    before = np.random.default_rng(13)
    before.random(18)
    assert rngs[0].random() == before.random()


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("dynamics", "actuator_delay", [-0.001, 0.01], "must not be negative"),
        ("contact", "damping_ratio", [0.0, 1.0], "must be positive"),
        ("push", "duration", [0.0, 1.0], "must be positive"),
        ("contact", "other", {"impedance": [0.01, 0.9]}, "between 0.05 and 0.99"),
        ("contact", "other", {"impedance": [0.1, 1.0]}, "between 0.05 and 0.99"),
    ],
)
def test_ranges_that_cannot_be(section, key, value, words):
    with pytest.raises(ValueError, match=words):
        RandomizationConfig.model_validate({section: {key: value}})


@pytest.mark.parametrize("kind", TERRAIN_KINDS)
def test_ground_reaches_far_enough_and_repeats_with_its_seed(kind):
    config = TerrainConfig()
    first, second, other = (generate_terrain(kind, config, 8.0, np.random.default_rng(seed)) for seed in (4, 4, 5))
    grid = np.stack(np.meshgrid(np.linspace(-8, 8, 60), np.linspace(-8, 8, 60)), axis=-1).reshape(-1, 2)
    height = first.height_at(grid)
    assert np.isfinite(height).all()
    assert np.array_equal(height, second.height_at(grid))
    assert first.structure == other.structure  # so that they can share a batch
    assert first.half_size >= 8.0
    assert np.isfinite(first.half_size) == (not first.planes)
    if kind != "flat":
        assert not np.allclose(height, other.height_at(grid))


@pytest.mark.parametrize("kind", [kind for kind in TERRAIN_KINDS if kind != "flat"])
def test_difficulty_spans_its_range(kind):
    config = SimulationConfig.load().terrain
    low, high = getattr(
        getattr(config, kind),
        {"slope": "inclination", "perlin": "amplitude", "stairs": "rise"}.get(kind, "height"),
    )
    rng = np.random.default_rng(12)
    difficulty = [generate_terrain(kind, config, 2.0, rng).difficulty for _ in range(60)]
    assert low <= min(difficulty) < low + 0.2 * (high - low)
    assert high - 0.2 * (high - low) < max(difficulty) <= high


@pytest.mark.parametrize("kind", ["random_steps", "inclined_steps"])
def test_blocks_cover_the_commanded_way(kind):
    config = TerrainConfig()
    rng = np.random.default_rng(13)
    for _ in range(20):
        terrain = generate_terrain(kind, config, 6.0, rng, way=3.3)
        points = rng.uniform(-3.25, 3.25, (200, 2))
        assert np.isfinite(np.max([box.height_at(points) for box in terrain.boxes], axis=0)).all()


def test_perlin_spans_its_amplitude_without_jumps():
    heights = perlin_heights((120, 120), 0.1, 0.15, 1.2, np.random.default_rng(6))
    assert (heights.min(), heights.max()) == pytest.approx((0.0, 0.15))
    assert np.abs(np.diff(heights, axis=0)).max() < 0.06


def test_blocks_leave_no_gaps():
    boxes = block_boxes(0.1, 0.5, 0.17, (6, 6), np.random.default_rng(7))
    points = np.random.default_rng(8).uniform(-1.4, 1.4, (2000, 2))
    height = np.max([box.height_at(points) for box in boxes], axis=0)
    assert height.min() > -0.1
    assert height.max() < 0.25


def test_terrain_kinds_come_by_weight():
    config = TerrainConfig.model_validate(
        {kind: {"weight": 0.0} for kind in TERRAIN_KINDS} | {"stairs": {"weight": 3.0}}
    )
    rng = np.random.default_rng(9)
    assert {config.draw_kind(rng) for _ in range(20)} == {"stairs"}
