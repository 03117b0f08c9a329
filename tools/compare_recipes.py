#!/usr/bin/env python3
"""Train several recipes on the very same rollouts with the same budget, and judge them on the same courses.

    python tools/compare_recipes.py --jobs 2 --output out/recipes
    python tools/compare_recipes.py --jobs 2 --output out/recipes --courses gaits       # the same models, other courses

Recipes are changes of the default config, or other configs (config/recipes.yaml). Each config's rollouts are simulated
first, as many and with the same seed. The budget is visits of samples, so that nothing else on the machine can favour a
recipe; with --hours it is wall-clock time, and the machine must be left alone. Each job trains with one thread: give as
many jobs as there are cores. Stopped with Ctrl-C, the same command goes on with what is not done. Prints Markdown
tables and writes recipes-COURSES.json, or recipes-COURSES-WALKER.json, beside the models.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trace_ros.cli.common import say, write_json
from trace_ros.errors import TraceError
from trace_ros.evaluation.courses import evaluate_courses, mean_rows
from trace_ros.resources import config_directory, read_yaml
from trace_ros.robot import RobotDescription
from trace_ros.sim.course_set import CourseSet
from trace_ros.training.config import CommonTraining
from trace_ros.training.methods import load_training

DEFAULT = "trace"
"""Config that recipes change."""

_METHODS = ("trace", "mlp")
"""That are compared: with the same outputs."""

TRACE = Path(sys.executable).parent / "trace"


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        config: name in config/training.
        changes: ``key=value``, of that config.
    """

    config: str = DEFAULT
    changes: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: Any, source: str) -> Recipe:
        """From YAML: a list of changes of the default config, or ``{config: ..., changes: [...]}``.

        Raises:
            TraceError: neither, a config or change that does not exist, or a method of other outputs.
        """
        given = {"changes": data} if isinstance(data, list) else data
        if not isinstance(given, dict) or set(given) - {"config", "changes"}:
            raise TraceError(f"{source}: expected a list of key=value, or config and changes")
        changes = given.get("changes", [])
        if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes):
            raise TraceError(f"{source}: changes must be a list of key=value")
        if not isinstance(config := given.get("config", DEFAULT), str):
            raise TraceError(f"{source}: config must be a name in config/training")
        recipe = cls(config, tuple(changes))
        if (method := recipe.load().method) not in _METHODS:
            raise TraceError(f"{source}: trains {method}, which has no velocity to compare; take one of {_METHODS}")
        return recipe

    def load(self) -> CommonTraining:
        """The training's config."""
        return load_training(self.config, self.changes)


