"""``trace calibrate``: what it prints and writes, and that the model stays what it was but for its card."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import run_trace
from untrained import export_untrained

from trace_ros.cli import calibrate
from trace_ros.cli.calibrate import _fallen, _without_falls
from trace_ros.cli.calibration_tables import show_courses
from trace_ros.errors import FallError, TraceError
from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.estimator.error_model import ErrorModel
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.run import run_estimator
from trace_ros.evaluation.calibration import Judgement
from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walker, walk_of
from trace_ros.evaluation.courses import CourseRun
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription

SET = """
name: small
seeds: [4]
defaults:
  duration: 23.0
  settle: 0.3
  hold_after: 0.4
  phases: [{walk_to: [2.0, 0.0]}, {stand: 1.5}, {walk_to: [0.0, 0.0]}]
courses: [{name: level}]
"""
ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "small.yaml").write_text(SET)
    export_untrained(folder / "model.pt", ROBOT)
    return folder


@pytest.fixture
def trace(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    return lambda *arguments: run_trace(monkeypatch, capsys, *arguments)


BASE = ("calibrate", "--courses", "small.yaml", "--model", "model.pt", "--jobs", "1")


def test_fit_is_shown_and_written_and_is_what_is_judged_later(trace, files, monkeypatch):
    before = load_model(files / "model.pt")
    result = trace(*BASE, "--seeds", "3", "--json", "c.json", "--plot", "out/c.png", "--write")
    assert result.code == 0, result.err
    assert "1 walks to fit, 1 to judge, 2 to be simulated" in result.err
    for text in (
        "pose over 10 s",
        "pitch",
        "1 sigma",
        "(68.3)",
        "position ellipsoid",
        "farthest from nominal",
        "wrote c.json",
    ):
        assert text in result.out
    assert (files / "out/c.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((files / "c.json").read_text())
    assert (data["seeds_fitted"], data["seeds_held_out"]) == ([3], [4])
    axes = "vx|vy|vz|wx|wy|wz|all|x|y|z|roll|pitch|yaw|x, y|roll, pitch|all"
    assert [row["axis"] for row in data["coverage"]] == axes.split("|")

    after = load_model(files / "model.pt")
    fitted = ErrorModel.model_validate(data["error_model"])
    assert after.card.error_model == fitted != before.card.error_model
    assert after.card.figures["calibration"]["coverage"] == data["coverage"]
    assert after.card.model_copy(update={"error_model": before.card.error_model, "figures": {}}) == before.card
    assert yaml.safe_load((files / "model.yaml").read_text()) == after.card.model_dump(mode="json")
    # The network is the same to the bit; only the covariance is another.
    log = SensorLog.load(next(files.glob("out/courses/small-*/level_4.npz"))).select(slice(0, 400))
    first, second = (run_estimator(TraceEstimator(model, ROBOT), log).trajectory for model in (before, after))
    np.testing.assert_array_equal(first.position, second.position)
    np.testing.assert_array_equal(first.orientation, second.orientation)
    assert not np.array_equal(first.covariance, second.covariance)

    # Side by side it walks as the robot does, step by step.
    log.save(files / "short_5.npz")
    quick = CalibrationSettings(horizon_s=0.3, fit_horizons_s=(0.2,), warm_up_s=0.1)
    (walk,) = Walker(files / "model.pt", ROBOT, quick)([CourseRun("short", 5, files / "short_5.npz", None)], float)
    alone = walk_of("short_5", run_estimator(TraceEstimator(after, ROBOT), log), log, quick)
    assert len(walk.twist_error) > 30
    for name, value in vars(walk).items():
        own = getattr(alone, name)
        assert value == own if name == "name" else np.allclose(value, own, rtol=1e-3, atol=1e-6), name

    # Judged by itself it is what it was when it was fitted; nothing is simulated or written, and seeds of a fit that
    # are not there are not missed.
    written = (files / "model.pt").read_bytes()
    folder = next(files.glob("out/courses/small-*"))
    result = trace(
        "calibrate", "--courses", folder, "--model", "model.pt", "--seeds", "3,201", "--keep", "--json", "k.json"
    )
    assert result.code == 0, result.err
    assert "0 walks to fit, 1 to judge, 0 to be simulated" in result.err
    kept = json.loads((files / "k.json").read_text())
    assert kept["coverage"] == data["coverage"]
    assert kept["seeds_fitted"] == []
    assert kept["by_course"] == {"level": data["coverage"]}
    assert (files / "model.pt").read_bytes() == written

    # What the estimator adds to the network is a part of what is judged, and of what is written.
    fold = (*BASE, "--seeds", "3", "--folds", "0")
    both = ("--set", "height.time=0.5", "--set", "input_limit=4")
    result = trace(*fold, *both, "--json", "h.json")
    assert result.code == 0, result.err
    fitted = json.loads((files / "h.json").read_text())["error_model"]
    assert fitted != data["error_model"]
    assert (files / "model.pt").read_bytes() == written
    result = trace(*fold, *both, "--write")
    assert result.code == 0, result.err
    card = load_model(files / "model.pt").card
    assert (card.height, card.input_limit) == (HeightSettings(time=0.5), 4.0)
    assert card.error_model == ErrorModel.model_validate(fitted)
    # One unit's level is no error of simulated robots: it stays, and is left out of the fit.
    write_card(files / "model.pt", card.model_copy(update={"height": HeightSettings(time=0.5, level=(0.0, 0.1))}))
    result = trace(*fold, "--write", "--json", "u.json")
    assert result.code == 0, result.err
    assert "level of one unit's feet" in result.err
    assert json.loads((files / "u.json").read_text())["error_model"] == fitted
    assert load_model(files / "model.pt").card.height == HeightSettings(time=0.5, level=(0.0, 0.1))
    # What else is changed of the height leaves it alone.
    result = trace(*fold, "--set", "height.stride=0.6")
    assert result.code == 0, result.err
    result = trace(*fold, "--set", "height=null", "--set", "input_limit=null", "--write")
    assert result.code == 0, result.err
    neither = load_model(files / "model.pt").card.model_copy(update={"figures": after.card.figures})
    assert neither == after.card

    # Of two seeds that are fitted, each is judged by the fit to the other: here the same walk. Walks with falls are
    # left out, wherever they stand among the others.
    for seed in (8, 9, 10, 11):
        shutil.copy(folder / "level_3.npz", folder / f"level_{seed}.npz")
    every = calibrate._walk

    def with_falls(walker, runs, jobs):
        return [
            None if run.seed in (10, 11) else walk for run, walk in zip(runs, every(walker, runs, jobs), strict=True)
        ]

    monkeypatch.setattr(calibrate, "_walk", with_falls)
    two = ("--courses", folder, "--model", "model.pt", "--seeds", "8,10,9", "--held-out", "11,4")
    result = trace("calibrate", *two, "--json", "two.json", "--jobs", "1")
    assert result.code == 0, result.err
    assert "left out, for the robot fell: level_10, level_11" in result.err
    assert "3 walks: these, and those fitted" in result.out
    several = json.loads((files / "two.json").read_text())
    assert (several["seeds_fitted"], several["seeds_held_out"]) == ([8, 9], [4])
    assert several["walks_left_out"] == ["level_10", "level_11"]
    assert several["coverage"] == data["coverage"]  # the same walk twice gives the same fit
    assert several["walks_in_turn"] == 2
    assert several["by_course"] == {"level": several["coverage_with_those_in_turn"]}
    (own,) = (row["coverage"][0] for row in several["coverage_with_those_in_turn"] if row["axis"] == "roll, pitch")
    (held_out,) = (row["coverage"][0] for row in several["coverage"] if row["axis"] == "roll, pitch")
    # Together they are other walks than the one held out.
    assert own != held_out


def test_courses_are_told_one_by_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    good, sure = np.random.default_rng(0).normal(size=(2, 20_000, 6)) * [[[1.0]], [[3.0]]]
    show_courses({"flat": Judgement(good, good, 10.0, {}), "soft": Judgement(good, sure, 10.0, {})})
    flat, soft = [line.split() for line in capsys.readouterr().out.splitlines() if "flat" in line or "soft" in line]
    assert "68" in flat
    assert "95" in flat
    assert flat.count("68") > soft.count("68") > 0
    assert "26" in soft


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "3,4"), "seed 4 is both fitted and judged"),
        (("--seeds", "3,three"), "--seeds '3,three': give whole numbers"),
        (("--held-out", "5,5"), "--held-out '5,5': give names with commas between them, each once"),
        (("--keep", "--write"), "--keep fits nothing"),
        (("--keep", "--set", "height=null"), "--keep judges the model as it is"),
        (("--set", "hight=null"), "--set hight=null: expected one of height, input_limit"),
        (("--set", "height.time=-1"), "--set height.time=-1: "),
        (("--set", "height.level=[0.0,0.01]"), "--set height.level: is that of one unit"),
        (("--courses", "moon"), "unknown set of courses 'moon'"),
        (("--model", "none.pt"), "none.pt: no such model file"),
        (("--config", "none.yaml"), "none.yaml: "),
        (("--config", "small.yaml"), "small.yaml: unknown key 'name'"),
    ],
)
def test_faults_are_one_line(trace, arguments, message):
    result = trace(*BASE, *arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_walks_with_a_fall_are_left_out_and_named(files, monkeypatch, capsys):
    """A set of many seeds has some in which the robot falls: the others are still worth a fit."""
    log = SensorLog.load(next(files.glob("out/courses/small-*/level_4.npz"))).select(slice(0, 400))
    # Two of one name, as of level_1.npz and level_01.npz.
    runs = [CourseRun("level", seed, Path("level.npz"), None) for seed in (1, 2, 1, 3)]
    longer = log.select(slice(0, 380))

    def course_log(run, *_):
        if run.seed == 2:
            raise FallError("the robot fell")
        return longer if run.seed == 3 else log

    monkeypatch.setattr("trace_ros.evaluation.calibration_walks.course_log", course_log)
    quick = CalibrationSettings(horizon_s=0.3, fit_horizons_s=(0.2,), warm_up_s=0.1)
    walker = Walker(files / "model.pt", ROBOT, quick)
    walks = walker(runs, lambda _: None)
    assert [None if walk is None else walk.name for walk in walks] == ["level_1", None, "level_1", "level_3"]
    assert len(walks[0].time) == len(walks[2].time) > len(walks[3].time)
    assert walker(runs[1:2], lambda _: None) == [None]

    assert _fallen(walks, runs) == ["level_2"]
    assert "left out, for the robot fell: level_2" in " ".join(capsys.readouterr().err.split())
    assert _without_falls(walks[:2], runs[:2], "fit") == (walks[:1], runs[:1])
    assert _fallen(walks[2:], runs[2:]) == []
    assert capsys.readouterr().err == ""
    with pytest.raises(TraceError, match="fell in every walk to judge"):
        _without_falls([None, None], runs[:2], "judge")
    assert _without_falls([], [], "fit") == ([], [])


def test_logs_are_judged_with_the_models_own_covariance(trace, files):
    """The reference tells poses alone, late by 30 ms, and not of the first second."""
    log = SensorLog.load(next(files.glob("out/courses/small-*/level_4.npz")))
    true = log.reference
    kept = true.stamp_ns > true.stamp_ns[0] + 1_000_000_000
    poses = Trajectory(
        true.stamp_ns[kept] + 30_000_000, true.position[kept], true.orientation[kept], np.zeros((kept.sum(), 3))
    )
    replace(log, reference=poses).save(files / "one.npz")
    replace(
        log,
        reference=poses,
        angular_velocity=log.angular_velocity + np.random.default_rng(0).normal(0, 1e-3, (len(log), 3)),
    ).save(files / "two.npz")
    # A gap, a jump, and 11 s.
    seconds = (poses.stamp_ns - poses.stamp_ns[0]) * 1e-9
    jumped = poses.position + np.where(seconds > 11.0, 3.0, 0.0)[:, None]
    torn = Trajectory(poses.stamp_ns, jumped, poses.orientation, poses.velocity)
    replace(log, reference=torn.select((seconds < 5.0) | (seconds > 6.0))).save(files / "torn.npz")
    replace(log, reference=torn.select((seconds < 5.0) | (seconds > 15.0))).save(files / "scarce.npz")
    replace(log, reference=None).save(files / "blind.npz")

    result = trace("calibrate", "one.npz", "--model", "model.pt", "--json", "l.json", "--plot", "l.png")
    assert result.code == 0, result.err
    assert re.search(r"reference: it is 0\.0(28|29|30)\d* \+- 0\.0\d+ s late", result.err)
    assert "twist" not in result.out
    assert "1 sigma would hold its nominal share if it were larger by the factors: x, y" in " ".join(result.out.split())
    assert (files / "l.png").read_bytes().startswith(b"\x89PNG")
    one = json.loads((files / "l.json").read_text())
    assert set(one["scales"]) == {"x, y", "z", "roll, pitch", "yaw"}
    assert one["by_log"] == {"one": one["coverage"]}
    before = (files / "model.pt").read_bytes()
    result = trace("calibrate", "one.npz", "two.npz", "--model", "model.pt", "--json", "m.json", "--plot", "m.png")
    assert result.code == 0, result.err
    both = json.loads((files / "m.json").read_text())
    np.testing.assert_allclose(both["joint_position"], one["joint_position"], atol=0.1)
    assert both["by_log"]["one"] == one["coverage"]
    assert both["logs"] == {"one": "one.npz", "two": "two.npz"}
    assert both["seconds_judged"]["one"] == pytest.approx(log.duration_s - 1.0, abs=0.1)
    assert "log by log" in result.out
    assert "few pieces of 10 s" in " ".join(result.err.split())
    # Of what lies between a gap, a jump and the end, the longest.
    result = trace("calibrate", "torn.npz", "--model", "model.pt", "--json", "t.json")
    assert result.code == 0, result.err
    assert "longest part with a reference alone" in " ".join(result.err.split())
    part = json.loads((files / "t.json").read_text())["seconds_judged"]["torn"]
    assert part == pytest.approx(log.duration_s - 1.0 - 11.0, abs=0.2)
    result = trace("calibrate", "one.npz", "--model", "model.pt", "--start", "2", "--end", "14", "--json", "s.json")
    assert result.code == 0, result.err
    assert json.loads((files / "s.json").read_text())["seconds_judged"]["one"] == pytest.approx(11.6, abs=0.1)
    assert (files / "model.pt").read_bytes() == before

    for arguments, message in (
        (("one.npz", "--write"), "nothing is fitted that could be written without --joint-delay or --level"),
        (("one.npz", "--level"), "--level: model.pt takes its height from its network, not from the feet"),
        (("--level",), "--level is for logs, and none is given"),
        (("one.npz", "--seeds", "3"), "--seeds is for simulated walks"),
        (("one.npz", "--folds", "2"), "--folds is for simulated walks"),
        (("blind.npz",), "has no reference"),
        (("gone.npz",), "gone.npz: no such file"),
        (("scarce.npz",), "s without a gap or a jump: 10.4 s are needed"),
        (("one.npz", "one.npz"), "one.npz"),
        (("one.npz", "--start", "20"), "10.4 s are needed"),
        (("one.npz", "--start", "3", "--end", "2"), "--end 2 is not after --start 3"),
        (("one.npz", "--plot", "p.xyz"), "p.xyz: pictures are written as PNG"),
        (("one.npz", "--plot", "p.png", "--json", "p.png"), "p.png: is to hold the picture and another result"),
        (("--imu-topic", "imu"), "--imu-topic is for logs, and none is given"),
        (("--start", "2"), "--start is for logs, and none is given"),
        (("one.npz", "--robot", "a1"), "'go2'"),
    ):
        result = trace("calibrate", *arguments, "--model", "model.pt")
        assert result.code == 2
        assert message in result.err
        assert result.err.strip().splitlines()[-1].startswith("error: ")
