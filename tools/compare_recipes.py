#!/usr/bin/env python3
"""Train several recipes on the very same rollouts with the same budget, and judge them on the same courses.

    python tools/compare_recipes.py --jobs 2 --output out/recipes
    python tools/compare_recipes.py --jobs 2 --output out/recipes --courses gaits       # the same models, other courses

Recipes are changes of the default config, or other configs (config/recipes.yaml). Each config's rollouts are simulated
first, as many and with the same seed. The budget is visits of samples, so that nothing else on the machine can favour a
recipe; with --hours it is wall-clock time, and the machine must be left alone. Each job trains with one thread: give as
many jobs as there are cores. Stopped with Ctrl-C, the same command goes on with what is not done. Prints Markdown
tables and writes their rows, which replace those of the command before, into recipes-COURSES.json, or
recipes-COURSES-WALKER.json, beside the models, or into --json FILE.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trace_ros.cli.common import check_output, say, write_json
from trace_ros.cli.options import MAX_SEED
from trace_ros.errors import TraceError
from trace_ros.evaluation.courses import course_runs, evaluate_courses, mean_rows
from trace_ros.evaluation.falls import fall_row
from trace_ros.resources import MAX_YAML_BYTES, config_directory, read_bounded, read_yaml
from trace_ros.robot import RobotDescription
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.training.config import CommonTraining
from trace_ros.training.methods import load_training

DEFAULT = "trace"
"""Config that recipes change."""

_METHODS = ("trace", "mlp")
"""That are compared: with the same outputs."""

_OF_ROLLOUTS = ("simulation", "segment", "rollout_samples")
"""Keys of a training's config that decide its rollouts: what is simulated, and the rows of each."""

