"""rosbag2 -> `SensorLog` and `Trajectory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.spatial.transform import Rotation

from trace_ros.bags.messages import Columns, keep_increasing, read_imu, read_joint_states, read_odometry_messages
from trace_ros.bags.storage import OpenBag, open_bag
from trace_ros.bags.topics import (
    IMU_TYPE,
    JOINT_STATE_TYPE,
    ODOMETRY_TYPE,
    Topics,
    find_topic,
    require_topic,
)
from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, IntArray, SensorLog, TorqueSource, Trajectory
from trace_ros.robot import RobotDescription

ROBOT_KEY = "trace_ros.robot"
TORQUE_SOURCE_KEY = "trace_ros.torque_source"
"""Keys of the bag's custom metadata: what a JointState message itself cannot say."""


class ReadSettings(BaseModel):
    """How joint states are brought onto the IMU's stamps.

    Attributes:
        joints: "interpolate" linearly between joint messages, or "hold" the last one, as on the robot; joint states of
            the IMU's own stamp are taken as they are either way.
        max_joint_gap: s; joints are interpolated between messages no further apart than this.
        max_joint_hold: s; a held joint message is used for at most this long.
        effort: what the effort in the joint states is; a bag written by this package says so itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    joints: Literal["interpolate", "hold"] = "interpolate"
    max_joint_gap: float = Field(default=0.05, gt=0)
    max_joint_hold: float = Field(default=0.02, ge=0)
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
        repeated, disordered: messages dropped for their stamps, over all topics.
        gaps: IMU intervals longer than five times the median.
        longest_gap_s: the longest IMU interval.
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
    repeated: int = 0
    disordered: int = 0
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

    Time is the header stamp. IMU vectors are rotated into the body frame by the robot's IMU mounting. Joints are mapped
    by name; those stamped exactly like the IMU are taken as they are, others are interpolated linearly onto the IMU's
    stamps. Twist of the reference is in its child frame, which must be the body (nav_msgs/Odometry).

    Raises:
        TraceError: no such bag, damaged, empty, without the topics or joints, with arrays of the wrong size, or with
            IMU and joints that never meet in time.
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
        counts = {topic: 0 for topic in (imu_topic, joint_topic, reference_topic) if topic is not None}

        def messages(topic: str) -> Iterator[tuple[int, bytes]]:
            for _, recorded, data in bag.messages(topic):
                counts[topic] += 1
                yield recorded, data

        try:
            imu = _ordered(imu_topic, read_imu(imu_topic, messages(imu_topic)), report)
            joints = _ordered(
                joint_topic, read_joint_states(joint_topic, messages(joint_topic), robot.joint_names), report
            )
            for topic in (imu_topic, joint_topic):
                if not counts[topic]:
                    raise TraceError(f"the bag is empty: no messages on {topic}")
            reference = None
            if reference_topic is not None:
                columns = read_odometry_messages(reference_topic, messages(reference_topic))
                columns = _ordered(reference_topic, columns, report)
                reference = _trajectory(reference_topic, columns, report.notes)
                report.reference_messages = counts[reference_topic]
            report.imu_messages, report.joint_messages = counts[imu_topic], counts[joint_topic]
            log = _merge(imu, joints, reference, robot, _torque_source(bag.custom_data, settings), settings, report)
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
    known: dict[str, TorqueSource] = {
        "commanded_effort": "commanded_effort",
        "pd_target": "pd_target",
        "measured_effort": "measured_effort",
    }
    return known.get(custom.get(TORQUE_SOURCE_KEY, ""), settings.effort)


def _ordered(topic: str, columns: Columns, report: BagReport) -> Columns:
    columns, repeated, disordered = keep_increasing(topic, columns)
    report.repeated += repeated
    report.disordered += disordered
    report.notes += columns.notes
    return columns


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


def _merge(
    imu: Columns,
    joints: Columns,
    reference: Trajectory | None,
    robot: RobotDescription,
    source: TorqueSource,
    settings: ReadSettings,
    report: BagReport,
) -> SensorLog:
    for what, topic, columns in (("IMU", report.imu_topic, imu), ("joint", report.joint_topic, joints)):
        if not len(columns):
            raise TraceError(f"topic {topic}: no usable {what} messages")
    left, weight, exact, usable = _pair(imu.stamp_ns, joints.stamp_ns, settings)
    if not usable.any():
        raise TraceError(
            f"no IMU sample has a joint state within {settings.max_joint_gap} s: {report.imu_topic} spans "
            f"{_span(imu.stamp_ns)}, {report.joint_topic} {_span(joints.stamp_ns)}"
        )
    imu, left, weight = imu.select(usable), left[usable], weight[usable]
    report.samples = len(imu)
    report.unpaired = int((~usable).sum())
    report.exact_pairs = int((exact & usable).sum())
    if report.unpaired:
        report.notes.append(
            f"dropped {report.unpaired} of {usable.size} IMU samples: no joint state near enough in time"
        )
    if report.exact_pairs < report.samples:
        report.notes.append(
            f"joint states interpolated or held for {report.samples - report.exact_pairs} of {report.samples} samples"
        )
    intervals = np.diff(imu.stamp_ns) * 1e-9
    if intervals.size:
        report.longest_gap_s = float(intervals.max())
        report.gaps = int((intervals > 5 * np.median(intervals)).sum())
        if report.gaps:
            report.notes.append(f"{report.gaps} gaps in the samples, the longest {report.longest_gap_s:.3f} s")

    def at_imu(name: str) -> FloatArray | None:
        values = joints.values[name]
        if values is None:
            return None
        right = np.minimum(left + 1, len(joints) - 1)
        # Weight 0 must return the row itself, bit for bit; a + 0 * (b - a) does.
        return values[left] + weight[:, None] * (values[right] - values[left])

    angular, linear = imu.values["angular_velocity"], imu.values["linear_acceleration"]
    assert angular is not None
    assert linear is not None
    if any(robot.imu.rpy):
        angular, linear = robot.rotation_body_imu.apply(angular), robot.rotation_body_imu.apply(linear)
    position, velocity, torque = at_imu("position"), at_imu("velocity"), at_imu("effort")
    assert position is not None
    for name, values in (("velocity", velocity), ("effort", torque)):
        if values is None:
            report.notes.append(f"topic {report.joint_topic}: does not report joint {name}")
        elif len(values) > 1 and not values.any():
            report.notes.append(
                f"topic {report.joint_topic}: joint {name} is exactly zero throughout; is it reported at all?"
            )
    if source == "none":
        torque = None
    return SensorLog(
        imu.stamp_ns,
        angular,
        linear,
        position,
        velocity,
        torque,
        "none" if torque is None else source,
        robot.name,
        reference,
    )


def _pair(
    wanted: IntArray, stamps: IntArray, settings: ReadSettings
) -> tuple[NDArray[np.int_], FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """For each wanted stamp: the row at or before it, the weight of the next row, whether exact, whether usable."""
    left = np.searchsorted(stamps, wanted, side="right") - 1
    before = left < 0
    left = np.maximum(left, 0)
    right = np.minimum(left + 1, stamps.size - 1)
    exact = stamps[left] == wanted
    span = stamps[right] - stamps[left]
    if settings.joints == "hold":
        span = np.zeros_like(span)
    after = (span == 0) & ~before
    weight = np.where(exact | after | before, 0.0, (wanted - stamps[left]) / np.maximum(span, 1))
    held = after & (wanted - stamps[left] <= round(settings.max_joint_hold * 1e9))
    between = ~after & ~before & (span <= round(settings.max_joint_gap * 1e9))
    return left, weight, exact, exact | held | between


def _span(stamps: IntArray) -> str:
    return f"{stamps[0] * 1e-9:.3f} to {stamps[-1] * 1e-9:.3f} s"
