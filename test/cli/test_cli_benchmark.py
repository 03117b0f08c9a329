"""``trace benchmark``: what it writes, says and refuses."""

import html
import json

import pytest
from commands import run_trace
from trajectories import sensor_log, walk
from untrained import export_untrained

from trace_ros.bags import write_bag
from trace_ros.errors import FallError
from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.evaluation.benchmark_walks import simulated_walks
from trace_ros.evaluation.falls import keep_fall
from trace_ros.robot import RobotDescription
from trace_ros.sim.course_set import CourseSet

SET = """
name: small
seeds: [3, 4]
defaults: {duration: 0.5, settle: 0.3, phases: [{walk_to: [4.0, 0.0]}]}
courses:
  - {name: level}
  - {name: soft, ground: {time_constant: 0.04}}
"""
ROBOT = RobotDescription.load("go2")
METHODS = ("--methods", "trace=model.pt,iekf_sr", "--workers", "1")
BASE = ("benchmark", "--courses", "small.yaml", "--engines", "mujoco", *METHODS)
KEYS = {
    *("engine", "course", "method", "seed", "path_length_m", "ate_position_m", "ate_velocity_mps"),
    *("ate_orientation_rad", "re10_position_m", "re10_velocity_mps", "re10_orientation_rad"),
}


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


def test_rows_tables_and_a_page(trace, files, tmp_path):
    result = trace(*BASE, "--json", tmp_path / "copy.json")
    assert result.code == 0, result.err
    assert "4 walks of go2, 4 of them to be simulated; methods: trace, iekf_sr; 8 of 8 runs to do" in result.err
    folder = files / "out" / "benchmark"
    written = json.loads((folder / "benchmark.json").read_text())
    assert written == json.loads((tmp_path / "copy.json").read_text())
    assert len(written["rows"]) == 8
    for row in written["rows"]:
        assert set(row) == KEYS
    assert written["settings"]["seeds"] == [3, 4]
    assert written["settings"]["command"].startswith("trace benchmark --courses small.yaml")
    assert len(written["means"]) == 4
    assert written["reductions"][0]["ate_position_m"]["baseline"] == "iekf_sr"
    assert (folder / "benchmark.md").read_text().count("| level | ") == 3
    assert (folder / "benchmark.html").read_text().count("<svg") == 1 + 2
    assert "ATE / RE over 10 s" in result.out
    for name in ("benchmark.json", "benchmark.md", "benchmark.html", "copy.json"):
        assert name in result.out

    again = trace(*BASE, "--output", tmp_path / "second", "--compare", tmp_path / "copy.json")
    assert again.code == 0, again.err
    assert "4 walks of go2, 0 of them to be simulated; methods: trace, iekf_sr; 0 of 8 runs to do" in again.err
    assert "0 differ by more than 1 %, the largest difference is 0 %" in again.err
    assert json.loads((tmp_path / "second" / "benchmark.json").read_text())["rows"] == written["rows"]

    quick = trace(*BASE, "--quick", "--output", tmp_path / "quick", "--compare", tmp_path / "copy.json")
    assert quick.code == 0, quick.err
    assert len(json.loads((tmp_path / "quick" / "benchmark.json").read_text())["rows"]) == 2

    written["rows"][0]["ate_position_m"] += 1.0
    (tmp_path / "copy.json").write_text(json.dumps(written))
    differs = trace(*BASE, "--output", tmp_path / "second", "--compare", tmp_path / "copy.json")
    assert differs.code == 1
    assert "1 differ by more than 1 %" in differs.err
    assert "mujoco, level, trace, 3: ate_position_m" in differs.err
    assert trace(*BASE, "--compare", tmp_path / "copy.json", "--tolerance", "1").code == 0
    other = {"rows": [row | {"seed": 99} for row in written["rows"]]}
    (tmp_path / "other.json").write_text(json.dumps(other))
    nothing = trace(*BASE, "--compare", tmp_path / "other.json")
    assert (nothing.code, "has no row in common" in nothing.err) == (2, True)


def test_walks_on_which_the_robot_fell_are_told(trace, files, tmp_path):
    courses = CourseSet.load(files / "small.yaml").select(["level"])
    keep_fall(simulated_walks(courses, ROBOT, ["mujoco"], tmp_path / "kept")[1].log, FallError("fell"))
    result = trace(*BASE, "--only", "level", "--cache", tmp_path / "kept", "--output", tmp_path / "out")
    assert result.code == 0, result.err
    assert "2 walks of go2, 1 of them to be simulated; methods: trace, iekf_sr; 2 of 4 runs to do" in result.err
    told = "the robot fell on 1 of 2 walks, which are left out: level, seed 4, mujoco"
    assert f"note: {told}" in result.err
    written = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert [row["seed"] for row in written["rows"]] == [3, 3]
    assert written["settings"]["left_out"][-1] == told

    earlier = written["rows"] + [row | {"seed": 4} for row in written["rows"]]
    (tmp_path / "earlier.json").write_text(json.dumps({"rows": earlier}))
    again = ("--only", "level", "--cache", tmp_path / "kept", "--output", tmp_path / "out")
    compared = trace(*BASE, *again, "--compare", tmp_path / "earlier.json")
    assert "2 rows of" in compared.err and "have no counterpart: the robot fell" in compared.err
    assert compared.code == 1


