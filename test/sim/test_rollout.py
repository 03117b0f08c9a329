"""Rollouts: physical consistency of what is recorded, repeatability, falls."""

import pickle

import numpy as np
import pytest

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.sim.rollout import RolloutStatistics, SimulationConfig, simulate_rollouts

NO_GROUND_BUT = {
    kind: {"weight": 0.0}
    for kind in ("flat", "slope", "perlin", "discrete", "random_steps", "inclined_steps", "stairs")
}


def changed(config: SimulationConfig, **sections) -> SimulationConfig:
    data = config.model_dump()
    for name, value in sections.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    return SimulationConfig.model_validate(data)


def test_rollouts_are_whole_and_on_all_ground(batch, short_config):
    rollouts, statistics = batch
    assert statistics.simulated == 30
    assert len(rollouts) == 30 - statistics.dropped
    assert len({rollout.info["terrain"] for rollout in rollouts}) >= 5
    whole = [rollout for rollout in rollouts if not rollout.info["fell"]]
    assert len(whole) >= 27
    samples = round(short_config.duration * short_config.physics.sample_rate_hz)
    assert {len(rollout.clean) for rollout in whole} == {samples}
    for rollout in rollouts:
        assert rollout.clean.robot == rollout.measured.robot == "go2"
        assert rollout.clean.torque_source == "pd_target"
        assert (rollout.clean.stamp_ns == rollout.measured.stamp_ns).all()
        assert rollout.measured.contact is not None


def test_gyroscope_integrates_to_the_orientation(batch):
    for rollout in batch[0]:
        log, reference = rollout.clean, rollout.clean.reference
        rotation = reference.rotation_world_body
        period = np.diff(log.stamp_ns) * 1e-9
        increment = (rotation[:-1].inv() * rotation[1:]).as_rotvec()
        assert np.abs(increment - log.angular_velocity[1:] * period[:, None]).max() < 1e-5


def test_specific_force_integrates_to_the_velocity_of_the_imu(batch, go2):
    for rollout in batch[0]:
        log, reference = rollout.clean, rollout.clean.reference
        rotation = reference.rotation_world_body
        period = np.diff(log.stamp_ns)[:, None] * 1e-9
        at_imu = rotation.apply(reference.velocity + np.cross(reference.angular_velocity, go2.imu.position))
        half_way = (
            rotation[:-1].apply(log.linear_acceleration[1:]) + rotation[1:].apply(log.linear_acceleration[1:])
        ) / 2
        predicted = (half_way - [0, 0, GRAVITY]) * period
        # An impact within the interval leaves a difference of second order.
        assert np.abs(np.diff(at_imu, axis=0) - predicted).max() < 1e-3
        # Over the whole rollout the differences must not add up: hundreds of hard impacts leave little more.
        assert np.abs(at_imu[-1] - at_imu[0] - predicted.sum(axis=0)).max() < 4e-3


def test_velocity_is_of_the_base_link_origin_in_the_body_frame(batch):
    for rollout in batch[0]:
        reference = rollout.clean.reference
        period = np.diff(reference.stamp_ns)[:, None] * 1e-9
        world = reference.rotation_world_body.apply(reference.velocity)
        mean = (world[1:] + world[:-1]) / 2
        assert np.abs(np.diff(reference.position, axis=0) - mean * period).max() < 3e-4
        travelled = reference.position[-1] - reference.position[0]
        assert np.abs(travelled - (mean * period).sum(axis=0)).max() < 1e-3


def test_jitter_moves_stamps_and_nothing_else(batch, short_config):
    steps = np.concatenate([np.diff(rollout.clean.stamp_ns) for rollout in batch[0]])
    physics_step = round(1e9 / short_config.physics.rate_hz)
    assert set(np.unique(steps)) <= {2_000_000 + k * physics_step for k in range(-2, 3)}
    assert 0.1 < np.mean(steps != 2_000_000) < 0.3  # both neighbours of one sample in ten


def test_torque_is_the_controllers_target_within_limits(batch, go2, policy):
    for rollout in batch[0]:
        log = rollout.clean
        assert (np.abs(log.joint_torque) <= go2.torque_limits + 1e-9).all()
        inside = np.abs(log.joint_torque) < go2.torque_limits - 1e-6
        target = log.joint_position + (log.joint_torque + policy.kd * log.joint_velocity) / policy.kp
        # Targets hold for a control step of 10 ms (5 samples): where torque is not clipped, most do not change.
        same = np.abs(np.diff(target, axis=0)) < 1e-4
        assert np.mean(same[inside[1:] & inside[:-1]]) > 0.7


def test_joint_positions_are_where_the_feet_touch(batch, go2):
    """A foot in firm contact on level ground is one foot radius above it, by the kinematics and the reference."""
    for rollout in batch[0]:
        if rollout.info["terrain"] != "flat":
            continue
        log, reference = rollout.clean, rollout.clean.reference
        feet = go2.kinematics.forward(log.joint_position)
        rotation = reference.rotation_world_body.as_matrix()
        height = reference.position[:, None, 2] + np.einsum("nj,nlj->nl", rotation[:, 2], feet)
        force = np.linalg.norm(log.foot_force, axis=-1)
        firm = log.contact & (force > 40) & (force < 120)
        assert np.abs(np.median(height[firm]) - go2.foot_radius) < 0.006


