"""``trace evaluate --courses`` and ``trace simulate`` of one course of a set."""

import json

import pytest
from commands import run_trace
from untrained import export_untrained

from trace_ros.cli.courses import short_names
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription

SET = """
name: small
seeds: [3, 4]
defaults: {duration: 1.0, settle: 0.3, phases: [{walk_to: [4.0, 0.0]}]}
courses:
  - {name: level}
  - {name: soft, ground: {time_constant: 0.04}}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "small.yaml").write_text(SET)
    export_untrained(folder / "model.pt", RobotDescription.load("go2"))
    return folder


@pytest.fixture
def trace(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


BASE = ("evaluate", "--courses", "small.yaml", "--model", "model.pt", "--horizon", "0.5", "--jobs", "1")


def test_rows_means_and_what_they_were_made_with(trace, tmp_path):
    result = trace(*BASE, "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert "4 courses walked by go2, 4 of them to be simulated into out/courses/small-go2-" in result.err
    assert "alignment posyaw" in result.out
    assert result.out.count(" mean ") == 3
    assert result.out.count(" soft ") == 3
    written = json.loads((tmp_path / "r.json").read_text())
    assert len(written["rows"]) == 4
    row = written["rows"][2]
    assert (row["course"], row["seed"], row["model"]) == ("soft", 3, "model.pt")
    assert set(row["re0.5_position_m"]) == {"mean", "std", "p90"}
    for key in ("path_length_m", "ate_position_m", "ate_velocity_mps", "ate_orientation_rad", "ate_z_m"):
        assert row[key] > 0
    assert [mean["course"] for mean in written["means"]] == ["level", "soft", None]
    assert written["models"] == ["model.pt"]
    assert written["robot"] == "go2"
    assert written["settings"]["horizon_s"] == 0.5
    assert "--courses small.yaml" in written["command"]
    again = trace(*BASE, "--json", tmp_path / "again.json")
    assert "0 of them to be simulated" in again.err
    assert json.loads((tmp_path / "again.json").read_text())["rows"] == written["rows"]


def test_a_velocity_that_no_foot_bears_out_is_noted_for_its_walk(trace, files, tmp_path):
    """One model believes 6 m/s, the other nearly nothing; means are those of figures alone."""
    (files / "longer.yaml").write_text(SET.replace("duration: 1.0", "duration: 4.0").replace("small", "longer"))
    export_untrained(files / "fast.pt", RobotDescription.load("go2"), speed=6.0)
    result = trace(
        *("evaluate", "--courses", "longer.yaml", "--only", "level", "--jobs", "1", "--horizon", "0.5"),
        *("--model", "fast.pt", "--model", "model.pt", "--json", tmp_path / "r.json"),
    )
    assert result.code == 0, result.err
    notes = " ".join(result.err.split())
    assert "note: level 3, fast.pt: from 2." in notes and "note: level 4, fast.pt: from 2." in notes
    assert "s no foot bears out the estimated velocity" in notes
    written = json.loads((tmp_path / "r.json").read_text())
    assert [len(row["doubts"]) for row in written["rows"] if row["model"] == "fast.pt"] == [1, 1]
    assert all("doubts" not in mean for mean in written["means"])
    fast = next(mean for mean in written["means"] if mean["model"] == "fast.pt" and mean["course"] is None)
    assert fast["ate_velocity_mps"] > 4.0


def test_some_courses_and_seeds_and_two_models(trace, files, tmp_path):
    (files / "other.pt").write_bytes((files / "model.pt").read_bytes())
    result = trace(
        *BASE, "--model", "other.pt", "--only", "soft", "--seeds", "4,5", "--cache", tmp_path, "--json", tmp_path / "r"
    )
    assert result.code == 0, result.err
    rows = json.loads((tmp_path / "r").read_text())["rows"]
    assert [(row["model"], row["course"], row["seed"]) for row in rows] == [
        ("model.pt", "soft", 4), ("model.pt", "soft", 5), ("other.pt", "soft", 4), ("other.pt", "soft", 5)
    ]  # fmt: skip
    assert "means: ATE / RE over 0.5 s" in result.out
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {path.name for path in folder.iterdir()} == {"soft_4.npz", "soft_5.npz"}


def test_walks_on_which_the_robot_fell_are_told(trace, tmp_path):
    trace(*BASE, "--only", "level", "--seeds", "3", "--cache", tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "level_4.fell").write_text("course 'level': the robot fell after 0.7 s\n")
    result = trace(*BASE, "--only", "level", "--cache", tmp_path, "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert "2 courses walked by go2, 0 of them to be simulated" in result.err
    assert "left out, since the robot fell: 1 of 2 walks (level 4)" in result.err
    written = json.loads((tmp_path / "r.json").read_text())
    assert [row["seed"] for row in written["rows"]] == [3]
    reason = "course 'level': the robot fell after 0.7 s"
    assert written["fell"] == [{"course": "level", "seed": 4, "reason": reason}]


def test_a_course_shorter_than_the_horizon_has_no_relative_error(trace, tmp_path):
    result = trace(*BASE[:-4], "--only", "level", "--seeds", "3", "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert json.loads((tmp_path / "r.json").read_text())["rows"][0]["re10_position_m"] is None


def test_ctrl_c_is_130_and_writes_nothing(trace, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trace_ros.cli.courses.evaluate_courses", interrupt)
    result = trace(*BASE, "--json", tmp_path / "r.json")
    assert result.code == 130
    assert "stopped" in result.err
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*BASE, "--only", "moon"), "unknown course 'moon' of the set 'small': known are level, soft"),
        ((*BASE, "--only", "soft,,"), "--only 'soft,,'"),
        ((*BASE, "--seeds", "1,x"), "--seeds '1,x'"),
        ((*BASE, "--initial", "luck"), "--initial 'luck' is none of"),
        ((*BASE, "--alignment", "sim3"), "--alignment 'sim3' is none of"),
        ((*BASE, "--model", "none.pt"), "none.pt: no such"),
        ((*BASE, "--odometry-topic", "odom"), "--odometry-topic does not go with it"),
        ((*BASE, "--report", "out"), "--report does not go with it"),
        ((*BASE, "small.yaml"), "LOG does not go with it"),
        (("evaluate", "--courses", "moon"), "unknown set of courses 'moon'"),
        (("evaluate", "--only", "soft", "log.npz"), "--only is for simulated courses"),
        (("evaluate",), "nothing to evaluate"),
        (("evaluate", "a.npz", "--model", "model.pt", "--model", "model.pt"), "several models are for --courses"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trace, arguments, message):
    result = trace(*arguments)
    assert result.code == 2
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.err
    assert message in errors[0]
    assert "Traceback" not in result.err


def test_another_engine(trace, tmp_path):
    pytest.importorskip("pybullet")
    chosen = ("--only", "level", "--seeds", "3")
    result = trace(*BASE, *chosen, "--backend", "bullet", "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert "1 of them to be simulated" in result.err
    bullet = json.loads((tmp_path / "r.json").read_text())
    assert bullet["backend"] == "bullet"
    assert "0 of them to be simulated" in trace(*BASE, *chosen, "--backend", "bullet").err
    assert trace(*BASE, *chosen, "--json", tmp_path / "m.json").code == 0
    mujoco = json.loads((tmp_path / "m.json").read_text())
    assert mujoco["logs"] != bullet["logs"]
    assert mujoco["rows"] != bullet["rows"]
    folder = trace(*BASE[:2], bullet["logs"], *BASE[3:], "--backend", "bullet")
    assert (folder.code, "are simulated already" in folder.err) == (2, True)

    arguments = ("simulate", "--course", "small.yaml/level", "--backend", "bullet", "--npz", tmp_path / "log.npz")
    result = trace(*arguments, "--json", tmp_path / "s.json")
    assert result.code == 0, result.err
    assert "500 Hz (bullet, 2000 Hz)" in result.err
    assert json.loads((tmp_path / "s.json").read_text())["backend"] == "bullet"
    wrong = trace("simulate", "--backend", "havok", "--npz", tmp_path / "no.npz")
    assert (wrong.code, "unknown simulation backend 'havok'" in wrong.err) == (2, True)


def test_one_course_of_a_set_is_simulated(trace, tmp_path):
    result = trace("simulate", "--course", "small.yaml/soft", "--seed", "3", "--npz", tmp_path / "log.npz")
    assert result.code == 0, result.err
    assert len(SensorLog.load(tmp_path / "log.npz")) == 500
    refused = trace("simulate", "--course", "small.yaml", "--npz", tmp_path / "no.npz")
    assert refused.code == 2
    assert "is a set of courses: choose one, such as small/level" in refused.err


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["models/go2/trace.pt"], ["trace.pt"]),
        (["models/go2/trace.pt", "models/go2/trace_contacts.pt"], ["trace.pt", "trace_contacts.pt"]),
        (["/runs/a/trace.pt", "/runs/b/trace.pt", "x/other.pt"], ["a/trace.pt", "b/trace.pt", "other.pt"]),
        (["a/go2/trace.pt", "b/go2/trace.pt", "b/a1/trace.pt"], ["a/go2/trace.pt", "b/go2/trace.pt", "a1/trace.pt"]),
        (["/trace.pt", "trace.pt"], ["/trace.pt", "trace.pt"]),
        (["trace", "iekf_sr"], ["trace", "iekf_sr"]),
        ([], []),
    ],
)
def test_models_are_told_apart_in_few_words(paths, names):
    assert short_names(paths) == names
