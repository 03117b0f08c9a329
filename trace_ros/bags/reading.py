"""rosbag2 -> `SensorLog` and `Trajectory`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import Field
from scipy.spatial.transform import Rotation

from trace_ros.bags.at_once import Paired, Samples, samples_at_once
from trace_ros.bags.messages import Columns, OdometryReader, decode_message, keep_increasing, read_odometry_messages
from trace_ros.bags.storage import OpenBag, open_bag, typestore
from trace_ros.bags.topics import (
    IMU_TYPE,
    JOINT_STATE_TYPE,
    ODOMETRY_TYPE,
    Topics,
    find_topic,
    require_topic,
)
from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS, FloatArray, IntArray, Sample, SensorLog, TorqueSource, Trajectory
from trace_ros.robot import RobotDescription
from trace_ros.streams import KINDS, Event, SensorStreams, StreamSettings, TimeJump
from trace_ros.streams.readings import header_stamp_ns

ROBOT_KEY = "trace_ros.robot"
TORQUE_SOURCE_KEY = "trace_ros.torque_source"
"""Keys of the bag's custom metadata: what a JointState message itself cannot say."""

_STREAMS = ("imu", "joints")
_UNPAIRED = ("imu_before_joints", "imu_without_joints", "imu_other_clock")
"""Kinds of IMU messages that gave no sample for want of joints."""


class ReadSettings(StreamSettings):
    """How messages become samples: as the estimator node does it, but for the wait, which costs nothing in a file.

    Attributes:
        effort: what the effort in the joint states is; unless it is given, a bag written by this package says so
            itself. "none": the effort is not used.
    """

    joint_wait: float = Field(default=1.0, ge=0)
    effort: TorqueSource = "measured_effort"


@dataclass
class BagReport:
    """What `read_bag` took and what it left out.

    Attributes:
        imu_topic, joint_topic, reference_topic: names as in the bag; the last None without a reference.
        imu_messages, joint_messages, reference_messages: as recorded, before anything was dropped.
        samples: samples in the log.
        exact_pairs: samples whose joint state bears the very same stamp; the others are interpolated or held.
        unpaired: IMU samples dropped because no joint state was near enough.
        faults: messages by kind of fault, as in `trace_ros.streams.KINDS`.
        repeated, disordered: messages dropped for their stamps, over all topics.
        time_lines: 1, and 1 more for each time that the stamps jumped back; the log is the longest of them.
        gaps: sample intervals longer than five times the median.
        longest_gap_s: the longest sample interval.
        notes: all of this and more where it matters, one line each.
    """

    imu_topic: str
    joint_topic: str
    reference_topic: str | None
    imu_messages: int = 0
    joint_messages: int = 0
    reference_messages: int = 0
    samples: int = 0
    exact_pairs: int = 0
    unpaired: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    disordered: int = 0
    time_lines: int = 1
    gaps: int = 0
    longest_gap_s: float = 0.0
    notes: list[str] = field(default_factory=list)


def read_bag(
    path: Path, robot: RobotDescription, topics: Topics | None = None, settings: ReadSettings | None = None
) -> SensorLog:
    """Read a rosbag2 (a directory, or a bare ``.mcap`` or ``.db3`` file) as a `SensorLog`.

    See `read_bag_with_report`, which also tells what was dropped.
    """
    return read_bag_with_report(path, robot, topics, settings)[0]


