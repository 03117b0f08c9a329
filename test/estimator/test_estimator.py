"""TraceEstimator with a real exported network (untrained: these tests are about plumbing, not accuracy)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import ModelCard, export_model, load_model
from trace_ros.estimator.differentiation import differentiate
from trace_ros.estimator.estimator import TraceEstimator, initial_tilt
from trace_ros.estimator.network import TraceNetwork
from trace_ros.estimator.run import run_estimator
from trace_ros.geometry import GRAVITY, roll_pitch_yaw, so3_log, tilt_from_gravity
from trace_ros.logs import Sample, SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course
from trace_ros.sim.sensors import SensorConfig, apply_sensor_model
from trace_ros.streams.intervals import GapSettings


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="module")
def network() -> TraceNetwork:
    torch.manual_seed(7)
    network = TraceNetwork()
    with torch.no_grad():
        network.head[-1].weight.mul_(30)  # an untrained head would hardly move anything
        network.absent_torque.copy_(torch.tensor([0.5, -0.3, 0.8]))
    return network.eval()


@pytest.fixture(scope="module")
def estimator(robot, network, tmp_path_factory) -> TraceEstimator:
    path = tmp_path_factory.mktemp("model") / "trace.pt"
    card = ModelCard(robot="go2", robot_fingerprint=robot.fingerprint, rate_hz=500.0)
    export_model(network, card, path)
    return TraceEstimator(load_model(path), robot)


def moving_log(n: int = 200, seed: int = 0) -> SensorLog:
    rng = np.random.default_rng(seed)
    return SensorLog(
        stamp_ns=1_000_000_000 + np.cumsum(rng.integers(1_900_000, 2_100_000, n)),
        angular_velocity=rng.normal(scale=0.5, size=(n, 3)),
        linear_acceleration=rng.normal(scale=1.0, size=(n, 3)) + [0.5, -0.3, 9.7],
        joint_position=rng.normal(scale=0.2, size=(n, 12)),
        joint_velocity=rng.normal(scale=2.0, size=(n, 12)),
        joint_torque=rng.normal(scale=5.0, size=(n, 12)),
        torque_source="pd_target",
    )


def standing_log(seconds: float, seed: int = 0) -> SensorLog:
    n = round(seconds * 500)
    rng = np.random.default_rng(seed)
    return SensorLog(
        stamp_ns=np.arange(n) * 2_000_000,
        angular_velocity=rng.normal(scale=0.005, size=(n, 3)),
        linear_acceleration=rng.normal(scale=0.05, size=(n, 3)) + [0, 0, 9.81],
        joint_position=np.tile([0.0, 0.8, -1.5] * 4, (n, 1)),
        joint_velocity=rng.normal(scale=0.02, size=(n, 12)),
        joint_torque=np.zeros((n, 12)),
        torque_source="pd_target",
    )


def test_the_first_29_samples_give_no_estimate(estimator):
    estimator.reset()
    outputs = [estimator.step(sample) for sample in moving_log(40)]
    assert [output is None for output in outputs] == [True] * 29 + [False] * 11


def test_it_starts_level_by_gravity_at_the_origin(estimator):
    tilt = Rotation.from_euler("ZYX", [0.0, 0.3, -0.2])
    log = standing_log(0.1)
    log = replace(log, linear_acceleration=tilt.inv().apply(np.tile([0, 0, 9.81], (len(log), 1))))
    first = run_estimator(estimator, log).trajectory
    np.testing.assert_array_equal(first.position[0], 0.0)
    np.testing.assert_allclose(roll_pitch_yaw(first.orientation[0]), [-0.2, 0.3, 0.0], atol=1e-6)


def test_the_less_steady_the_specific_force_the_nearer_to_level_it_starts():
    """At rest all is gravity, in noise nearly; a swing by one g within the window leaves a hundredth."""
    leaning = Rotation.from_euler("ZYX", [0.0, 0.1, -0.2]).inv().apply(np.tile([0, 0, GRAVITY], (30, 1)))
    np.testing.assert_allclose(initial_tilt(leaning), [-0.2, 0.1], atol=1e-12)
    noise = np.random.default_rng(0).normal(scale=SensorConfig().accel_noise, size=(30, 3))
    np.testing.assert_allclose(initial_tilt(leaning + noise), [-0.2, 0.1], atol=0.01)
    swing = np.repeat([[0.0, 0.0, GRAVITY / 2], [0.0, 0.0, -GRAVITY / 2]], 15, axis=0)
    np.testing.assert_allclose(
        initial_tilt(leaning + swing), [-0.2 / (1 + GRAVITY**2), 0.1 / (1 + GRAVITY**2)], rtol=1e-9
    )


def test_a_walking_start_is_nearly_level(estimator):
    """Starts anywhere in a trot: far nearer to the truth than the mean specific force."""
    course = Course.load("demo").model_copy(
        update={"duration": 6.0, "phases": (Phase(walk_to=(8.0, 0.0)),), "patches": ()}
    )
    log = simulate_course(course, estimator.robot, 0).measured
    assert log.reference is not None
    truth = roll_pitch_yaw(log.reference.orientation)[:, :2]
    ours, naive = [], []
    for start in range(1000, 2900, 53):
        force = log.linear_acceleration[start : start + 30]
        ours.append(np.linalg.norm(initial_tilt(force) - truth[start + 29]))
        naive.append(np.linalg.norm(tilt_from_gravity(force.mean(axis=0)) - truth[start + 29]))
    assert np.mean(naive) > 0.08
    assert np.mean(ours) < 0.05


def test_it_is_the_network_in_closed_loop(estimator, network):
    """Every step by hand: the whole window through the eager network, its own output fed back, increments composed."""
    log = moving_log(120)
    run = run_estimator(estimator, log)
    rotation = Rotation.from_quat(run.trajectory.orientation[0])
    position, velocity = np.zeros(3), np.zeros(2)
    roll_pitch = roll_pitch_yaw(rotation.as_quat())[:2]
    dt = np.concatenate(([0.002], np.diff(log.stamp_ns) * 1e-9))
    rows = np.zeros((120, 47))
    hidden = network.initial_hidden(1)
    for i in range(120):
        rows[i] = np.concatenate(
            (log.angular_velocity[i], log.linear_acceleration[i], log.joint_position[i], log.joint_velocity[i],
             log.joint_torque[i], roll_pitch, velocity, [dt[i]])
        )  # fmt: skip
        if i < 29:
            continue
        window = torch.tensor(rows[i - 29 : i + 1], dtype=torch.float32)[None]
        with torch.no_grad():
            output = network.sequence(window, hidden)
        hidden = output.hidden
        motion = output.motion[0, -1].double().numpy()
        if i > 29:
            position = position + rotation.apply(motion[:3])
            rotation = rotation * Rotation.from_rotvec(motion[3:6])
        velocity = motion[6:8]
        roll_pitch = roll_pitch_yaw(rotation.as_quat())[:2]
        at = i - 29
        np.testing.assert_allclose(run.trajectory.velocity[at], motion[6:], atol=1e-5)
        np.testing.assert_allclose(run.attention[at], output.attention[0, -1].numpy(), atol=1e-5)
        np.testing.assert_allclose(run.trajectory.position[at], position, atol=1e-5)
        assert (
            np.linalg.norm(so3_log((rotation.inv() * Rotation.from_quat(run.trajectory.orientation[at])).as_matrix()))
            < 1e-5
        )


def test_a_reset_run_equals_a_fresh_one_bit_for_bit(estimator, robot):
    fresh = run_estimator(TraceEstimator(estimator.model, robot), moving_log(300))
    run_estimator(estimator, moving_log(250, seed=3))
    again = run_estimator(estimator, moving_log(300))
    for name in ("position", "orientation", "velocity", "covariance"):
        np.testing.assert_array_equal(getattr(again.trajectory, name), getattr(fresh.trajectory, name))
    np.testing.assert_array_equal(again.attention, fresh.attention)


def test_standing_still_does_not_move_the_pose(estimator):
    run = run_estimator(estimator, standing_log(10.0))
    held = run.stationary
    assert held[50:].all()
    position = run.trajectory.position[held]
    np.testing.assert_array_equal(position, np.broadcast_to(position[0], position.shape))
    np.testing.assert_array_equal(run.trajectory.velocity[held], 0.0)
    np.testing.assert_array_equal(run.trajectory.angular_velocity[held], 0.0)


def test_standing_is_held_under_all_the_noise_of_training_and_without_joint_velocity(estimator):
    n = 2500
    perfect = replace(
        standing_log(n / 500),
        angular_velocity=np.zeros((n, 3)),
        linear_acceleration=np.tile([0.0, 0.0, 9.81], (n, 1)),
        joint_velocity=np.zeros((n, 12)),
    )
    log = apply_sensor_model(perfect, SensorConfig(), np.random.default_rng(0))
    for seen in (log, replace(log, joint_velocity=None)):
        assert run_estimator(estimator, seen).stationary[100:].all()


def test_over_an_interval_that_is_too_short_the_motion_is_stretched(estimator):
    """A sample is stamped early: the network is told the trained interval; its rates are kept."""
    log = moving_log(110)
    regular = replace(log, stamp_ns=np.arange(110, dtype=np.int64) * 2_000_000)
    stamps = regular.stamp_ns.copy()
    stamps[100:] -= 1_800_000
    whole = run_estimator(estimator, regular).trajectory
    early = run_estimator(estimator, replace(regular, stamp_ns=stamps)).trajectory
    at = 100 - 29
    np.testing.assert_array_equal(early.velocity[at], whole.velocity[at])
    np.testing.assert_allclose(early.angular_velocity[at], whole.angular_velocity[at], rtol=1e-12)
    moved = whole.position[at] - whole.position[at - 1]
    assert np.linalg.norm(moved) > 1e-6
    np.testing.assert_allclose(early.position[at] - early.position[at - 1], 0.1 * moved, rtol=1e-9)

    def turn(run):
        before, after = Rotation.from_quat(run.orientation[at - 1 : at + 1])
        return (before.inv() * after).as_rotvec()

    np.testing.assert_allclose(turn(early), 0.1 * turn(whole), atol=1e-12)


@pytest.mark.parametrize("lost", [1, 2, 20])
def test_lost_samples_are_bridged_on_straight_lines(estimator, lost):
    """As if they had come, when they lie between their neighbours."""
    log = moving_log(150)
    log = replace(log, stamp_ns=np.arange(150, dtype=np.int64) * 2_000_000)
    kept = np.ones(150, dtype=bool)
    kept[100 : 100 + lost] = False
    bridged = {}
    for name in ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque"):
        values = getattr(log, name).copy()
        share = np.arange(1, lost + 1)[:, None] / (lost + 1)
        values[100 : 100 + lost] = values[99] + share * (values[100 + lost] - values[99])
        bridged[name] = values
    whole = run_estimator(estimator, replace(log, **bridged)).trajectory
    gappy = run_estimator(estimator, log.select(kept)).trajectory
    assert len(gappy) == 150 - 29 - lost
    np.testing.assert_allclose(gappy.position, whole.position[kept[29:]], atol=1e-7)
    np.testing.assert_allclose(gappy.orientation, whole.orientation[kept[29:]], atol=1e-6)


def smooth_log(seconds: float, rate_hz: float, means_s: float = 0.0) -> SensorLog:
    """A motion that is a function of time; with ``means_s``, IMU readings are means over that time before the stamp."""
    t = np.arange(1, round(seconds * rate_hz)) / rate_hz
    rates = 2 * np.pi * np.array([1.1, 1.7, 0.6])
    gyro = 0.5 * np.sin(rates * t[:, None])
    if means_s:
        gyro = 0.5 * (np.cos(rates * (t[:, None] - means_s)) - np.cos(rates * t[:, None])) / (rates * means_s)
    joints = 2 * np.pi * 1.5 * t[:, None] + np.arange(12)
    return SensorLog(
        np.round(t * 1e9).astype(np.int64),
        gyro,
        np.tile([0.3, -0.2, 9.7], (t.size, 1)),
        np.tile([0.0, 0.8, -1.5], 4) + 0.2 * np.sin(joints),
        0.2 * 2 * np.pi * 1.5 * np.cos(joints),
        3.0 * np.cos(joints),
        "pd_target",
    )


@pytest.mark.parametrize("rate_hz", [50.0, 100.0, 200.0, 400.0, 625.0, 800.0, 1000.0])
def test_at_another_rate_it_is_resampled_to_the_networks_own(estimator, rate_hz):
    expected = run_estimator(estimator, smooth_log(4.0, 500.0)).trajectory
    log = smooth_log(4.0, rate_hz)
    run = run_estimator(estimator, log).trajectory
    assert set(run.stamp_ns) <= set(log.stamp_ns)  # the stamps are the samples'
    assert run.stamp_ns[-1] >= log.stamp_ns[-1] - 2_000_000
    assert len(run) > 0.9 * 3.9 * min(rate_hz, 500.0)
    there, mask = expected.resample(run.stamp_ns)
    late = run.select(mask).stamp_ns > 2_000_000_000
    # Over the second half, wherever the first samples, taken before the rate was known, have led.
    error = (run.position[mask] - run.position[mask][late][0] - there.position + there.position[late][0])[late]
    path = np.linalg.norm(np.diff(there.position[late], axis=0), axis=1).sum()
    assert np.linalg.norm(error, axis=1).max() < 0.1 * path
    assert (np.diff(run.stamp_ns) > 0).all()


def test_a_model_that_was_trained_at_a_rate_follows_it_sample_by_sample(network, estimator, robot, tmp_path):
    rates = {"sampling": {"rates": {"500": 0.7, "400": 0.1, "200": 0.2, "50": 0.0}}}
    card = estimator.model.card.model_copy(update={"interval_s": (0.0009, 0.0101), "simulation": rates})
    export_model(network, card, tmp_path / "trace.pt")
    several = TraceEstimator(load_model(tmp_path / "trace.pt"), robot)
    for interval_ns, told in ((2_000_000, 0.002), (2_500_000, 0.0025), (5_000_000, 0.005), (8_000_000, 0.002)):
        stamps = np.arange(90, dtype=np.int64) * interval_ns
        run_estimator(several, replace(moving_log(90), stamp_ns=stamps))
        np.testing.assert_allclose(several._window.view()[-1, obs.DT], np.float32(told), rtol=1e-4)


def test_how_long_a_gap_was_does_not_reach_the_network(estimator):
    """But for the velocity that it was told before, which fades."""
    log = moving_log(200)
    runs = []
    for gap in (50_000_000_000, 100_000_000_000):
        stamps = log.stamp_ns.copy()
        stamps[100:] += gap
        runs.append(run_estimator(estimator, replace(log, stamp_ns=stamps)))
    np.testing.assert_array_equal(runs[0].trajectory.velocity, runs[1].trajectory.velocity)
    np.testing.assert_array_equal(runs[0].attention, runs[1].attention)


def test_a_pose_set_while_the_window_fills_is_seen_by_the_whole_window(estimator):
    log = moving_log(60)
    pose = np.array([1.0, 2.0, 3.0]), Rotation.from_euler("ZYX", [0.5, 0.2, -0.3]).as_quat()
    early = run_estimator(estimator, log, pose).trajectory
    estimator.reset()
    for index, sample in enumerate(log):
        if index == 20:
            estimator.set_pose(*pose)
        late = estimator.step(sample)
    assert late is not None
    np.testing.assert_array_equal(late.position, early.position[-1])
    np.testing.assert_array_equal(late.orientation, early.orientation[-1])


def test_set_pose_moves_the_frame_and_keeps_the_network(estimator):
    log = moving_log(200)
    plain = run_estimator(estimator, log)
    turned = Rotation.from_euler("z", 90, degrees=True)
    start = plain.trajectory.orientation[0]
    moved = run_estimator(
        estimator, log, (np.array([5.0, 6.0, 7.0]), (turned * Rotation.from_quat(start)).as_quat())
    ).trajectory
    np.testing.assert_allclose(moved.velocity, plain.trajectory.velocity, atol=1e-5)
    expected = turned.apply(plain.trajectory.position) + [5.0, 6.0, 7.0]
    np.testing.assert_allclose(moved.position, expected, atol=1e-5)


@pytest.mark.parametrize("pose", [([0, 0], [0, 0, 0, 1]), ([0, 0, 0], [0, 0, 0, 0]), ([0, np.nan, 0], [0, 0, 0, 1])])
def test_set_pose_refuses_what_is_no_pose(estimator, pose):
    with pytest.raises(TraceError, match="set_pose"):
        estimator.set_pose(*pose)


def gap_run(estimator, seconds: float, gaps: GapSettings | None = None):
    """A run with one gap, the index of its last estimate before, and that of the first one after."""
    log = moving_log(200)
    stamps = log.stamp_ns.copy()
    stamps[100:] += round(seconds * 1e9)
    made = TraceEstimator(estimator.model, estimator.robot, gaps)
    run = run_estimator(made, replace(log, stamp_ns=stamps)).trajectory
    assert len(run) == 200 - 29 - 29
    assert run.stamp_ns[100 - 29] == stamps[129]
    return run, 100 - 29 - 1, 100 - 29


def test_over_a_gap_the_body_goes_on_and_the_covariance_shows_it(estimator):
    run, before, after = gap_run(estimator, 0.5)
    moved = run.position[after] - run.position[before]
    dt = (run.stamp_ns[after] - run.stamp_ns[before]) * 1e-9
    mean = run.velocity[before - 60 : before + 1].mean(axis=0)
    assert 0.2 * np.linalg.norm(mean) * dt < np.linalg.norm(moved) < 2.0 * np.linalg.norm(mean) * dt
    growth = np.diag(run.covariance[after] - run.covariance[before])
    np.testing.assert_allclose(growth[:3], (0.5 * dt**2) ** 2, rtol=0.05)  # half of 1 m/s^2 times the time squared
    assert growth[5] > 0.2**2
    assert np.linalg.eigvalsh(run.covariance).min() > 0


def test_what_is_not_seen_is_bounded(estimator):
    run, before, after = gap_run(estimator, 100.0)
    moved = np.linalg.norm(run.position[after] - run.position[before])
    assert moved < 0.6 * np.linalg.norm(run.velocity[before - 60 : before + 1], axis=1).max()  # half a second's worth
    sigma = np.sqrt(np.diag(run.covariance[after]))
    assert 90 < sigma[0] < 110  # 1 m/s, all the time
    assert 3.0 < sigma[5] < 3.5  # any heading


def test_after_a_long_gap_roll_and_pitch_are_those_of_gravity(estimator):
    """Put on a slope meanwhile: it does not go on from the attitude before."""
    level, slope = standing_log(0.3), standing_log(0.3)
    tilt = Rotation.from_euler("ZYX", [0.0, 0.3, -0.2])
    force = np.concatenate((level.linear_acceleration, tilt.inv().apply(slope.linear_acceleration)))
    for gap, expected in ((0.5, [0.0, 0.0]), (5.0, [-0.2, 0.3])):
        log = SensorLog(
            np.concatenate((level.stamp_ns, slope.stamp_ns + 300_000_000 + round(gap * 1e9))),
            np.zeros((300, 3)),
            force,
            np.tile(level.joint_position[0], (300, 1)),
            np.zeros((300, 12)),
        )
        run = run_estimator(estimator, log).trajectory
        first = int(np.searchsorted(run.stamp_ns, level.stamp_ns[-1] + 1))
        np.testing.assert_allclose(roll_pitch_yaw(run.orientation[first])[:2], expected, atol=0.03)


def test_a_longer_max_gap_bridges_what_a_shorter_one_does_not(estimator):
    log = moving_log(200)
    stamps = log.stamp_ns.copy()
    stamps[100:] += 150_000_000
    log = replace(log, stamp_ns=stamps)
    bridging = TraceEstimator(estimator.model, estimator.robot, GapSettings(max_gap=0.2))
    assert len(run_estimator(bridging, log).trajectory) == 200 - 29
    assert len(run_estimator(estimator, log).trajectory) == 200 - 29 - 29


def test_without_joint_velocity_it_is_differentiated(estimator):
    """Joints that move at a constant rate have that velocity, whether it is reported or not."""
    log = standing_log(0.4)
    rate = np.linspace(-1.0, 1.0, 12)
    t = (log.stamp_ns - log.stamp_ns[0])[:, None] * 1e-9
    known = replace(log, joint_position=log.joint_position + rate * t, joint_velocity=np.tile(rate, (len(log), 1)))
    expected = run_estimator(estimator, known).trajectory
    actual = run_estimator(estimator, replace(known, joint_velocity=None)).trajectory
    np.testing.assert_allclose(actual.velocity[-1], expected.velocity[-1], atol=1e-3)
    assert not np.array_equal(actual.velocity[0], expected.velocity[0])


def test_a_joint_velocity_that_is_missing_once_is_not_made_of_old_positions(estimator):
    estimator.reset()
    log = standing_log(0.05)
    estimator.step(replace(log.sample(0), joint_velocity=None))
    for index in range(1, 10):
        estimator.step(log.sample(index))
    far = log.joint_position[10] + 1.0
    estimator.step(replace(log.sample(10), joint_position=far, joint_velocity=None))
    np.testing.assert_array_equal(estimator._window.view()[-1, obs.JOINT_VELOCITY], 0.0)


def test_a_differentiated_velocity_is_the_one_that_training_sees(estimator):
    """Over uneven stamps and a gap."""
    log = replace(moving_log(200), joint_velocity=None)
    stamps = log.stamp_ns.copy()
    stamps[150:] += 500_000_000
    log = replace(log, stamp_ns=stamps)
    seen = []
    estimator.reset()
    for sample in log:
        estimator.step(sample)
        seen.append(estimator._window.view()[-1, obs.JOINT_VELOCITY].copy())
    expected = differentiate(log.stamp_ns, log.joint_position).astype(np.float32)
    np.testing.assert_array_equal(seen, expected)
    assert (expected[150] == 0).all() and (expected[151] != 0).all()


def test_an_absent_torque_is_the_constant_that_the_network_learned(estimator, network):
    log = moving_log(100)
    absent = run_estimator(estimator, replace(log, joint_torque=None, torque_source="none"))
    constant = network.absent_values()[obs.JOINT_TORQUE].detach().double().numpy()
    told = run_estimator(estimator, replace(log, joint_torque=np.tile(constant, (100, 1))))
    np.testing.assert_array_equal(absent.trajectory.position, told.trajectory.position)
    np.testing.assert_array_equal(absent.attention, told.attention)
    assert not np.array_equal(absent.attention, run_estimator(estimator, log).attention)


def test_stamps_must_increase(estimator):
    estimator.reset()
    log = moving_log(3)
    estimator.step(log.sample(1))
    for index in (1, 0):
        with pytest.raises(ValueError, match="does not come after"):
            estimator.step(log.sample(index))


def test_a_log_shorter_than_the_window_is_refused(estimator):
    with pytest.raises(TraceError, match=r"29 samples.*at least 30"):
        run_estimator(estimator, moving_log(29))


def test_a_model_of_another_robot_is_refused(estimator, robot):
    with pytest.raises(TraceError, match="trained for robot 'go2', not 'a1'"):
        TraceEstimator(estimator.model, robot.model_copy(update={"name": "a1"}))


def test_covariances_are_valid_at_every_step(estimator):
    run = run_estimator(estimator, moving_log(300)).trajectory
    np.testing.assert_array_equal(run.covariance, run.covariance.transpose(0, 2, 1))
    assert np.linalg.eigvalsh(run.covariance).min() > 0


def test_the_ring_buffer_holds_what_the_network_saw(estimator):
    log = moving_log(90)
    run_estimator(estimator, log)
    window = estimator._window.view()
    np.testing.assert_allclose(window[:, obs.JOINT_TORQUE], log.joint_torque[-30:], rtol=1e-6)


def test_estimates_do_not_change_afterwards(estimator):
    """Consumers keep estimates; a later step must not write into an earlier one."""
    estimator.reset()
    estimates = [estimate for sample in moving_log(60) if (estimate := estimator.step(sample)) is not None]
    copies = [(e.position.copy(), e.pose_covariance.copy(), e.attention.copy()) for e in estimates]
    for sample in list(moving_log(100))[60:]:
        estimator.step(sample)
    for estimate, (position, covariance, attention) in zip(estimates, copies, strict=True):
        np.testing.assert_array_equal(estimate.position, position)
        np.testing.assert_array_equal(estimate.pose_covariance, covariance)
        np.testing.assert_array_equal(estimate.attention, attention)


def test_a_sample_with_plain_lists_is_not_needed(estimator):
    """Views into a log's arrays are enough: the estimator copies what it keeps."""
    log = moving_log(60)
    expected = run_estimator(estimator, log).trajectory
    estimator.reset()
    row = {name: np.zeros(size) for name, size in (("w", 3), ("a", 3), ("q", 12), ("dq", 12), ("tau", 12))}
    last = None
    for sample in log:
        for name, value in zip(row, (sample.angular_velocity, sample.linear_acceleration, sample.joint_position,
                                     sample.joint_velocity, sample.joint_torque), strict=True):  # fmt: skip
            row[name][:] = value
        last = estimator.step(Sample(sample.stamp_ns, *row.values()))
    assert last is not None
    np.testing.assert_array_equal(last.position, expected.position[-1])