TRACE = Path(sys.executable).parent / "trace"

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command after it has saved."""


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

    @property
    def changes_of_rollouts(self) -> list[str]:
        """Those of the changes that the rollouts depend on."""
        return [change for change in self.changes if change.partition("=")[0].strip() in _OF_ROLLOUTS]


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


def seed_of(text: str) -> int:
    """Of an option."""
    if not 0 <= (value := int(text)) <= MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text} is not a seed: 0 to {MAX_SEED}")
    return value


def filled(text: str) -> str:
    """Of an option: an empty path would be the folder that the command runs in."""
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return text


def path_of(text: str) -> Path:
    """Of an option."""
    return Path(filled(text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=path_of, default=Path("out/recipes"))
    parser.add_argument(
        "--rollouts", type=path_of, help="folder of rollouts, one folder a simulation [OUTPUT/rollouts]"
    )
    parser.add_argument(
        "--count", type=whole, default=800, help="rollouts of a simulation, where they are missing [800]"
    )
    parser.add_argument("--recipes", type=path_of, default=config_directory() / "recipes.yaml")
    parser.add_argument("--only", nargs="+", help="names of recipes; default: all")
    parser.add_argument("--visits", type=positive, default=2.25e7, help="of samples, budget of each training [2.25e7]")
    parser.add_argument(
        "--hours", type=positive, help="budget of each training in wall-clock time, instead of --visits"
    )
    parser.add_argument("--seeds", type=seed_of, nargs="+", default=[1], help="of the trainings [1]")
    parser.add_argument("--jobs", type=whole, default=2, help="trainings at once [2]")
    parser.add_argument(
        "--courses", type=filled, default="validation", help="set of courses, or folder of kept logs [validation]"
    )
    parser.add_argument("--robot", type=filled, default="go2", help="whom the models are trained for [go2]")
    parser.add_argument(
        "--walker", type=filled, help="who walks the courses: such a robot with another policy [--robot]"
    )
    parser.add_argument(
        "--json",
        type=path_of,
        metavar="FILE",
        help="for the rows of this command; what it holds is replaced [OUTPUT/recipes-COURSES-WALKER.json]",
    )
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
    judged_on = [Path(name).stem for name in (arguments.courses, arguments.walker) if name]
    json_file: Path = arguments.json or output / f"{'-'.join(['recipes', *judged_on])}.json"
    for folder in (output, *trainings.values()):
        check_output(folder, folder=True)
    check_output(json_file)
    robot, walker = load_robots(arguments)
    course_runs(arguments.courses, walker)  # an unknown set, or a folder without logs, must fail here
    folders = rollout_folders(recipes, arguments)
    for (name, _), folder in trainings.items():
        check_settings(folder, recipes[name], robot, arguments)
    simulate(recipes, folders, arguments)
    train_all(trainings, recipes, folders, arguments)
    models = {run: folder / "trace.pt" for run, folder in trainings.items()}
    say(f"judging {len(models)} models on {arguments.courses}")
    fell: list[dict[str, Any]] = []
    rows = evaluate_courses(
        list(models.values()),
        arguments.courses,
        walker,
        jobs=arguments.jobs,
        fallen=lambda run, fall: fell.append(fall_row(run.course, run.seed, fall)),
    )
    results = [
        result(name, seed, recipes[name], trainings[name, seed], [row for row in rows if row["model"] == str(model)])
        for (name, seed), model in models.items()
    ]
    command = " ".join(["tools/compare_recipes.py", *sys.argv[1:]])
    write_json(json_file, {"command": command, "rows": results, "fell": fell})
    # Not console.print, which would wrap the rows.
    print(table(results), course_table(results), sep="\n\n")
    for walk in fell:
        say(f"left out: {walk['course']} {walk['seed']}: {walk['reason']}")
    return 0


def load_robots(arguments: argparse.Namespace) -> tuple[RobotDescription, RobotDescription]:
    """The robot that is trained for and the one that walks the courses, with policies that can be loaded.

    Raises:
        TraceError: they cannot, are different robots, or nobody walks.
    """
    robot = RobotDescription.load(arguments.robot)
    for policy in (None, *robot.other_policies):
        WalkingPolicy.load(robot, policy)
    if arguments.walker is None:
        return robot, robot
    if Path(arguments.courses).is_dir():
        raise TraceError(
            f"--walker {arguments.walker}: the logs in {arguments.courses} are walked already; leave it out"
        )
    walker = RobotDescription.load(arguments.walker)
    if (walker.name, walker.fingerprint) != (robot.name, robot.fingerprint):
        raise TraceError(
            f"{arguments.walker}: is another robot than {arguments.robot}, whom the models are trained for"
        )
    WalkingPolicy.load(walker)
    return robot, walker


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


def rollout_folders(recipes: dict[str, Recipe], arguments: argparse.Namespace) -> dict[str, Path]:
    """Folder of the rollouts of each recipe, by its name; recipes of one simulation share one.

    Raises:
        TraceError: two would share one but want other rollouts, or a simulation's file is bad.
    """
    parent: Path = arguments.rollouts or arguments.output / "rollouts"
    folders: dict[str, Path] = {}
    firsts: dict[Path, tuple[str, SimulationConfig, int]] = {}
    for name, recipe in recipes.items():
        training = recipe.load()
        simulation, rows = SimulationConfig.load(training.simulation), training.rows
        folders[name] = folder = parent / training.simulation.stem
        check_output(folder, folder=True)
        other, its_simulation, its_rows = firsts.setdefault(folder, (name, simulation, rows))
        if simulation != its_simulation:
            raise TraceError(
                f"{folder}: {other!r} and {name!r} would share it, with other simulations of the same name; "
                "rename one of the files"
            )
        if rows != its_rows:
            raise TraceError(
                f"{folder}: {other!r} and {name!r} would share it, but take rollouts of {its_rows} and {rows} rows "
                f"(rollout_samples, segment); compare them apart, with another --output"
            )
    return folders


@contextmanager
def stops_held() -> Iterator[None]:
    """While a child is started: a stop that came before its process is in hand would leave it running, nobody's. It is
    raised when this ends."""
    told: list[int] = []
    handlers = {number: signal.getsignal(number) for number in STOPS}
    held = [number for number, handler in handlers.items() if callable(handler)]
    try:
        for number in held:
            signal.signal(number, lambda number, _: told.append(number))
        yield
    finally:
        for number in held:
            signal.signal(number, handlers[number])
    if told:
        raise KeyboardInterrupt


def simulate(recipes: dict[str, Recipe], folders: dict[str, Path], arguments: argparse.Namespace) -> None:
    """Simulate the rollouts that are missing, of each folder as the first of its recipes asks for.

    Raises:
        TraceError: they cannot be.
    """
    firsts = {folder: name for name, folder in reversed(folders.items())}
    for folder in dict.fromkeys(folders.values()):
        recipe = recipes[firsts[folder]]
        options = ["--config", recipe.config, "--output", str(folder), "--count", str(arguments.count), "--seed", "1"]
        options += ["--robot", arguments.robot, "--jobs", str(arguments.jobs)]
        options += [part for change in recipe.changes_of_rollouts for part in ("--set", change)]
        process: subprocess.Popen[bytes] | None = None
        try:
            with stops_held():
                process = subprocess.Popen([TRACE, "rollouts", *options], start_new_session=True)
            code = process.wait()
        except KeyboardInterrupt:
            if process is None:
                raise
            # Ctrl-C leaves the terminal as it was; a child of a script's background job ignores it, as this one does.
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            try:
                process.wait()
            finally:
                process.kill()  # where a second Ctrl-C ends the wait
            raise
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise TraceError(f"{folder}: simulating failed with exit code {code}")


def check_settings(folder: Path, recipe: Recipe, robot: RobotDescription, arguments: argparse.Namespace) -> None:
    """What a training's folder holds must be of the same recipe and budget; notes them where there is none yet.

    Raises:
        TraceError: it is of another.
    """
    training = recipe.load()
    settings = {
        "robot": arguments.robot,
        "robot_fingerprint": robot.fingerprint,
        # Its file may lie elsewhere; what it says counts.
        "training": training.model_dump(mode="json", exclude={"simulation"}),
        "simulation": SimulationConfig.load(training.simulation).model_dump(mode="json"),
        "budget": budget(recipe, arguments),
        "rollouts": arguments.count,
    }
    path = folder / "settings.json"
    if not path.exists():
        if (folder / "checkpoint.pt").exists():
            raise TraceError(f"{folder}: holds a training of unknown settings; take another --output, or delete it")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
        return
    there, wanted = read_settings(path), json.loads(json.dumps(settings))
    for kind, names in (
        ("another", [name for name in wanted if name in there and there[name] != wanted[name]]),
        ("an unknown", [name for name in wanted if name not in there]),
    ):
        if names:
            raise TraceError(
                f"{folder}: holds a training of {kind} {', '.join(names)}; take another --output, or delete it"
            )


def read_settings(path: Path) -> dict[str, Any]:
    """What `check_settings` noted.

    Raises:
        TraceError: it cannot be read, or is something else.
    """
    try:
        settings = json.loads(read_bounded(path, MAX_YAML_BYTES, "a file of settings"))
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise TraceError(f"{path}: damaged, no settings of a training; take another --output, or delete its folder")
    return settings


def train_all(
    trainings: dict[tuple[str, int], Path],
    recipes: dict[str, Recipe],
    folders: dict[str, Path],
    arguments: argparse.Namespace,
) -> None:
    """Train what has no model yet, some at a time; each in a process of its own with one thread.

    Stopped, it tells each training once, and waits until all have saved.

    Raises:
        TraceError: a training failed.
    """
    waiting = [run for run, folder in trainings.items() if not (folder / "trace.pt").exists()]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                run = waiting.pop(0)
                with stops_held():
                    running[run] = start(run, trainings[run], recipes[run[0]], folders[run[0]], arguments)
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
            start_new_session=True,  # a terminal's Ctrl-C and then ours would be two, which end it before it saves
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
    # As Ctrl-C does: the trainings, in sessions of their own, would outlive this process. nohup stays what it is.
    for number in STOPS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    sys.exit(main())