def test_contacts_carry_the_robot(batch):
    loads = []
    for rollout in batch[0]:
        log = rollout.clean
        length = np.linalg.norm(log.contact_normal, axis=-1)
        assert np.allclose(length[log.contact], 1.0)
        assert (length[~log.contact] == 0).all()
        world = log.reference.rotation_world_body.as_matrix()
        normal_up = np.einsum("nj,nlj->nl", world[:, 2], log.contact_normal)[log.contact]
        assert normal_up.mean() > 0.9  # from the ground to the foot
        loads.append(np.einsum("nj,nlj->nl", world[:, 2], log.foot_force).sum(axis=1).mean())
    # The robot weighs 15 kg, and -0.5 to 2 kg by randomisation.
    assert 135 < np.mean(loads) < 175


def test_it_trots(batch):
    cadence = []
    for rollout in batch[0]:
        if rollout.info["terrain"] in ("flat", "slope", "perlin") and rollout.info["standing"] < 0.3:
            touch = (np.diff(rollout.clean.contact.astype(int), axis=0) > 0).sum(axis=0)
            cadence.append(touch.mean() / rollout.clean.duration_s)
    assert len(cadence) >= 5
    assert 2.5 < np.median(cadence) < 5.5  # steps a second and foot


def test_same_seed_same_rollouts_and_they_can_be_sent(short_config, go2):
    config = changed(short_config, duration=1.0, minimum_duration=0.5)
    first, second, other = (list(simulate_rollouts(config, go2, seed, 4)) for seed in (7, 7, 8))
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.clean.reference.position, b.clean.reference.position)
        assert np.array_equal(a.measured.angular_velocity, b.measured.angular_velocity)
        assert a.info == b.info
    assert not np.array_equal(first[0].measured.angular_velocity, other[0].measured.angular_velocity)
    sent = pickle.loads(pickle.dumps(first[0]))
    assert np.array_equal(sent.clean.foot_force, first[0].clean.foot_force)


def test_one_batch_gives_all_rates_with_losses_and_absent_channels(short_config, go2):
    sampling = SimulationConfig.load().sampling.model_dump() | {"rates": {500: 1.0, 400: 1.0, 250: 1.0, 200: 1.0}}
    sensors = {"joint_velocity_absent": 0.3, "joint_torque_absent": 0.3, "imu_held": 0.3}
    data = changed(short_config, duration=1.0, sensors=sensors, terrain=NO_GROUND_BUT | {"flat": {"weight": 1.0}})
    config = SimulationConfig.model_validate(data.model_dump() | {"sampling": sampling, "batch": 24})
    rollouts = list(simulate_rollouts(config, go2, 4, 24))
    assert {rollout.info["rate_hz"] for rollout in rollouts} == {500.0, 400.0, 250.0, 200.0}
    lost = 0
    for rollout in rollouts:
        clean, measured, rate = rollout.clean, rollout.measured, rollout.info["rate_hz"]
        assert clean.rate_hz == pytest.approx(rate)
        whole = round(config.duration * rate) if not rollout.info["fell"] else None
        assert whole is None or len(clean) == round(whole * (1 - rollout.info["lost"]))
        lost += len(clean) != whole
        assert len(clean.reference) == len(clean) == len(measured) == len(measured.reference)
        assert np.array_equal(clean.reference.stamp_ns, clean.stamp_ns)
        assert np.array_equal(measured.stamp_ns, clean.stamp_ns)
        assert (np.diff(clean.stamp_ns) <= (config.sampling.lost_burst[1] + 1) * 1e9 / rate + 1e6).all()
        assert (measured.joint_velocity is None) == bool(rollout.info["joint_velocity_absent"])
        assert (measured.joint_torque is None) == bool(rollout.info["joint_torque_absent"])
        assert clean.joint_velocity is not None
        assert clean.joint_torque is not None
    assert lost >= 8
    for channel in ("joint_velocity_absent", "joint_torque_absent", "imu_update_hz"):
        assert 2 <= sum(rollout.info[channel] > 0 for rollout in rollouts) <= 14


def test_falls_are_cut_with_a_margin(short_config, go2):
    violent = {"probability": 1.0, "force": [600.0, 900.0], "duration": [0.3, 0.4], "interval": [0.3, 0.5]}
    data = short_config.model_dump()
    data["randomization"]["push"] |= violent
    data |= {"duration": 1.5, "minimum_duration": 0.1, "terrain": NO_GROUND_BUT | {"flat": {"weight": 1.0}}}
    config = SimulationConfig.model_validate(data)
    statistics = RolloutStatistics()
    rollouts = list(simulate_rollouts(config, go2, 2, 8, statistics))
    assert statistics.fallen >= 4
    assert statistics.by_terrain == {"flat": (8, statistics.fallen)}
    assert len(rollouts) == 8 - statistics.dropped
    for rollout in rollouts:
        if rollout.info["fell"]:
            assert rollout.clean.duration_s < config.duration - config.falls.margin + 0.01
        up = rollout.clean.reference.rotation_world_body.as_matrix()[:, 2, 2]
        assert np.arccos(up.min()) < config.falls.tilt


