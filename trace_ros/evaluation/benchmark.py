"""The comparison: several estimators on the same walks, from the same start, judged by the same code.

Walks are simulated once and kept as bags; every result is kept as soon as it is there, so a benchmark that was ended
goes on where it was. Work is spread over processes; in each, TRACE runs through several walks side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trace_ros.baselines.registry import load_estimator
from trace_ros.errors import FallError, TraceError
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.interface import Estimator
from trace_ros.evaluation.benchmark_methods import Method
from trace_ros.evaluation.benchmark_results import (
    INITIAL,
    METRICS,
    Result,
    load_result,
    result_file,
    result_folder,
    result_of,
    save_result,
)
from trace_ros.evaluation.benchmark_walks import Walk, walk_log
from trace_ros.evaluation.falls import all_fell
from trace_ros.evaluation.processes import spread
from trace_ros.evaluation.report import package_versions
from trace_ros.evaluation.runner import evaluate_runs
from trace_ros.logs import SensorLog
from trace_ros.resources import share_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course_set import CourseSet

DEFAULT_KEPT = Path("out/benchmark/kept")
"""Where walks and results are kept."""


@dataclass(frozen=True)
class Run:
    """One method on one walk.

    Attributes:
        walk: what it runs on.
        method: what runs.
        file: where its result lies or is to lie.
        kept: the result, or None: it is still to be made.
    """

    walk: Walk
    method: Method
    file: Path
    kept: Result | None


def benchmark_runs(
    walks: Sequence[Walk], methods: Sequence[Method], robot: RobotDescription, kept: Path = DEFAULT_KEPT
) -> list[Run]:
    """Every method on every walk, walk by walk, with the results that are kept.

    Args:
        walks: see `trace_ros.evaluation.benchmark_walks`.
        methods: see `trace_ros.evaluation.benchmark_methods.choose_methods`.
        robot: whose walks they are.
        kept: folder of walks and results.

    Raises:
        TraceError: a model cannot be read.
    """
    # Names of files are made here once: whoever edits the code meanwhile gets new ones with the next start.
    folders = [(method, result_folder(method, robot, kept)) for method in methods]
    return [
        Run(walk, method, file, load_result(file, method))
        for walk in walks
        for method, folder in folders
        for file in (result_file(walk, folder),)
    ]


def runs_to_do(runs: Sequence[Run]) -> list[Run]:
    """Those without a result, unless the robot fell."""
    return [run for run in runs if run.kept is None and run.walk.fall is None]


def run_benchmark(
    runs: Sequence[Run],
    robot: RobotDescription,
    *,
    workers: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[Result]:
    """Simulate and run what is not kept.

    Args:
        runs: see `benchmark_runs`.
        robot: whose walks they are.
        workers: processes. More than one are started afresh, so a script that asks for them needs the usual
            ``if __name__ == "__main__":``.
        progress: called now and then with the part done, 0 to 1.

    Returns:
        The result of each run but those of walks on which the robot fell, which then have a `Walk.fall`.

    Raises:
        FallError: the robot fell on all walks.
        TraceError: a bad model or log, a model that was changed meanwhile, or a file that cannot be written.
        KeyboardInterrupt: what was complete before is kept.
    """
    parts = _parts(runs_to_do(runs), workers)
    tell = progress or (lambda _: None)
    spread(Judge(robot), parts, workers, lambda done: tell(done / len(parts)) if parts else None)
    tell(1.0)
    results = []
    falls = {run.walk.log: run.walk.fall for run in runs}
    upright = [run for run in runs if falls[run.walk.log] is None]
    if not upright and (first := next(iter(falls.values()), None)) is not None:
        raise all_fell(first, len(falls))
    for run in upright:
        result = run.kept or load_result(run.file, run.method)
        if result is None:
            raise TraceError(f"{run.file}: vanished or was damaged meanwhile; start again")
        results.append(result)
    return results


_MOST_WALKS = 8
"""Walks that a process takes at once: their logs are all in memory, and a kill loses what was in work."""


def _parts(runs: Sequence[Run], workers: int) -> list[tuple[Run, ...]]:
    """What one process takes at once: whole walks, in as few parts of equal size as keep all of them busy."""
    walks = list(dict.fromkeys(run.walk.log for run in runs))
    count = min(len(walks), workers * -(-len(walks) // (workers * _MOST_WALKS)))
    part_of = {walk: index % count for index, walk in enumerate(walks)}
    return [tuple(run for run in runs if part_of[run.walk.log] == part) for part in range(count)]


@dataclass(frozen=True)
class Judge:
    """What brings methods over walks, and keeps each result."""

    robot: RobotDescription

    def __call__(self, runs: Sequence[Run], progress: Callable[[float], None]) -> None:
        """Do what is to be done; ``progress`` hears the part done, 0 to 1."""
        # One step is a handful of small products: threads cost more than they bring.
        torch.set_num_threads(1)
        methods = list(dict.fromkeys(run.method for run in runs))
        walks = {run.walk.log: run.walk for run in runs}
        steps = 1 + len(methods)
        logs: dict[Path, SensorLog] = {}
        for index, (place, walk) in enumerate(walks.items()):

            def simulated(done: float, before: int = index) -> None:
                progress((before + done) / (len(walks) * steps))

            with suppress(FallError):
                logs[place] = walk_log(walk, self.robot, simulated)
        for index, method in enumerate(methods, start=1):
            estimator = load_estimator(method.estimator, self.robot, method.model)
            method.check_unchanged()
            mine = [(run, logs[run.walk.log]) for run in runs if run.method == method and run.walk.log in logs]
            if not mine:
                continue
            # Walks of TRACE go side by side; of another method, each is kept as soon as it is done.
            batches = [mine] if isinstance(estimator, TraceEstimator) else [[each] for each in mine]
            total, before = sum(len(log) for _, log in mine), 0
            for batch in batches:

                def advance(samples: int, at: int = index, before: int = before, total: int = total) -> None:
                    progress((at + min((before + samples) / total, 1.0)) / steps)

                self._judge(method, estimator, batch, advance)
                before += sum(len(log) for _, log in batch)

    def _judge(
        self,
        method: Method,
        estimator: Estimator,
        batch: Sequence[tuple[Run, SensorLog]],
        advance: Callable[[int], None],
    ) -> None:
        names, logs = [run.walk.name for run, _ in batch], [log for _, log in batch]
        evaluations = evaluate_runs(names, logs, estimator, METRICS, INITIAL, advance)
        for (run, _), evaluation in zip(batch, evaluations, strict=True):
            result = result_of(run.walk, method, evaluation, "velocity" in estimator.outputs)
            try:
                save_result(run.file, result)
            except OSError as error:
                raise TraceError(f"{run.file}: cannot be written ({error.strerror})") from error


def benchmark_settings(walks: Sequence[Walk], methods: Sequence[Method], robot: RobotDescription) -> dict[str, Any]:
    """What the rows were made with, for machines and for whoever wants the same again.

    Raises:
        TraceError: a model cannot be read.
    """
    return {
        "robot": robot.name,
        "engines": list(dict.fromkeys(walk.engine for walk in walks)),
        "courses": list(dict.fromkeys(walk.course for walk in walks)),
        "seeds": list(dict.fromkeys(walk.seed for walk in walks)),
        "methods": {
            method.label: {
                "estimator": method.estimator,
                "model": _short(method.model),
                "sha256": method.digest,
            }
            for method in methods
        },
        "walks": {f"{walk.engine}/{walk.course}/{walk.seed}": walk.key for walk in walks},
        "metrics": METRICS.model_dump(mode="json"),
        "initial": INITIAL,
        "versions": package_versions(),
    }


def _short(path: Path) -> str:
    """A path as others can find it: from the package's data files where it lies there."""
    share, resolved = share_directory(), path.resolve()
    return str(resolved.relative_to(share)) if resolved.is_relative_to(share) else str(path)


def quick_selection(courses: CourseSet, only: Sequence[str] | None, seeds: Sequence[int] | None) -> CourseSet:
    """Every other course with the first seed, where neither was chosen: for a check in minutes."""
    names = [course.name for course in courses.courses][::2] if only is None else only
    return courses.select(names, courses.seeds[:1] if seeds is None else seeds)
