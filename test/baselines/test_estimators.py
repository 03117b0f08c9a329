"""IEKF, IEKF-SR and leg odometry as users run them."""

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from trace_ros.baselines.config import BaselineConfig
from trace_ros.baselines.iekf import Iekf, IekfSlipRejection
from trace_ros.baselines.invariant_filter import InvariantFilter
from trace_ros.baselines.leg_odometry import LegOdometry
from trace_ros.baselines.registry import ESTIMATORS, load_estimator
from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import initial_tilt
from trace_ros.estimator.run import run_estimator
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.runner import evaluate_run
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.resources import config_directory

KINDS = (Iekf, IekfSlipRejection, LegOdometry)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def estimator(request, go2):
    return request.param(go2)


@pytest.fixture(scope="module")
def short(walked) -> SensorLog:
    """Two seconds, in which the robot starts to walk."""
    return walked.measured.select(slice(400, 1400))


def inertial(log: SensorLog) -> Trajectory:
    """What gyro and accelerometer give alone, from the true start."""
    truth = log.reference
    dt = np.diff(log.stamp_ns) * 1e-9
    state = InvariantFilter(BaselineConfig().noise, BaselineConfig().prior)
    state.begin(truth.rotation_world_body[0].as_matrix(), truth.position[0], 0.0)
    state.points[:, 0] = truth.rotation_world_body[0].apply(truth.velocity[0])
    poses = [(state.position.copy(), state.rotation)]
    for gyro, accel, step in zip(log.angular_velocity, log.linear_acceleration, dt, strict=False):
        state.propagate(gyro, accel, step, np.zeros((4, 3)), np.zeros((4, 3)))
        poses.append((state.position.copy(), state.rotation))
    quaternions = Rotation.from_matrix(np.array([rotation for _, rotation in poses])).as_quat()
    return Trajectory(log.stamp_ns, np.array([p for p, _ in poses]), quaternions, np.zeros((len(log), 3)))


def test_a_simulated_walk_is_followed_far_better_than_by_the_imu_alone(walked, go2):
    log = walked.measured
    path = log.reference.path_length_m
    assert path > 2.5
    drift = np.linalg.norm(inertial(log).position[-1] - log.reference.position[-1])
    for kind in KINDS:
        metrics = evaluate_run("walk", log, kind(go2), MetricSettings(horizon_s=2.0)).metrics
        assert metrics.ate_position_m < 0.04 * path, kind.name
        horizontal = np.sqrt(metrics.ate_position_m**2 - metrics.ate_z_m**2)
        assert horizontal < 0.02 * path, kind.name
        assert metrics.ate_velocity_mps < 0.15, kind.name
        assert metrics.ate_orientation_rad < 0.03, kind.name
        assert metrics.ate_position_m < 0.1 * drift, kind.name


def test_the_error_is_in_keeping_with_the_covariance(walked, go2):
    """Started where the truth is, velocity and tilt stay within a few of their own standard deviations."""
    log = walked.measured
    estimator = IekfSlipRejection(go2)
    truth = log.reference
    run = run_estimator(estimator, log, (truth.position[29], truth.orientation[29]))
    sigma = np.sqrt(np.diagonal(run.trajectory.covariance, axis1=1, axis2=2))
    assert (np.diff(sigma[:, 5]) > -1e-6).all()  # nothing tells the heading
    assert sigma[-1, :2].min() > sigma[0, :2].max()
    reference = truth.select(slice(29, None))
    turned = (run.trajectory.rotation_world_body * reference.rotation_world_body.inv()).as_rotvec()
    assert np.abs(turned[:, :2]).max() < 6 * sigma[:, 3:5].max()


def test_starts_like_trace(estimator, short):
    """The thirtieth sample gives the first estimate: at the pose that was set, else level by gravity at the origin."""
    estimator.reset()
    given = [estimator.step(sample) for sample in short.select(slice(0, 31))]
    assert given[:29] == [None] * 29
    roll, pitch = initial_tilt(short.linear_acceleration[:30])
    expected = Rotation.from_euler("xyz", (roll, pitch, 0.0))
    assert (Rotation.from_quat(given[29].orientation) * expected.inv()).magnitude() < 1e-9
    np.testing.assert_allclose(given[29].position, 0.0, atol=1e-12)
    assert given[29].stamp_ns == short.stamp_ns[29]

    pose = np.array([3.0, -1.0, 0.4]), Rotation.from_euler("xyz", (0.05, -0.02, 2.0)).as_quat()
    first = run_estimator(estimator, short.select(slice(0, 40)), pose).trajectory
    np.testing.assert_allclose(first.position[0], pose[0], atol=1e-12)
    np.testing.assert_allclose(np.abs(first.orientation[0] @ pose[1]), 1.0, atol=1e-12)