def test_bags_of_the_users(trace, tmp_path):
    bags = tmp_path / "bags"
    bags.mkdir()
    write_bag(bags / "yard", sensor_log(walk(1.0)), ROBOT)
    write_bag(bags / "hall", sensor_log(walk(1.0), 1), ROBOT)
    result = trace("benchmark", "--bags", bags, *METHODS, "--output", tmp_path / "out")
    assert result.code == 0, result.err
    rows = json.loads((tmp_path / "out" / "benchmark.json").read_text())["rows"]
    assert [(row["engine"], row["course"], row["seed"], row["method"]) for row in rows] == [
        ("recorded", course, 0, method) for course in ("hall", "yard") for method in ("trace", "iekf_sr")
    ]
    # Read in another way they are other walks, and nothing kept is taken for theirs.
    moved = ("--imu-mounting", "urdf", "--imu-frame", "base_link", "--output", tmp_path / "moved")
    assert trace("benchmark", "--bags", bags, *METHODS, *moved).code == 0
    others = json.loads((tmp_path / "moved" / "benchmark.json").read_text())["rows"]
    assert all(row["ate_position_m"] != other["ate_position_m"] for row, other in zip(rows, others, strict=True))
    page = (tmp_path / "out" / "benchmark.html").read_text()
    assert "Benchmark of go2: recorded logs" in page


def test_ctrl_c_is_130_and_says_how_to_go_on(trace, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trace_ros.evaluation.benchmark.run_benchmark", interrupt)
    result = trace(*BASE, "--output", tmp_path)
    assert result.code == 130
    assert "the same command goes on from there" in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--courses", "moon"), "unknown set of courses 'moon'"),
        ((*BASE[1:], "--only", "moon"), "unknown course 'moon' of the set 'small'"),
        ((*BASE[1:], "--seeds", "x"), "--seeds 'x'"),
        ((*BASE[1:3], "--engines", "havok"), "unknown simulation backend 'havok'"),
        ((*BASE[1:3], "--methods", "moon"), "no estimator is called 'moon'"),
        ((*BASE[1:3], "--methods", "trace=no.pt"), "no.pt: no such file"),
        ((*BASE[1:], "--compare", "no.json"), "--compare no.json: cannot be read"),
        ((*BASE[1:], "--compare", "small.yaml"), "--compare small.yaml: not a benchmark.json"),
        ((*BASE[1:], "--output", "small.yaml"), "small.yaml: is a file, expected a folder"),
        ((*BASE[1:], "--robot", "unicorn"), "unicorn"),
        (("--bags", "none"), "none: no such file"),
        (("--bags", ".", "--only", "flat"), "--only does not go with it"),
        (("--torque-source", "none"), "--torque-source is for recorded logs: give --bags too"),
        (("--imu-topic", "imu"), "--imu-topic is for recorded logs: give --bags too"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trace, arguments, message):
    result = trace("benchmark", *arguments)
    assert result.code == 2
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.err
    assert message in errors[0]
    assert "Traceback" not in result.err


def test_models_of_one_unit_are_told(trace, tmp_path):
    own = tmp_path / "own.pt"
    export_untrained(own, ROBOT)
    write_card(own, load_model(own).card.model_copy(update={"joint_delay": 0.012}))
    bags = tmp_path / "bags"
    bags.mkdir()
    write_bag(bags / "yard", sensor_log(walk(1.0)), ROBOT)
    both = f"own:trace={own},again:trace={own}"

    def notes(*arguments):
        ran = trace("benchmark", *arguments, "--output", tmp_path / "out")
        assert ran.code == 0, ran.err
        written = json.loads((tmp_path / "out" / "benchmark.json").read_text())["settings"]
        assert written["left_out"] == []
        page = html.unescape((tmp_path / "out" / "benchmark.html").read_text())
        assert all(f"note: {note}" in ran.err and note in page for note in written["notes"])
        return written["notes"]

    walks = ("--courses", "small.yaml", "--only", "level", "--seeds", "3", "--engines", "mujoco", "--workers", "1")
    told = f"{own} is one unit's (joints 12 ms late); the robots of these walks are others"
    assert notes(*walks, "--methods", both) == [told]
    # On the unit's own logs it is right, but what knows nothing of the unit is at a disadvantage.
    unlike = "joint readings are not put back alike: own by 12 ms, iekf_sr by 0 ms; trace evaluate --joint-delay"
    (said,) = notes("--bags", bags, "--methods", f"own:trace={own},iekf_sr", "--workers", "1")
    assert said.startswith(unlike)
    assert notes("--bags", bags, "--methods", both, "--workers", "1") == []
