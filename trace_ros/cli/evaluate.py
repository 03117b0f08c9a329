"""``trace evaluate``: an estimator, or a recorded odometry, against the reference of any log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_output, console, write_json
from trace_ros.cli.options import (
    AlignmentOption,
    HorizonOption,
    ImuOption,
    InitialOption,
    JointOption,
    JsonOption,
    Logs,
    ModelOption,
    OdometryOption,
    ReferenceOption,
    RobotOption,
    chosen_topics,
    metric_settings,
)
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription


def evaluate(
    logs: Logs,
    robot: RobotOption = "go2",
    model: ModelOption = None,
    alignment: AlignmentOption = "posyaw",
    horizon: HorizonOption = 10.0,
    initial: InitialOption = "gravity",
    odometry_topic: OdometryOption = None,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    estimate: Annotated[
        Path | None, typer.Option(help="Write the trajectory: .npz or .tum; a folder when there are several logs.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write report.html and pictures into this folder.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Run the estimator over logs, exactly as on the robot, and print the errors against their reference."""
    if estimate is not None and len(logs) == 1 and estimate.suffix not in (".npz", ".tum", ".txt"):
        raise TraceError(f"--estimate {estimate}: for a single log give a file that ends in .npz or .tum")
    if estimate is not None and len(logs) > 1 and estimate.suffix:
        raise TraceError(f"--estimate {estimate}: for several logs give a folder")
    check_output(estimate, folder=len(logs) > 1)
    check_output(report, folder=True)
    check_output(json_file)
    settings = metric_settings(alignment, horizon)
    topics = chosen_topics(imu_topic, joint_topic, reference_topic)
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    from trace_ros.cli.evaluation import announce_report, evaluate_logs, result, show, subject
    from trace_ros.evaluation.runner import write_estimate

    loaded, evaluations = evaluate_logs(logs, robot, model, settings, topics, initial, odometry_topic)
    show(evaluations, settings, subject(robot, loaded, odometry_topic))
    if estimate is not None:
        for evaluation in evaluations:
            target = estimate if len(logs) == 1 else estimate / f"{evaluation.name}.npz"
            write_estimate(target, evaluation)
            console.print(f"wrote {target}", highlight=False, soft_wrap=True)
    if report is not None:
        announce_report(report, evaluations, settings, loaded, RobotDescription.load(robot).name)
    if json_file is not None:
        write_json(json_file, result(evaluations, settings, robot, loaded))
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
