"""What ``trace evaluate --courses`` does: simulate or fetch the logs, judge the models, show."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from rich.table import Table

from trace_ros.baselines.one_unit import of_one_unit
from trace_ros.baselines.registry import NETWORKS, TRACE, check_estimator, default_model, label
from trace_ros.cli.common import console, progress_bar, say
from trace_ros.cli.options import comma_parts, seed_numbers
from trace_ros.errors import TraceError
from trace_ros.estimator.engines import DEFAULT_ENGINE
from trace_ros.evaluation.courses import Row, course_runs, evaluate_courses, mean_rows
from trace_ros.evaluation.falls import fall_row
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.report import alignment_text
from trace_ros.evaluation.runner import InitialPose
from trace_ros.robot import RobotDescription
from trace_ros.sim.course_set import CourseSet


def evaluate_on_courses(
    courses: str,
    robot: str,
    models: Sequence[Path],
    settings: MetricSettings,
    initial: str,
    only: str | None,
    seeds: str | None,
    cache: Path,
    jobs: int,
    estimator: str = TRACE,
    backend: str | None = None,
    engine: str = DEFAULT_ENGINE,
) -> dict[str, Any]:
    """Judge models on a set of courses, print a table for each, and return the result for machines.

    Walks on which the robot fell are left out and told, at the end as well, where they are not scrolled away.

    Raises:
        TraceError: a bad option, set, model or robot, or a robot that fell on all courses.
        typer.Exit: 130 after Ctrl-C.
    """
    if initial not in get_args(InitialPose):
        raise TraceError(f"--initial {initial!r} is none of {', '.join(get_args(InitialPose))}")
    description = RobotDescription.load(robot)
    check_estimator(estimator)
    paths = list(models) or [default_model(estimator, description)]
    labels = [label(estimator, path) for path in paths]
    units = [told for path in paths if (told := of_one_unit(estimator, path, description))]
    for told in units:
        say(f"note: {told}")
    names = None if only is None else comma_parts("--only", only)
    numbers = None if seeds is None else seed_numbers("--seeds", seeds)
    chosen = courses if backend is None else _in_engine(courses, backend)
    runs = course_runs(chosen, description, names, numbers, cache)
    missing = sum(not run.walked for run in runs)
    say(
        f"{len(runs)} courses walked by {description.name}, {missing} of them to be simulated "
        f"into {runs[0].log.parent}; processes: {jobs}"
    )
    falls: list[dict[str, Any]] = []
    try:
        with progress_bar() as progress:
            task = progress.add_task("courses", total=len(runs))
            rows = evaluate_courses(
                paths,
                chosen,
                description,
                only=names,
                seeds=numbers,
                cache=cache,
                jobs=jobs,
                settings=settings,
                initial=initial,  # type: ignore[arg-type]
                estimator=estimator,
                engine=engine,
                progress=lambda done: progress.update(task, completed=done),
                fallen=lambda run, fall: falls.append(fall_row(run.course, run.seed, fall)),
            )
    except KeyboardInterrupt:
        say("stopped before the end; the logs that are simulated stay, nothing else was written")
        raise typer.Exit(130) from None
    means = mean_rows(rows)
    for judged in labels:
        console.print(
            _table(
                [row for row in rows if row["model"] == judged],
                [mean for mean in means if mean["model"] == judged],
                f"{judged} on {description.name}",
                settings,
            )
        )
    if len(paths) > 1:
        console.print(_comparison(means, settings))
    for row in rows:
        for doubt in row.get("doubts", ()):
            say(f"note: {row['course']} {row['seed']}, {row['model']}: {doubt}")
    if falls:
        walks = ", ".join(f"{fall['course']} {fall['seed']}" for fall in falls)
        say(f"left out, since the robot fell: {len(falls)} of {len(runs)} walks ({walks})")
    return {
        "robot": robot,
        "estimator": estimator,
        "engine": engine if estimator in NETWORKS else None,
        "models": labels,
        "courses": courses,
        "backend": backend,
        "logs": str(runs[0].log.parent),
        "command": shlex.join(["trace", *sys.argv[1:]]),
        "initial": initial,
        "settings": settings.model_dump(mode="json"),
        "rows": rows,
        "means": means,
        "fell": falls,
        "notes": units,
    }


def _in_engine(courses: str, backend: str) -> CourseSet:
    if Path(courses).is_dir():
        raise TraceError(f"--backend {backend}: the logs in {courses} are simulated already")
    return CourseSet.load(courses).simulated_by(backend)


def _relative(settings: MetricSettings) -> str:
    return f"re{settings.horizon_s:g}_position_m"


def _table(rows: Sequence[Row], means: Sequence[Row], title: str, settings: MetricSettings) -> Table:
    table = Table(
        title=f"{title}\n{alignment_text(settings)}; RE over {settings.horizon_s:g} s; m, m/s, rad",
        box=None,
        padding=(0, 1),
    )
    table.add_column("course", overflow="fold")
    for column in ("seed", "path", "ATE", "% path", "z", "vel", "ori", "RE", "std", "P90"):
        table.add_column(column, justify="right")
    of_course = {mean["course"]: mean for mean in means}
    for index, row in enumerate(rows):
        table.add_row(row["course"], str(row["seed"]), *_cells(row, settings))
        last = index + 1 == len(rows) or rows[index + 1]["course"] != row["course"]
        if last and (mean := of_course[row["course"]])["rows"] > 1:
            table.add_row(row["course"], "mean", *_cells(mean, settings), style="bold", end_section=True)
    if len(of_course) > 2:
        table.add_row("all", "mean", *_cells(of_course[None], settings), style="bold")
    return table


def _cells(row: Row, settings: MetricSettings) -> list[str]:
    relative = row[_relative(settings)]
    path, position = row["path_length_m"], row["ate_position_m"]
    return [
        f"{path:.1f}",
        f"{position:.3f}",
        f"{100 * position / path:.2f}" if path > 1.0 else "-",  # standing
        *(f"{row[key]:.3f}" for key in ("ate_z_m", "ate_velocity_mps", "ate_orientation_rad")),
        *("-" if relative is None else f"{relative[part]:.3f}" for part in ("mean", "std", "p90")),
    ]


def short_names(paths: Sequence[str]) -> list[str]:
    """As much of the ends of different paths as tells them apart: ``a/trace.pt``, ``b/trace.pt``."""
    parts = [Path(path).parts for path in paths]
    tails = [tuple(own[-1:]) for own in parts]
    for length in range(2, max(map(len, parts), default=0) + 1):
        tails = [
            tuple(own[-length:]) if tails.count(tail) > 1 else tail for own, tail in zip(parts, tails, strict=True)
        ]
    return [str(Path(*tail)) for tail in tails]


def _comparison(means: Sequence[Row], settings: MetricSettings) -> Table:
    """The models side by side: ATE and RE of the position, mean over the seeds."""
    models = list(dict.fromkeys(mean["model"] for mean in means))
    table = Table(title=f"means: ATE / RE over {settings.horizon_s:g} s of the position, m", box=None, padding=(0, 1))
    table.add_column("course", overflow="fold")
    for name in short_names(models):
        table.add_column(name.replace("/", "/\n"), justify="right", overflow="fold")
    by_key = {(mean["course"], mean["model"]): mean for mean in means}
    for course in dict.fromkeys(mean["course"] for mean in means):
        cells = []
        for model in models:
            mean = by_key[course, model]
            relative = mean[_relative(settings)]
            over = "-" if relative is None else f"{relative['mean']:.3f}"
            cells.append(f"{mean['ate_position_m']:.3f} / {over}")
        table.add_row(course or "all", *cells, style="bold" if course is None else None)
    return table