def test_too_short_rollouts_are_dropped_and_counted(short_config, go2):
    config = changed(short_config, duration=0.3, minimum_duration=1.0)
    statistics = RolloutStatistics()
    assert list(simulate_rollouts(config, go2, 0, 3, statistics)) == []
    assert statistics.dropped == 3


def test_held_robots_stand_still(short_config, go2):
    data = short_config.model_dump()
    data["commands"] |= {"standing": 1.0, "hold": 1.0, "hold_after": 0.2}
    data["randomization"]["push"]["probability"] = 0.0
    data["randomization"]["contact"]["slip_probability"] = 0.0
    data["terrain"] = NO_GROUND_BUT | {"flat": {"weight": 1.0}}
    for rollout in simulate_rollouts(SimulationConfig.model_validate(data), go2, 3, 4):
        late = rollout.clean.select(slice(-300, None))
        assert np.abs(late.angular_velocity).max() < 0.02
        assert np.abs(late.joint_velocity).max() < 0.05
        assert np.linalg.norm(rollout.clean.reference.velocity[-300:], axis=1).max() < 3e-3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batches: 3", "unknown key 'batches'"),
        ("terrain: {flat: {wieght: 1}}", "terrain.flat.wieght"),
        ("policy: {low_pass: [0.6, 0.0]}", "low <= high"),
        ("physics: {rate_hz: 2100}", "multiple"),
        ("{physics: {rate_hz: 1000}, sampling: {rates: {400: 1}}}", "400 Hz does not divide physics.rate_hz 1000"),
        ("sensors: {imu_delay: [0, 3]}", "sensors.imu_delay"),
        ("- 1", "keys and values"),
    ],
)
def test_bad_configuration_is_one_line(tmp_path, change, words):
    path = tmp_path / "simulation.yaml"
    path.write_text(change + "\n")
    with pytest.raises(TraceError) as error:
        SimulationConfig.load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_configuration_does_not_name_stays_as_it_was():
    """Courses and older configurations know nothing of delays, lost samples, other rates and absent channels."""
    config = SimulationConfig.model_validate({"sensors": {"gyro_noise": 0.01}})
    assert config.sampling.rates == {}
    assert config.sampling.lost_probability == (0.0, 0.0)
    sensors = config.sensors
    assert sensors.noise_scale == (1.0, 1.0)
    assert sensors.imu_delay == sensors.joint_delay == (0.0, 0.0)
    assert sensors.imu_held == sensors.joint_held == sensors.gyro_scale == sensors.accel_scale == 0.0
    assert sensors.joint_velocity_absent == sensors.joint_torque_absent == 0.0


def test_all_terrain_off_is_refused():
    with pytest.raises(ValueError, match="weights are zero"):
        SimulationConfig.model_validate({"terrain": NO_GROUND_BUT})


def test_unknown_engine_and_robot_without_policy(short_config, go2):
    config = changed(short_config, physics={"backend": "bullet3"})
    with pytest.raises(TraceError, match="unknown simulation backend 'bullet3'"):
        next(simulate_rollouts(config, go2, 0, 1))
    with pytest.raises(TraceError, match="names no walking policy"):
        next(simulate_rollouts(short_config, go2.model_copy(update={"policy": None}), 0, 1))


def test_other_policies_walk_their_share(go2, short_config, tmp_path):
    file = tmp_path / "striding.yaml"
    file.write_text(go2.policy.read_text().replace("rate_hz: 100", "rate_hz: 50"))
    robot = go2.model_copy(update={"other_policies": {file: 0.5}})
    config = changed(short_config, duration=0.3, settle=0.2, minimum_duration=0.1, batch=2, sampling={"rates": {}})
    rollouts = list(simulate_rollouts(config, robot, seed=3, count=24))
    by = [rollout.info["policy"] for rollout in rollouts]
    assert 4 <= by.count("striding") <= len(by) - 4
    assert set(by) == {"go2_policy", "striding"}
    # Those of the robot's own policy are as they would be without others.
    alone = list(simulate_rollouts(config, go2, seed=3, count=24))
    assert len(alone) == len(rollouts)
    same = [
        np.array_equal(one.clean.joint_position, other.clean.joint_position)
        for one, other in zip(alone, rollouts, strict=True)
    ]
    assert all(same[index] for index, name in enumerate(by) if name == "go2_policy")
    assert not all(same[index] for index, name in enumerate(by) if name == "striding")
    again = list(simulate_rollouts(config, robot, seed=3, count=24))
    assert [rollout.info for rollout in again] == [rollout.info for rollout in rollouts]
