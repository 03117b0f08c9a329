#!/usr/bin/env python3
"""The whole product once: a simulated Go2 walks a course, its bag is played to the node, and a report tells.

    make demo            (or: .venv/bin/python tools/demo.py --output out/demo)

The simulator writes a rosbag2; `replay` publishes it at the rate it was recorded; the lifecycle node `estimator` runs
in its own process and knows nothing of the simulation; `recorder` writes what it published. Everything that is scored
was received over DDS.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from trace_ros.bags import read_bag, read_odometry, write_bag
from trace_ros.bags.storage import open_bag
from trace_ros.cli.common import console, errors, progress_bar, say, write_json
from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.report import write_report
from trace_ros.evaluation.runner import Evaluation, evaluate_odometry, evaluate_run
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course

BIN = Path(sys.executable).parent
IMU, ODOMETRY, TF = "/imu/data", "/odom", "/tf"
RECORDED = {
    IMU: "sensor_msgs/msg/Imu",
    "/joint_states": "sensor_msgs/msg/JointState",
    ODOMETRY: "nav_msgs/msg/Odometry",
    TF: "tf2_msgs/msg/TFMessage",
    "/reference/odom": "nav_msgs/msg/Odometry",
    "/estimator/foot_reliability": "std_msgs/msg/Float32MultiArray",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("out/demo"), help="where everything goes (is replaced)")
    parser.add_argument("--robot", default="go2")
    parser.add_argument("--model", type=Path, help="default: models/<robot>/trace.pt")
    parser.add_argument("--course", default="demo", help="name in config/benchmark, or path of a YAML file")
    parser.add_argument("--seed", type=int, default=1, help="of sensor noise and dynamics; training used none of these")
    arguments = parser.parse_args()
    try:
        demonstrate(arguments)
    except TraceError as error:
        errors.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("stopped")
        return 130
    return 0


def demonstrate(arguments: argparse.Namespace) -> None:
    """Simulate, run live, score, report."""
    robot = RobotDescription.load(arguments.robot)
    model = arguments.model or models_directory() / robot.name / "trace.pt"
    estimator = TraceEstimator.load(model, robot)  # a wrong model fails here, not after the simulation
    course = Course.load(arguments.course)
    output: Path = arguments.output
    bag, recorded = output / "bag", output / "recorded"
    for old in (bag, recorded):
        remove_bag(old)
    output.mkdir(parents=True, exist_ok=True)

    say(f"1/4 simulating the course {course.name!r} ({course.duration:g} s)")
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=100)
        rollout = simulate_course(
            course, robot, arguments.seed, progress=lambda part: progress.update(task, completed=round(100 * part))
        )
    write_bag(bag, rollout.measured, robot)

    say(f"2/4 running the estimator node on {bag} over ROS topics, in real time")
    run_live(robot, model, bag, recorded, output / "log")

    say("3/4 scoring what was received")
    # One step is a handful of small products: on a busy machine threads wait for each other at every one.
    torch.set_num_threads(1)
    counts, latency = received(recorded)
    settings = MetricSettings()
    # The recorded bag holds what the node was sent and what it answered, at the stamps of the live run.
    log = read_bag(recorded, robot)
    live = evaluate_odometry("live", ODOMETRY, read_odometry(recorded, ODOMETRY), log, settings)
    if counts[IMU] < len(rollout.measured):
        say(f"note: the recorder got {counts[IMU]} of {len(rollout.measured)} IMU messages; this machine is too busy")
    if live.metrics is None:
        raise TraceError(f"{recorded}: the reference did not reach the recorder: {'; '.join(live.notes)}")
    offline = evaluate_run("offline", log, estimator, settings)
    live, difference = beside(live, offline)

    say("4/4 writing the report")
    title = f"{robot.name} on the course {course.name}, live over ROS"
    write_report(output, [live], settings, estimator.model, title, "make demo")
    result = {
        "imu_messages": len(rollout.measured),
        "odom_messages": counts[ODOMETRY],
        "tf_messages": counts[TF],
        "latency_ms": {"p50": float(np.percentile(latency, 50)), "p99": float(np.percentile(latency, 99))},
        "offline_difference_m": difference,
        "model": str(model),
        "course": course.name,
        "seed": arguments.seed,
        **live.metrics.to_dict(),
    }
    write_json(output / "metrics.json", result)
    show(result, output)


def beside(live: Evaluation, offline: Evaluation) -> tuple[Evaluation, float | None]:
    """The live run with the attention of an offline run over the same messages, and how far apart the two are (m).

    The topic carries the legs' attention alone; offline there are all six tokens. Where a message was lost the two runs
    differ, and nothing is mixed.
    """
    if not np.array_equal(live.trajectory.stamp_ns, offline.trajectory.stamp_ns):
        return live, None
    difference = float(np.abs(live.trajectory.position - offline.trajectory.position).max())
    return replace(live, attention=offline.attention, stationary=offline.stationary), difference


def show(result: dict[str, Any], output: Path) -> None:
    """The table at the end, and where the files are."""
    table = Table(title=f"live over ROS, alignment {result['alignment']}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    length = result["path_length_m"]
    relative = result["re10_position_m"]
    rows = (
        ("path length", f"{length:.1f} m in {result['duration_s']:.1f} s"),
        ("ATE position", f"{result['ate_position_m']:.3f} m ({100 * result['ate_position_m'] / length:.2f} %)"),
        ("ATE orientation", f"{result['ate_orientation_rad']:.4f} rad"),
        ("ATE velocity", f"{result['ate_velocity_mps']:.3f} m/s"),
        (
            "RE 10 s position, mean / P90",
            f"{relative['mean']:.3f} / {relative['p90']:.3f} m" if relative else "none: the course is too short",
        ),
        (
            "IMU / odometry / TF messages",
            f"{result['imu_messages']} / {result['odom_messages']} / {result['tf_messages']}",
        ),
        ("IMU stamp to odometry received, p50 / p99", "{p50:.2f} / {p99:.2f} ms".format(**result["latency_ms"])),
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for name in ("bag", "recorded", "trajectory.png", "report.html", "metrics.json"):
        console.print(f"wrote {output / name}", highlight=False, soft_wrap=True)


def run_live(robot: RobotDescription, model: Path, bag: Path, recorded: Path, log: Path) -> None:
    """Play a bag to the estimator node and record what it publishes.

    Raises:
        TraceError: a node failed; its output is in the log folder.
    """
    environment = {
        **os.environ,
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        # Other ROS programs on this machine must not hear the demo, nor it them.
        "ROS_DOMAIN_ID": os.environ.get("ROS_DOMAIN_ID", str(10 + os.getpid() % 80)),
        "ROS_LOG_DIR": str(log.resolve()),
        "PYTHONUNBUFFERED": "1",
    }
    log.mkdir(parents=True, exist_ok=True)
    topics = ", ".join(f"'{topic}:{kind}'" for topic, kind in RECORDED.items())
    with ExitStack() as stack:
        start = lambda name, **parameters: stack.enter_context(node(name, parameters, environment, log))  # noqa: E731
        estimator = start("estimator", robot=robot.name, model=str(model.resolve()))
        recorder = start("recorder", output=str(recorded), topics=f"[{topics}]")
        bring_up(environment, log)
        # The estimator and the recorder; whoever joins late would miss the beginning.
        replay = start("replay", bag=str(bag), restamp="true", subscribers="2", wait_for_subscribers="30.0")
        with progress_bar() as progress:
            begin = time.monotonic()
            task = progress.add_task("running live", total=None)
            while replay.poll() is None:
                for name, process in (("estimator", estimator), ("recorder", recorder)):
                    if process.poll() is not None:
                        raise TraceError(f"node {name} ended early: see {log / name}.txt")
                progress.update(task, description=f"running live, {time.monotonic() - begin:.0f} s")
                time.sleep(0.5)
        if replay.returncode != 0:
            raise TraceError(f"node replay failed with exit code {replay.returncode}: see {log / 'replay'}.txt")
        time.sleep(1.0)  # the last messages are still on their way to the recorder


@contextmanager
def node(
    name: str, parameters: dict[str, str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A node of the package in its own process, ended with SIGINT as Ctrl-C would."""
    arguments = [str(BIN / name), "--ros-args"]
    for key, value in parameters.items():
        arguments += ["-p", f"{key}:={value}"]
    with (log / f"{name}.txt").open("wb") as file:
        process = subprocess.Popen(arguments, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def bring_up(environment: dict[str, str], log: Path) -> None:
    """Configure and activate the estimator.

    Raises:
        TraceError: it refused; its own reason is in its log.
    """
    command = [sys.executable, "-m", "trace_ros.nodes.lifecycle", "estimator", "configure", "activate"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise TraceError(f"the estimator did not become active: {result.stderr.strip()} (see {log / 'estimator.txt'})")


def received(recorded: Path) -> tuple[dict[str, int], np.ndarray[Any, np.dtype[np.float64]]]:
    """Messages by topic, and the time (ms) from each odometry message's stamp to its arrival at the recorder."""
    counts = dict.fromkeys(RECORDED, 0)
    delays = []
    with open_bag(recorded) as bag:
        for connection, time_ns, data in bag.messages(*(topic for topic in RECORDED if topic in bag.types)):
            counts[connection.topic] += 1
            if connection.topic == ODOMETRY:
                seconds, nanoseconds = np.frombuffer(data, dtype="<i4,<u4", count=1, offset=4)[0]
                delays.append((time_ns - (int(seconds) * 1_000_000_000 + int(nanoseconds))) * 1e-6)
    if not delays:
        raise TraceError("the estimator published no odometry: see the log folder beside the recorded bag")
    return counts, np.array(delays)


def remove_bag(path: Path) -> None:
    """Remove the bag of an earlier run, and nothing else."""
    if path.is_dir():
        for file in path.iterdir():
            if file.suffix in (".mcap", ".db3") or file.name == "metadata.yaml":
                file.unlink()
        path.rmdir()


if __name__ == "__main__":
    raise SystemExit(main())