def read_bag_with_report(
    path: Path, robot: RobotDescription, topics: Topics | None = None, settings: ReadSettings | None = None
) -> tuple[SensorLog, BagReport]:
    """Read a rosbag2 as a `SensorLog` at the IMU's stamps, with the reference if the bag has one.

    Messages become samples by the same code as in the estimator node (`SensorStreams`): what is faulty is dropped or
    repaired, and counted by kind. Time is the header stamp. Twist of the reference is in its child frame, which must be
    the body (nav_msgs/Odometry).

    Raises:
        TraceError: no such bag, damaged, empty, without the topics or joints, or with IMU and joints that never meet in
            time.
    """
    topics = topics or Topics()
    settings = settings or ReadSettings()
    with open_bag(path) as bag:
        where = str(path)
        if not bag.types:
            raise TraceError(f"{where}: the bag is empty: it has no topics")
        given = topics.model_fields_set
        imu_topic = require_topic(bag.types, topics.imu, IMU_TYPE, where, by_type="imu" not in given)
        joint_topic = require_topic(
            bag.types, topics.joint_states, JOINT_STATE_TYPE, where, by_type="joint_states" not in given
        )
        reference_topic = _reference_topic(bag, topics, where)
        report = BagReport(imu_topic, joint_topic, reference_topic)
        source = _torque_source(bag.custom_data, settings)
        try:
            paired = _read_samples(bag, report, robot, settings, source)
            reference = None
            if reference_topic is not None:
                reference = _read_reference(bag, reference_topic, report, paired.reference)
            log = _log_of(paired, reference, robot, source, report)
        except TraceError as error:
            raise error if str(error).startswith(where) else TraceError(f"{where}: {error}") from error
        custom = bag.custom_data
    if (recorded_for := custom.get(ROBOT_KEY, robot.name)) != robot.name:
        report.notes.append(f"the bag was recorded for robot {recorded_for!r} and read for {robot.name!r}")
    return log, report


def read_odometry(path: Path, topic: str, reference: str | None = None) -> Trajectory:
    """Read one nav_msgs/Odometry topic of a bag.

    Args:
        path: bag.
        topic: with or without leading slash and namespace.
        reference: name of the truth, which must not be mistaken for a namespaced ``topic`` (``odom`` is not
            ``reference/odom``); None where the truth itself is read.

    Raises:
        TraceError: no such bag or topic, or no usable message on it.
    """
    with open_bag(path) as bag:
        name = require_topic(bag.types, topic, ODOMETRY_TYPE, str(path), by_type=False, never=reference)
        raw = ((recorded, data) for _, recorded, data in bag.messages(name))
        columns, _, _ = keep_increasing(name, read_odometry_messages(name, raw))
    trajectory = _trajectory(name, columns, columns.notes)
    if trajectory is None:
        raise TraceError(f"{path}: no usable messages on {name}")
    return trajectory


def _reference_topic(bag: OpenBag, topics: Topics, where: str) -> str | None:
    if topics.reference is None:
        return None
    if "reference" in topics.model_fields_set:
        return require_topic(bag.types, topics.reference, ODOMETRY_TYPE, where, by_type=False)
    return find_topic(bag.types, topics.reference, ODOMETRY_TYPE, where)


def _torque_source(custom: dict[str, str], settings: ReadSettings) -> TorqueSource:
    if "effort" in settings.model_fields_set:
        return settings.effort
    known: dict[str, TorqueSource] = {
        "commanded_effort": "commanded_effort",
        "pd_target": "pd_target",
        "measured_effort": "measured_effort",
    }
    return known.get(custom.get(TORQUE_SOURCE_KEY, ""), settings.effort)


class _TimeLine:
    """Samples of one time line, in flat buffers, so that an hour of a robot fits in memory."""

    def __init__(self) -> None:
        self.stamps = array("q")
        self._rows = {name: array("d") for name in ("imu", "position", "velocity", "torque")}
        self._absent = np.full(JOINTS, np.nan)

    def add(self, sample: Sample) -> None:
        rows = self._rows
        self.stamps.append(sample.stamp_ns)
        rows["imu"].frombytes(sample.angular_velocity.tobytes() + sample.linear_acceleration.tobytes())
        rows["position"].frombytes(sample.joint_position.tobytes())
        for name, values in (("velocity", sample.joint_velocity), ("torque", sample.joint_torque)):
            rows[name].frombytes((self._absent if values is None else values).tobytes())

    def samples(self) -> Samples:
        """All of them as arrays."""
        tables = {name: np.array(rows).reshape(-1, 6 if name == "imu" else JOINTS) for name, rows in self._rows.items()}
        return Samples(np.array(self.stamps, dtype=np.int64), **tables)


