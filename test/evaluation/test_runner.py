from dataclasses import replace

import numpy as np
import pytest
from trajectories import START_NS, disturb, sensor_log, walk

from trace_ros.baselines.leg_odometry import LegOdometry
from trace_ros.errors import TraceError
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.estimator.run import run_estimator
from trace_ros.evaluation.metrics import MetricSettings, evaluate
from trace_ros.evaluation.runner import evaluate_odometry, evaluate_run, evaluate_runs, write_estimate
from trace_ros.robot import RobotDescription

TRUTH = walk(2.0)
LOG = sensor_log(TRUTH)


def test_a_run_is_the_estimators_own_and_its_errors_are_the_metrics(estimator):
    done = []
    evaluation = evaluate_run("log", LOG, estimator, progress=done.append, stepwise=True)
    run = run_estimator(estimator, LOG)
    np.testing.assert_array_equal(evaluation.trajectory.position, run.trajectory.position)
    np.testing.assert_array_equal(evaluation.attention, run.attention)
    assert evaluation.metrics == evaluate(run.trajectory, TRUTH, MetricSettings())
    assert evaluation.metrics.ate_position_m > 0.01
    assert evaluation.source == "trace"
    assert evaluation.real_time_factor > 0.0
    assert done == [500, 1000]
    plain = evaluation.to_dict()
    assert plain["metrics"]["re10_position_m"] is None
    assert any("no relative error over 10 s" in note for note in plain["notes"])
    assert plain["step_time_ms"]["p50"] <= plain["step_time_ms"]["p99"]


def test_logs_side_by_side_are_as_each_step_by_step(estimator):
    logs, done = [LOG, LOG.select(slice(0, 600)), LOG.select(slice(300, 900))], []
    names = ["a", "b", "c"]
    together = evaluate_runs(names, logs, estimator, progress=done.append)
    for name, log, evaluation in zip(names, logs, together, strict=True):
        alone = evaluate_run(name, log, estimator, stepwise=True)
        assert evaluation.name == name
        assert evaluation.step_time_s is None
        assert evaluation.to_dict()["step_time_ms"] is None
        np.testing.assert_allclose(evaluation.trajectory.position, alone.trajectory.position, atol=1e-6)
        assert evaluation.metrics.ate_position_m == pytest.approx(alone.metrics.ate_position_m, abs=1e-6)
    assert len({evaluation.real_time_factor for evaluation in together}) == 1
    assert done[-1] == sum(len(log) - 29 for log in logs)
    with pytest.raises(TraceError, match=r"^short: the log has 20 samples"):
        evaluate_runs(["long", "short"], [LOG, LOG.select(slice(0, 20))], estimator)


def test_a_filter_goes_through_one_log_after_another():
    done = []
    filtered = evaluate_runs(
        ["a", "b"], [LOG, LOG.select(slice(0, 600))], LegOdometry(RobotDescription.load("go2")), progress=done.append
    )
    assert [len(evaluation.trajectory) for evaluation in filtered] == [1000 - 29, 600 - 29]
    assert done == [500, 1000, 1500]
    assert all(evaluation.step_time_s is not None for evaluation in filtered)
    with pytest.raises(TraceError, match=r"^short: the log has 20 samples"):
        evaluate_runs(["short"], [LOG.select(slice(0, 20))], LegOdometry(RobotDescription.load("go2")))


def test_feet_are_asked_of_the_joints_that_the_estimator_was_given(monkeypatch):
    asked = []
    monkeypatch.setattr("trace_ros.evaluation.runner.doubts", lambda log, *_: asked.append(log) or [])
    robot = RobotDescription.load("go2")
    late = with_joints_at_their_time(LOG, -0.02)
    (evaluation,) = evaluate_runs(["late"], [late], LegOdometry(robot), robot=robot, joint_delay=0.02)
    (heard,) = asked
    assert evaluation.joint_delay_s == evaluation.to_dict()["joint_delay_s"] == 0.02
    # All but the first and the last 0.02 s.
    own = LOG.select(np.isin(LOG.stamp_ns, heard.stamp_ns))
    assert len(own) == len(LOG) - 20
    np.testing.assert_allclose(heard.joint_position, own.joint_position, atol=1e-9)


