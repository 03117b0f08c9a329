#!/usr/bin/env python3
"""Search for the filter's numbers on simulated courses.

    python tools/tune_filters.py --output out/tuning --minutes 40

What is searched, and where, stands in config/baselines/tuning.yaml. A search is a row of rounds: each tries some
candidates, the best numbers so far changed by random factors from near to far, and keeps what is better. The same file
and seed give the same rounds, whatever the number of jobs. Stopped with Ctrl-C, the same command goes on. Writes
tuning.json (the courses before and after, and how the search went) and tuned.yaml, numbers for ``--model``. With
--judge nothing is searched: a table of what the numbers give, for iekf and iekf_sr, as Markdown.

A number is tried in compiled code (tools/filter_kernel.c), which is first held against the estimator itself.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from filter_kernel import FilterKernel, PreparedLog, prepare
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.table import Table

from trace_ros.baselines.config import BaselineConfig, default_config
from trace_ros.baselines.iekf import IekfSlipRejection
from trace_ros.cli.common import console, progress_bar, say, write_json
from trace_ros.errors import TraceError
from trace_ros.estimator.run import run_estimator
from trace_ros.evaluation.courses import DEFAULT_CACHE, course_log, course_runs
from trace_ros.evaluation.metrics import MetricSettings, evaluate
from trace_ros.logs import SensorLog
from trace_ros.resources import config_directory, read_yaml
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.whole_files import whole_file

_CHECK_S = 6.0
"""Of a log, on which the kernel is held against the estimator."""
_AGREEMENT_M = 1e-6
_SETTINGS = MetricSettings(warm_up_samples=3)  # of poses at 50 Hz: the usual 60 ms

Values = dict[str, float]


class Search(BaseModel):
    """What `config/baselines/tuning.yaml` holds.

    Attributes:
        courses: set of courses, or folder of kept logs.
        only: names of courses, or None: all.
        seeds: of the walks.
        robot: that walks.
        steps: spread of the change, in parts of a number's range (of its logarithm), one for each candidate of a round.
        changed: share of the numbers that a candidate changes.
        cap: %; errors beyond count as this much.
        digits: to which numbers are rounded.
        numbers: range of each, by its key in config/baselines/iekf.yaml.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    courses: str = "validation"
    only: list[str] | None = None
    seeds: Annotated[list[int], Field(min_length=1)]
    robot: str = "go2"
    steps: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    changed: Annotated[float, Field(gt=0, le=1)] = 0.4
    cap: Annotated[float, Field(gt=0)] = 10.0
    digits: Annotated[int, Field(ge=1)] = 2
    numbers: Annotated[dict[str, tuple[float, float]], Field(min_length=1)]

    @classmethod
    def load(cls, path: Path) -> Search:
        """Read a file.

        Raises:
            TraceError: unreadable, an unknown or bad key, or a range that is none.
        """
        try:
            search = cls.model_validate(read_yaml(path))
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error
        for key, (low, high) in search.numbers.items():
            if not 0 < low < high:
                raise TraceError(f"{path}: numbers.{key} must be a range of positive numbers, not {low:g} to {high:g}")
        return search


