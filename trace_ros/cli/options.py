"""Options that several commands share, and what they mean. Nothing heavy is imported here: ``--help`` must be quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from trace_ros.bags import Topics
from trace_ros.errors import TraceError
from trace_ros.evaluation.alignment import AlignmentMode
from trace_ros.evaluation.metrics import MetricSettings

Logs = Annotated[list[Path], typer.Argument(help="Logs: rosbag2 directories, .mcap, .db3, .npz or .csv files.")]
RobotOption = Annotated[str, typer.Option(help="Name of a robot, or the path of its YAML file.")]
ModelOption = Annotated[Path | None, typer.Option(help="Model [models/<robot>/trace.pt].")]
AlignmentOption = Annotated[str, typer.Option(help=f"Before absolute errors: {', '.join(get_args(AlignmentMode))}.")]
HorizonOption = Annotated[float, typer.Option(help="Time over which relative errors are taken, s.", min=0.01, max=1e5)]
InitialOption = Annotated[
    str, typer.Option(help="Start level at the origin (gravity), or at the reference (reference).")
]
OdometryOption = Annotated[
    str | None, typer.Option(help="Judge this recorded nav_msgs/Odometry topic instead of running the estimator.")
]
ImuOption = Annotated[str | None, typer.Option(help="sensor_msgs/Imu topic [imu/data, else the only one].")]
JointOption = Annotated[
    str | None, typer.Option(help="sensor_msgs/JointState topic [joint_states, else the only one].")
]
ReferenceOption = Annotated[str | None, typer.Option(help="nav_msgs/Odometry topic of the truth [reference/odom].")]
EstimatorOption = Annotated[
    str, typer.Option(help="trace, iekf, iekf_sr, leg_odometry, legolas, nmn_iekf or mlp (docs/baselines.md).")
]
EngineOption = Annotated[
    str, typer.Option(help="What computes the network: torchscript, or onnxruntime where that is installed.")
]
BackendOption = Annotated[
    str | None, typer.Option(help="Physics engine instead of the course's: mujoco, bullet or raisim.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the result here.")]


def metric_settings(alignment: str, horizon: float) -> MetricSettings:
    """Settings from the command line.

    Raises:
        TraceError: unknown mode.
    """
    if alignment not in get_args(AlignmentMode):
        raise TraceError(f"--alignment {alignment!r} is none of {', '.join(get_args(AlignmentMode))}")
    return MetricSettings.model_validate({"alignment": alignment, "horizon_s": horizon})


def chosen_topics(imu: str | None, joint_states: str | None, reference: str | None) -> Topics:
    """Topics with only those set that were given, so that the others may be found by type."""
    given = {"imu": imu, "joint_states": joint_states, "reference": reference}
    return Topics(**{name: value for name, value in given.items() if value})


MAX_SEED = 2**31 - 1
"""Of every seed: beyond 64 bits torch takes none."""

MAX_PROCESSES = 256
"""Of processes and of threads: where a system gives no more threads, it ends the program instead of saying so."""


def comma_parts(option: str, text: str) -> list[str]:
    """Names with commas between them.

    Raises:
        TraceError: an empty one, or one that is there twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise TraceError(f"{option} {text!r}: give names with commas between them, each once")
    return parts


def seed_numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between them.

    Raises:
        TraceError: something else, one that is there twice, or one beyond `MAX_SEED`.
    """
    parts = comma_parts(option, text)
    if not all(part.isdecimal() for part in parts):
        raise TraceError(f"{option} {text!r}: give whole numbers with commas between them, such as 101,102")
    if too_large := [part for part in parts if len(part) > len(str(MAX_SEED)) or int(part) > MAX_SEED]:
        raise TraceError(f"{option}: {too_large[0][:20]} is too large for a seed: up to {MAX_SEED}")
    return [int(part) for part in parts]