def test_estimates_are_whole(estimator, short):
    estimator.reset()
    for sample in short:
        estimate = estimator.step(sample)
        if estimate is None:
            continue
        for matrix in (estimate.pose_covariance, estimate.twist_covariance):
            assert (matrix == matrix.T).all()
            assert np.linalg.eigvalsh(matrix).min() > -1e-15
    assert estimate.attention is None
    assert estimate.contact.shape == (4,)
    assert "attention" not in estimator.outputs
    assert abs(np.linalg.norm(estimate.orientation) - 1) < 1e-12
    assert estimate.velocity.shape == estimate.angular_velocity.shape == (3,)


def test_a_reset_run_equals_a_fresh_one(estimator, short):
    first, again = (run_estimator(estimator, short).trajectory for _ in range(2))
    fresh = run_estimator(type(estimator)(estimator.robot), short).trajectory
    for other in (again, fresh):
        np.testing.assert_array_equal(first.position, other.position)
        np.testing.assert_array_equal(first.orientation, other.orientation)
        np.testing.assert_array_equal(first.covariance, other.covariance)


def test_a_pose_that_is_set_moves_all_that_follows(estimator, short):
    """The same motion from another place and heading."""
    half = len(short) // 2
    plain = run_estimator(estimator, short).trajectory
    estimator.reset()
    before = [estimator.step(sample) for sample in short.select(slice(0, half))][-1]
    turn = Rotation.from_euler("z", 1.2)
    estimator.set_pose(
        turn.apply(before.position) + [5.0, 1.0, 0.2], (turn * Rotation.from_quat(before.orientation)).as_quat()
    )
    after = [estimator.step(sample) for sample in short.select(slice(half, None))]
    positions = np.array([estimate.position for estimate in after])
    expected = turn.apply(plain.position[half - 29 :]) + [5.0, 1.0, 0.2]
    np.testing.assert_allclose(positions, expected, atol=0.02)
    np.testing.assert_allclose(positions[0], expected[0], atol=0.002)
    assert after[0].pose_covariance[0, 0] < 1e-4


@pytest.mark.parametrize(
    ("position", "orientation"),
    [((0.0, 0.0), (0, 0, 0, 1)), ((np.nan, 0, 0), (0, 0, 0, 1)), ((0, 0, 0), (0, 0, 0, 0)), ((0, 0, 0), (0, 0, 1))],
)
def test_what_is_no_pose_is_refused(estimator, position, orientation):
    with pytest.raises(TraceError, match="set_pose"):
        estimator.set_pose(np.array(position), np.array(orientation))


def test_after_a_gap_the_pose_goes_on_less_certain(estimator, short):
    keep = np.ones(len(short), dtype=bool)
    keep[500:700] = False  # 0.4 s
    run = run_estimator(estimator, short.select(keep)).trajectory
    at = int(np.searchsorted(run.stamp_ns, short.stamp_ns[700]))
    assert run.stamp_ns[at] == short.stamp_ns[700 + 29]
    np.testing.assert_allclose(run.position[at], run.position[at - 1], atol=1e-9)
    speed = np.linalg.norm(run.velocity[at - 1])
    assert run.covariance[at, 0, 0] > (0.4 * speed) ** 2
    estimator.reset()
    estimator.step(short.sample(1))
    with pytest.raises(ValueError, match="does not come after"):
        estimator.step(short.sample(0))


def test_robots_that_report_less_are_followed_too(estimator, walked):
    log = walked.measured
    poor = replace(log, joint_torque=None, torque_source="none", joint_velocity=None)
    metrics = evaluate_run("poor", poor, estimator, MetricSettings(horizon_s=2.0)).metrics
    assert metrics.ate_position_m < 0.1 * metrics.path_length_m


def test_slip_changes_the_noise_and_not_the_standing_feet(go2):
    """One foot slides over the ground; both filters keep it, only the noise of its point differs."""
    estimators = [kind(go2, unhurried()) for kind in (Iekf, IekfSlipRejection)]
    for estimator in estimators:
        for sample in standing_still(go2, 200):
            estimator.step(sample)
    noises, moved = [], []
    for estimator in estimators:
        state = estimator._filter
        assert state.standing.all()
        assert not estimator.slipping.any()
        taken = []
        propagate = state.propagate
        state.propagate = lambda *a, go=propagate, kept=taken: (kept.append(a[3].copy()), go(*a))
        for sample in sliding(go2, 200, 40, 0.6):
            estimate = estimator.step(sample)
            assert state.standing.all()
        moved.append(np.linalg.norm(estimate.position[:2]))
        noises.append(np.array(taken))
    noise = estimators[0].config.noise
    np.testing.assert_array_equal(
        noises[0], np.tile([noise.contact, noise.contact, noise.contact_vertical], (40, 4, 1))
    )
    assert estimators[1].slipping.tolist() == [True, False, False, False]
    np.testing.assert_array_equal(noises[1][:, 1:], noises[0][:, 1:])
    np.testing.assert_array_equal(noises[1][5:, 0, :2], noise.slip)
    np.testing.assert_array_equal(noises[1][:, 0, 2], noise.contact_vertical)
    assert not estimators[0].slipping.any()
    assert moved[1] < 0.5 * moved[0]


