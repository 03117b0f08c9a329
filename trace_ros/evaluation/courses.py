"""Estimators on a set of simulated courses: the logs are simulated once and kept, every model is judged on the same.

Work is spread over processes. In each, TRACE runs through several walks side by side (`trace_ros.estimator.batch`);
another estimator steps through one after another. Their own output is fed back, as on the robot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trace_ros.baselines.registry import NETWORKS, TRACE, label, load_estimator
from trace_ros.errors import FallError, TraceError
from trace_ros.estimator.engines import DEFAULT_ENGINE
from trace_ros.estimator.interface import Estimator
from trace_ros.evaluation.falls import all_fell, keep_fall, kept_fall
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.processes import spread
from trace_ros.evaluation.runner import InitialPose, evaluate_runs
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course
from trace_ros.sim.course_set import CourseSet, set_digest

DEFAULT_CACHE = Path("out/courses")
"""Where simulated logs are kept."""

FIGURES = ("path_length_m", "ate_position_m", "ate_velocity_mps", "ate_orientation_rad", "ate_z_m")
"""Numbers of a row besides the relative error of the position."""

_WORDS = ("course", "seed", "model", "doubts")
"""What else a row says, which has no mean."""

Row = dict[str, Any]
"""``course``, ``seed``, ``model`` (see `trace_ros.baselines.registry.label`), `FIGURES`, and ``re10_position_m``: its
mean, std and p90, or None on a course shorter than the horizon (the key carries the horizon). Where no foot bore out
the velocity for a while (`trace_ros.checks.footing`), also ``doubts``: a line for each."""


@dataclass(frozen=True)
class CourseRun:
    """One walk over one course.

    Attributes:
        course: its name.
        seed: of the walk.
        log: file of the simulated log, present or to be made.
        plan: how to make it, or None: it must be present.
    """

    course: str
    seed: int
    log: Path
    plan: Course | None

    @property
    def walked(self) -> bool:
        """Whether nothing is to be simulated."""
        return self.log.is_file() or kept_fall(self.log) is not None


def course_runs(
    courses: CourseSet | Path | str,
    robot: RobotDescription,
    only: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    cache: Path = DEFAULT_CACHE,
) -> list[CourseRun]:
    """The walks of a set, course by course.

    Args:
        courses: a set, its name or its YAML file. Logs lie in ``cache/<set>-<robot>-<digest>/<course>_<seed>.npz``; the
            digest is that of `trace_ros.sim.course_set.set_digest`. Or such a folder: its logs are taken as they are,
            whatever the courses and the simulator have become since.
        robot: whom to simulate.
        only: names of courses, or None: all.
        seeds: instead of the set's own.
        cache: folder of folders of logs.

    Raises:
        TraceError: unknown set or course, or a folder without logs.
    """
    if not isinstance(courses, CourseSet):
        if Path(courses).is_dir():
            return _runs_in(Path(courses), only, seeds)
        courses = CourseSet.load(courses)
    folder = cache / f"{courses.name}-{robot.name}-{set_digest(courses, robot)}"
    chosen = courses.select(only, seeds)
    return [
        CourseRun(course.name, seed, folder / f"{course.name}_{seed}.npz", course)
        for course in chosen.courses
        for seed in chosen.seeds
    ]


def _runs_in(folder: Path, only: Sequence[str] | None, seeds: Sequence[int] | None) -> list[CourseRun]:
    stems = {path.stem for path in folder.iterdir() if path.suffix in (".npz", ".fell")}
    found = [name for stem in stems if (name := re.fullmatch(r"(.+)_(\d+)", stem))]
    runs = [CourseRun(name[1], int(name[2]), folder / f"{name[0]}.npz", None) for name in found]
    runs = [run for run in runs if run.walked]
    if not any(run.log.is_file() for run in runs):
        raise TraceError(f"{folder}: holds no log of a course (COURSE_SEED.npz)")
    for kind, wanted, present in (
        ("course", only, {run.course for run in runs}),
        ("seed", seeds, {run.seed for run in runs}),
    ):
        if missing := [value for value in wanted or () if value not in present]:
            known = ", ".join(map(str, sorted(present)))
            raise TraceError(f"{folder}: holds no log of {kind} {missing[0]!r}: there are {known}")
    chosen = [run for run in runs if (not only or run.course in only) and (not seeds or run.seed in seeds)]
    order = {name: index for index, name in enumerate(only or ())}
    return sorted(chosen, key=lambda run: (order.get(run.course, 0), run.course, run.seed))


def evaluate_courses(
    models: Sequence[Path],
    courses: CourseSet | Path | str = "validation",
    robot: RobotDescription | str = "go2",
    *,
    only: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    cache: Path = DEFAULT_CACHE,
    jobs: int = 1,
    settings: MetricSettings | None = None,
    initial: InitialPose = "gravity",
    progress: Callable[[float], None] | None = None,
    estimator: str = TRACE,
    engine: str = DEFAULT_ENGINE,
    fallen: Callable[[CourseRun, FallError], None] | None = None,
) -> list[Row]:
    """Judge models on courses; simulates what is not in the cache.

    Args:
        models: exported models of the robot; of a filter, YAML files with its numbers.
        courses, only, seeds, cache: see `course_runs`.
        robot: a description, or what `RobotDescription.load` takes.
        jobs: processes. More than one are started afresh, so a script that asks for them needs the usual
            ``if __name__ == "__main__":``.
        settings: how to compare.
        initial: see `trace_ros.evaluation.runner.evaluate_run`.
        progress: called now and then with how many runs are done, broken ones included.
        estimator: what the models are of, one of `trace_ros.baselines.registry.ESTIMATORS`.
        engine: what computes the network of ``trace`` (see `trace_ros.estimator.engines`).
        fallen: hears, after all others are judged, of each walk on which the robot fell; they are left out. Without it
            a fall ends the evaluation.

    Returns:
        A row for each model, course and seed, in this order.

    Raises:
        TraceError: a bad model, set or log, or a robot that fell: once without ``fallen``, on all walks with it.
    """
    description = robot if isinstance(robot, RobotDescription) else RobotDescription.load(robot)
    judge = Judge(
        tuple(models), description, settings or MetricSettings(), initial, estimator, engine, fallen is not None
    )
    runs = course_runs(courses, description, only, seeds, cache)
    for model in judge.models:  # a bad one must fail here, not after the simulation
        load_estimator(estimator, description, model, engine=engine)
    parts = in_parts(len(runs), jobs, MOST_WALKS if estimator in NETWORKS else 1)
    tell = None if progress is None else lambda done: progress(len(runs) * done / len(parts))
    judged = spread(judge, [tuple(runs[index] for index in part) for part in parts], jobs, tell)
    rows: list[list[Row]] = [[] for _ in runs]
    falls: list[tuple[int, FallError]] = []
    for part, of_part in zip(parts, judged, strict=True):
        for index, of_run in zip(part, of_part, strict=True):
            if isinstance(of_run, FallError):
                falls.append((index, of_run))
            else:
                rows[index] = of_run
    falls.sort(key=lambda pair: pair[0])
    if len(falls) == len(runs):
        raise all_fell(falls[0][1], len(runs))
    for index, fall in falls:
        assert fallen is not None
        fallen(runs[index], fall)
    # By model first: that is how tables are read.
    return [row for at in range(len(judge.models)) for run in rows for row in run[at : at + 1]]


MOST_WALKS = 16
"""Walks that a process takes at once: their logs are all in memory."""


def in_parts(runs: int, jobs: int, most: int) -> list[range]:
    """Indices of so many runs that go together, as evenly as may be, and as many parts as keep all processes busy."""
    rounds = -(-runs // (jobs * most))
    count = min(runs, rounds * jobs)
    return [range(first, runs, count) for first in range(count)]


@dataclass(frozen=True)
class Judge:
    """What turns runs into rows, for each run one a model."""

    models: tuple[Path, ...]
    robot: RobotDescription
    settings: MetricSettings
    initial: InitialPose
    estimator: str = TRACE
    engine: str = DEFAULT_ENGINE
    leave_out_falls: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise TraceError("no model to judge")
        object.__setattr__(self, "_estimators", {})

    def __call__(self, runs: Sequence[CourseRun], progress: Callable[[float], None]) -> list[list[Row] | FallError]:
        """The rows of each run, or how the robot fell; ``progress`` hears the part done, 0 to 1."""
        # One step is a handful of small products: threads cost more than they bring.
        torch.set_num_threads(1)
        steps = 1 + len(self.models)
        falls: dict[int, FallError] = {}
        logs = []
        for index, run in enumerate(runs):

            def simulated(done: float, before: int = index) -> None:
                progress((before + done) / (len(runs) * steps))

            try:
                logs.append(course_log(run, self.robot, simulated))
            except FallError as fall:
                if not self.leave_out_falls:
                    raise
                falls[index] = fall
        rows = iter(self._rows([run for index, run in enumerate(runs) if index not in falls], logs, progress))
        return [falls.get(index) or next(rows) for index in range(len(runs))]

    def _rows(
        self, runs: Sequence[CourseRun], logs: Sequence[SensorLog], progress: Callable[[float], None]
    ) -> list[list[Row]]:
        """For each run one row a model; ``progress`` hears the part done of all, of which the first was the logs."""
        if not runs:
            return []
        steps = 1 + len(self.models)
        names, samples = [f"{run.course}_{run.seed}" for run in runs], sum(map(len, logs))
        relative = f"re{self.settings.horizon_s:g}_position_m"
        rows: list[list[Row]] = [[] for _ in runs]
        for index, model in enumerate(self.models):

            def advance(done: int, before: int = index + 1) -> None:
                progress((before + min(done / samples, 1.0)) / steps)

            evaluations = evaluate_runs(
                names, logs, self._estimator(model), self.settings, self.initial, advance, robot=self.robot
            )
            for run, evaluation, own in zip(runs, evaluations, rows, strict=True):
                assert evaluation.metrics is not None
                figures = evaluation.metrics.to_dict()
                own.append(
                    {"course": run.course, "seed": run.seed, "model": label(self.estimator, model)}
                    | {name: figures[name] for name in (*FIGURES, relative)}
                    | ({"doubts": list(evaluation.doubts)} if evaluation.doubts else {})
                )
        return rows

    def _estimator(self, model: Path) -> Estimator:
        loaded: dict[Path, Estimator] = self._estimators  # type: ignore[attr-defined]
        if model not in loaded:
            loaded[model] = load_estimator(self.estimator, self.robot, model, engine=self.engine)
        return loaded[model]


def course_log(run: CourseRun, robot: RobotDescription, progress: Callable[[float], None] | None = None) -> SensorLog:
    """The log of a run: from its file, or simulated and then kept there.

    It has no foot forces and contact normals: no estimator reads them, and they are half of the file.

    Raises:
        FallError: the robot fell, now or when the walk was simulated before: that is kept too.
        TraceError: without a plan, the file is missing, damaged, or of another robot; or it cannot be written.
    """
    if not run.log.is_file() and (before := kept_fall(run.log)) is not None:
        raise before
    if run.plan is None or run.log.is_file():
        try:
            log = SensorLog.load(run.log)
            if log.robot != robot.name or log.reference is None:
                raise TraceError(f"{run.log}: not a simulated log of the robot {robot.name!r}")
            return log
        except TraceError:
            if run.plan is None:
                raise
            # A damaged file in the cache is worth as much as none.
    assert run.plan is not None
    try:
        measured = simulate_course(run.plan, robot, run.seed, progress).measured
    except FallError as fall:
        keep_fall(run.log, fall)
        raise
    log = replace(measured, contact_normal=None, foot_force=None)
    # Another command may be writing the same log.
    temporary = run.log.with_name(f".{run.log.stem}.{os.getpid()}.npz")
    try:
        log.save(temporary)
        temporary.replace(run.log)
    except OSError as error:
        raise TraceError(f"{run.log}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return log


def mean_rows(rows: Sequence[Row]) -> list[Row]:
    """Means over the seeds of each model and course, and over all rows of each model (``course`` None).

    ``rows`` counts what went into each; a relative error that some row lacks is None.
    """
    groups: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["course"]), []).append(row)
    for row in rows:
        groups.setdefault((row["model"], None), []).append(row)
    means = []
    for (model, course), members in groups.items():
        mean: Row = {"course": course, "model": model, "rows": len(members)}
        for key in members[0]:
            if key in _WORDS:
                continue
            values = [member[key] for member in members]
            if any(value is None for value in values):
                mean[key] = None
            elif isinstance(values[0], dict):
                mean[key] = {part: float(np.mean([value[part] for value in values])) for part in values[0]}
            else:
                mean[key] = float(np.mean(values))
        means.append(mean)
    return means
