"""Options that several commands share, and what they mean. Nothing heavy is imported here: ``--help`` must be quick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from trace_ros.bags import ReadSettings, Topics
from trace_ros.bags.files import file_kind
from trace_ros.errors import TraceError
from trace_ros.evaluation.alignment import AlignmentMode
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.logs import TorqueSource
from trace_ros.streams.mounting import MountingSource
from trace_ros.streams.pairing import LARGEST_JOINT_DELAY

AUTO = "auto"
"""How late joint readings are is to be found out."""

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
MountingOption = Annotated[
    str | None,
    typer.Option(
        "--imu-mounting",
        help="Where the IMU's place in the body is read from: robot (its file), urdf, or tf (the bag's /tf_static), "
        "as by the node [robot].",
    ),
]
FrameOption = Annotated[
    str | None, typer.Option("--imu-frame", help="That link or frame [frame_id of the IMU's messages].")
]
TorqueOption = Annotated[
    str | None,
    typer.Option(
        "--torque-source",
        help="What the joints' effort is: commanded_effort, pd_target, measured_effort, or none: do not use it "
        "[what the log says, else measured_effort].",
    ),
]
JointDelayOption = Annotated[
    str | None,
    typer.Option(
        "--joint-delay",
        help="How much older joint readings are than the IMU's of the same stamp, s; auto: found by the feet that "
        "stand, no reference needed [what the model's card says, else 0].",
    ),
]
StartOption = Annotated[float, typer.Option(help="Leave out what is before, s since the log's first sample.", min=0.0)]
EndOption = Annotated[
    float | None, typer.Option(help="Leave out what is after, s since the log's first sample.", min=0.0)
]
EstimatorOption = Annotated[
    str,
    typer.Option(
        help="trace, trace_network, iekf, iekf_sr, leg_odometry, legolas, nmn_iekf or mlp (docs/baselines.md)."
    ),
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


_TOPIC_OPTIONS = {"imu": "--imu-topic", "joint_states": "--joint-topic", "reference": "--reference-topic"}


def chosen_topics(imu: str | None, joint_states: str | None, reference: str | None, logs: Sequence[Path]) -> Topics:
    """Topics with only those set that were given, so that the others may be found by type.

    Raises:
        TraceError: one is given and none of the logs is a bag: it would be passed over without a word.
    """
    values = {"imu": imu, "joint_states": joint_states, "reference": reference}
    given = {name: value for name, value in values.items() if value}
    if given and logs and all(file_kind(path) != "bag" for path in logs):
        options = ", ".join(_TOPIC_OPTIONS[name] for name in given)
        raise TraceError(f"{options}: there are no topics to choose from, for none of the logs is a bag")
    return Topics(**given)


def read_settings(imu_mounting: str | None, imu_frame: str | None, torque_source: str | None) -> ReadSettings | None:
    """How messages become samples, with only that set which was given; None where nothing was.

    Raises:
        TraceError: a value that is none, or a frame for a mounting that needs none.
    """
    choices = {"--imu-mounting": (imu_mounting, MountingSource), "--torque-source": (torque_source, TorqueSource)}
    for option, (value, allowed) in choices.items():
        if value is not None and value not in get_args(allowed):
            raise TraceError(f"{option} {value!r} is none of {', '.join(get_args(allowed))}")
    if imu_frame and imu_mounting not in ("urdf", "tf"):
        raise TraceError(f"--imu-frame {imu_frame!r} is a link or a frame: give --imu-mounting urdf or tf too")
    given = {"imu_mounting": imu_mounting, "imu_frame": imu_frame, "effort": torque_source}
    if not (values := {name: value for name, value in given.items() if value}):
        return None
    return ReadSettings.model_validate(values)


def joint_delay_seconds(text: str | None) -> float | None:
    """Seconds from the command line; NaN for ``auto``, None where nothing was given.

    Raises:
        TraceError: neither a number nor ``auto``, or more than is put right.
    """
    if text is None:
        return None
    if text.strip().lower() == AUTO:
        return math.nan
    try:
        delay = float(text)
    except ValueError:
        delay = math.nan
    if not abs(delay) <= LARGEST_JOINT_DELAY:
        raise TraceError(
            f"--joint-delay {text!r}: give seconds from {-LARGEST_JOINT_DELAY:g} to {LARGEST_JOINT_DELAY:g}, or {AUTO}"
        )
    return delay


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
