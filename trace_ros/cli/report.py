"""``trace report``: one page and pictures that tell how good an estimate is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import write_json
from trace_ros.cli.evaluate import (
    AlignmentOption,
    HorizonOption,
    ImuOption,
    InitialOption,
    JointOption,
    Logs,
    ModelOption,
    OdometryOption,
    ReferenceOption,
    RobotOption,
    announce_report,
    chosen_topics,
    evaluate_logs,
    metric_settings,
    result,
)
from trace_ros.robot import RobotDescription


def report(
    logs: Logs,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for report.html and the pictures.")],
    robot: RobotOption = "go2",
    model: ModelOption = None,
    alignment: AlignmentOption = "posyaw",
    horizon: HorizonOption = 10.0,
    initial: InitialOption = "gravity",
    odometry_topic: OdometryOption = None,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
) -> None:
    """Run the estimator over logs and write a self-contained HTML page (works offline) and PNG pictures."""
    settings = metric_settings(alignment, horizon)
    topics = chosen_topics(imu_topic, joint_topic, reference_topic)
    estimator, evaluations = evaluate_logs(logs, robot, model, settings, topics, initial, odometry_topic)
    announce_report(output, evaluations, settings, estimator, RobotDescription.load(robot).name)
    if json_file is not None:
        write_json(json_file, result(evaluations, settings, robot, estimator))