@dataclass
class _Span:
    """First and last stamp of a topic's messages, for the message that they never meet."""

    first_ns: int | None = None
    last_ns: int = 0

    def add(self, stamp_ns: int) -> None:
        self.first_ns = stamp_ns if self.first_ns is None else self.first_ns
        self.last_ns = stamp_ns

    def __str__(self) -> str:
        return "no stamps" if self.first_ns is None else f"{self.first_ns * 1e-9:.3f} to {self.last_ns * 1e-9:.3f} s"


def _read_samples(
    bag: OpenBag, report: BagReport, robot: RobotDescription, settings: ReadSettings, source: TorqueSource
) -> Paired:
    """What the streams make of all messages: at once where nothing is unusual about them, else one by one."""
    streams = settings.model_copy(update={"use_effort": source != "none"})
    paired = samples_at_once(bag, report.imu_topic, report.joint_topic, robot, streams, report.reference_topic)
    if paired is None:
        paired = _one_by_one(bag, report, robot, streams)
    report.imu_messages, report.joint_messages = paired.imu_messages, paired.joint_messages
    report.faults = paired.faults
    return paired


def _one_by_one(bag: OpenBag, report: BagReport, robot: RobotDescription, settings: StreamSettings) -> Paired:
    """All messages through the streams, in the order of their recording."""
    streams = SensorStreams(robot, settings)
    decode = typestore().deserialize_cdr
    if settings.imu_mounting == "tf":
        for topic, kind in bag.types.items():
            if topic.endswith("/tf_static"):
                for number, (_, _, raw) in enumerate(bag.messages(topic)):
                    streams.add_transforms(decode_message(decode, raw, kind, topic, number).transforms)
    lines = [_TimeLine()]

    def take(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TimeJump):
                lines.append(_TimeLine())
            else:
                lines[-1].add(event)

    spans = {report.imu_topic: _Span(), report.joint_topic: _Span()}
    for connection, recorded, raw in bag.messages(report.imu_topic, report.joint_topic):
        topic = connection.topic
        if topic == report.imu_topic:
            message = decode_message(decode, raw, IMU_TYPE, topic, report.imu_messages)
            report.imu_messages += 1
            events = streams.add_imu(message, recorded)
        else:
            message = decode_message(decode, raw, JOINT_STATE_TYPE, topic, report.joint_messages)
            report.joint_messages += 1
            events = streams.add_joints(message, recorded)
        spans[topic].add(header_stamp_ns(message))
        if events:
            take(events)
    take(streams.finish())
    for topic, messages in ((report.imu_topic, report.imu_messages), (report.joint_topic, report.joint_messages)):
        if not messages:
            raise TraceError(f"the bag is empty: no messages on {topic}")
    report.faults = dict(streams.tally.counts)
    if not any(line.stamps for line in lines):
        raise TraceError(_why_nothing(streams, report, spans))
    pairer = streams.pairer
    made = pairer.exact + pairer.interpolated + pairer.held
    tables = [line.samples() for line in lines]
    return Paired(tables, report.faults, pairer.exact, made, report.imu_messages, report.joint_messages)


def _why_nothing(streams: SensorStreams, report: BagReport, spans: Mapping[str, _Span]) -> str:
    """Why no sample could be made of any message."""
    if missing := streams.missing_joints():
        return f"topic {report.joint_topic}: {missing}"
    for prefix, topic, messages in (
        ("imu_", report.imu_topic, report.imu_messages),
        ("joints_", report.joint_topic, report.joint_messages),
    ):
        dropped = {
            name: count
            for name, count in report.faults.items()
            if name.startswith(prefix) and KINDS[name].action == "dropped" and name not in _UNPAIRED
        }
        if dropped and sum(dropped.values()) >= messages:
            worst = max(dropped, key=dropped.__getitem__)
            return f"topic {topic}: no usable message: {KINDS[worst].text}, {dropped[worst]} of {messages}"
    return (
        f"no IMU sample has a joint state near enough in time: {report.imu_topic} spans {spans[report.imu_topic]}, "
        f"{report.joint_topic} {spans[report.joint_topic]}"
    )


def _read_reference(bag: OpenBag, topic: str, report: BagReport, read: OdometryReader | None) -> Trajectory | None:
    if read is None:
        read = OdometryReader(topic)
        for _, recorded, data in bag.messages(topic):
            read.add(recorded, data)
    columns, repeated, disordered = keep_increasing(topic, read.columns())
    report.reference_messages = read.messages
    report.repeated += repeated
    report.disordered += disordered
    report.notes += columns.notes
    return _trajectory(topic, columns, report.notes)


