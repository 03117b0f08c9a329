"""``trace bag check``: is a log good, before anything is trained or run on it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_output, console, working, write_json
from trace_ros.cli.options import (
    FrameOption,
    ImuOption,
    JointOption,
    JsonOption,
    MountingOption,
    ReferenceOption,
    RobotOption,
    TorqueOption,
    chosen_topics,
    read_settings,
)
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription


def check(
    bag: Annotated[Path, typer.Argument(help="rosbag2 directory, .mcap, .db3, .npz or .csv file.")],
    robot: RobotOption = "go2",
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    limits: Annotated[
        Path | None, typer.Option(help="YAML file with limits of the checks (docs/logs.md) that differ.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Look at a log before anything is trained or run on it: one page, one verdict.

    Losses, pauses and clocks of the topics; gravity, gyro and joints against each other and against the reference,
    where there is one. Each finding names the likely cause and what to do. Exit code 2 where the log is not fit.
    """
    check_output(json_file)
    topics = chosen_topics(imu_topic, joint_topic, reference_topic, [bag])
    reading = read_settings(imu_mounting, imu_frame, torque_source)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for it.
    from trace_ros.checks.log import check_log_file
    from trace_ros.checks.log_findings import LogCheckSettings
    from trace_ros.sim.ranges import load_yaml_model

    settings = load_yaml_model(LogCheckSettings, limits, "limits") if limits is not None else LogCheckSettings()
    with working(f"reading {bag}") as tell:
        report = check_log_file(bag, description, topics, settings, reading, tell)
    console.print(f"{bag}, robot {description.name}", highlight=False, soft_wrap=True)
    width = max((len(fact.subject) for fact in report.facts), default=0)
    for fact in report.facts:
        # One line each, however narrow the terminal, so that they can be searched.
        console.print(f"  {fact.subject:<{width}}  {fact.text}", highlight=False, soft_wrap=True)
    for finding in report.findings:
        line = f"{finding.level:<6} {finding.name}: {finding.subject}: {finding.text}"
        console.print(line, highlight=False, soft_wrap=True)
        if finding.remedy:
            console.print(f"       -> {finding.remedy}", highlight=False, soft_wrap=True)
    console.print(f"verdict: {report.verdict}", highlight=False)
    if json_file is not None:
        write_json(json_file, report.to_dict())
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
    if report.verdict == "not fit":
        names = dict.fromkeys(finding.name for finding in report.findings if finding.level == "fault")
        raise TraceError(f"{bag}: not fit ({', '.join(names)})")
