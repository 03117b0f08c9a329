"""``trace report``: one page and pictures that tell how good an estimate is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_output, write_json
from trace_ros.cli.options import (
    AlignmentOption,
    EndOption,
    FrameOption,
    HorizonOption,
    ImuOption,
    InitialOption,
    JointDelayOption,
    JointOption,
    JsonOption,
    Logs,
    ModelOption,
    MountingOption,
    OdometryOption,
    ReferenceOption,
    RobotOption,
    StartOption,
    TorqueOption,
    chosen_topics,
    joint_delay_seconds,
    metric_settings,
    read_settings,
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
    start: StartOption = 0.0,
    end: EndOption = None,
    odometry_topic: OdometryOption = None,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    joint_delay: JointDelayOption = None,
    json_file: JsonOption = None,
) -> None:
    """Run the estimator over logs and write a self-contained HTML page (works offline) and PNG pictures."""
    check_output(output, folder=True)
    check_output(json_file)
    settings = metric_settings(alignment, horizon)
    topics = chosen_topics(imu_topic, joint_topic, reference_topic, logs)
    reading = read_settings(imu_mounting, imu_frame, torque_source)
    delay = joint_delay_seconds(joint_delay)
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    from trace_ros.cli.evaluation import announce_report, evaluate_logs, result

    estimator, evaluations = evaluate_logs(
        logs,
        robot,
        model,
        settings,
        topics,
        initial,
        odometry_topic,
        reading=reading,
        start_s=start,
        end_s=end,
        joint_delay=delay,
    )
    announce_report(output, evaluations, settings, estimator, RobotDescription.load(robot).name)
    if json_file is not None:
        write_json(json_file, result(evaluations, settings, robot, estimator))