@pytest.mark.parametrize("delay", [0.11, -0.2, float("nan"), float("inf")])
def test_a_delay_beyond_what_is_put_right_is_refused(delay):
    with pytest.raises(TraceError, match=r"joint_delay .*: not from -0.1 to 0.1 s"):
        evaluate_run("log", LOG, LegOdometry(RobotDescription.load("go2")), joint_delay=delay)


def test_starting_at_the_reference_needs_no_alignment_at_the_start(estimator):
    evaluation = evaluate_run("log", LOG, estimator, MetricSettings(alignment="none"), "reference")
    np.testing.assert_allclose(evaluation.trajectory.position[0], TRUTH.position[29], atol=1e-12)
    np.testing.assert_allclose(evaluation.trajectory.orientation[0], TRUTH.orientation[29], atol=1e-12)


def test_without_reference_there_is_a_summary_and_a_reason(estimator):
    evaluation = evaluate_run("log", replace(LOG, reference=None), estimator)
    assert evaluation.metrics is None
    assert "no reference" in evaluation.notes[0]
    assert evaluation.summary()["duration_s"] == pytest.approx(1.94)
    assert evaluation.aligned is evaluation.trajectory
    with pytest.raises(TraceError, match="no reference to start from"):
        evaluate_run("log", replace(LOG, reference=None), estimator, initial="reference")


def test_a_reference_of_another_time_names_the_log(estimator):
    late = replace(TRUTH, stamp_ns=TRUTH.stamp_ns + 10**12)
    with pytest.raises(TraceError, match="my_log: nothing to compare"):
        evaluate_run("my_log", replace(LOG, reference=late), estimator)
    with pytest.raises(TraceError, match="does not cover the start"):
        evaluate_run("my_log", replace(LOG, reference=late), estimator, initial="reference")


def test_recorded_odometry_is_compared_with_the_logs_or_the_given_reference():
    estimate = disturb(TRUTH)
    with_log = evaluate_odometry("log", "/odom", estimate, LOG)
    alone = evaluate_odometry("log", "/odom", estimate, reference=TRUTH)
    assert with_log.metrics == alone.metrics == evaluate(estimate, TRUTH)
    assert with_log.attention is None
    assert evaluate_odometry("log", "/odom", estimate).metrics is None


def test_summary_of_a_known_motion():
    summary = evaluate_odometry("log", "/odom", TRUTH).summary()
    assert summary["path_length_m"] == pytest.approx(TRUTH.path_length_m)
    assert summary["displacement_m"] == pytest.approx(np.linalg.norm(TRUTH.position[-1] - TRUTH.position[0]))
    first, last = (rotation.as_euler("ZYX")[0] for rotation in (TRUTH.rotation_world_body[i] for i in (0, -1)))
    assert summary["heading_change_rad"] == pytest.approx(last - first)


def test_estimates_are_written_with_all_digits_of_their_stamps(tmp_path):
    evaluation = evaluate_odometry("log", "/odom", TRUTH)
    write_estimate(tmp_path / "deep" / "e.tum", evaluation)
    lines = (tmp_path / "deep" / "e.tum").read_text().splitlines()
    assert len(lines) == len(TRUTH)
    stamp, *numbers = lines[1].split()
    seconds, nanoseconds = stamp.split(".")
    assert int(seconds) * 10**9 + int(nanoseconds) == START_NS + 2_000_000
    np.testing.assert_allclose([float(n) for n in numbers], [*TRUTH.position[1], *TRUTH.orientation[1]], atol=1e-9)
    write_estimate(tmp_path / "e.npz", evaluation)
    with np.load(tmp_path / "e.npz") as data:
        np.testing.assert_array_equal(data["stamp_ns"], TRUTH.stamp_ns)
        np.testing.assert_array_equal(data["position"], TRUTH.position)
    with pytest.raises(TraceError, match="TUM"):
        write_estimate(tmp_path / "e.csv", evaluation)