def test_a_wrong_velocity_is_not_taken_for_slip_of_all_feet_for_ever(go2):
    """A robot that stands still, while its accelerometer says that it sets off: all feet seem to slide backwards."""

    def speed(patience: float) -> float:
        estimator = IekfSlipRejection(go2, unhurried().model_copy(update={"slip_patience": patience}))
        samples = standing_still(go2, 1500)
        for sample in samples[:200]:
            estimator.step(sample)
        for sample in samples[200:]:
            # Eight times the threshold in a tenth of a second, then a push that never ends.
            push = 13.0 if sample.stamp_ns < samples[250].stamp_ns else 0.5
            pushed = sample.linear_acceleration + [push, 0.0, 0.0]
            estimate = estimator.step(replace(sample, linear_acceleration=pushed))
        return float(np.linalg.norm(estimate.velocity[:2]))

    assert speed(0.2) < 0.1
    assert speed(1e9) > 1.0


def test_leg_odometry_waits_until_a_foot_has_landed(go2):
    """A foot that moves over the ground counts only once it has stood for a while, and the others do meanwhile."""
    config = BaselineConfig.load()
    odometry = LegOdometry(go2, config)
    samples = sliding(go2, 0, 260, 0.2)
    speeds = []
    for index, sample in enumerate(samples):
        if index < 150:  # unloaded
            sample = replace(sample, joint_torque=np.concatenate((np.zeros(3), sample.joint_torque[3:])))
        estimate = odometry.step(sample)
        if index >= 100:
            assert estimate.contact.tolist() == [index >= 150 + landed_after(config), True, True, True]
            speeds.append(np.linalg.norm(estimate.velocity))
    speeds = np.array(speeds)
    first = int(np.argmax(speeds > 0.02))
    assert speeds[:first].max() < 1e-6
    assert first == 50 + landed_after(config) + round(config.leg_odometry.landing / 0.002)
    assert speeds[first] == pytest.approx(0.05, rel=0.2)  # a quarter of the foot's


def landed_after(config: BaselineConfig) -> int:
    """Samples from the first load of a quarter of the weight until a foot is found to stand."""
    assert config.contact.enter > 0.25 > config.contact.rest
    return round(config.contact.rest_dwell / 0.002)


def test_below_the_threshold_nothing_slips(go2):
    config = unhurried()
    estimator = IekfSlipRejection(go2, config)
    for sample in standing_still(go2, 200):
        estimator.step(sample)
    for sample in sliding(go2, 200, 40, 0.6 * config.slip_speed):
        estimator.step(sample)
        assert not estimator.slipping.any()


def unhurried() -> BaselineConfig:
    """The package's numbers, but for feet that still stand when a joint jumps to a speed at once."""
    data = BaselineConfig.load().model_dump()
    data["contact"]["smoothing"] = 0.02
    return BaselineConfig.model_validate(data)


def sliding(robot, first: int, count: int, speed: float) -> list:
    """Samples of a resting body whose front left foot slides ahead (m/s)."""
    samples = standing_still(robot, first + count)[first:]
    q = robot.nominal_joint_positions.copy()
    moved = []
    for sample in samples:
        _, jacobian, _ = robot.kinematics.forward_and_jacobians(q[None])
        dq = np.zeros(12)
        dq[:3] = np.linalg.solve(jacobian[0, 0], [speed, 0.0, 0.0])
        moved.append(replace(sample, joint_position=q.copy(), joint_velocity=dq))
        q[:3] += 0.002 * dq[:3]
    return moved


def standing_still(robot, count: int) -> list:
    """Perfect samples of a robot that stands."""
    from trace_ros.leg_model import LegModel
    from trace_ros.logs import Sample

    legs = LegModel(robot)
    q, zero, accel = robot.nominal_joint_positions, np.zeros(12), np.array([0.0, 0.0, 9.81])
    posture = legs.at(q)
    own = legs.torque(posture, zero, zero, np.zeros(3), accel, np.asarray(robot.imu.position))
    push = np.array([0.0, 0.0, robot.mass * 9.81 / 4])
    torque = (own - posture.jacobian.transpose(0, 2, 1) @ push).ravel()
    return [Sample(1000 + 2_000_000 * i, np.zeros(3), accel, q, zero, torque) for i in range(count)]


