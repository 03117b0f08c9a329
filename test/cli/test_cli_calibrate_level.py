"""``trace calibrate LOG --level``: how level a robot's feet are, without fine-tuning."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from commands import run_trace
from scipy.spatial.transform import Rotation

from trace_ros.estimator.checkpoint import load_model
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, Phase, simulate_course
from trace_ros.training import level_fit


@pytest.fixture
def trace(monkeypatch, capsys):
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load_model(models_directory() / "go2" / "trace.pt")


def tilted_walk():
    """30 s on level ground with an IMU that is pitched in the body by 0.03 rad."""
    phases = tuple(Phase(walk_to=corner) for corner in ((2.0, 0.0), (2.0, 2.0), (0.0, 0.0)))
    course = Course.load("demo").model_copy(update={"duration": 30.0, "phases": phases, "repeat": True, "patches": ()})
    log = simulate_course(course, RobotDescription.load("go2"), 0).measured
    turn = Rotation.from_euler("y", 0.03).inv()
    gyro, force = (turn.apply(values) for values in (log.angular_velocity, log.linear_acceleration))
    return replace(log, angular_velocity=gyro, linear_acceleration=force)


def test_logs_level_a_model_without_fine_tuning(trace, model, tmp_path, monkeypatch):
    """``trace calibrate LOG --level --write``: the card alone is another, and judged with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(level_fit, "HORIZON_S", 5.0)  # enough motions in 30 s, and the better known
    monkeypatch.setattr(level_fit, "_LEAST_SCALE_M", 0.005)
    shutil.copy(model.path, tmp_path / "own.pt")
    tilted_walk().save(tmp_path / "walk.npz")
    looked = trace("calibrate", "walk.npz", "--model", "own.pt", "--level", "--json", "a.json")
    assert looked.code == 0, looked.err
    assert load_model(tmp_path / "own.pt").card == model.card
    wrote = trace("calibrate", "walk.npz", "--model", "own.pt", "--level", "--write", "--json", "b.json")
    assert wrote.code == 0, wrote.err
    assert re.search(
        r"level of the feet in the body: roll \+0\.0\d+, pitch -0\.0[23]\d+ rad", " ".join(wrote.err.split())
    )
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["level"] == b["level"] and a["scales"] == b["scales"]
    card = load_model(tmp_path / "own.pt").card
    assert card.height == model.card.height.model_copy(update={"level": tuple(b["level"]["level"])})
    assert card.model_copy(update={"height": model.card.height}) == model.card
    # Levelled already, nothing is left to find, and the covariance of the height is judged the same.
    again = trace("calibrate", "walk.npz", "--model", "own.pt", "--level", "--json", "c.json")
    assert again.code == 0 and "left as it is" in again.err
    assert json.loads((tmp_path / "c.json").read_text())["scales"] == b["scales"]
