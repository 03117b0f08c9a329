"""``trace latency --node``: from IMU stamp to odometry over DDS, and where the node's time goes."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from trace_ros.cli.common import console, progress_bar, say, write_json
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription

if TYPE_CHECKING:
    from trace_ros.nodes.node_latency import NodeLatency

_STAGE_SAMPLES = 5000


def latency_of_node(
    robot: RobotDescription,
    robot_argument: str,
    parameters: dict[str, object],
    seconds: float,
    rate_hz: float,
    json_file: Path | None,
) -> None:
    """Measure and print.

    Args:
        robot: that moves.
        robot_argument: the node's parameter ``robot``.
        parameters: of the node, beside it; those that are None are left out.
        seconds: s, of sending.
        rate_hz: of both inputs.
        json_file: where to write the result too.

    Raises:
        TraceError: no ROS 2, or the node does not start.
    """
    try:
        from trace_ros.nodes.node_latency import measure_node
        from trace_ros.nodes.stages import STAGES, measure_stages
    except ImportError as error:
        raise TraceError(
            f"trace latency --node runs the ROS 2 node, and {error.name} cannot be imported: source ROS 2"
        ) from error
    say(f"the estimator node for {robot.name}, fed at 2 x {rate_hz:g} Hz by a process of its own, for {seconds:g} s")
    with progress_bar() as progress:
        task = progress.add_task("over DDS (s)", total=round(seconds))
        found = measure_node(
            seconds,
            rate_hz,
            robot_argument,
            parameters,
            lambda done: progress.update(task, completed=min(round(done), round(seconds))),
        )
        task = progress.add_task("stages (samples)", total=_STAGE_SAMPLES)
        stages = measure_stages(
            robot,
            {"robot": robot_argument, **parameters},
            _STAGE_SAMPLES,
            rate_hz,
            lambda done: progress.update(task, completed=done),
        )
    console.print(_over_dds(found))
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(found.faults.items())) or "none"
    console.print(f"faults counted by the node: {faults}", highlight=False, soft_wrap=True)
    console.print(_stages(found, stages))
    for name, what in STAGES.items():
        console.print(f"{name}: {what}", highlight=False, soft_wrap=True)
    console.print("rest: executor, rclpy and middleware, both ways", highlight=False, soft_wrap=True)
    if json_file is not None:
        result = {
            "node": found.to_dict(),
            "stages": {name: {"p50_us": p50, "p99_us": p99} for name, (p50, p99) in stages.items()},
            "processor": platform.processor() or platform.machine(),
        }
        write_json(json_file, result)
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)


def _over_dds(found: NodeLatency) -> Table:
    table = Table(title=f"estimator node ({found.estimator}), {found.rate_hz:g} Hz for {found.seconds:g} s", box=None)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("IMU stamp to odometry in the listener, p50", f"{found.p50_ms:.3f} ms"),
        ("p99", f"{found.p99_ms:.3f} ms"),
        ("max", f"{found.max_ms:.3f} ms"),
        ("mean", f"{found.mean_ms:.3f} ms"),
        ("pairs sent (more than half an interval late)", f"{found.sent} ({found.sent_late})"),
        ("lost: imu/data, joint_states, odom", f"{found.imu_lost}, {found.joints_lost}, {found.odometry_lost}"),
        ("samples without odometry", f"{found.without_odometry}"),
        ("the node's share of a core", f"{100 * found.cpu:.1f} %"),
        ("its processor time a sample", f"{found.cpu_per_sample_us:.0f} us"),
        ("step, as the node tells (ms)", found.step),
    ):
        table.add_row(name, value)
    return table


def _stages(found: NodeLatency, stages: dict[str, tuple[float, float]]) -> Table:
    table = Table(title="a sample in the node, us", box=None)
    for column in ("", "p50", "p99"):
        table.add_column(column, justify="right" if column else "left")
    for name, (p50, p99) in stages.items():
        table.add_row(name, f"{p50:.1f}", f"{p99:.1f}")
    rest = found.cpu_per_sample_us - sum(p50 for p50, _ in stages.values())
    table.add_row("rest", f"{max(rest, 0.0):.1f}", "")
    return table
