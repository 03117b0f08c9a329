"""tools/compare_recipes.py: what a recipe may be, and which rollouts and budget each gets."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from loaded_tools import load_tool

from trace_ros.errors import TraceError
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
    recipes = [tool.Recipe(), tool.Recipe(changes=("loss.foot=0",)), tool.Recipe("one_gait"), tool.Recipe("mlp")]
    folders = tool.rollouts_of(recipes, given(tmp_path))
    assert {simulation.name: folder for simulation, folder in folders.items()} == {
        "simulation.yaml": tmp_path / "rollouts" / "simulation",
        "simulation_one_gait.yaml": tmp_path / "rollouts" / "simulation_one_gait",
    }
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[:3] for line in asked] == [["rollouts", "--config", name] for name in ("trace", "one_gait")]


def test_a_simulation_that_fails_ends_it(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 2))
    with pytest.raises(TraceError, match="simulating failed with exit code 2"):
        tool.rollouts_of([tool.Recipe()], given(tmp_path))
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 130))
    with pytest.raises(KeyboardInterrupt):
        tool.rollouts_of([tool.Recipe()], given(tmp_path))


def test_recipes_file_is_read_in_its_order(tool):
    assert list(tool.read_recipes(RECIPES, None)) == list(yaml.safe_load(RECIPES.read_text()))


def test_a_training_is_not_taken_for_one_of_other_settings(tool, tmp_path):
    folder = tmp_path / "default_1"
    tool.check_settings(folder, tool.Recipe(), given(tmp_path))
    tool.check_settings(folder, tool.Recipe(), given(tmp_path))
    for recipe, settings, differs in (
        (tool.Recipe(), {"visits": 2e6}, "budget"),
        (tool.Recipe(), {"robot": "a1"}, "robot"),
        (tool.Recipe(), {"count": 4}, "rollouts"),
        (tool.Recipe(changes=("loss.foot=0",)), {}, "training"),
    ):
        with pytest.raises(TraceError, match=f"holds a training of another {differs};"):
            tool.check_settings(folder, recipe, given(tmp_path, **settings))
    (tmp_path / "old_1").mkdir()
    (tmp_path / "old_1" / "checkpoint.pt").touch()
    with pytest.raises(TraceError, match="unknown settings"):
        tool.check_settings(tmp_path / "old_1", tool.Recipe(), given(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--visits", "nan"], "nan is not a number above zero"),
        (["--visits", "-5"], "-5 is not a number above zero"),
        (["--hours", "inf"], "inf is not a number above zero"),
        (["--jobs", "0"], "0 is not at least 1"),
        (["--count", "0"], "0 is not at least 1"),
        (["--seeds"], "expected at least one argument"),
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


def test_unknown_courses_are_told_before_anything_is_simulated(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "TRACE", command(tmp_path, 0))
    monkeypatch.setattr(sys, "argv", ["compare_recipes.py", "--output", str(tmp_path / "o"), "--courses", "moon"])
    assert tool.main() == 2
    assert "unknown set of courses 'moon'" in capsys.readouterr().err
    assert not (tmp_path / "asked").exists()


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
