"""Feet that bear out a velocity, and a velocity that none does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from untrained import export_untrained

from trace_ros.checks.footing import AGREES, BELIEVED, DOUBTFUL, GAP_S, SMOOTHING_S, Footing, doubts, speed_over_ground
from trace_ros.estimator.estimator import Estimate, TraceEstimator
from trace_ros.evaluation.runner import evaluate_runs
from trace_ros.leg_model import LegModel
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

RUN_AWAY = np.array((1.5, 0.0, 0.0))


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="module")
def walk(robot) -> tuple[SensorLog, Trajectory]:
    """6 s at 500 Hz of legs that swing; the body moves by its left front foot, which rests, and turns."""
    stamp_ns = 10**12 + 2_000_000 * np.arange(3000)
    seconds = (stamp_ns - stamp_ns[0])[:, None] * 1e-9
    phase = np.linspace(0, 5, 12)
    joints = robot.nominal_joint_positions + 0.25 * np.sin(2 * np.pi * 1.7 * seconds + phase)
    rate = np.concatenate((0.1 * np.sin(9 * seconds), 0.2 * np.cos(7 * seconds), np.full_like(seconds, 0.5)), axis=1)
    foot = LegModel(robot).at(joints).foot[:, 0]
    velocity = -np.gradient(foot, 0.002, axis=0) - np.cross(rate, foot)
    force = np.tile((0.0, 0.0, 9.81), (3000, 1))
    log = SensorLog(stamp_ns, rate, force, joints, None, None, "none", "go2")
    level = np.tile((0.0, 0.0, 0.0, 1.0), (3000, 1))
    return log, Trajectory(stamp_ns, np.cumsum(velocity * 0.002, axis=0), level, velocity, rate)


def watch(robot: RobotDescription, log: SensorLog, trajectory: Trajectory) -> tuple[Footing, np.ndarray]:
    footing, doubtful = Footing(robot), []
    for index, joints in enumerate(log.joint_position):
        footing.update(int(log.stamp_ns[index]), joints, trajectory.velocity[index], trajectory.angular_velocity[index])
        doubtful.append(footing.doubtful)
    return footing, np.array(doubtful)


def told(trajectory: Trajectory, offset: np.ndarray, first: int, last: int) -> Trajectory:
    velocity = trajectory.velocity.copy()
    velocity[first:last] += offset
    return replace(trajectory, velocity=velocity)


def test_the_foot_that_rests_does_not_move_over_the_ground(robot, walk):
    log, truth = walk
    feet = LegModel(robot).at(log.joint_position).foot
    before, now = feet[:-5:5], feet[5::5]
    speed = speed_over_ground(before, now, np.full(len(now), 0.01), truth.velocity[5::5], truth.angular_velocity[5::5])
    assert speed.max() < 0.1  # of the velocity's change within a hundredth of a second
    off = truth.velocity[5::5] + RUN_AWAY
    assert np.median(speed_over_ground(before, now, np.full(len(now), 0.01), off, truth.angular_velocity[5::5])) > 0.5


def test_a_true_velocity_is_never_doubted(robot, walk):
    footing, doubtful = watch(robot, *walk)
    assert not doubtful.any()
    assert footing.agreement == pytest.approx(1.0)
    assert footing.astray == 0.0
    assert doubts(*walk, robot) == []


def test_one_that_no_foot_bears_out_is_doubted_after_two_seconds_until_feet_agree_again(robot, walk):
    log, truth = walk
    fast = told(truth, 4 * RUN_AWAY, 500, 2500)
    footing, doubtful = watch(robot, log, fast)
    seconds = np.flatnonzero(doubtful) * 0.002
    assert seconds[0] == pytest.approx(1.0 - SMOOTHING_S * np.log(DOUBTFUL), abs=0.03)
    left = np.exp(-(5.0 - 1.0) / SMOOTHING_S)  # of the agreement of before, when feet agree again
    assert seconds[-1] == pytest.approx(5.0 - SMOOTHING_S * np.log((1 - BELIEVED) / (1 - left)), abs=0.05)
    assert np.all(np.diff(seconds) < 0.003)
    (found,) = doubts(log, fast, robot)
    assert (found.begin_s, found.end_s) == pytest.approx((seconds[0], seconds[-1]), abs=0.011)
    assert found.way == pytest.approx(footing.astray, rel=1e-6)
    assert "from 3.3 to 5.3 s no foot bears out the estimated velocity" in str(found)
    # The position is off by 4 s of it; the foot that agrees best was taken, so it may be somewhat less.
    assert 0.6 * 4.0 * 6.0 < footing.astray < 4.0 * 6.0 + 1.0


def test_a_doubt_that_comes_and_goes_counts_no_way_twice(robot, walk):
    log, truth = walk
    offset = np.zeros((3000, 3))
    offset[:, 0] = np.where((np.arange(3000) % 150) < 140, 1.3, 0.0)  # agrees in 7 % of the time
    footing, doubtful = watch(robot, log, replace(truth, velocity=truth.velocity + offset))
    assert doubtful.any()
    assert np.count_nonzero(np.diff(doubtful.astype(int)) == 1) == 1
    assert footing.astray < np.linalg.norm(offset, axis=1).sum() * 0.002 + 0.5


def test_an_estimate_that_stands_still_while_the_robot_walks_is_off_by_the_way(robot, walk):
    """Here the way that is told is zero; what the feet say is not."""
    log, _ = walk
    joints = log.joint_position.copy()
    # All feet sweep back by 1.5 m/s of the body's, for a second each, and return at once.
    sweep = -0.25 + 1.1 * (np.arange(3000) % 100)[:, None] * 0.002
    joints[:, 1::3] = robot.nominal_joint_positions[1::3] + 5.0 * sweep
    still = Trajectory(
        log.stamp_ns, np.zeros((3000, 3)), np.tile((0, 0, 0, 1.0), (3000, 1)), np.zeros((3000, 3)), np.zeros((3000, 3))
    )
    footing, doubtful = watch(robot, replace(log, joint_position=joints), still)
    assert doubtful[-1]
    assert footing.astray > 3.0


def test_joints_that_are_held_between_their_messages_are_no_doubt(robot, walk):
    """Every hundredth of a second they would seem to rest, and then to jump."""
    log, truth = walk
    held = replace(log, joint_position=np.repeat(log.joint_position[::10], 10, axis=0))
    footing, doubtful = watch(robot, held, truth)
    assert not doubtful.any()
    assert footing.agreement > 0.9
    assert doubts(held, truth, robot) == []
    away = told(truth, 4 * RUN_AWAY, 0, 3000)
    assert watch(robot, held, away)[1][-1] and doubts(held, away, robot)


def test_joints_that_do_not_move_at_all_stand(robot, walk):
    log, truth = walk
    frozen = replace(log, joint_position=np.tile(robot.nominal_joint_positions, (3000, 1)))
    away = replace(truth, velocity=np.tile(RUN_AWAY, (3000, 1)), angular_velocity=np.zeros((3000, 3)))
    footing, doubtful = watch(robot, frozen, away)
    assert doubtful[-1]
    assert footing.astray == pytest.approx(1.5 * 6.0, rel=0.05)
    still = replace(away, velocity=np.zeros((3000, 3)))
    assert not watch(robot, frozen, still)[1].any()


def test_readings_that_are_no_numbers_are_passed_over(robot, walk):
    log, truth = walk
    footing = Footing(robot)
    for index in range(0, 3000, 5):
        bad = np.full(3, np.nan if index % 2 else np.inf)
        footing.update(int(log.stamp_ns[index]), log.joint_position[index], bad, truth.angular_velocity[index])
    assert (footing.agreement, footing.astray, footing.doubtful) == (1.0, 0.0, False)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_a_whole_run_is_judged_as_sample_by_sample(seed):
    """Random stamps, pauses, held joints, and a velocity that is off at times."""
    robot, rng = RobotDescription.load("go2"), np.random.default_rng(seed)
    count = 1500
    steps = rng.choice([1, 2, 3, 7, 12, 95, 130], size=count, p=[0.2, 0.5, 0.1, 0.1, 0.08, 0.01, 0.01])
    stamp_ns = 10**12 + np.cumsum(steps).astype(np.int64) * 1_000_000
    seconds = (stamp_ns - stamp_ns[0])[:, None] * 1e-9
    joints = robot.nominal_joint_positions + 0.25 * np.sin(2 * np.pi * 1.7 * seconds + np.linspace(0, 5, 12))
    fresh = rng.random(count) < 0.4
    fresh[0] = True
    joints = joints[np.maximum.accumulate(np.where(fresh, np.arange(count), 0))]
    velocity = np.where((seconds % 6 < 4), 3.0, 0.0) * np.array((1.0, 0.2, 0.0))
    zero, level = np.zeros((count, 3)), np.tile((0.0, 0.0, 0.0, 1.0), (count, 1))
    log = SensorLog(stamp_ns, zero, zero + 9.81, joints, None, None, "none", "go2")
    run = Trajectory(stamp_ns, zero, level, velocity, zero)
    footing, doubtful = watch(robot, log, run)
    found = doubts(log, run, robot)
    assert sum(doubt.way for doubt in found) == pytest.approx(footing.astray, rel=1e-6, abs=1e-9)
    marks = np.flatnonzero(np.diff(np.concatenate(([False], doubtful)).astype(int)) == 1)
    assert [doubt.begin_s for doubt in found] == pytest.approx(seconds[marks, 0].tolist(), abs=1e-9)


def test_covariances_own_up_to_it(robot, walk):
    log, truth = walk
    fast = told(truth, 4 * RUN_AWAY, 0, 3000)
    footing, _ = watch(robot, log, fast)
    small = 1e-4 * np.eye(6)
    estimate = Estimate(
        0, np.zeros(3), np.array((0, 0, 0, 1.0)), np.array((6.0, 0, 0)), np.zeros(3), None, False, small, small
    )
    widened = footing.widened(estimate)
    np.testing.assert_allclose(np.diag(widened.twist_covariance)[:3], footing.difference**2 + 1e-4)
    assert footing.difference == pytest.approx(6.0, rel=0.3)
    np.testing.assert_allclose(np.diag(widened.pose_covariance)[:3], footing.astray**2 + 1e-4)
    assert footing.astray > 20.0
    np.testing.assert_array_equal(widened.pose_covariance[3:, 3:], small[3:, 3:])
    np.testing.assert_array_equal(estimate.pose_covariance, small)
    footing.placed()
    np.testing.assert_array_equal(footing.widened(estimate).pose_covariance, small)
    footing.reset()
    np.testing.assert_array_equal(footing.widened(estimate).twist_covariance, small)


def test_a_pause_tells_nothing_and_neither_does_a_stamp_of_before(robot, walk):
    log, _ = walk
    footing = Footing(robot)
    for index in range(0, 3000, 60):  # every 0.12 s, longer than feet are followed
        footing.update(int(log.stamp_ns[index]), log.joint_position[index], RUN_AWAY * 4, np.zeros(3))
    assert GAP_S < 0.12
    assert footing.agreement == 1.0
    footing.update(int(log.stamp_ns[0]), log.joint_position[0], RUN_AWAY * 4, np.zeros(3))
    assert footing.agreement == 1.0
    # From there on it goes on.
    footing.update(int(log.stamp_ns[5]), log.joint_position[5], RUN_AWAY * 4, np.zeros(3))
    assert footing.agreement < 1.0


def test_without_rates_or_with_a_single_pose_nothing_is_said(robot, walk):
    log, truth = walk
    assert doubts(log, replace(truth, angular_velocity=None), robot) == []
    assert doubts(log, truth.select(np.arange(3000) == 7), robot) == []


def test_slipping_feet_are_no_doubt(robot, walk):
    """The same walk where the foot that bears the body slides on ice."""
    log, truth = walk
    sliding = told(truth, np.array((0.7 * AGREES, 0.0, 0.0)), 0, 3000)
    assert doubts(log, sliding, robot) == []


def test_an_evaluation_tells_of_it(robot, walk, tmp_path):
    """A network that believes 6 m/s whatever it sees."""
    log, _ = walk
    estimator = TraceEstimator.load(export_untrained(tmp_path / "trace.pt", robot, speed=6.0), robot)
    (evaluation,) = evaluate_runs(["walk"], [log], estimator, robot=robot)
    assert any("to 6.0 s no foot bears out the estimated velocity (" in note for note in evaluation.notes)
    assert set(evaluation.doubts) <= set(evaluation.notes)
    (unasked,) = evaluate_runs(["walk"], [log], estimator)
    assert not any("bears out" in note for note in unasked.notes) and not unasked.doubts