def positive(text: str) -> float:
    """Of an option."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above zero")
    return value


def whole(text: str) -> int:
    """Of an option."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("out/recipes"))
    parser.add_argument("--rollouts", type=Path, help="folder of rollouts, one folder a simulation [OUTPUT/rollouts]")
    parser.add_argument(
        "--count", type=whole, default=800, help="rollouts of a simulation, where they are missing [800]"
    )
    parser.add_argument("--recipes", type=Path, default=config_directory() / "recipes.yaml")
    parser.add_argument("--only", nargs="+", help="names of recipes; default: all")
    parser.add_argument("--visits", type=positive, default=2.25e7, help="of samples, budget of each training [2.25e7]")
    parser.add_argument(
        "--hours", type=positive, help="budget of each training in wall-clock time, instead of --visits"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the trainings [1]")
    parser.add_argument("--jobs", type=whole, default=2, help="trainings at once [2]")
    parser.add_argument("--courses", default="validation", help="set of courses, or folder of kept logs [validation]")
    parser.add_argument("--robot", default="go2", help="whom the models are trained for [go2]")
    parser.add_argument("--walker", help="who walks the courses: such a robot with another policy [--robot]")
    arguments = parser.parse_args()
    try:
        return compare(arguments)
    except TraceError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on")
        return 130


def compare(arguments: argparse.Namespace) -> int:
    recipes = read_recipes(arguments.recipes, arguments.only)
    output: Path = arguments.output
    trainings = {(name, seed): output / f"{folder_name(name)}_{seed}" for name in recipes for seed in arguments.seeds}
    robot = RobotDescription.load(arguments.robot)
    walker = RobotDescription.load(arguments.walker or arguments.robot)
    if (walker.name, walker.fingerprint) != (robot.name, robot.fingerprint):
        raise TraceError(
            f"{arguments.walker}: is another robot than {arguments.robot}, whom the models are trained for"
        )
    for (name, _), folder in trainings.items():
        check_settings(folder, recipes[name], arguments)
    if not Path(arguments.courses).is_dir():
        CourseSet.load(arguments.courses)
    folders = rollouts_of([recipes[name] for name, _ in trainings], arguments)
    train_all(trainings, recipes, folders, arguments)
    models = {run: folder / "trace.pt" for run, folder in trainings.items()}
    say(f"judging {len(models)} models on {arguments.courses}")
    rows = evaluate_courses(list(models.values()), arguments.courses, walker, jobs=arguments.jobs)
    results = [
        result(name, seed, recipes[name], trainings[name, seed], [row for row in rows if row["model"] == str(model)])
        for (name, seed), model in models.items()
    ]
    command = " ".join(["tools/compare_recipes.py", *sys.argv[1:]])
    judged_on = [Path(name).stem for name in (arguments.courses, arguments.walker) if name]
    write_json(output / f"{'-'.join(['recipes', *judged_on])}.json", {"command": command, "rows": results})
    # Not console.print, which would wrap the rows.
    print(table(results), course_table(results), sep="\n\n")
    return 0


def read_recipes(path: Path, only: list[str] | None) -> dict[str, Recipe]:
    """Recipes by name.

    Raises:
        TraceError: no such file or recipe, or a bad one.
    """
    data = read_yaml(path)
    if not isinstance(data, dict) or not data:
        raise TraceError(f"{path}: must hold recipes by name")
    if odd := [name for name in data if not isinstance(name, str) or not folder_name(name)]:
        raise TraceError(f"{path}: {odd[0]!r} is no name of a recipe: put it into quotes, with a letter in it")
    folders = [folder_name(name) for name in data]
    if alike := [name for name in data if folders.count(folder_name(name)) > 1]:
        raise TraceError(f"{path}: {alike[0]!r} and {alike[1]!r} would share the folder {folder_name(alike[0])}")
    if unknown := [name for name in only or () if name not in data]:
        raise TraceError(f"{path}: no recipe {unknown[0]!r}; there are: {', '.join(data)}")
    return {name: Recipe.read(own, f"{path}: {name}") for name, own in data.items() if not only or name in only}


def folder_name(recipe: str) -> str:
    """Of a recipe's trainings, without the seed."""
    return re.sub(r"[^a-z0-9]+", "_", recipe.lower()).strip("_")


def rollouts_of(recipes: Sequence[Recipe], arguments: argparse.Namespace) -> dict[Path, Path]:
    """Folders of rollouts by the file of the simulation that they are of; missing rollouts are simulated.

    Raises:
        TraceError: they cannot be.
    """
    parent: Path = arguments.rollouts or arguments.output / "rollouts"
    folders: dict[Path, Path] = {}
    for recipe in recipes:
        simulation = recipe.load().simulation
        if simulation in folders:
            continue
        folders[simulation] = folder = parent / simulation.stem
        options = ["--config", recipe.config, "--output", str(folder), "--count", str(arguments.count), "--seed", "1"]
        options += ["--robot", arguments.robot, "--jobs", str(arguments.jobs)]
        finished = subprocess.run([TRACE, "rollouts", *options], check=False)
        if finished.returncode == 130:
            raise KeyboardInterrupt
        if finished.returncode:
            raise TraceError(f"{folder}: simulating failed with exit code {finished.returncode}")
    return folders


def check_settings(folder: Path, recipe: Recipe, arguments: argparse.Namespace) -> None:
    """What a training's folder holds must be of the same recipe and budget; notes them where there is none yet.

    Raises:
        TraceError: it is of another.
    """
    settings = {
        "robot": arguments.robot,
        "training": recipe.load().model_dump(mode="json", exclude={"simulation"}),
        "budget": budget(recipe, arguments),
        "rollouts": arguments.count,
    }
    path = folder / "settings.json"
    if not path.exists():
        if (folder / "checkpoint.pt").exists():
            raise TraceError(f"{folder}: holds a training of unknown settings; take another --output, or delete it")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    elif (there := json.loads(path.read_text(encoding="utf-8"))) != json.loads(json.dumps(settings)):
        differ = ", ".join(name for name in settings if there.get(name) != settings[name])
        raise TraceError(f"{folder}: holds a training of another {differ}; take another --output, or delete it")


def train_all(
    trainings: dict[tuple[str, int], Path],
    recipes: dict[str, Recipe],
    folders: dict[Path, Path],
    arguments: argparse.Namespace,
) -> None:
    """Train what has no model yet, some at a time; each in a process of its own with one thread."""
    waiting = [run for run, folder in trainings.items() if not (folder / "trace.pt").exists()]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                run = waiting.pop(0)
                recipe = recipes[run[0]]
                rollouts = folders[recipe.load().simulation]
                running[run] = start(run, trainings[run], recipe, rollouts, arguments)
            time.sleep(1.0)
            for run, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[run]
                if process.returncode:
                    raise TraceError(f"{run[0]}: training failed, see {trainings[run] / 'train.log'}")
                export(trainings[run], arguments.robot)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def start(
    run: tuple[str, int], folder: Path, recipe: Recipe, rollouts: Path, arguments: argparse.Namespace
) -> subprocess.Popen[bytes]:
    name, seed = run
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "checkpoint.pt").exists():
        options = ["--resume"]
    else:
        sets = [part for change in recipe.changes for part in ("--set", change)]
        options = ["--config", recipe.config, "--rollouts", str(rollouts), "--seed", str(seed), *sets]
        options += budget(recipe, arguments)
    say(f"training: {name}, seed {seed}")
    with (folder / "train.log").open("ab") as log:
        return subprocess.Popen(
            [TRACE, "train", "--robot", arguments.robot, "--output", str(folder), *options],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def budget(recipe: Recipe, arguments: argparse.Namespace) -> list[str]:
    """Options of ``trace train``. Steps of recipes with other batches or segments are that much fewer or more."""
    if arguments.hours is not None:
        return ["--hours", f"{arguments.hours:g}"]
    config = recipe.load()
    return ["--steps", str(max(1, round(arguments.visits / (config.batch * config.segment))))]


def export(folder: Path, robot: str) -> None:
    model = folder / "trace.pt"
    command = [str(TRACE), "export", str(folder / "checkpoint.pt"), "--robot", robot, "--output", str(model)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise TraceError(f"{folder}: {finished.stderr.strip()}")


def result(name: str, seed: int, recipe: Recipe, folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over all courses and their seeds, and what the training saw."""
    mean = next(row for row in mean_rows(rows) if row["course"] is None)
    card = read_yaml(folder / "trace.yaml")
    return {
        "recipe": name,
        "config": recipe.config,
        "changes": list(recipe.changes),
        "seed": seed,
        "steps": card["steps"],
        "samples": card["samples"],
        "held_out": card["figures"]["held_out"],
        "rows": json.loads(json.dumps(rows)),
        **{key: value for key, value in mean.items() if key not in ("course", "model", "rows", "seed")},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown; ATE, height, velocity, orientation and RE are means over courses and seeds of the walks."""
    lines = [
        "| recipe | seed | samples | ATE m | z m | velocity m/s | orientation rad | 10 s RE m | P90 m |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(row["recipe"] for row in results):
        own = [row for row in results if row["recipe"] == name]
        figures = np.array([overall(row) for row in own])
        lines += [
            row_of(name, str(row["seed"]), f"{row['samples']:.2g}", *(f"{value:.3f}" for value in values))
            for row, values in zip(own, figures, strict=True)
        ]
        if len(own) > 1:
            spread = zip(figures.mean(0), figures.std(0, ddof=1), strict=True)
            lines.append(row_of(name, "mean ± std", "", *(f"{mean:.3f} ± {std:.3f}" for mean, std in spread)))
    return "\n".join(lines)


def overall(row: dict[str, Any]) -> list[float]:
    """The figures of ``table``, in its order."""
    ate = [float(row[f"ate_{key}"]) for key in ("position_m", "z_m", "velocity_mps", "orientation_rad")]
    return [*ate, relative_error(row, "mean"), relative_error(row, "p90")]


def relative_error(row: dict[str, Any], part: str) -> float:
    """m over 10 s; nan where some walk was too short for one."""
    over = row["re10_position_m"]
    return math.nan if over is None else float(over[part])


def course_table(results: list[dict[str, Any]]) -> str:
    """Markdown; ATE / 10 s RE of the position in m, means over seeds of walks and trainings."""
    rows = mean_rows([{**row, "model": result["recipe"]} for result in results for row in result["rows"]])
    means = [row for row in rows if row["course"] is not None]
    courses = list(dict.fromkeys(row["course"] for row in means))
    lines = [row_of("recipe", *courses), row_of(*["---"] * (1 + len(courses)))]
    for name in dict.fromkeys(row["model"] for row in means):
        own = [row for row in means if row["model"] == name]
        cells = [f"{row['ate_position_m']:.3f} / {relative_error(row, 'mean'):.3f}" for row in own]
        lines.append(row_of(name, *cells))
    return "\n".join(lines)


def row_of(*cells: str) -> str:
    """Of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
