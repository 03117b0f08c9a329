"""Settings of the calibration, and what is no walk to calibrate on."""

import numpy as np
import pytest
from walks import simulated

from trace_ros.errors import TraceError
from trace_ros.estimator.error_model import ErrorModel
from trace_ros.evaluation.calibration import Judgement, judge
from trace_ros.evaluation.calibration_walks import CalibrationSettings, walk_of
from trace_ros.logs import SensorLog, Trajectory


def test_settings_are_read(tmp_path):
    (tmp_path / "s.yaml").write_text("usual_heave: 1.0\nslow_times_s: [3.0]\n")
    found = CalibrationSettings.load(tmp_path / "s.yaml")
    assert found == CalibrationSettings(usual_heave=1.0, slow_times_s=(3.0,))
    (tmp_path / "s.yaml").write_text("")
    assert CalibrationSettings.load(tmp_path / "s.yaml") == CalibrationSettings()
    (tmp_path / "s.yaml").write_text("usual_heave: 1.5\n")
    with pytest.raises(TraceError, match="usual_heave"):
        CalibrationSettings.load(tmp_path / "s.yaml")


def test_what_cannot_be_calibrated_on_is_refused():
    run, log, _ = simulated()
    short = CalibrationSettings()
    with pytest.raises(TraceError, match=r"^w: 6\.0 s are too short to be calibrated on: 20\.4 s are needed$"):
        walk_of("w", run, log, short)
    plain = Trajectory(log.stamp_ns, run.trajectory.position, run.trajectory.orientation, run.trajectory.velocity)
    zeros = np.zeros((len(log), 3))
    without = SensorLog(log.stamp_ns, zeros, zeros, np.zeros((len(log), 12)), reference=plain)
    with pytest.raises(TraceError, match="needs a reference with angular velocity"):
        walk_of("w", run, without, short)


def posed(log, run, keep=slice(None)):
    """The run's own poses without a twist, of some of its samples, as the reference."""
    true = run.trajectory
    stamps = true.stamp_ns[keep]
    plain = Trajectory(stamps, true.position[keep], true.orientation[keep], np.zeros((len(stamps), 3)))
    zeros = np.zeros((len(log), 3))
    return SensorLog(log.stamp_ns, zeros, zeros, np.zeros((len(log), 12)), reference=plain)


def test_poses_alone_need_no_twist():
    run, log, _ = simulated()
    quick = CalibrationSettings(horizon_s=2.0, warm_up_s=0.4)
    walk = walk_of("w", run, posed(log, run), quick, poses_alone=True)
    assert walk.twist_error.shape == (0, 6)
    assert walk.time[0] == pytest.approx(0.4, abs=0.01)
    np.testing.assert_allclose(walk.true_position, walk.position, atol=1e-9)
    judged = judge(ErrorModel(), [walk], quick)
    assert {row["of"] for row in judged.rows()} == {"pose over 2 s"}
    assert judged.rows()[-1]["coverage"] == (1.0, 1.0, 1.0)
    assert max(judged.scales().values()) < 1e-6


def test_the_longest_part_that_the_reference_covers_is_judged():
    run, log, _ = simulated()
    quick = CalibrationSettings(horizon_s=2.0, warm_up_s=0.4)
    stamps = run.trajectory.stamp_ns
    time = (stamps - stamps[0]) * 1e-9
    # Begins late, pauses, ends early.
    kept = ((time > 0.7) & (time < 1.5)) | ((time > 2.0) & (time < 5.5))
    walk = walk_of("w", run, posed(log, run, kept), quick, poses_alone=True)
    assert walk.time[0] == pytest.approx(2.0, abs=0.02)
    assert walk.time[-1] == pytest.approx(5.5, abs=0.03)
    np.testing.assert_allclose(walk.true_position, walk.position, atol=1e-9)
    # Just as long as it has to be, with the sample before the first one.
    just = (time > 0.9) & (time < 2.93)
    assert walk_of("w", run, posed(log, run, just), quick, poses_alone=True).time[-1] < 2.93
    scarce = (time > 0.7) & (time < 1.5)
    with pytest.raises(TraceError, match=r"0\.8 s are left of the reference's longest part .*: 2 s are needed"):
        walk_of("w", run, posed(log, run, scarce), quick, poses_alone=True)


def test_factors_are_those_that_make_one_sigma_nominal():
    errors = np.random.default_rng(1).normal(size=(100_000, 6)) * [2.0, 2.0, 0.5, 1.0, 1.0, 3.0]
    scales = Judgement(np.zeros((0, 6)), errors, 10.0, {}).scales()
    assert scales == pytest.approx({"x, y": 2.0, "z": 0.5, "roll, pitch": 1.0, "yaw": 3.0}, rel=0.01)
