"""IMU and joint messages in, samples out: what the node and the reading of bags have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription
from trace_ros.streams.kinds import Kind, Tally
from trace_ros.streams.mounting import Mounting, MountingSource
from trace_ros.streams.pairing import PairingSettings, SamplePairer
from trace_ros.streams.readings import (
    BadMessageError,
    ImuReading,
    JointFinder,
    JointReading,
    header_stamp_ns,
    imu_reading,
    shown,
)
from trace_ros.streams.stamps import Stamper, StampOrder

_EVIDENCE = 20
"""Joint messages after which joints that nobody reported are missing."""

_LONGEST_LIST = 24
"""Names of joints in a line of text."""


class StreamSettings(PairingSettings):
    """How messages become samples.

    Attributes:
        use_effort: whether the effort in the joint states is the joint torque; else it is not looked at.
        imu_mounting: where the IMU's place in the body is read from: the "robot" file, a link of the "urdf", or "tf".
        imu_frame: that link, or that frame in the static transforms; empty: the frame of the IMU's messages.
    """

    use_effort: bool = True
    imu_mounting: MountingSource = "robot"
    imu_frame: str = Field(default="", max_length=256)


@dataclass(frozen=True)
class TimeJump:
    """Stamps went back: samples from here on are of a new time line.

    Attributes:
        seconds: the size of the step, negative.
    """

    seconds: float


Event = Sample | TimeJump


class SensorStreams:
    """Takes in messages of both topics as they come, and gives samples in the order of their stamps.

    Whatever a message holds, no exception leaves: what cannot be used is dropped and counted by kind.
    """

    def __init__(
        self,
        robot: RobotDescription,
        settings: StreamSettings | None = None,
        on_first: Callable[[Kind, str], None] | None = None,
    ) -> None:
        """Start empty.

        Args:
            robot: its joints, and the place of its IMU.
            settings: limits and sources.
            on_first: called with a kind of fault and one line about it when it occurs for the first time.

        Raises:
            TraceError: the URDF has no link for the IMU where the settings ask for one.
        """
        self._settings = settings or StreamSettings()
        self.tally = Tally(on_first)
        self.pairer = SamplePairer(self._settings, self.tally)
        self.mounting = Mounting(robot, self._settings.imu_mounting, self._settings.imu_frame)
        self._finder = JointFinder(robot, self._settings.use_effort)
        self._jump_ns = round(self._settings.time_jump_limit * 1e9)
        self.reports_velocity: bool | None = None
        """Whether the joint states tell velocities, as of the last of them; None before the first."""
        self.reports_effort: bool | None = None
        """The same of efforts."""
        self.clear()

    def clear(self) -> None:
        """Forget all messages; the counts stay. What comes then is as after a fresh start."""
        self._events: list[Event] = []
        self._imu_stamper: Stamper[ImuReading] = Stamper("imu", self.tally)
        self._joint_stamper: Stamper[JointReading] = Stamper("joints", self.tally)
        self._imu_order: StampOrder[ImuReading] = self._order("imu")
        self._joint_orders: dict[tuple[int, ...], StampOrder[JointReading]] = {}
        self._joint_messages = 0
        self._imu_fault = self._joint_fault = ""
        self.pairer.clear()
        self.mounting.forget()
        self._finder.forget()

    def add_transforms(self, transforms: Any) -> None:
        """Take in static transforms (geometry_msgs/TransformStamped), for an ``imu_mounting`` by "tf"."""
        self.mounting.add_transforms(transforms)

    def add_imu(self, message: Any, arrival_ns: int) -> list[Event]:
        """Take in a sensor_msgs/Imu.

        Args:
            message: of rclpy or rosbags.
            arrival_ns: when it came, for messages without stamps.

        Returns:
            The samples that this completes, oldest first, and a `TimeJump` before those of a new time line.
        """
        try:
            reading = imu_reading(message)
        except BadMessageError as error:
            self._imu_fault = error.text if error.kind == "imu_not_reported" else ""
            self.tally.count(error.kind, error.text)
            return []
        for stamp_ns, stamped in self._imu_stamper.stamp(header_stamp_ns(message), arrival_ns, reading):
            for ordered_ns, ordered in self._imu_order.admit(stamp_ns, stamped):
                try:
                    angular_velocity, linear_acceleration = self.mounting.to_body(ordered_ns, ordered)
                except BadMessageError as error:
                    self._imu_fault = error.text
                    self.tally.count(error.kind, error.text)
                    continue
                self._imu_fault = ""
                self._events += self.pairer.add_imu(ordered_ns, angular_velocity, linear_acceleration)
        return self._take()

    def add_joints(self, message: Any, arrival_ns: int) -> list[Event]:
        """Take in a sensor_msgs/JointState; arguments and result as of `add_imu`."""
        self._joint_messages += 1
        try:
            reading = self._finder.read(message, self.tally)
        except BadMessageError as error:
            self._joint_fault = error.text if error.kind == "joints_repeated_joints" else ""
            self.tally.count(error.kind, error.text)
            return []
        if reading is None:
            self.tally.count("joints_foreign")
            return []
        self._joint_fault = ""
        self.reports_velocity, self.reports_effort = reading.velocity is not None, reading.torque is not None
        for stamp_ns, stamped in self._joint_stamper.stamp(header_stamp_ns(message), arrival_ns, reading):
            if not self.pairer.accepts(stamp_ns, stamped.slots):
                self.tally.count("joints_overlap", self._names(stamped.slots) + " come from another publisher too")
                continue
            order = self._joint_orders.get(stamped.slots)
            if order is None:
                order = self._joint_orders[stamped.slots] = self._order("joints")
            for ordered_ns, ordered in order.admit(stamp_ns, stamped):
                if self.pairer.accepts(ordered_ns, ordered.slots):  # a jump has made it forget its publishers
                    self._events += self.pairer.add_joints(ordered_ns, ordered)
        return self._take()

    def finish(self) -> list[Event]:
        """The samples that still wait, at the end of the streams."""
        self._events += self.pairer.flush()
        return self._take()

    def fault(self) -> str:
        """What keeps samples from being made at present, one line; empty when nothing does."""
        if self._joint_fault:
            return self._joint_fault
        if self._joint_messages >= _EVIDENCE and None in self.pairer.owners:
            return self.missing_joints() or "no usable joint states of all joints so far: the counts by kind say why"
        if self._imu_fault:
            return self._imu_fault
        if self.pairer.apart_s is not None:
            return (
                f"the stamps of joint states and IMU are {self.pairer.apart_s:+.3f} s apart: two clocks; "
                "have both stamped by one"
            )
        return ""

    def missing_joints(self) -> str:
        """Which of the robot's joints no message has named so far, one line; empty when none is missing."""
        if None not in self.pairer.owners or not self._joint_messages:
            return ""
        missing = self._finder.missing
        if not missing:
            return ""
        return (
            f"joint names missing from the joint states: {_listed(missing)}; they have: "
            f"{_listed(self._finder.seen) or 'none'}"
        )

    def mapping(self) -> str:
        """Which name in the joint states fills which of the robot's slots, a line each leg."""
        return self._finder.describe()

    def found(self) -> str:
        """What the joint states turned out to hold, one line; empty until all twelve joints were reported."""
        owners = self.pairer.owners
        if None in owners:
            return ""
        publishers = len(set(owners))
        text = "all 12 joints found" + (f", by {publishers} publishers" if publishers > 1 else "")
        extra = [name for name in self._finder.seen if name not in self._finder.reported_names]
        if extra:
            text += f"; {len(extra)} others ignored ({_listed(extra)})"
        return text

    def _order(self, stream: str) -> StampOrder[Any]:
        return StampOrder(stream, self.tally, self._jump_ns, self._settings.reset_on_time_jump, self._on_jump)

    def _on_jump(self, last_ns: int, first_ns: int) -> None:
        """A stream has begun a new time line: what waits is of the old one."""
        self._events += self.pairer.flush()
        self.pairer.clear()
        self.mounting.forget()
        self._finder.forget()
        self._imu_order.forget((last_ns, first_ns))
        for order in self._joint_orders.values():
            order.forget((last_ns, first_ns))
        self._events.append(TimeJump((first_ns - last_ns) * 1e-9))

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _names(self, slots: tuple[int, ...]) -> str:
        return _listed([self._finder.reported_names[slot] for slot in slots])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LONGEST_LIST} more" if len(names) > _LONGEST_LIST else ""
    return ", ".join(shown(name) for name in names[:_LONGEST_LIST]) + more
