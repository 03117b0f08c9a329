"""Settings of the calibration, and what is no walk to calibrate on."""

import numpy as np
import pytest
from walks import simulated

from trace_ros.errors import TraceError
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
