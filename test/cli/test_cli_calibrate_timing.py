"""``trace calibrate LOG --joint-delay``: how late a robot's joint readings are, without fine-tuning or a reference."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from commands import run_trace

from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course


@pytest.fixture
def trace(monkeypatch, capsys):
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


@pytest.fixture(scope="module")
def walk():
    course = Course.load("demo").model_copy(update={"duration": 20.0})
    return simulate_course(course, RobotDescription.load("go2"), 0).measured


def test_logs_without_a_reference_tell_how_late_the_joints_are(trace, walk, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    shipped = models_directory() / "go2" / "trace.pt"
    shutil.copy(shipped, "own.pt")
    late = with_joints_at_their_time(walk, -0.012)
    replace(late, reference=None).save(tmp_path / "late.npz")
    command = ("calibrate", "late.npz", "--model", "own.pt", "--joint-delay")
    looked = trace(*command, "--json", "a.json")
    assert looked.code == 0, looked.err
    assert "joint readings are 1" in looked.err and "the covariance is not judged" in looked.err
    assert load_model(tmp_path / "own.pt").card == load_model(shipped).card
    assert trace(*command, "--write").code == 0
    card = load_model(tmp_path / "own.pt").card
    assert card.joint_delay == json.loads((tmp_path / "a.json").read_text())["joint_timing"]["delay_s"]
    assert card.joint_delay == pytest.approx(0.012, abs=0.0015)
    assert card.model_copy(update={"joint_delay": 0.0}) == load_model(shipped).card
    # Known by then, nothing is left to find or to write.
    again = trace(*command, "--write")
    assert again.code == 0 and "nothing significant" in again.err and "wrote" not in again.out
    # With the reference, the model is judged with its joints put right: as it is without anything late.
    late.save(tmp_path / "late.npz")
    judged = trace(*command, "--json", "b.json")
    assert judged.code == 0, judged.err
    walk.save(tmp_path / "own.npz")
    plain = trace("calibrate", "own.npz", "--json", "c.json")
    assert plain.code == 0, plain.err
    with_delay, without = (json.loads((tmp_path / name).read_text())["scales"] for name in ("b.json", "c.json"))
    assert with_delay == pytest.approx(without, rel=0.15)
    # It is another log's lateness for a robot that is not late.
    card = load_model(tmp_path / "own.pt").card
    write_card(tmp_path / "own.pt", card.model_copy(update={"joint_delay": 0.012}))
    back = trace("calibrate", "own.npz", "--model", "own.pt", "--joint-delay", "--write")
    assert back.code == 0 and abs(load_model(tmp_path / "own.pt").card.joint_delay) < 0.0015


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--joint-delay",), "--joint-delay is for logs"),
        (("walk.npz", "--write"), "without --joint-delay or --level"),
    ],
)
def test_what_makes_no_sense_is_told(trace, walk, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    walk.save(tmp_path / "walk.npz")
    outcome = trace("calibrate", *arguments)
    assert outcome.code == 2 and message in " ".join(outcome.err.split())


def test_too_little_walking_is_told_and_nothing_written(trace, walk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(models_directory() / "go2" / "trace.pt", "own.pt")
    replace(walk.select(slice(0, 500)), reference=None).save(tmp_path / "short.npz")
    outcome = trace("calibrate", "short.npz", "--model", "own.pt", "--joint-delay", "--write")
    assert outcome.code == 0 and "cannot be told" in outcome.err and "wrote" not in outcome.out
