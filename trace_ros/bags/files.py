"""Logs in files of any kind: rosbag2, ``.npz``, ``.csv``; told apart by suffix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trace_ros.bags.copying import copy_bag, topic_notes
from trace_ros.bags.reading import BagReport, ReadSettings, read_bag_with_report
from trace_ros.bags.storage import Storage, is_bag
from trace_ros.bags.table import read_csv, write_csv
from trace_ros.bags.topics import Topics
from trace_ros.bags.writing import write_bag
from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription

FileKind = Literal["bag", "npz", "csv"]


@dataclass
class Conversion:
    """What `convert` did: messages (bag to bag, by topic) or samples, and what a reader should know."""

    messages: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    notes: list[str] = field(default_factory=list)


def file_kind(path: Path) -> FileKind:
    """Kind of a log's file by its suffix; a directory or anything else is a bag."""
    return {".npz": "npz", ".csv": "csv"}.get(path.suffix.lower(), "bag")  # type: ignore[return-value]


def read_log(
    path: Path, robot: RobotDescription, topics: Topics | None = None, settings: ReadSettings | None = None
) -> tuple[SensorLog, BagReport | None]:
    """Read a log from a rosbag2, ``.npz`` or ``.csv``; the report is None unless it is a bag.

    Of the settings only ``effort`` means something to files that are no bags, and topics nothing.

    Raises:
        TraceError: missing, not readable, of another robot, or no bag where the settings place the IMU.
    """
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    kind = file_kind(path)
    if kind == "bag":
        if path.is_file() and not is_bag(path) and path.suffix != ".bag":  # a ROS 1 bag has its own message
            raise TraceError(f"{path}: not a log: expected a rosbag2 (directory, .mcap or .db3), .npz or .csv")
        return read_bag_with_report(path, robot, topics, settings)
    log = SensorLog.load(path) if kind == "npz" else read_csv(path, robot)
    if log.robot and log.robot != robot.name:
        raise TraceError(f"{path}: recorded for robot {log.robot!r}, not {robot.name!r}; give --robot {log.robot}")
    if settings is not None and settings.imu_mounting != "robot":
        raise TraceError(
            f"{path}: its readings are in the body's frame already: IMU mounting by {settings.imu_mounting} is for bags"
        )
    if settings is not None and "effort" in settings.model_fields_set and log.joint_torque is not None:
        torque = None if settings.effort == "none" else log.joint_torque
        log = replace(log, joint_torque=torque, torque_source=settings.effort)
    return log, None


def write_log(path: Path, log: SensorLog, robot: RobotDescription, storage: Storage = "mcap") -> None:
    """Write a log as a rosbag2 directory, ``.npz`` or ``.csv``, by the suffix of ``path``.

    Raises:
        TraceError: the path exists or cannot be written.
    """
    if path.exists():
        raise TraceError(f"{path}: exists already; choose another name or delete it")
    kind = file_kind(path)
    try:
        if kind == "bag":
            write_bag(path, log, robot, storage)
        elif kind == "npz":
            log.save(path)
        else:
            write_csv(path, log, robot)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error


def convert(
    source: Path,
    destination: Path,
    robot: RobotDescription,
    storage: Storage = "mcap",
    topics: Topics | None = None,
    settings: ReadSettings | None = None,
) -> Conversion:
    """Convert between rosbag2 storages (all topics, message for message), and between bags, ``.npz`` and ``.csv``.

    Raises:
        TraceError: the source cannot be read or the destination not be written, or there are settings for messages that
            are only copied.
    """
    if not source.exists():
        raise TraceError(f"{source}: no such file or directory")
    if file_kind(source) == file_kind(destination) == "bag":
        if settings is not None:
            raise TraceError(
                f"{destination}: messages are copied from bag to bag as they are; the IMU's mounting and what the "
                "effort is are for .npz and .csv"
            )
        copier = copy_bag(source, destination, storage)
        return Conversion(messages=copier.counts, notes=list(topic_notes(copier.left_out)))
    log, report = read_log(source, robot, topics, settings)
    write_log(destination, log, robot, storage)
    notes = list(report.notes) if report else []
    if file_kind(destination) == "bag" and log.contact is not None:
        notes.append("contacts and foot forces have no standard message and are not in the bag")
    return Conversion(samples=len(log), notes=notes)
