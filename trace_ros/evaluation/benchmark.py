"""The comparison: several estimators on the same walks, from the same start, judged by the same code.

Walks are simulated once and kept as bags; every result is kept as soon as it is there, so a benchmark that was ended
goes on where it was. Work is spread over processes, one course of an engine at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trace_ros.baselines.registry import load_estimator
from trace_ros.errors import TraceError
from trace_ros.estimator.interface import Estimator
from trace_ros.evaluation.benchmark_methods import Method
from trace_ros.evaluation.benchmark_results import (
    INITIAL,
    METRICS,
    Result,
    load_result,
    result_file,
    result_of,
    save_result,
)
from trace_ros.evaluation.benchmark_walks import Walk, walk_log
from trace_ros.evaluation.processes import spread
from trace_ros.evaluation.report import package_versions
from trace_ros.evaluation.runner import evaluate_run
from trace_ros.resources import share_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course_set import CourseSet

DEFAULT_KEPT = Path("out/benchmark/kept")
"""Where walks and results are kept."""


def run_benchmark(
    walks: Sequence[Walk],
    methods: Sequence[Method],
    robot: RobotDescription,
    *,
    kept: Path = DEFAULT_KEPT,
    workers: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[Result]:
    """Every method on every walk; simulates and runs only what is not kept.

    Args:
        walks: see `trace_ros.evaluation.benchmark_walks`.
        methods: see `trace_ros.evaluation.benchmark_methods.choose_methods`.
        robot: whose walks they are.
        kept: folder of walks and results.
        workers: processes. More than one are started afresh, so a script that asks for them needs the usual
            ``if __name__ == "__main__":``.
        progress: called now and then with the part done, 0 to 1.

    Returns:
        A result for each walk and method, in this order.

    Raises:
        TraceError: a bad model or log, a robot that fell, or a file that cannot be written.
        KeyboardInterrupt: what was complete before is kept.
    """
    judge = Judge(tuple(methods), robot, kept)
    parts = _parts(walks, judge, workers)
    tell = progress or (lambda _: None)
    spread(judge, parts, workers, lambda done: tell(done / len(parts)) if parts else None)
    tell(1.0)
    results = []
    for walk in walks:
        for method in methods:
            result = load_result(judge.file(walk, method), method)
            if result is None:
                raise TraceError(f"{judge.file(walk, method)}: vanished or was damaged meanwhile; start again")
            results.append(result)
    return results


def unfinished(walks: Sequence[Walk], methods: Sequence[Method], robot: RobotDescription, kept: Path) -> int:
    """How many results are still to be made."""
    judge = Judge(tuple(methods), robot, kept)
    return sum(load_result(judge.file(walk, method), method) is None for walk in walks for method in methods)


@dataclass(frozen=True)
class Judge:
    """What brings all methods over some walks, and keeps each result."""

    methods: tuple[Method, ...]
    robot: RobotDescription
    kept: Path

    def file(self, walk: Walk, method: Method) -> Path:
        """Where the result is kept."""
        return result_file(walk, method, self.robot, self.kept)

    def __call__(self, walks: tuple[Walk, ...], progress: Callable[[float], None]) -> None:
        """Run what is missing; ``progress`` hears the part done, 0 to 1."""
        # One step is a handful of small products: threads cost more than they bring.
        torch.set_num_threads(1)
        estimators: dict[Method, Estimator] = {}
        share = 1 / (len(walks) * (1 + len(self.methods)))
        for index, walk in enumerate(walks):
            done = index * (1 + len(self.methods)) * share
            todo = [m for m in self.methods if load_result(self.file(walk, m), m) is None]
            if not todo:
                continue
            log = walk_log(walk, self.robot, lambda part, before=done: progress(before + part * share))  # type: ignore[misc]
            for method in todo:
                done += share

                def advance(samples: int, before: float = done, total: int = len(log)) -> None:
                    progress(before + share * samples / total)

                if method not in estimators:
                    estimators[method] = load_estimator(method.estimator, self.robot, method.model)
                estimator = estimators[method]
                evaluation = evaluate_run(walk.name, log, estimator, METRICS, INITIAL, advance)
                result = result_of(walk, method, evaluation, "velocity" in estimator.outputs)
                target = self.file(walk, method)
                try:
                    save_result(target, result)
                except OSError as error:
                    raise TraceError(f"{target}: cannot be written ({error.strerror})") from error


def _parts(walks: Sequence[Walk], judge: Judge, workers: int) -> list[tuple[Walk, ...]]:
    """What one process does at a time: the walks of a course in an engine, or single walks where there are few.

    Those that have something to do come first, so that nobody waits at the end.
    """
    todo = [walk for walk in walks if any(load_result(judge.file(walk, m), m) is None for m in judge.methods)]
    groups: dict[tuple[str, str], list[Walk]] = {}
    for walk in todo:
        groups.setdefault((walk.engine, walk.course), []).append(walk)
    if len(groups) < 4 * workers:
        return [(walk,) for walk in todo]
    return [tuple(group) for group in groups.values()]


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
                "sha256": method.digest(),
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
