"""``trace calibrate LOG --joint-delay``: how late a robot's joint readings are, without fine-tuning or a reference."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
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


@pytest.mark.parametrize("estimator", ["trace", "iekf_sr"])
def test_any_estimator_is_judged_with_joints_put_back_by_what_is_given_or_found(trace, walk, tmp_path, estimator):
    torch.set_num_threads(1)
    walk.save(tmp_path / "walk.npz")
    with_joints_at_their_time(walk, -0.012).save(tmp_path / "late.npz")

    def judged(log, *options):
        chosen = ("--estimator", estimator, "--end", "8", "--json", str(tmp_path / "a.json"), *options)
        ran = trace("evaluate", str(tmp_path / log), *chosen)
        assert ran.code == 0, ran.err
        (row,) = json.loads((tmp_path / "a.json").read_text())["logs"]
        told = f"joints put back by {row['joint_delay_s'] * 1e3:g} ms" in ran.out
        assert told == (row["joint_delay_s"] != 0)
        return row["joint_delay_s"], row["metrics"]["ate_velocity_mps"]

    (none, own), (as_stamped, late) = judged("walk.npz"), judged("late.npz")
    given, found = judged("late.npz", "--joint-delay", "0.012"), judged("late.npz", "--joint-delay", "auto")
    assert none == as_stamped == 0 and given[0] == 0.012 and found[0] == pytest.approx(0.012, abs=0.0015)
    # Put back, they are what they were before, but for those of the walk's first and last 12 ms.
    assert late > 1.2 * own
    assert given[1] == pytest.approx(own, rel=0.03) and found[1] == pytest.approx(own, rel=0.1)


def test_a_part_of_a_log_has_the_joints_and_the_timing_of_the_whole(trace, walk, tmp_path):
    torch.set_num_threads(1)
    late = with_joints_at_their_time(walk, -0.012)
    late.save(tmp_path / "late.npz")
    end = ("--end", "6", "--estimate", str(tmp_path / "e.npz"), "--json", str(tmp_path / "a.json"))
    ran = trace("evaluate", str(tmp_path / "late.npz"), *end, "--joint-delay", "auto")
    assert ran.code == 0, ran.err
    (row,) = json.loads((tmp_path / "a.json").read_text())["logs"]
    assert row["joint_delay_s"] == pytest.approx(0.012, abs=0.0015)
    (told,) = [note for note in row["notes"] if note.startswith("timing of the joints: joint readings are 1")]
    assert " ".join(told.split()) in " ".join(ran.err.split())
    stamp_ns = np.load(tmp_path / "e.npz")["stamp_ns"]
    assert (stamp_ns[-1] - late.stamp_ns[0]) * 1e-9 == pytest.approx(6.0, abs=0.003)


def test_logs_of_several_units_are_left_and_said_to_be(trace, walk, tmp_path):
    torch.set_num_threads(1)
    for name, late in (("a", -0.012), ("b", -0.03)):
        with_joints_at_their_time(walk, late).save(tmp_path / f"{name}.npz")
    logs = [str(tmp_path / f"{name}.npz") for name in "ab"]
    ran = trace("evaluate", *logs, "--joint-delay", "auto", "--json", str(tmp_path / "a.json"))
    assert ran.code == 0, ran.err
    said = " ".join(ran.err.split())
    assert said.count("but the logs differ") == 1 and "left at 0 ms: give one at a time, or the seconds" in said
    for row in json.loads((tmp_path / "a.json").read_text())["logs"]:
        assert row["joint_delay_s"] == 0 and any("the logs differ" in note for note in row["notes"])
    ran = trace("evaluate", *logs, "--joint-delay", "-0.02")
    assert ran.code == 0 and "IMU put back by 20 ms" in " ".join(ran.out.split())


@pytest.mark.parametrize("delay", ["0.1", "-0.1"])
@pytest.mark.parametrize("way", [(), ("--stepwise",), ("--estimator", "iekf")], ids=["batch", "stepwise", "filter"])
def test_a_log_of_which_nothing_is_left_is_one_line(trace, walk, tmp_path, delay, way):
    walk.select(slice(0, 40)).save(tmp_path / "tiny.npz")
    ran = trace("evaluate", str(tmp_path / "tiny.npz"), f"--joint-delay={delay}", *way)
    said = " ".join(ran.err.split())
    assert (
        ran.code == 2 and "the log has 0 samples with joint readings, and 40 that have none once they are put" in said
    )


def test_samples_too_far_apart_are_told(trace, walk, tmp_path):
    walk.select(slice(0, None, 15)).save(tmp_path / "slow.npz")
    ran = trace("evaluate", str(tmp_path / "slow.npz"), "--joint-delay", "0.012")
    assert ran.code == 0, ran.err
    assert "put back by whole samples or not at all: samples come every 30 ms" in " ".join(ran.err.split())


@pytest.mark.parametrize("given", ["soon", "nan", "inf", "0.11", "-0.2", "1e400"])
def test_a_delay_that_is_none_is_refused(trace, tmp_path, given):
    ran = trace("evaluate", str(tmp_path / "walk.npz"), f"--joint-delay={given}")
    assert ran.code != 0 and "--joint-delay" in ran.err and "-0.1 to 0.1, or auto" in " ".join(ran.err.split())


def test_recorded_odometry_and_courses_know_no_joints(trace):
    for given in (["x", "--odometry-topic", "odom"], ["--courses", "validation"]):
        ran = trace("evaluate", *given, "--joint-delay", "auto")
        assert ran.code != 0 and "--joint-delay does not go with it" in " ".join(ran.err.split())


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
    said = " ".join(looked.err.split())
    assert "joint readings are 1" in said and "its covariance is not judged" in said
    assert "own.pt is as it was: --write puts this into it" in said
    assert load_model(tmp_path / "own.pt").card == load_model(shipped).card
    assert trace(*command, "--write").code == 0
    card = load_model(tmp_path / "own.pt").card
    assert card.joint_delay == json.loads((tmp_path / "a.json").read_text())["joint_timing"]["taken_s"]
    assert card.joint_delay == pytest.approx(0.012, abs=0.0015)
    assert card.model_copy(update={"joint_delay": 0.0}) == load_model(shipped).card
    # Known by then, nothing is left to find or to write.
    again = trace(*command, "--write")
    assert again.code == 0 and "nothing significant" in again.err and "wrote" not in again.out
    assert "nothing to write" in again.err
    assert json.loads((tmp_path / "a.json").read_text())["logs"] == {"late": "late.npz"}
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
        (("walk.npz", "--joint-delay", "--write"), "does not go into the model that ships"),
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
    assert outcome.code == 0 and "not to be told" in outcome.err and "wrote" not in outcome.out


def test_logs_that_differ_or_have_swapped_legs_change_nothing(trace, walk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(models_directory() / "go2" / "trace.pt", "own.pt")
    late = replace(with_joints_at_their_time(walk, -0.012), reference=None)
    late.save(tmp_path / "late.npz")
    noise = 1e-3 * np.random.default_rng(0).normal(size=walk.angular_velocity.shape)
    other = replace(
        walk, reference=None, stamp_ns=walk.stamp_ns + 10**12, angular_velocity=walk.angular_velocity + noise
    )
    other.save(tmp_path / "own.npz")
    command = ("--model", "own.pt", "--joint-delay", "--write")
    outcome = trace("calibrate", "late.npz", "own.npz", *command)
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.err.split())
    assert "but the logs differ: late.npz 1" in said and "own.npz" in said and "left at 0 ms" in said
    legs = [*range(3, 6), *range(3), *range(6, 12)]
    swapped = replace(
        late,
        joint_position=late.joint_position[:, legs],
        joint_velocity=late.joint_velocity[:, legs],
        joint_torque=late.joint_torque[:, legs],
    )
    swapped.save(tmp_path / "swapped.npz")
    outcome = trace("calibrate", "swapped.npz", *command)
    assert outcome.code == 0, outcome.err
    assert "left at 0 ms" in " ".join(outcome.err.split()) and "wrote" not in outcome.out
    assert load_model(tmp_path / "own.pt").card.joint_delay == 0.0
