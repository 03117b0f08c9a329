#!/usr/bin/env python3
"""How far a gyro bias leads the estimator astray, with and without what standing tells of it.

    trace evaluate --courses long                       # keeps the ten minutes' walk in out/courses
    python benchmarks/gyro_bias.py out/courses/long-*/*.npz --bias 0.01

Adds a constant bias about a random axis of the body (seeded) to the gyro of each log, runs the estimator with the
robot's own ``gyro_bias_memory`` and with 0, and prints the errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

from trace_ros.cli.common import console, say
from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.evaluation.runner import evaluate_runs
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", help=".npz with a reference")
    parser.add_argument("--bias", type=float, default=0.01, help="rad/s [0.01]")
    parser.add_argument("--seed", type=int, default=0, help="of the axes [0]")
    parser.add_argument("--robot", default="go2")
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    try:
        compare(arguments)
    except TraceError as error:
        say(f"error: {error}")
        return 2
    return 0


def compare(arguments: argparse.Namespace) -> None:
    robot = RobotDescription.load(arguments.robot)
    model = arguments.model or models_directory() / robot.name / "trace.pt"
    logs = [SensorLog.load(path) for path in arguments.logs]
    axes = np.random.default_rng(arguments.seed).normal(size=(len(logs), 3))
    axes *= arguments.bias / np.linalg.norm(axes, axis=1, keepdims=True)
    biased = [
        dataclasses.replace(log, angular_velocity=log.angular_velocity + axis)
        for log, axis in zip(logs, axes, strict=True)
    ]
    console.print("| added bias | gyro_bias_memory | ATE m | z m | orientation rad | 10 s RE m |")
    console.print("| --- | --- | --- | --- | --- | --- |")
    for added, given in ((0.0, logs), (arguments.bias, biased)):
        for memory in (robot.stationary.gyro_bias_memory, 0.0):
            thresholds = robot.stationary.model_copy(update={"gyro_bias_memory": memory})
            estimator = TraceEstimator.load(model, robot.model_copy(update={"stationary": thresholds}))
            rows = [
                run.metrics.to_dict()
                for run in evaluate_runs([str(path) for path in arguments.logs], given, estimator)
                if run.metrics is not None
            ]
            keys = ("ate_position_m", "ate_z_m", "ate_orientation_rad")
            figures = [float(np.mean([row[key] for row in rows])) for key in keys]
            figures.append(float(np.mean([row["re10_position_m"]["mean"] for row in rows])))
            cells = [f"{added:g} rad/s", f"{memory:g} s", *(f"{value:.3f}" for value in figures)]
            console.print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
