"""``trace soak``: the real node at full rate for a long time; memory, step times and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from trace_ros.cli.common import check_output, console, progress_bar, say, write_json
from trace_ros.cli.options import JsonOption, ModelOption, RobotOption
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription

if TYPE_CHECKING:
    from trace_ros.nodes.soak import SoakResult

_ROWS = 10
_MEMORY_LIMIT_MB, _P99_LIMIT = 2.0, 1.25


def soak(
    minutes: Annotated[float, typer.Option(help="How long to run.", min=0.01)] = 30.0,
    rate: Annotated[
        float, typer.Option(help="Rate of IMU and joint states, Hz; the model's own.", min=1.0, max=2000.0)
    ] = 500.0,
    robot: RobotOption = "go2",
    model: ModelOption = None,
    json_file: JsonOption = None,
) -> None:
    """Run the real estimator node over ROS topics; fails (exit code 1) when it loses messages, grows, or slows down."""
    check_output(json_file)
    description = RobotDescription.load(robot)
    try:
        from trace_ros.nodes.soak import soak as run_soak
    except ImportError as error:
        raise TraceError(
            f"trace soak runs the ROS 2 node, and {error.name} cannot be imported: source ROS 2"
        ) from error
    say(f"soak: the estimator node for {description.name} at {rate:g} Hz for {minutes:g} min")
    with progress_bar() as progress:
        task = progress.add_task("soak (s)", total=round(minutes * 60))
        result = run_soak(
            minutes * 60,
            rate,
            description,
            robot,
            model,
            lambda sample: progress.update(task, completed=round(sample.time_s)),
        )
    console.print(_table(result))
    verdicts = judge(result)
    for good, text in verdicts:
        console.print(f"{'ok  ' if good else 'FAIL'}  {text}", highlight=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, result.to_dict() | {"passed": all(good for good, _ in verdicts)})
    if not all(good for good, _ in verdicts):
        raise typer.Exit(1)


def judge(result: SoakResult) -> list[tuple[bool, str]]:
    """Whether each requirement holds, and the figure in words."""
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(result.faults.items())) or "none"
    return [
        (
            result.lost == 0,
            f"{result.lost} of {2 * result.sent} messages lost (faults counted by the node: {faults}; sent late, in "
            f"bursts: {result.late} pairs)",
        ),
        (result.without_odometry <= 0, f"{result.without_odometry} of {result.sent} samples gave no odometry"),
        (
            result.lost_on_return == 0,
            f"{result.lost_on_return} of {result.estimated} odometry messages did not come back",
        ),
        (
            result.memory_growth_mb < _MEMORY_LIMIT_MB,
            f"memory grew by {result.memory_growth_mb:.2f} MB after the start (limit {_MEMORY_LIMIT_MB:g})",
        ),
        (
            not result.p99_ratio > _P99_LIMIT,
            f"p99 of the step time in the last third is {result.p99_ratio:.2f} of the first's (limit {_P99_LIMIT:g})",
        ),
    ]


def _table(result: SoakResult) -> Table:
    table = Table(title=f"estimator node at {result.rate_hz:g} Hz", box=None)
    for column in ("s", "memory MB", "CPU %", "step p50 ms", "step p99 ms"):
        table.add_column(column, justify="right")
    samples = result.samples
    step = max(len(samples) // _ROWS, 1)
    rows = samples[::step]
    if samples and rows[-1] is not samples[-1]:
        rows.append(samples[-1])
    for sample in rows:
        table.add_row(
            f"{sample.time_s:.0f}",
            f"{sample.memory_mb:.2f}",
            f"{100 * sample.cpu:.0f}",
            f"{sample.step_p50_ms:.2f}",
            f"{sample.step_p99_ms:.2f}",
        )
    return table
