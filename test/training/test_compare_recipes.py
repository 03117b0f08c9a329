"""tools/compare_recipes.py: what a recipe may be, and which rollouts and budget each gets."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from loaded_tools import TOOLS, load_tool

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.sim.rollout import SimulationConfig

RECIPES = Path(__file__).parents[2] / "config" / "recipes.yaml"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("compare_recipes")


def given(folder: Path, **changes: object) -> argparse.Namespace:
    settings = {"rollouts": None, "output": folder, "count": 3, "robot": "go2", "jobs": 1, "hours": None, "visits": 1e6}
    return argparse.Namespace(**{**settings, **changes})


def test_the_shipped_recipes_are_configs_that_differ(tool):
    recipes = tool.read_recipes(RECIPES, None)
    assert recipes["default"] == tool.Recipe()
    configs = [recipe.load() for recipe in recipes.values()]
    assert all(config != other for index, config in enumerate(configs) for other in configs[:index])
    assert recipes["without foot-aware attention"].load().method == "mlp"


def test_without_policy_randomisation_there_is_one_gait_and_nothing_else_changes(tool):
    recipes = tool.read_recipes(RECIPES, ["default", "without policy randomisation"])
    default, one = (SimulationConfig.load(recipe.load().simulation) for recipe in recipes.values())
    assert (one.policy.action_scale, one.policy.action_bias_ratio, one.policy.low_pass) == ((1, 1), 0, (0, 0))
    assert one.model_copy(update={"policy": default.policy}) == default


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must hold recipes by name"),
        ("{a: 3}", "a: expected a list of key=value, or config and changes"),
        ("{a: {confg: trace}}", "a: expected a list"),
        ("{a: {changes: loss.foot=0}}", "a: changes must be a list"),
        ("{a: [3]}", "a: changes must be a list"),
        ("{a: [loss.feet=0]}", r"loss\.feet"),
        ("{a: {config: unheard}}", "no such file"),
        ("{a: {config: null}}", "a: config must be a name"),
        ("{a: {config: legolas}}", "a: trains legolas, which has no velocity"),
        ("{1: []}", "1 is no name of a recipe"),
        ("{'-': []}", "'-' is no name of a recipe"),
        ("{a-b: [], a b: [batch=32]}", "'a-b' and 'a b' would share the folder a_b"),
    ],
)
def test_bad_recipes_are_one_line(tool, tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        tool.read_recipes(path, None)
    assert "\n" not in str(caught.value)


def test_an_unknown_recipe_lists_those_there_are(tool):
    with pytest.raises(TraceError, match="no recipe 'fast'; there are: default, without L_model"):
        tool.read_recipes(RECIPES, ["fast"])


def test_all_see_as_many_samples_whatever_their_batch(tool, tmp_path):
    default, wide, long = tool.Recipe(), tool.Recipe(changes=("batch=128",)), tool.Recipe(changes=("segment=200",))
    steps = [int(tool.budget(recipe, given(tmp_path))[1]) for recipe in (default, wide, long)]
    assert steps[0] == round(1e6 / 6400)
    assert steps[1] == steps[2] == round(1e6 / 12800)
    assert tool.budget(wide, given(tmp_path, hours=0.5)) == ["--hours", "0.5"]


def command(tmp_path: Path, code: int) -> Path:
    """Stands where ``trace`` would, and notes what it was asked for."""
    path = tmp_path / "trace"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit {code}\n')
    path.chmod(0o755)
    return path


def test_each_simulation_is_asked_for_once(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 0))
    recipes = {
        "default": tool.Recipe(),
        "no foot": tool.Recipe(changes=("loss.foot=0",)),
        "one gait": tool.Recipe("one_gait"),
        "mlp": tool.Recipe("mlp"),
    }
    folders = tool.rollout_folders(recipes, given(tmp_path))
    names = {"default": "simulation", "no foot": "simulation", "one gait": "simulation_one_gait", "mlp": "simulation"}
    assert folders == {recipe: tmp_path / "rollouts" / name for recipe, name in names.items()}
    tool.simulate(recipes, folders, given(tmp_path))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[:3] for line in asked] == [["rollouts", "--config", name] for name in ("trace", "one_gait")]


def simulation(path: Path, **changes: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(changes))
    return path


def test_rollouts_are_simulated_with_the_changes_that_decide_them(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 0))
    other = simulation(tmp_path / "other.yaml", duration=3.0)
    changes = (f"simulation={other}", "loss.foot=0", "rollout_samples=1000")
    recipes = {"default": tool.Recipe(), "other": tool.Recipe(changes=changes)}
    folders = tool.rollout_folders(recipes, given(tmp_path))
    assert folders["other"] == tmp_path / "rollouts" / "other"
    tool.simulate(recipes, folders, given(tmp_path))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "--set" not in asked[0]
    assert asked[1].endswith(f"--set simulation={other} --set rollout_samples=1000")


def test_recipes_that_would_share_a_folder_of_other_rollouts_are_refused(tool, tmp_path):
    mine, yours = (simulation(tmp_path / name / "s.yaml", duration=at) for name, at in (("a", 2.0), ("b", 3.0)))
    same = simulation(tmp_path / "c" / "s.yaml", duration=2.0)
    a, b, c = (tool.Recipe(changes=(f"simulation={path}",)) for path in (mine, yours, same))
    assert len(set(tool.rollout_folders({"a": a, "c": c}, given(tmp_path)).values())) == 1
    with pytest.raises(TraceError, match="'a' and 'b' would share it, with other simulations"):
        tool.rollout_folders({"a": a, "b": b}, given(tmp_path))
    short = tool.Recipe(changes=("rollout_samples=1000",))
    with pytest.raises(TraceError, match=r"'all' and 'short' would share it, but .* rows \(rollout_samples, segment\)"):
        tool.rollout_folders({"all": tool.Recipe(), "short": short}, given(tmp_path))


def test_a_simulation_that_fails_ends_it(tool, tmp_path, monkeypatch):
    recipes, folders = {"default": tool.Recipe()}, {"default": tmp_path / "rollouts"}
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 2))
    with pytest.raises(TraceError, match="simulating failed with exit code 2"):
        tool.simulate(recipes, folders, given(tmp_path))
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 130))
    with pytest.raises(KeyboardInterrupt):
        tool.simulate(recipes, folders, given(tmp_path))


def test_ctrl_c_is_handed_on_to_the_simulation(tool, tmp_path, monkeypatch):
    path = tmp_path / "trace"
    # Its parent, the tests, is interrupted once it has begun.
    path.write_text(
        f"#!/bin/sh\ntrap 'echo INT >> {tmp_path}/told; sleep 0.5; echo saved >> {tmp_path}/told; exit 130' INT\n"
        "kill -INT $PPID\nfor _ in $(seq 1000); do sleep 0.05; done\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(tool, "TRACE", path)
    with pytest.raises(KeyboardInterrupt):
        tool.simulate({"default": tool.Recipe()}, {"default": tmp_path / "rollouts"}, given(tmp_path))
    assert (tmp_path / "told").read_text() == "INT\nsaved\n"


def test_a_stop_while_a_child_is_started_waits_until_it_is_in_hand(tool):
    begun = []
    with pytest.raises(KeyboardInterrupt), tool.stops_held():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # the handler has run
        begun.append("child")
    assert begun == ["child"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with tool.stops_held():
        pass


def test_recipes_file_is_read_in_its_order(tool):
    assert list(tool.read_recipes(RECIPES, None)) == list(yaml.safe_load(RECIPES.read_text()))


def test_a_training_is_not_taken_for_one_of_other_settings(tool, tmp_path):
    folder, go2 = tmp_path / "default_1", RobotDescription.load("go2")
    tool.check_settings(folder, tool.Recipe(), go2, given(tmp_path))
    tool.check_settings(folder, tool.Recipe(), go2, given(tmp_path))
    for recipe, robot, settings, differs in (
        (tool.Recipe(), go2, {"visits": 2e6}, "budget"),
        (tool.Recipe(), go2, {"robot": "mine.yaml"}, "robot"),
        (tool.Recipe(), RobotDescription.load("a1"), {}, "robot_fingerprint"),
        (tool.Recipe(), go2, {"count": 4}, "rollouts"),
        (tool.Recipe(changes=("loss.foot=0",)), go2, {}, "training"),
        (tool.Recipe("one_gait"), go2, {}, "simulation"),
    ):
        with pytest.raises(TraceError, match=f"holds a training of another {differs};"):
            tool.check_settings(folder, recipe, robot, given(tmp_path, **settings))
    (tmp_path / "old_1").mkdir()
    (tmp_path / "old_1" / "checkpoint.pt").touch()
    with pytest.raises(TraceError, match="unknown settings"):
        tool.check_settings(tmp_path / "old_1", tool.Recipe(), go2, given(tmp_path))


def test_a_simulation_that_was_changed_since_is_noticed(tool, tmp_path):
    folder, go2 = tmp_path / "mine_1", RobotDescription.load("go2")
    recipe = tool.Recipe(changes=(f"simulation={simulation(tmp_path / 'mine.yaml', duration=2.0)}",))
    tool.check_settings(folder, recipe, go2, given(tmp_path))
    simulation(tmp_path / "mine.yaml", duration=3.0)
    with pytest.raises(TraceError, match="holds a training of another simulation;"):
        tool.check_settings(folder, recipe, go2, given(tmp_path))
    settings = json.loads((folder / "settings.json").read_text())
    del settings["simulation"]
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(TraceError, match="holds a training of an unknown simulation;"):
        tool.check_settings(folder, recipe, go2, given(tmp_path))


@pytest.mark.parametrize("content", ['{"robot": ', "[1]", None], ids=["truncated", "list", "folder"])
def test_damaged_settings_are_one_line(tool, tmp_path, content):
    path = tmp_path / "default_1" / "settings.json"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(TraceError, match=r"settings\.json: (damaged|cannot be read)") as caught:
        tool.check_settings(path.parent, tool.Recipe(), RobotDescription.load("go2"), given(tmp_path))
    assert "\n" not in str(caught.value)


def stopped_by(number: int, folder: Path) -> tuple[int, str]:
    """Exit code and words of the tool, stopped with its whole group, as by a terminal, amid a training that notes what
    it is told."""
    # Beside the interpreter is where the tool looks for trace.
    (folder / "python").symlink_to(sys.executable)
    (folder / "trace").write_text(
        f"#!/bin/sh\n[ $1 = train ] || exit 0\n"
        f"trap 'echo INT >> {folder}/told' INT\ntrap 'echo TERM >> {folder}/told; sleep 0.5; exit 130' TERM\n"
        f"touch {folder}/started\nfor _ in $(seq 1000); do sleep 0.05; done\n"
    )
    (folder / "trace").chmod(0o755)
    tool = [folder / "python", TOOLS / "compare_recipes.py", "--output", folder / "o", "--only", "default"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        list(map(str, tool)), stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while not (folder / "started").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, number)
        said = process.communicate(timeout=60)[1]
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_tells_each_training_once_and_waits_for_it(tmp_path, number):
    code, said = stopped_by(number, tmp_path)
    assert code == 130, said
    assert said.endswith("stopped; the same command goes on\n")
    assert (tmp_path / "told").read_text() == "TERM\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--visits", "nan"], "nan is not a number above zero"),
        (["--visits", "-5"], "-5 is not a number above zero"),
        (["--hours", "inf"], "inf is not a number above zero"),
        (["--jobs", "0"], "0 is not at least 1"),
        (["--count", "0"], "0 is not at least 1"),
        (["--seeds"], "expected at least one argument"),
        (["--seeds", "1", "-2"], "-2 is not a seed"),
        (["--output", ""], "--output: is empty"),
        (["--rollouts", ""], "--rollouts: is empty"),
        (["--courses", ""], "--courses: is empty"),
    ],
)
def test_bad_options_are_refused_before_anything_is_done(tool, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["compare_recipes.py", "--output", str(tmp_path / "o"), *arguments])
    with pytest.raises(SystemExit):
        tool.main()
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("walker", "message"),
    [
        ("a1", "a1: is another robot than go2"),
        ("gone.yaml", r"gone\.yaml: cannot be read"),
        ("wide.yaml", "is another robot than go2"),
    ],
)
def test_another_robot_cannot_walk_the_courses(tool, tmp_path, monkeypatch, capsys, walker, message):
    (tmp_path / "wide.yaml").write_text("base: go2\nfoot_radius: 0.03\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 0))
    monkeypatch.setattr(sys, "argv", ["compare_recipes.py", "--output", str(tmp_path / "o"), "--walker", walker])
    assert tool.main() == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "asked").exists() and not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--courses", "moon"], "unknown set of courses 'moon'"),
        (["--courses", "empty"], "empty: holds no log of a course"),
        (["--courses", "empty", "--walker", "go2"], "--walker go2: the logs in empty are walked already; leave it out"),
        (["--robot", "idle.yaml"], "robot 'go2' names no walking policy"),
        (["--walker", "idle.yaml"], "robot 'go2' names no walking policy"),
        (["--walker", "lost.yaml"], "gone.yaml: "),
        (["--output", "file"], "file: is a file, expected a folder"),
        (["--rollouts", "file"], "cannot be written (file is not a folder)"),
        (["--json", "empty"], "empty: is a folder, expected a file"),
    ],
)
def test_faults_are_one_line_before_anything_is_simulated(tool, tmp_path, monkeypatch, capsys, options, message):
    (tmp_path / "idle.yaml").write_text("base: go2\npolicy: null\n")
    (tmp_path / "lost.yaml").write_text("base: go2\npolicy: gone.yaml\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 0))
    monkeypatch.setattr(sys, "argv", ["compare_recipes.py", "--output", "o", *options])
    assert tool.main() == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert not (tmp_path / "asked").exists() and not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "o/recipes-validation.json"),
        (["--walker", "mine.yaml"], "o/recipes-validation-mine.json"),
        (["--walker", "mine.yaml", "--json", "rows/first.json"], "rows/first.json"),
    ],
)
def test_rows_go_where_they_are_wanted(tool, tmp_path, monkeypatch, options, name):
    (tmp_path / "mine.yaml").write_text("base: go2\n")
    monkeypatch.chdir(tmp_path)
    for step in ("simulate", "train_all"):
        monkeypatch.setattr(tool, step, lambda *_: None)
    monkeypatch.setattr(tool, "evaluate_courses", lambda *_, **__: [])
    monkeypatch.setattr(tool, "result", lambda recipe, seed, *_: judged(recipe, seed, {"flat": 0.1}))
    monkeypatch.setattr(sys, "argv", ["compare_recipes.py", "--output", "o", "--only", "default", *options])
    assert tool.main() == 0
    written = [path for path in tmp_path.rglob("*.json") if path.name != "settings.json"]
    assert written == [tmp_path / name]
    assert [row["recipe"] for row in json.loads((tmp_path / name).read_text())["rows"]] == ["default"]


def judged(recipe: str, seed: int, errors: dict[str, float]) -> dict[str, object]:
    """A result whose errors all equal the mean of its courses'."""
    mean = sum(errors.values()) / len(errors)
    rows = [
        {"course": course, "seed": 501, "ate_position_m": error, "re10_position_m": {"mean": error / 2}}
        for course, error in errors.items()
    ]
    ate = {f"ate_{key}": mean for key in ("position_m", "z_m", "velocity_mps", "orientation_rad")}
    over = {"re10_position_m": {"mean": mean, "p90": mean}}
    return {"recipe": recipe, "seed": seed, "samples": 1e6, "rows": rows, **ate, **over}


