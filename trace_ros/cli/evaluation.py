"""What ``trace evaluate`` and ``trace report`` do with logs: run, compare, show, report."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from rich.table import Table

from trace_ros.bags import ReadSettings, Topics, read_log, read_odometry
from trace_ros.bags.files import file_kind
from trace_ros.baselines.registry import TRACE, check_estimator, load_estimator
from trace_ros.cli.common import console, progress_bar, say
from trace_ros.cli.timing import find_timing
from trace_ros.errors import TraceError
from trace_ros.estimator.engines import DEFAULT_ENGINE
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.interface import Estimator
from trace_ros.estimator.joint_delay import joint_delay_of, with_joints_at_their_time
from trace_ros.estimator.run import too_short
from trace_ros.evaluation.metrics import MetricSettings, Statistics
from trace_ros.evaluation.report import alignment_text, metric_rows, put_back, run_rows, summary_rows, write_report
from trace_ros.evaluation.runner import Evaluation, InitialPose, evaluate_odometry, evaluate_runs, file_names
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.references import torn
from trace_ros.robot import RobotDescription
from trace_ros.streams.pairing import PairingSettings

Recorded = TypeVar("Recorded", SensorLog, Trajectory)


def evaluate_logs(
    logs: Sequence[Path],
    robot: str,
    model: Path | None,
    settings: MetricSettings,
    topics: Topics,
    initial: str,
    odometry_topic: str | None,
    name_of_estimator: str = TRACE,
    engine: str = DEFAULT_ENGINE,
    stepwise: bool = False,
    threads: int = 2,
    reading: ReadSettings | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    joint_delay: float | None = None,
) -> tuple[Estimator | None, list[Evaluation]]:
    """Read logs and evaluate them, with progress: TRACE all at once, others (and recorded odometry) one by one.

    Of each only what lies between ``start_s`` and ``end_s`` (s since its first sample): the estimator begins there.
    Joint readings are taken to be ``joint_delay`` (s) late; NaN: as the feet tell, None: as the estimator knows.

    Returns:
        The estimator that was used, None for a recorded odometry; and an evaluation for each log.

    Raises:
        TraceError: whatever is wrong with a log, the model or the robot; in the order in which it is cheap to find.
    """
    if initial not in get_args(InitialPose):
        raise TraceError(f"--initial {initial!r} is none of {', '.join(get_args(InitialPose))}")
    check_span(start_s, end_s)
    if odometry_topic is not None and joint_delay is not None:
        raise TraceError("--odometry-topic judges what was recorded: --joint-delay does not go with it")
    if odometry_topic is not None and reading is not None:
        raise TraceError("--odometry-topic judges what was recorded: how IMU and joints are read does not go with it")
    check_estimator(name_of_estimator)
    description = RobotDescription.load(robot)
    for path in logs:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
        if odometry_topic is not None and file_kind(path) != "bag":
            raise TraceError(f"{path}: not a bag: --odometry-topic needs a recorded topic")
    names = file_names([path.resolve().stem for path in logs])
    estimator = None
    if odometry_topic is None:
        # One step is a handful of small products: threads cost more than they bring.
        torch.set_num_threads(1)
        estimator = load_estimator(name_of_estimator, description, model, engine=engine)
    if odometry_topic is not None:
        return None, [
            _judge_odometry(path, name, odometry_topic, topics, settings, start_s, end_s)
            for path, name in zip(logs, names, strict=True)
        ]
    assert estimator is not None
    read, as_stamped = [], []
    for path in logs:
        say(f"reading {path}")
        log, bag_report = read_log(path, description, topics, reading)
        for note in bag_report.notes if bag_report else ():
            say(f"note: {note}")
        read.append(log)
        as_stamped.append(cut_recorded(log, path, start_s, end_s))
        if (jumps := torn(as_stamped[-1])) is not None:
            say(f"note: {path.name}: {jumps}")
    delay = joint_delay_of(estimator) if joint_delay is None else joint_delay
    timed: tuple[str, ...] = ()
    if math.isnan(delay):  # whole logs tell more of it than their parts
        advice = "give one at a time, or the seconds"
        delay, _, text = find_timing(read, names, description, joint_delay_of(estimator), advice)
        timed = (text,)
    # Joints that were stamped after the end of a part are those of its end.
    parts = []
    for log, stamped, name in zip(read, as_stamped, names, strict=True):
        parts.append(within(with_joints_at_their_time(log, delay), stamped))
        if fault := too_short(parts[-1], stamped):
            raise TraceError(f"{name}: {fault}")
    with progress_bar() as progress:
        task = progress.add_task(names[0] if len(names) == 1 else f"{len(names)} logs", total=sum(map(len, parts)))
        evaluations = evaluate_runs(
            names,
            parts,
            estimator,
            settings,
            initial,  # type: ignore[arg-type]
            lambda done: progress.update(task, completed=done),
            stepwise,
            threads,
            description,
            joint_delay=0.0,
        )
    evaluations = [
        replace(each, joint_delay_s=delay, notes=(*each.notes, *timed, *coarse(log, delay)))
        for each, log in zip(evaluations, read, strict=True)
    ]
    return estimator, evaluations


def within(log: SensorLog, part: SensorLog) -> SensorLog:
    """The samples of a log from the first stamp to the last of a part of it."""
    return log.select((log.stamp_ns >= part.stamp_ns[0]) & (log.stamp_ns <= part.stamp_ns[-1]))


def coarse(log: SensorLog, delay: float) -> tuple[str, ...]:
    """A note where samples come so seldom that joint readings are not interpolated between them."""
    if not delay or len(log) < 2:
        return ()
    interval, most = float(np.median(np.diff(log.stamp_ns))) * 1e-9, PairingSettings().joint_interval
    if interval <= most:
        return ()
    return (
        f"joint readings are put back by whole samples or not at all: samples come every {interval * 1e3:.3g} ms, and "
        f"readings more than {most * 1e3:g} ms apart are not interpolated",
    )


def check_span(start_s: float, end_s: float | None) -> None:
    """Refuse an end that is not after its start.

    Raises:
        TraceError: it is not.
    """
    if end_s is not None and end_s <= start_s:
        raise TraceError(f"--end {end_s:g} is not after --start {start_s:g}")


def cut_recorded(recorded: Recorded, path: Path, start_s: float, end_s: float | None) -> Recorded:
    """What lies between two times (s since the first sample).

    Raises:
        TraceError: nothing does.
    """
    if not start_s and end_s is None:
        return recorded
    seconds = (recorded.stamp_ns - recorded.stamp_ns[0]) * 1e-9
    wanted = (seconds >= start_s) & (seconds <= (seconds[-1] if end_s is None else end_s))
    if not wanted.any():
        raise TraceError(f"{path}: nothing is left from --start {start_s:g} s on: it is {seconds[-1]:.3f} s long")
    return recorded.select(wanted)


def _judge_odometry(
    path: Path, name: str, topic: str, topics: Topics, settings: MetricSettings, start_s: float, end_s: float | None
) -> Evaluation:
    assert topics.reference is not None
    trajectory = cut_recorded(read_odometry(path, topic, topics.reference), path, start_s, end_s)
    try:
        reference = read_odometry(path, topics.reference)
    except TraceError:
        if "reference" in topics.model_fields_set:
            raise
        reference = None
    return evaluate_odometry(name, topic, trajectory, None, settings, reference)


def subject(robot: str, estimator: Estimator | None, topic: str | None) -> str:
    """What is judged, for the title of a table."""
    if estimator is None:
        return f"recorded topic {topic}"
    method = "" if estimator.name == TRACE else f"{estimator.name} by "
    return f"{method}{estimator.source} on {RobotDescription.load(robot).name}"


def show(evaluations: Sequence[Evaluation], settings: MetricSettings, subject: str) -> None:
    """Print a table a log, or one table over several logs; the alignment mode stands in the title."""
    compared = [evaluation for evaluation in evaluations if evaluation.metrics is not None]
    if len(compared) > 1:
        console.print(_overview(compared, settings, subject))
    for evaluation in evaluations if len(compared) <= 1 else [e for e in evaluations if e.metrics is None]:
        mode = alignment_text(settings) if evaluation.metrics else "no reference"
        table = Table(title=f"{evaluation.name}: {subject}\n{mode}", show_header=False)
        table.add_column("figure")
        table.add_column("value")
        rows = metric_rows(evaluation.metrics) if evaluation.metrics else summary_rows(evaluation)
        for row in (*rows, *run_rows(evaluation)):
            table.add_row(*row)
        console.print(table)
    every = [note for note in evaluations[0].notes if all(note in each.notes for each in evaluations)]
    for note in every if len(evaluations) > 1 else ():
        say(f"note: {note}")
    for evaluation in evaluations:
        for note in evaluation.notes:
            if len(evaluations) == 1 or note not in every:
                say(f"note: {evaluation.name}: {note}")


def _overview(evaluations: Sequence[Evaluation], settings: MetricSettings, subject: str) -> Table:
    if delay := evaluations[0].joint_delay_s:
        subject = f"{subject}, {put_back(delay)}"
    title = f"{subject}\n{alignment_text(settings)}; RE over {settings.horizon_s:g} s; m, m/s, rad"
    table = Table(title=title, box=None, padding=(0, 1))
    table.add_column("log", overflow="fold")
    for column in ("path", "ATE", "z", "vel", "ori", "RE", "P90", "vel", "ori", "x RT"):
        table.add_column(column, justify="right")
    for evaluation in evaluations:
        m = evaluation.metrics
        assert m is not None

        def relative(value: Statistics | None) -> str:
            return "-" if value is None else f"{value.mean:.3f}"

        table.add_row(
            evaluation.name,
            f"{m.path_length_m:.1f}",
            f"{m.ate_position_m:.3f}",
            f"{m.ate_z_m:.3f}",
            f"{m.ate_velocity_mps:.3f}",
            f"{m.ate_orientation_rad:.3f}",
            relative(m.re_position_m),
            "-" if m.re_position_m is None else f"{m.re_position_m.p90:.3f}",
            relative(m.re_velocity_mps),
            relative(m.re_orientation_rad),
            "-" if evaluation.real_time_factor is None else f"{evaluation.real_time_factor:.1f}",
        )
    return table


def announce_report(
    directory: Path,
    evaluations: Sequence[Evaluation],
    settings: MetricSettings,
    estimator: Estimator | None,
    robot: str,
) -> None:
    """Write the report and say where it is."""
    say(f"writing the report into {directory}")
    command = shlex.join(["trace", *sys.argv[1:]])
    title = f"{robot}: {evaluations[0].name}" if len(evaluations) == 1 else f"{robot}: {len(evaluations)} logs"
    model = estimator.model if isinstance(estimator, TraceEstimator) else None
    files = write_report(directory, evaluations, settings, model, title, command)
    for path in (files.page, *files.pictures):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def result(
    evaluations: Sequence[Evaluation], settings: MetricSettings, robot: str, estimator: Estimator | None
) -> dict[str, Any]:
    """The result for machines."""
    return {
        "robot": robot,
        "estimator": None if estimator is None else estimator.name,
        "model": None if estimator is None else estimator.source,
        "engine": estimator.engine if isinstance(estimator, TraceEstimator) else None,
        "settings": settings.model_dump(mode="json"),
        "logs": [evaluation.to_dict() for evaluation in evaluations],
    }