@dataclass(frozen=True)
class Score:
    """How good numbers are.

    Attributes:
        cost: %, what is made small.
        logs: figures of each log by its name; not all of them where the cost is beyond what is of interest.
    """

    cost: float
    logs: dict[str, dict[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", type=Path, default=config_directory() / "baselines" / "tuning.yaml")
    parser.add_argument("--start", type=Path, default=default_config(), help="numbers to begin with [the package's]")
    parser.add_argument("--output", type=Path, default=Path("out/tuning"))
    parser.add_argument("--minutes", type=float, default=40.0, help="after which no round begins [40]")
    parser.add_argument("--rounds", type=int, help="after which the search ends")
    parser.add_argument("--jobs", type=int, default=2, help="candidates at once [2]")
    parser.add_argument("--seed", type=int, default=1, help="of the search [1]")
    parser.add_argument("--judge", action="store_true", help="a table of the numbers of --start, no search")
    parser.add_argument("--seeds", type=int, nargs="*", help="of the walks [those of the search]")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder of simulated logs [out/courses]")
    arguments = parser.parse_args()
    try:
        return tune(arguments)
    except TraceError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on")
        return 130


def tune(arguments: argparse.Namespace) -> int:
    search, start = Search.load(arguments.search), BaselineConfig.load(arguments.start)
    if arguments.seeds:
        search = search.model_copy(update={"seeds": arguments.seeds})
    for key in search.numbers:
        if not isinstance(number(start, key), float):
            raise TraceError(f"{arguments.search}: numbers.{key} is no number of {arguments.start}")
    robot = RobotDescription.load(search.robot)
    kernel = FilterKernel(robot, arguments.output)
    logs = load_logs(search, robot, start, arguments.cache, kernel)
    if arguments.judge:
        kinds = {"iekf": False, "iekf_sr": True}
        scores = {name: Judge(kernel, logs, search, start, rejects)({}, math.inf) for name, rejects in kinds.items()}
        print(markdown(scores))
        return 0
    judge = Judge(kernel, logs, search, start)

    state_path = arguments.output / "search.json"
    settings = {
        "search": search.model_dump(mode="json"),
        "start": start.model_dump(mode="json"),
        "seed": arguments.seed,
    }
    state = resume(state_path, settings)
    if state is None:
        values = {key: number(start, key) for key in search.numbers}
        state = settings | {"round": 0, "tried": 1, "values": values, "cost": judge(values, math.inf).cost, "steps": []}
    say(f"{len(logs)} logs; cost of the start {state['cost']:.3f} %, after {state['round']} rounds")
    end = time.monotonic() + 60 * arguments.minutes
    with progress_bar() as progress, ThreadPoolExecutor(arguments.jobs) as pool:
        task = progress.add_task(f"best {state['cost']:.3f} %", total=arguments.rounds, completed=state["round"])
        while time.monotonic() < end and (arguments.rounds is None or state["round"] < arguments.rounds):
            drawn = candidates(search, state["values"], [arguments.seed, state["round"]])
            best = state["cost"]
            scores = list(pool.map(lambda values, bound=best: judge(values, bound), drawn))
            state["round"] += 1
            state["tried"] += len(drawn)
            found = min(range(len(drawn)), key=lambda index: scores[index].cost)
            if scores[found].cost < best:
                state["cost"], state["values"] = scores[found].cost, drawn[found]
                state["steps"].append({"round": state["round"], "cost": state["cost"], **drawn[found]})
            write_json(state_path, state)
            progress.update(task, completed=state["round"], description=f"best {state['cost']:.3f} %")
    first = judge({key: number(start, key) for key in search.numbers}, math.inf)
    last = judge(state["values"], math.inf)
    command = " ".join(["tools/tune_filters.py", *sys.argv[1:]])
    kept = {"command": command, **state, "before": first.logs, "after": last.logs}
    write_json(arguments.output / "tuning.json", kept)
    write_numbers(arguments.output / "tuned.yaml", arguments.start, state["values"])
    console.print(table(first, last))
    say(f"wrote {arguments.output / 'tuning.json'} and {arguments.output / 'tuned.yaml'}")
    return 0


def load_logs(
    search: Search, robot: RobotDescription, start: BaselineConfig, cache: Path, kernel: FilterKernel
) -> list[PreparedLog]:
    """The logs, simulated where they are not kept.

    Raises:
        TraceError: the kernel does not agree with the estimator.
    """
    runs = course_runs(search.courses, robot, search.only, search.seeds, cache)
    # Seed by seed: a bad candidate is then given up before one course has been walked by all.
    runs = sorted(runs, key=lambda run: search.seeds.index(run.seed))
    prepared = []
    with progress_bar() as progress:
        task = progress.add_task("preparing logs", total=len(runs))
        for run in runs:
            log = course_log(run, robot)
            if not prepared:
                check(kernel, log, robot, start)
            prepared.append(prepare(f"{run.course}_{run.seed}", log, robot, start.contact.rotor_inertia))
            progress.advance(task)
    return prepared


def check(kernel: FilterKernel, log: SensorLog, robot: RobotDescription, config: BaselineConfig) -> None:
    """Hold the kernel against the estimator on the walk's first seconds.

    Raises:
        TraceError: they differ.
    """
    part = log.select(log.stamp_ns - log.stamp_ns[0] < _CHECK_S * 1e9)
    found = kernel.run(prepare("check", part, robot, config.contact.rotor_inertia), config)
    true = run_estimator(IekfSlipRejection(robot, config), part).trajectory
    difference = math.inf
    if found is not None:
        same = np.isin(true.stamp_ns, found.stamp_ns)
        difference = float(np.abs(found.position - true.position[same]).max())
    if difference > _AGREEMENT_M:
        raise TraceError(
            f"the kernel differs from the estimator by {difference:g} m: tools/filter_kernel.c is out of date"
        )


class Judge:
    """Gives numbers their cost."""

    def __init__(
        self,
        kernel: FilterKernel,
        logs: Sequence[PreparedLog],
        search: Search,
        start: BaselineConfig,
        rejects_slip: bool = True,
    ) -> None:
        self._kernel, self._logs, self._search, self._start = kernel, logs, search, start
        self._rejects_slip = rejects_slip

    def __call__(self, values: Values, bound: float) -> Score:
        """The mean over the logs of ATE in % of the path and RE in % of the path of that time, each no more than the
        cap, half and half. Given up where it must end beyond ``bound``."""
        try:
            config = changed(self._start, values)
        except ValidationError:  # thresholds in the wrong order
            return Score(math.inf, {})
        total, figures = 0.0, {}
        for log in self._logs:
            figures[log.name] = row = self._figures(log, config)
            total += (min(row["ate_percent"], self._search.cap) + min(row["re_percent"], self._search.cap)) / 2
            if total / len(self._logs) > bound:
                break
        return Score(total / len(self._logs), figures)

    def _figures(self, log: PreparedLog, config: BaselineConfig) -> dict[str, float]:
        estimate = self._kernel.run(log, config, self._rejects_slip)
        if estimate is None:
            return {"ate_percent": math.inf, "re_percent": math.inf}
        metrics = evaluate(estimate, log.reference, _SETTINGS)
        if metrics.re_position_m is None:
            raise TraceError(f"{log.name}: shorter than {_SETTINGS.horizon_s:g} s")
        expected = metrics.path_length_m * _SETTINGS.horizon_s / metrics.duration_s
        return {
            "path_length_m": metrics.path_length_m,
            "ate_position_m": metrics.ate_position_m,
            "ate_percent": 100 * metrics.ate_position_m / metrics.path_length_m,
            "ate_z_m": metrics.ate_z_m,
            "ate_velocity_mps": metrics.ate_velocity_mps,
            "re10_position_m": metrics.re_position_m.mean,
            "re_percent": 100 * metrics.re_position_m.mean / expected,
        }


def candidates(search: Search, values: Values, seed: Sequence[int]) -> list[Values]:
    """What a round tries: one for each of the steps."""
    rng = np.random.default_rng(seed)
    drawn = []
    for step in search.steps:
        made = {}
        for key, (low, high) in search.numbers.items():
            factor = math.exp(step * math.log(high / low) * rng.standard_normal())
            value = values[key] * factor if rng.random() < search.changed else values[key]
            made[key] = float(f"{min(max(value, low), high):.{search.digits}g}")
        drawn.append(made)
    return drawn


def number(config: BaselineConfig, key: str) -> Any:
    """What stands at a key with dots."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part, None)
    return found


def changed(config: BaselineConfig, values: Values) -> BaselineConfig:
    """The config with other numbers at keys with dots."""
    data = config.model_dump()
    set_all(data, values)
    return BaselineConfig.model_validate(data)


def set_all(data: dict[str, Any], values: Values) -> None:
    """Put values at keys with dots."""
    for key, value in values.items():
        *path, last = key.split(".")
        place = data
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value


def resume(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """An earlier search with the same settings, or None.

    Raises:
        TraceError: it had others.
    """
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: not a kept search ({error}); remove it") from error
    if {key: state.get(key) for key in settings} != settings:
        raise TraceError(f"{path}: of another search; take another --output, or remove it")
    return state


def write_numbers(path: Path, start: Path, values: Values) -> None:
    """A file with numbers that changes the one of the start."""
    data: dict[str, Any] = {"base": str(start.resolve())}
    set_all(data, values)
    with whole_file(path) as temporary:
        temporary.write_text(yaml.safe_dump(data, sort_keys=False))


def table(before: Score, after: Score) -> Table:
    """Courses, before and after."""
    shown = Table("log", "ATE %", "after", "RE m", "after", title=f"cost {before.cost:.3f} -> {after.cost:.3f} %")
    for name, old in before.logs.items():
        new = after.logs[name]
        figures = old["ate_percent"], new["ate_percent"], old["re10_position_m"], new["re10_position_m"]
        shown.add_row(name, *(f"{figure:.2f}" for figure in figures))
    return shown


def markdown(scores: dict[str, Score]) -> str:
    """Means over the seeds of each course, for each estimator."""
    keys = "ate_position_m", "ate_percent", "ate_z_m", "ate_velocity_mps", "re10_position_m"
    lines = ["| course | estimator | ATE | % | vertical | velocity | RE |", "|" + " --- |" * 7]
    names = next(iter(scores.values())).logs
    for course in dict.fromkeys(name.rpartition("_")[0] for name in names):
        walks = [name for name in names if name.rpartition("_")[0] == course]
        for estimator, score in scores.items():
            means = {key: float(np.mean([score.logs[name][key] for name in walks])) for key in keys}
            cells = (f"{value:.2f}" if key == "ate_percent" else f"{value:.3f}" for key, value in means.items())
            lines.append(f"| {course} | `{estimator}` | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