def _trajectory(topic: str, columns: Columns, notes: list[str]) -> Trajectory | None:
    if not len(columns):
        notes.append(f"topic {topic}: no usable messages")
        return None
    values = columns.values
    position, orientation, velocity = values["position"], values["orientation"], values["velocity"]
    assert position is not None
    assert orientation is not None
    assert velocity is not None
    if len(columns) > 2 and not velocity.any() and np.ptp(position, axis=0).max() > 0:
        # LiDAR odometry often leaves its twist empty.
        seconds = (columns.stamp_ns - columns.stamp_ns[0]) * 1e-9
        world = np.gradient(position, seconds, axis=0)
        velocity = Rotation.from_quat(orientation).inv().apply(world)
        notes.append(f"topic {topic}: its twist is zero throughout; velocities are differences of its positions")
    return Trajectory(
        columns.stamp_ns, position, orientation, velocity, values["angular_velocity"], values["covariance"]
    )


def _log_of(
    paired: Paired,
    reference: Trajectory | None,
    robot: RobotDescription,
    source: TorqueSource,
    report: BagReport,
) -> SensorLog:
    line = max(paired.lines, key=lambda line: line.stamp_ns.size)
    stamp_ns = line.stamp_ns
    _describe(paired, stamp_ns, report)
    imu, position = line.imu, line.position
    optional: dict[str, FloatArray | None] = {"velocity": line.velocity, "effort": line.torque}
    for name, values in optional.items():
        assert values is not None
        absent = np.isnan(values[:, 0])
        if absent.all():
            optional[name] = None
            if name == "velocity" or source != "none":
                report.notes.append(f"topic {report.joint_topic}: does not report joint {name}")
        elif absent.any():
            report.notes.append(
                f"topic {report.joint_topic}: does not report joint {name} for {int(absent.sum())} of {absent.size} "
                "samples"
            )
        elif len(values) > 1 and not values.any():
            report.notes.append(
                f"topic {report.joint_topic}: joint {name} is exactly zero throughout; is it reported at all?"
            )
    torque = optional["effort"]
    return SensorLog(
        stamp_ns,
        imu[:, :3],
        imu[:, 3:],
        position,
        optional["velocity"],
        torque,
        "none" if torque is None else source,
        robot.name,
        reference,
    )


def _describe(paired: Paired, stamp_ns: IntArray, report: BagReport) -> None:
    """Fill the report."""
    faults, lines, made = report.faults, paired.lines, paired.made
    report.samples = stamp_ns.size
    report.exact_pairs = paired.exact
    report.unpaired = sum(faults.get(name, 0) for name in _UNPAIRED)
    report.repeated += faults.get("imu_repeated", 0) + faults.get("joints_repeated", 0)
    report.disordered += sum(
        faults.get(f"{stream}_{kind}", 0) for stream in _STREAMS for kind in ("disordered", "stray")
    )
    report.time_lines = len(lines)
    for name, count in sorted(faults.items()):
        kind = KINDS[name]
        topic, messages = report.imu_topic, report.imu_messages
        if name.startswith("joints_"):
            topic, messages = report.joint_topic, report.joint_messages
        report.notes.append(f"topic {topic}: {kind.action} {count} of {messages} messages: {kind.text} [{name}]")
    if paired.exact < made:
        report.notes.append(f"joint states interpolated or held for {made - paired.exact} of {made} samples")
    if len(lines) > 1:
        report.notes.append(
            f"stamps jumped back {len(lines) - 1} times: the longest of {len(lines)} time lines was read, "
            f"{stamp_ns.size} of {made} samples"
        )
    intervals = np.diff(stamp_ns) * 1e-9
    if intervals.size:
        report.longest_gap_s = float(intervals.max())
        report.gaps = int((intervals > 5 * np.median(intervals)).sum())
        if report.gaps:
            report.notes.append(f"{report.gaps} gaps in the samples, the longest {report.longest_gap_s:.3f} s")