def test_a_standing_robot_stays_where_it_is(go2):
    for kind in KINDS:
        estimator = kind(go2)
        for sample in standing_still(go2, 1000):
            estimate = estimator.step(sample)
        assert estimate.contact.all()
        assert np.linalg.norm(estimate.position) < 1e-6
        assert np.linalg.norm(estimate.velocity) < 1e-6


def test_runs_begin_where_they_are_told_to_and_a_set_pose_is_as_uncertain_as_it_says(go2):
    samples = standing_still(go2, 200)
    for kind in KINDS:
        estimator = kind(go2)
        estimator.set_initial_pose(np.array([3.0, -2.0, 0.4]), np.pi / 2)
        estimator.reset()
        first = next(made for made in map(estimator.step, samples[:100]) if made is not None)
        np.testing.assert_allclose(first.position, [3.0, -2.0, 0.4], atol=1e-9)
        np.testing.assert_allclose(first.orientation, [0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)], atol=1e-6)
        for running in (True, False):
            if not running:
                estimator.reset()
            estimator.set_pose(np.array([7.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, 1.0]), 0.5, 0.2)
            now = next(made for made in map(estimator.step, samples[30:]) if made is not None)
            np.testing.assert_allclose(now.position, [7.0, 0.0, 0.0], atol=1e-4)
            deviations = np.sqrt(np.diag(now.pose_covariance))
            assert deviations[0] == pytest.approx(0.5, rel=0.02)
            assert deviations[5] == pytest.approx(0.2, rel=0.02)
            samples = standing_still(go2, 200)
        estimator.reset()
        again = next(made for made in map(estimator.step, samples[:100]) if made is not None)
        np.testing.assert_allclose(again.position, [3.0, -2.0, 0.4], atol=1e-9)
        assert again.pose_covariance[0, 0] < 1e-4
        for bad in (np.array([np.nan, 0.0, 0.0]), np.zeros(2)):
            with pytest.raises(TraceError, match=r"initial pose: .* is not a position and a heading"):
                estimator.set_initial_pose(bad, 0.0)


def test_a_step_is_quick(go2, short):
    """As much of the processor's time as some 40 inversions of a 24 x 24 matrix: 0.4 ms where one takes 10 us."""
    estimator = IekfSlipRejection(go2)
    run_estimator(estimator, short.select(slice(0, 100)))
    begin = time.process_time()
    run_estimator(estimator, short)
    taken, matrix = time.process_time() - begin, np.eye(24) + 0.1 * np.random.default_rng(0).normal(size=(24, 24))
    begin = time.process_time()
    for _ in range(len(short)):
        np.linalg.inv(matrix)
    assert taken < 100 * (time.process_time() - begin)


def test_all_are_found_by_name(go2, tmp_path):
    assert ESTIMATORS[:5] == ("trace", "trace_network", "iekf", "iekf_sr", "leg_odometry")
    for kind in KINDS:
        estimator = load_estimator(kind.name, go2)
        assert type(estimator) is kind
        assert estimator.name == kind.name
        assert estimator.source.endswith("iekf.yaml")
    own = tmp_path / "own.yaml"
    own.write_text("noise: {contact: 0.003}\n")
    estimator = load_estimator("iekf", go2, own)
    assert estimator.config.noise.contact == 0.003
    assert estimator.source == str(own)
    with pytest.raises(TraceError, match="no estimator is called 'ekf': there are trace, trace_network, iekf"):
        load_estimator("ekf", go2)
    with pytest.raises(TraceError, match="takes its numbers from a YAML file"):
        load_estimator("iekf", go2, tmp_path / "trace.pt")
    with pytest.raises(TraceError, match="takes an exported model"):
        load_estimator("trace", go2, own)
    with pytest.raises(
        TraceError, match="engine onnxruntime: the estimator iekf does not run in it; only trace and trace_network do"
    ):
        load_estimator("iekf", go2, engine="onnxruntime")


def test_the_shipped_numbers_are_the_defaults_and_bad_ones_are_named(tmp_path):
    assert BaselineConfig.load() == BaselineConfig()
    assert BaselineConfig.load(config_directory() / "baselines" / "iekf.yaml") == BaselineConfig()
    path = tmp_path / "own.yaml"
    for text, message in (
        ("noise: {gyroscope: 1}", "unknown key 'noise.gyroscope'"),
        ("noise: {gyro: 0}", "noise.gyro: Input should be greater than 0"),
        (
            "contact: {enter: 0.1, leave: 0.2}",
            "contact: leave .0.2., rest .0.12. and enter .0.1. must not come in another order",
        ),
        ("slip_direction: up", "slip_direction"),
        ("- 1", "expected keys and values"),
    ):
        path.write_text(text)
        with pytest.raises(TraceError, match=message):
            BaselineConfig.load(path)
