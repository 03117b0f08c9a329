#!/usr/bin/env python3
"""Train several recipes on the very same rollouts with the same budget, and judge them on the same courses.

    trace rollouts --output out/rollouts --count 800 --seed 1
    python tools/compare_recipes.py --rollouts out/rollouts --jobs 2 --output out/recipes

Recipes are changes of the default config (config/recipes.yaml). The budget is visits of samples, so that nothing else
on the machine can favour a recipe; with --hours it is wall-clock time, and the machine must be left alone. Each job
trains with one thread: give as many jobs as there are cores. Stopped with Ctrl-C, the same command goes on with what is
not done. Prints a Markdown table and writes recipes.json beside the models.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trace_ros.cli.common import console, say, write_json
from trace_ros.errors import TraceError
from trace_ros.evaluation.courses import evaluate_courses, mean_rows
from trace_ros.resources import config_directory, read_yaml
from trace_ros.training.config import TrainingConfig

TRACE = Path(sys.executable).parent / "trace"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=Path, required=True, help="folder of trace rollouts")
    parser.add_argument("--output", type=Path, default=Path("out/recipes"))
    parser.add_argument("--recipes", type=Path, default=config_directory() / "recipes.yaml")
    parser.add_argument("--only", nargs="*", help="names of recipes; default: all")
    parser.add_argument("--visits", type=float, default=2.25e7, help="of samples, budget of each training [2.25e7]")
    parser.add_argument("--hours", type=float, help="budget of each training in wall-clock time, instead of --visits")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1], help="of the trainings [1]")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once [2]")
    parser.add_argument("--courses", default="validation", help="set of courses, or folder of kept logs [validation]")
    parser.add_argument("--robot", default="go2")
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
    trainings = {
        (name, seed): output / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}_{seed}"
        for name in recipes
        for seed in arguments.seeds
    }
    train_all(trainings, recipes, arguments)
    models = {run: folder / "trace.pt" for run, folder in trainings.items()}
    say(f"judging {len(models)} models on {arguments.courses}")
    rows = evaluate_courses(list(models.values()), arguments.courses, arguments.robot, jobs=arguments.jobs)
    results = [
        result(name, seed, recipes[name], trainings[name, seed], [row for row in rows if row["model"] == str(model)])
        for (name, seed), model in models.items()
    ]
    command = " ".join(["tools/compare_recipes.py", *sys.argv[1:]])
    write_json(output / "recipes.json", {"command": command, "rows": results})
    console.print(table(results))
    return 0


def read_recipes(path: Path, only: list[str] | None) -> dict[str, list[str]]:
    """Changes by name."""
    recipes = read_yaml(path)
    if not isinstance(recipes, dict) or not all(isinstance(changes, list) for changes in recipes.values()):
        raise TraceError(f"{path}: must hold names with lists of key=value")
    if unknown := [name for name in only or () if name not in recipes]:
        raise TraceError(f"{path}: no recipe {unknown[0]!r}; there are: {', '.join(recipes)}")
    return {name: changes for name, changes in recipes.items() if not only or name in only}


def train_all(
    trainings: dict[tuple[str, int], Path], recipes: dict[str, list[str]], arguments: argparse.Namespace
) -> None:
    """Train what has no model yet, some at a time; each in a process of its own with one thread."""
    waiting = [run for run, folder in trainings.items() if not (folder / "trace.pt").exists()]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                run = waiting.pop(0)
                running[run] = start(run, trainings[run], recipes[run[0]], arguments)
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
    run: tuple[str, int], folder: Path, changes: list[str], arguments: argparse.Namespace
) -> subprocess.Popen[bytes]:
    name, seed = run
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "checkpoint.pt").exists():
        options = ["--resume"]
    else:
        sets = [part for change in changes for part in ("--set", change)]
        options = ["--rollouts", str(arguments.rollouts), *budget(changes, arguments), "--seed", str(seed), *sets]
    say(f"training: {name}, seed {seed}")
    with (folder / "train.log").open("ab") as log:
        return subprocess.Popen(
            [TRACE, "train", "--robot", arguments.robot, "--output", str(folder), *options],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def budget(changes: list[str], arguments: argparse.Namespace) -> list[str]:
    """Options of ``trace train``. Steps of recipes with other batches or segments are that much fewer or more."""
    if arguments.hours is not None:
        return ["--hours", f"{arguments.hours:g}"]
    config = TrainingConfig.load("trace", changes)
    return ["--steps", str(max(1, round(arguments.visits / (config.batch * config.segment))))]


def export(folder: Path, robot: str) -> None:
    model = folder / "trace.pt"
    command = [str(TRACE), "export", str(folder / "checkpoint.pt"), "--robot", robot, "--output", str(model)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise TraceError(f"{folder}: {finished.stderr.strip()}")


def result(name: str, seed: int, changes: list[str], folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over all courses and their seeds, and what the training saw."""
    mean = next(row for row in mean_rows(rows) if row["course"] is None)
    card = read_yaml(folder / "trace.yaml")
    return {
        "recipe": name,
        "changes": changes,
        "seed": seed,
        "steps": card["steps"],
        "samples": card["samples"],
        "held_out": card["figures"]["held_out"],
        "rows": json.loads(json.dumps(rows)),
        **{key: value for key, value in mean.items() if key not in ("course", "model", "rows", "seed")},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown; ATE, height, velocity, orientation and RE are means over courses and seeds."""
    lines = [
        "| recipe | seed | samples | ATE m | z m | velocity m/s | orientation rad | 10 s RE m | P90 m |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results:
        over = row["re10_position_m"]
        figures = [row[f"ate_{key}"] for key in ("position_m", "z_m", "velocity_mps", "orientation_rad")]
        cells = [f"{value:.3f}" for value in (*figures, over["mean"], over["p90"])]
        lines.append("| " + " | ".join([row["recipe"], str(row["seed"]), f"{row['samples']:.2g}", *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
