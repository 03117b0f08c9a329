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


def test_standing_still_for_half_a_minute_does_not_move_the_pose(estimator):
    run = run_estimator(estimator, standing_log(30.0))
    held = run.stationary
    assert held[50:].all()
    position = run.trajectory.position[held]
    np.testing.assert_array_equal(position, np.broadcast_to(position[0], position.shape))
    np.testing.assert_array_equal(run.trajectory.velocity[held], 0.0)
    np.testing.assert_array_equal(run.trajectory.angular_velocity[held], 0.0)


def test_standing_is_held_under_all_the_noise_of_training_and_without_joint_velocity(estimator):
    n = 5000
    perfect = replace(
        standing_log(n / 500),
        angular_velocity=np.zeros((n, 3)),
        linear_acceleration=np.tile([0.0, 0.0, 9.81], (n, 1)),
        joint_velocity=np.zeros((n, 12)),
    )
    log = apply_sensor_model(perfect, SensorConfig(), np.random.default_rng(0))
    for seen in (log, replace(log, joint_velocity=None)):
        assert run_estimator(estimator, seen).stationary[100:].all()


@pytest.mark.parametrize("ratio", [3.0, 0.1])
def test_over_an_interval_unknown_to_training_the_motion_is_stretched(estimator, ratio):
    """Two samples are lost, or one is stamped early: the network is told the trained interval; its rates are kept."""
    log = moving_log(110)
    regular = replace(log, stamp_ns=np.arange(110, dtype=np.int64) * 2_000_000)
    stamps = regular.stamp_ns.copy()
    stamps[100:] += round((ratio - 1) * 2_000_000)
    whole = run_estimator(estimator, regular).trajectory
    lost = run_estimator(estimator, replace(regular, stamp_ns=stamps)).trajectory
    at = 100 - 29
    np.testing.assert_array_equal(lost.velocity[at], whole.velocity[at])
    np.testing.assert_allclose(lost.angular_velocity[at], whole.angular_velocity[at], rtol=1e-12)
    moved = whole.position[at] - whole.position[at - 1]
    assert np.linalg.norm(moved) > 1e-6
    np.testing.assert_allclose(lost.position[at] - lost.position[at - 1], ratio * moved, rtol=1e-9)

    def turn(run):
        before, after = Rotation.from_quat(run.orientation[at - 1 : at + 1])
        return (before.inv() * after).as_rotvec()

    np.testing.assert_allclose(turn(lost), ratio * turn(whole), atol=1e-12)


def test_how_long_a_gap_was_does_not_reach_the_network(estimator):
    log = moving_log(200)
    runs = []
    for gap in (500_000_000, 100_000_000_000):
        stamps = log.stamp_ns.copy()
        stamps[100:] += gap
        runs.append(run_estimator(estimator, replace(log, stamp_ns=stamps)))
    np.testing.assert_array_equal(runs[0].trajectory.position, runs[1].trajectory.position)
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


def test_a_gap_refills_the_window_keeps_the_pose_and_widens_the_covariance(estimator):
    log = moving_log(200)
    stamps = log.stamp_ns.copy()
    stamps[100:] += 500_000_000
    run = run_estimator(estimator, replace(log, stamp_ns=stamps)).trajectory
    assert len(run) == 200 - 29 - 29
    before, after = 100 - 29 - 1, 100 - 29
    assert run.stamp_ns[after] == stamps[129]
    np.testing.assert_array_equal(run.position[after], run.position[before])
    np.testing.assert_array_equal(run.orientation[after], run.orientation[before])
    growth = np.diag(run.covariance[after] - run.covariance[before])[:3]
    moved = np.linalg.norm(run.velocity[before]) * (stamps[129] - stamps[99]) * 1e-9
    np.testing.assert_allclose(growth, moved**2, rtol=1e-6)


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


def test_a_model_that_knows_several_rates_is_told_the_true_interval(estimator, network, robot, tmp_path):
    card = estimator.model.card.model_copy(update={"interval_s": (0.0015, 0.0055)})
    export_model(network, card, tmp_path / "trace.pt")
    several = TraceEstimator(load_model(tmp_path / "trace.pt"), robot)
    for interval_ns, known, also_to_the_other in (
        (2_000_000, True, True),
        (2_500_000, True, True),
        (5_000_000, True, False),
        (1_200_000, False, True),
        (6_000_000, False, False),
    ):
        stamps = np.arange(60, dtype=np.int64) * interval_ns
        for made, told in ((several, known), (estimator, also_to_the_other)):
            run_estimator(made, replace(moving_log(60), stamp_ns=stamps))
            expected = np.float32(interval_ns * 1e-9 if told else 0.002)
            np.testing.assert_allclose(made._window.view()[-1, obs.DT], expected, rtol=1e-6)


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