def test_tables_give_what_a_seed_changes_and_each_course(tool):
    results = [
        judged("a", 1, {"flat": 0.1, "weak": 0.3}),
        judged("a", 2, {"flat": 0.3, "weak": 0.5}),
        judged("b", 1, {"flat": 1.0, "weak": 3.0}),
    ]
    lines = tool.table(results).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| a", "1"],
        ["| a", "2"],
        ["| a", "mean ± std"],
        ["| b", "1"],
    ]
    assert lines[4].split(" | ")[3] == "0.300 ± 0.141"  # of 0.2 and 0.4
    assert len({line.count("|") for line in lines}) == 1
    assert tool.course_table(results).splitlines() == [
        "| recipe | flat | weak |",
        "| --- | --- | --- |",
        "| a | 0.200 / 0.100 | 0.400 / 0.200 |",
        "| b | 1.000 / 0.500 | 3.000 / 1.500 |",
    ]


def test_tables_take_walks_too_short_for_a_relative_error(tool):
    results = [judged("a", 1, {"flat": 0.1, "blink": 0.3}) | {"re10_position_m": None}]
    results[0]["rows"][1]["re10_position_m"] = None
    assert tool.table(results).splitlines()[2] == "| a | 1 | 1e+06 | 0.200 | 0.200 | 0.200 | 0.200 | nan | nan |"
    assert tool.course_table(results).splitlines()[2] == "| a | 0.100 / 0.050 | 0.300 / nan |"
