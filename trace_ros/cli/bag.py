"""``trace bag``: look into recordings, check, rescue and convert them; no ROS needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from trace_ros.bags import bag_info, convert, recover_bag
from trace_ros.bags.info import TopicInfo
from trace_ros.bags.storage import Storage
from trace_ros.cli.bag_check import check
from trace_ros.cli.common import check_output, console, say, working, write_json
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

app = typer.Typer(
    help="Look into rosbag2 recordings, check, rescue and convert them (no ROS needed).", no_args_is_help=True
)

app.command("check", short_help="Is a log good? One page, one verdict.")(check)

StorageOption = Annotated[str, typer.Option(help="Storage of the new bag: mcap or sqlite3.")]


@app.command(short_help="Topics with rates and gaps; joints and what they report.")
def info(
    bag: Annotated[Path, typer.Argument(help="rosbag2 directory, or a .mcap or .db3 file.")],
    json_file: JsonOption = None,
) -> None:
    """Topics of a bag with rates, longest gaps and messages out of order (late); joints and what they report."""
    check_output(json_file)
    with working(f"reading {bag}"):
        found = bag_info(bag)
    size = f"{found.size_bytes / 1e6:.1f} MB"
    table = Table(
        title=f"{bag}: {found.storage}, {found.messages} messages in {found.duration_s:.2f} s, {size}", box=None
    )
    table.add_column("topic", overflow="fold")
    table.add_column("type", overflow="fold")
    for column in ("messages", "Hz", "s", "gap s", "late"):
        table.add_column(column, justify="right")
    for topic in found.topics:
        table.add_row(
            topic.name,
            topic.type.replace("/msg/", "/"),
            str(topic.messages),
            f"{topic.rate_hz:.1f}",
            f"{topic.duration_s:.2f}",
            f"{topic.longest_gap_s:.3f}",
            str(topic.disordered),
        )
    console.print(table)
    if found.robot:
        console.print(f"robot: {found.robot}; torque is {found.torque_source.replace('_', ' ')}", highlight=False)
    for topic in found.topics:
        if topic.joint_names:
            console.print(_joints(topic), highlight=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, found.to_dict())


def _joints(topic: TopicInfo) -> str:
    absent = [name for name in ("position", "velocity", "effort") if name not in topic.fields]
    reported = f"reports {', '.join(topic.fields) or 'nothing'}"
    missing = f", does not report {', '.join(absent)}" if absent else ""
    return f"{topic.name}: {len(topic.joint_names)} joints ({', '.join(topic.joint_names)}); {reported}{missing}"


@app.command(short_help="Rescue what is complete in a killed recording.")
def recover(
    bag: Annotated[Path, typer.Argument(help="Interrupted or truncated bag: directory, .mcap or .db3 file.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New bag [<bag>_recovered].")] = None,
    storage: StorageOption = "mcap",
    json_file: JsonOption = None,
) -> None:
    """Write everything that is complete in a killed recording into a new bag."""
    kind = _storage(storage)
    check_output(json_file)
    with working(f"recovering {bag}") as tell:
        report = recover_bag(bag, output, kind, lambda count: tell(f"recovering {bag}: {count} messages"))
    table = Table(title=f"recovered {report.duration_s:.2f} s")
    table.add_column("topic", overflow="fold")
    table.add_column("messages", justify="right")
    for topic, count in report.messages.items():
        table.add_row(topic, str(count))
    console.print(table)
    for note in report.notes:
        say(f"note: {note}")
    console.print(f"wrote {report.output}", highlight=False, soft_wrap=True)
    if json_file is not None:
        summary = {"output": str(report.output), "messages": report.messages, "duration_s": report.duration_s}
        write_json(json_file, summary | {"notes": report.notes})


@app.command("convert", short_help="Between mcap, sqlite3, .npz and .csv.")
def convert_command(
    source: Annotated[Path, typer.Argument(help="rosbag2 directory, .mcap, .db3, .npz or .csv file.")],
    destination: Annotated[
        Path, typer.Argument(help="A name ending in .npz or .csv; anything else is a bag directory.")
    ],
    robot: RobotOption = "go2",
    storage: StorageOption = "mcap",
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    json_file: JsonOption = None,
) -> None:
    """Convert between bag storages (all topics), and between bags, .npz and .csv (IMU, joints, reference)."""
    kind = _storage(storage)
    topics = chosen_topics(imu_topic, joint_topic, reference_topic, [source])
    reading = read_settings(imu_mounting, imu_frame, torque_source)
    check_output(json_file)
    with working(f"converting {source} to {destination}"):
        done = convert(source, destination, RobotDescription.load(robot), kind, topics, reading)
    for note in done.notes:
        say(f"note: {note}")
    what = f"{sum(done.messages.values())} messages on {len(done.messages)} topics" if done.messages else None
    console.print(f"wrote {destination}: {what or f'{done.samples} samples'}", highlight=False, soft_wrap=True)
    if json_file is not None:
        write_json(
            json_file,
            {"output": str(destination), "messages": done.messages, "samples": done.samples, "notes": done.notes},
        )


def _storage(name: str) -> Storage:
    if name == "mcap":
        return "mcap"
    if name == "sqlite3":
        return "sqlite3"
    raise TraceError(f"--storage {name!r} is none of mcap, sqlite3")
