"""Tables of a data set, one a sensor, become a log."""

import sys
from pathlib import Path

import numpy as np
import pytest
from loaded_tools import load_tool
from scipy.spatial.transform import Rotation

from trace_ros.logs import SensorLog

tool = load_tool("log_from_tables")

TIME = np.arange(400) * 0.005 + 7.0
LATE = 0.2


def table(path: Path, time, values, heading="Time,a,b\n") -> Path:
    path.write_text(heading + "\n".join(",".join(map(repr, row)) for row in np.c_[time, values].tolist()) + "\n")
    return path


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Options of a robot that walks a circle at 0.3 m/s; its legs come as FR, FL, RR, RL, its mocap 0.2 s late."""
    joints = np.arange(12) + 0.01 * TIME[:, None]
    yaw = 0.5 * (TIME - 7.0)
    where = 0.6 * np.c_[np.sin(yaw), 1 - np.cos(yaw), 0 * yaw]
    options = {
        "gyro": table(tmp_path / "gyro.csv", TIME, np.tile([0.0, 0.0, 0.5], (400, 1))),
        "accel": table(tmp_path / "accel.csv", TIME[::2], np.c_[TIME[::2], 0 * TIME[::2], 0 * TIME[::2] + 9.8]),
        "joint-position": table(tmp_path / "q.csv", TIME, joints, ""),
        "contact": table(tmp_path / "contact.csv", TIME, np.tile([1, 0, 0, 1], (400, 1))),
        "mocap-position": table(tmp_path / "p.csv", TIME + LATE, where),
        "mocap-orientation": table(tmp_path / "rpy.csv", TIME + LATE, np.c_[0 * yaw, 0 * yaw, yaw]),
    }
    words = ["log_from_tables.py", "--robot", "a1", "--output", str(tmp_path / "log.npz"), "--legs", "FR,FL,RR,RL"]
    words += [word for name, path in options.items() for word in (f"--{name}", str(path))]
    monkeypatch.setattr(sys, "argv", [*words, "--mocap-delay", str(LATE)])
    return options


@pytest.mark.usefixtures("arguments")
def test_tables_of_other_rates_legs_and_clocks_become_one_log(tmp_path):
    assert tool.main() == 0
    log = SensorLog.load(tmp_path / "log.npz")
    assert (log.robot, len(log), log.rate_hz, log.torque_source) == ("a1", 400, pytest.approx(200.0), "none")
    np.testing.assert_allclose(log.joint_position[0, :6], np.array([3, 4, 5, 0, 1, 2]) + 0.07)
    np.testing.assert_allclose(log.linear_acceleration[1, 0], 7.005)
    assert log.contact[0].tolist() == [False, True, True, False]
    truth = log.reference
    assert abs(truth.stamp_ns[0]) < 1000
    np.testing.assert_allclose(truth.velocity[20:-20], np.tile([0.3, 0.0, 0.0], (len(truth) - 40, 1)), atol=1e-3)
    np.testing.assert_allclose(truth.rotation_world_body[-1].as_rotvec()[2], 0.5 * (TIME[-1] - 7.0), atol=1e-6)


def test_orientations_may_be_quaternions(arguments, tmp_path):
    rpy = np.loadtxt(arguments["mocap-orientation"], delimiter=",", skiprows=1)
    table(arguments["mocap-orientation"], rpy[:, 0], Rotation.from_euler("xyz", rpy[:, 1:]).as_quat())
    assert tool.main() == 0
    rotation = SensorLog.load(tmp_path / "log.npz").reference.rotation_world_body
    np.testing.assert_allclose(rotation[-1].as_rotvec()[2], 0.5 * (TIME[-1] - 7.0), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gyro", "1,2,3\n2,3,4\n", "gyro.csv: 2 columns after the time, expected 3"),
        ("mocap-orientation", "1,2,3\n2,3,4\n", "expected 3 or 4"),
        ("accel", "2,0,0,0\n1,0,0,0\n", "times that increase"),
        ("accel", "1,0,x,0\n", "not a table of numbers"),
        ("joint-position", None, "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(arguments, capsys, name, text, message):
    arguments[name].unlink() if text is None else arguments[name].write_text(text)
    assert tool.main() == 2
    assert message in " ".join(capsys.readouterr().err.split())
