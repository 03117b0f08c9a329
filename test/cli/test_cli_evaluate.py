import json
import os
from dataclasses import replace

import numpy as np
import pytest
from commands import run_trace
from trajectories import disturb, sensor_log, walk
from untrained import export_untrained

from trace_ros.bags import read_log, write_bag, write_log
from trace_ros.robot import RobotDescription

TRUTH = walk(1.5)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A bag with a reference and a recorded odometry, a log without reference, and a model."""
    folder = tmp_path_factory.mktemp("files")
    robot = RobotDescription.load("go2")
    export_untrained(folder / "model.pt", robot)
    export_untrained(folder / "other.pt", robot, "spot")
    log = sensor_log(TRUTH)
    write_bag(folder / "walk", log, robot, odometry={"odom": disturb(TRUTH)})
    write_bag(folder / "one", replace(log, reference=TRUTH.select(slice(300, 301))), robot)
    write_log(folder / "blind.npz", replace(log, reference=None), robot)
    return folder


@pytest.fixture
def trace(monkeypatch, capsys):
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


def test_a_bag_is_evaluated_and_the_mode_stands_in_the_title(files, trace, tmp_path):
    result = trace(
        "evaluate", files / "walk", "--model", files / "model.pt",
        "--json", tmp_path / "r.json", "--estimate", tmp_path / "e.npz", "--report", tmp_path / "report",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "alignment posyaw: position and yaw, all poses" in result.out
    assert "ATE position" in result.out
    assert "x real time" in result.out
    assert "no relative error over 10 s" in result.err
    written = json.loads((tmp_path / "r.json").read_text())
    (entry,) = written["logs"]
    assert entry["metrics"]["alignment"] == "posyaw"
    assert entry["metrics"]["compared_samples"] == 750 - 29 - 30
    assert entry["name"] == "walk"
    with np.load(tmp_path / "e.npz") as data:
        assert data["attention"].shape == (721, 6)
    assert (tmp_path / "report" / "report.html").is_file()
    for name in ("r.json", "e.npz", "report.html", "trajectory.png"):
        assert name in result.out


def test_the_page_of_a_log_whose_name_is_no_utf8(files, trace, tmp_path):
    odd = tmp_path / os.fsdecode(b"walk-\xff")
    (odd).symlink_to(files / "walk")
    result = trace("report", odd, "--model", files / "model.pt", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    assert "walk-" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_options_reach_the_metrics(files, trace, tmp_path):
    arguments = ("evaluate", files / "walk", "--model", files / "model.pt", "--json", tmp_path / "r.json")
    assert "alignment se3single" in trace(*arguments, "--alignment", "se3single", "--horizon", 0.5).out
    metrics = json.loads((tmp_path / "r.json").read_text())["logs"][0]["metrics"]
    assert metrics["re0.5_position_m"]["p90"] > 0
    level = trace(*arguments, "--alignment", "none", "--initial", "reference")
    assert level.code == 0
    assert json.loads((tmp_path / "r.json").read_text())["logs"][0]["metrics"]["alignment"] == "none"


def test_a_log_without_reference_is_summarised(files, trace):
    result = trace("evaluate", files / "blind.npz", "--model", files / "model.pt")
    assert result.code == 0
    assert "estimated path" in result.out
    assert "ATE" not in result.out
    assert "no reference" in result.err


def test_several_logs_share_a_table(files, trace, tmp_path):
    logs = (files / "walk", files / "walk" / "walk.mcap", files / "blind.npz")
    result = trace("evaluate", *logs, "--model", files / "model.pt", "--estimate", tmp_path / "estimates")
    assert result.code == 0, result.err
    assert "RE over 10 s" in result.out
    assert "estimated path" in result.out  # of the one without reference
    assert len(list((tmp_path / "estimates").rglob("*.npz"))) == 3


def test_a_recorded_odometry_is_judged_without_a_model(files, trace, tmp_path):
    result = trace("evaluate", files / "walk", "--odometry-topic", "odom", "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert "recorded topic odom" in result.out
    assert json.loads((tmp_path / "r.json").read_text())["logs"][0]["metrics"]["ate_position_m"] > 1e-3


def test_report_writes_page_and_pictures(files, trace, tmp_path):
    result = trace("report", files / "walk", "--model", files / "model.pt", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "attention.png",
        "report.html",
        "trajectory.png",
        "velocity.png",
    ]
    assert f"trace report {files / 'walk'}" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "{f}/none"), "{f}/none: no such file or directory"),
        (("evaluate", "{f}/walk", "--robot", "rhino"), "unknown robot 'rhino'"),
        (("evaluate", "{f}/walk", "--model", "{f}/none.pt"), "{f}/none.pt: no such"),
        (("evaluate", "{f}/walk", "--model", "{f}/other.pt"), "trained for robot 'spot', not 'go2'"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--alignment", "sim3"), "--alignment 'sim3' is none of"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--initial", "luck"), "--initial 'luck' is none of"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--imu-topic", "imu2"), "no topic 'imu2'"),
        (
            ("evaluate", "{f}/walk", "{f}/blind.npz", "--model", "{f}/model.pt", "--imu-topic", "imu2"),
            "no topic 'imu2'",
        ),
        (
            ("evaluate", "{f}/blind.npz", "--model", "{f}/model.pt", "--imu-topic", "imu2"),
            "--imu-topic: there are no topics",
        ),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--estimate", "{f}/folder"), "--estimate"),
        (("evaluate", "{f}/model.pt", "--model", "{f}/model.pt"), "{f}/model.pt: not a log"),
        (("evaluate", "{f}/blind.npz", "--model", "{f}/model.pt", "--initial", "reference"), "no reference to start"),
        (("evaluate", "{f}/blind.npz", "--odometry-topic", "odom"), "not a bag"),
        (("evaluate", "{f}/walk", "--odometry-topic", "elsewhere"), "no topic 'elsewhere'"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--json", "{f}"), "{f}: is a folder, expected a file"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--report", "{f}/model.pt"), "expected a folder"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--estimate", "{f}/model.pt/e.npz"), "is not a folder"),
        (("evaluate", "{f}/walk", "--model", "{f}/model.pt", "--engine", "jax"), "engine 'jax' is none of torchscript"),
        (("evaluate", "{f}/walk", "--estimator", "iekf", "--engine", "onnxruntime"), "does not run in it"),
        (("evaluate", "{f}/walk", "--imu-mounting", "tf"), "topic /imu/data: no usable message"),
        (("evaluate", "{f}/walk", "--torque-source", "motor"), "--torque-source 'motor' is none of commanded_effort"),
        (("evaluate", "{f}/blind.npz", "--imu-mounting", "tf"), "in the body's frame already"),
        (("evaluate", "{f}/walk", "--odometry-topic", "odom", "--torque-source", "none"), "does not go with it"),
        (("evaluate", "--courses", "validation", "--imu-mounting", "tf"), "--imu-mounting does not go with it"),
        (("evaluate", "--courses", "validation", "--end", "3"), "--end does not go with it"),
        (("evaluate", "{f}/walk", "--start", "2"), "nothing is left from --start 2 s on: it is 1.498 s long"),
        (("evaluate", "{f}/walk", "--start", "1", "--end", "1"), "--end 1 is not after --start 1"),
        (("evaluate", "{f}/one", "--estimator", "leg_odometry"), "the reference has one pose only"),
        (("report", "{f}/walk", "-o", "{f}/model.pt/out"), "is not a folder"),
        (("report", "{f}/none", "-o", "{f}/out"), "no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(files, trace, arguments, message):
    result = trace(*(argument.format(f=files) for argument in arguments))
    assert result.code == 2
    errors = [line for line in result.err.splitlines() if line and not line.startswith("reading")]
    assert len(errors) == 1, result.err
    assert errors[0].startswith("error: ")
    assert message.format(f=files) in errors[0]
    assert "Traceback" not in result.err


def test_a_filter_is_evaluated_like_a_model(files, trace, tmp_path):
    result = trace("evaluate", files / "walk", "--estimator", "leg_odometry", "--json", tmp_path / "r.json")
    assert result.code == 0, result.err
    assert "leg_odometry by" in result.out
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["estimator"] == "leg_odometry"
    assert written["logs"][0]["source"] == "leg_odometry"
    assert written["logs"][0]["metrics"]["compared_samples"] == 750 - 29 - 30
    unknown = trace("evaluate", files / "walk", "--estimator", "ekf")
    assert unknown.code == 2
    assert "no estimator is called 'ekf'" in unknown.err
    wrong = trace("evaluate", files / "walk", "--estimator", "iekf", "--model", files / "model.pt")
    assert wrong.code == 2
    assert "takes its numbers from a YAML file" in wrong.err


def test_step_by_step_it_is_the_same_and_the_time_of_a_step_is_told(files, trace, tmp_path):
    arguments = ("evaluate", files / "walk", files / "blind.npz", "--model", files / "model.pt", "--json")
    together = trace(*arguments, tmp_path / "a.json", "--jobs", "2")
    stepped = trace(*arguments, tmp_path / "b.json", "--stepwise")
    assert (together.code, stepped.code) == (0, 0), stepped.err
    assert "time of a step" in stepped.out
    assert "time of a step" not in together.out
    one, other = (json.loads((tmp_path / name).read_text())["logs"][0] for name in ("a.json", "b.json"))
    assert one["step_time_ms"] is None
    assert other["step_time_ms"]["p50"] > 0
    assert one["metrics"]["ate_position_m"] == pytest.approx(other["metrics"]["ate_position_m"], abs=1e-6)
    courses = trace("evaluate", "--courses", "validation", "--stepwise")
    assert "--courses judges simulated walks: --stepwise does not go with it" in courses.err


def test_only_a_part_of_a_log_is_judged(files, trace, tmp_path):
    part = ("--start", 0.2, "--end", 1.3, "--json", tmp_path / "r.json")
    for arguments in (
        ("evaluate", files / "walk", "--model", files / "model.pt", "--estimate", tmp_path / "e.npz"),
        ("evaluate", files / "walk", "--odometry-topic", "odom", "--estimate", tmp_path / "e.npz"),
        ("report", files / "walk", "--model", files / "model.pt", "-o", tmp_path / "out"),
    ):
        result = trace(*arguments, *part)
        assert result.code == 0, result.err
        first = 0 if "--odometry-topic" in arguments else 29
        metrics = json.loads((tmp_path / "r.json").read_text())["logs"][0]["metrics"]
        assert metrics["compared_samples"] == 551 - first - 30
    with np.load(tmp_path / "e.npz") as data:
        assert data["stamp_ns"][0] - TRUTH.stamp_ns[0] == 200_000_000
        assert data["stamp_ns"][-1] - TRUTH.stamp_ns[0] == 1_300_000_000
    whole = read_log(files / "walk", RobotDescription.load("go2"))[0]
    write_log(tmp_path / "part.npz", whole.select(slice(100, 651)), RobotDescription.load("go2"))
    ate = []
    for log, more in ((tmp_path / "part.npz", part[4:]), (files / "walk", part)):
        assert trace("evaluate", log, "--estimator", "leg_odometry", *more).code == 0
        ate.append(json.loads((tmp_path / "r.json").read_text())["logs"][0]["metrics"]["ate_position_m"])
    assert ate[0] == ate[1]


def test_how_messages_are_read_is_told_as_to_the_node(files, trace, tmp_path):
    arguments = ("evaluate", files / "walk", "--model", files / "model.pt", "--json", tmp_path / "r.json")
    ate = []
    for more in ((), ("--imu-mounting", "urdf", "--imu-frame", "base_link"), ("--torque-source", "none")):
        result = trace(*arguments, *more)
        assert result.code == 0, result.err
        ate.append(json.loads((tmp_path / "r.json").read_text())["logs"][0]["metrics"]["ate_position_m"])
    assert len(set(ate)) == 3


def test_the_other_engine(files, trace, tmp_path):
    pytest.importorskip("onnxruntime")
    arguments = ("evaluate", files / "walk", "--model", files / "model.pt", "--json")
    for name in ("torchscript", "onnxruntime"):
        assert trace(*arguments, tmp_path / f"{name}.json", "--engine", name).code == 0
    one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("torchscript", "onnxruntime"))
    assert (one["engine"], other["engine"]) == ("torchscript", "onnxruntime")
    ate = [result["logs"][0]["metrics"]["ate_position_m"] for result in (one, other)]
    assert ate[0] == pytest.approx(ate[1], abs=1e-5)
