"""Plays a bag's sensor topics at a chosen rate: the robot's place at the desk."""

from __future__ import annotations

import queue
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.task import Future
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Imu, JointState

from trace_ros.bags import Topics
from trace_ros.bags.storage import OpenBag, open_bag
from trace_ros.bags.topics import IMU_TYPE, JOINT_STATE_TYPE, ODOMETRY_TYPE, find_topic, require_topic
from trace_ros.errors import TraceError
from trace_ros.nodes.conversions import set_stamp
from trace_ros.nodes.parameters import Parameter, Parameters
from trace_ros.nodes.spin import run

PARAMETERS = (
    Parameter("bag", "", "the bag to play: a rosbag2 directory, or a .mcap or .db3 file"),
    Parameter("rate", 1.0, "speed: 2.0 plays twice as fast as it was recorded", "", 0.01, 100.0),
    Parameter("loop", False, "start again at the end, for ever"),
    Parameter(
        "restamp",
        False,
        "shift all header stamps by one constant: at rate 1 each is the time its message is due (no /clock then)",
    ),
    Parameter("clock_rate", 100.0, "rate of /clock, in the bag's time; 0: no /clock", "Hz", 0.0, 1000.0),
    Parameter("start_offset", 0.0, "skip this much of the bag's beginning", "s", 0.0, 1e6),
    Parameter(
        "wait_for_subscribers",
        10.0,
        "wait this long for subscribers to IMU and joints; 0: start at once",
        "s",
        0.0,
        3600.0,
    ),
    Parameter("subscribers", 1, "how many subscribers to IMU and to joints to wait for", "", 1, 100),
    Parameter("start_delay", 0.5, "pause between the last subscriber's arrival and the first message", "s", 0.0, 60.0),
    Parameter(
        "end_delay",
        1.0,
        "stay this long after the last message: what a slow subscriber has not taken yet goes with the publisher",
        "s",
        0.0,
        3600.0,
    ),
    Parameter("queue_depth", 500, "depth of the output queues", "messages", 1, 100000),
    Parameter("imu_topic", "imu/data", "name in the bag, with or without namespace"),
    Parameter("joint_states_topic", "joint_states", "name in the bag, with or without namespace"),
    Parameter("reference_topic", "reference/odom", "name in the bag of the true odometry, where there is one"),
)

_BATCH = 512
_BATCHES_AHEAD = 8
_MARGIN_S = 0.02
"""The schedule starts this much after the decision to start."""


@dataclass(frozen=True)
class _Item:
    time_ns: int
    channel: int
    data: bytes


class _ReadAhead:
    """Reads a bag in a thread, some seconds ahead of the player, so that decompression never delays a message."""

    def __init__(self, path: Path, topics: Sequence[str]) -> None:
        self._path = path
        self._channels = {topic: channel for channel, topic in enumerate(topics)}
        self._queue: queue.Queue[list[_Item] | TraceError | None] = queue.Queue(_BATCHES_AHEAD)
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._read, name="replay-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[_Item]:
        while (batch := self._queue.get()) is not None:
            if isinstance(batch, TraceError):
                raise batch
            yield from batch

    def cancel(self) -> None:
        """Stop reading."""
        self._cancelled.set()

    def _read(self) -> None:
        batch: list[_Item] = []
        try:
            with open_bag(self._path) as bag:
                for connection, time_ns, data in bag.messages(*self._channels):
                    batch.append(_Item(time_ns, self._channels[connection.topic], bytes(data)))
                    if len(batch) == _BATCH:
                        if not self._put(batch):
                            return
                        batch = []
            self._put(batch)
            self._put(None)
        except TraceError as error:
            self._put(error)

    def _put(self, item: list[_Item] | TraceError | None) -> bool:
        while not self._cancelled.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


class ReplayNode(Node):
    """Publishes ``imu/data``, ``joint_states`` and ``reference/odom`` from a bag, as recorded, on an absolute schedule.

    The messages go out byte for byte as the bag holds them; ``/clock`` carries the bag's time.
    """

    def __init__(self, stop: Future) -> None:
        """Open the bag and start to play.

        Raises:
            TraceError: a bad parameter, no such bag, or a bag without the topics.
        """
        super().__init__("replay")
        self._params = Parameters(self, PARAMETERS)
        self._params.check()
        self._params.locked = True
        self._stop = stop
        self._closing = threading.Event()
        if not self._params.text("bag"):
            raise TraceError("parameter 'bag' is empty, expected a rosbag2 directory: --ros-args -p bag:=PATH")
        self._path = Path(self._params.text("bag")).expanduser()
        self._restamp = self._params.flag("restamp")
        self._rate = self._params.number("rate")
        self._topics = self._find_topics()
        qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=self._params.integer("queue_depth"),
            reliability=ReliabilityPolicy.RELIABLE,
        )
        outputs = ((Imu, "imu/data"), (JointState, "joint_states"), (Odometry, "reference/odom"))
        self._outputs = [self.create_publisher(kind, name, qos) for kind, name in outputs[: len(self._topics)]]
        self._clock_publisher: Any = None
        if self._params.number("clock_rate") > 0 and not self._restamp:
            self._clock_publisher = self.create_publisher(ClockMessage, "/clock", 10)
        # The player and the reader share the interpreter; the default of 5 ms would be two samples late.
        sys.setswitchinterval(0.0005)
        self._thread = threading.Thread(target=self._play, name="replay-player", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop playing."""
        self._closing.set()
        self._thread.join(timeout=2.0)

    def _find_topics(self) -> list[str]:
        """IMU, joint states and, if there is one, the reference: names as in the bag."""
        params = self._params
        defaults = Topics()
        names = (params.text("imu_topic"), params.text("joint_states_topic"), params.text("reference_topic"))
        with open_bag(self._path) as bag:
            if not bag.types:
                raise TraceError(f"{self._path}: the bag is empty: it has no topics")
            where = str(self._path)
            imu = require_topic(bag.types, names[0], IMU_TYPE, where, by_type=names[0] == defaults.imu)
            joints = require_topic(
                bag.types, names[1], JOINT_STATE_TYPE, where, by_type=names[1] == defaults.joint_states
            )
            if names[2] == defaults.reference:
                reference = find_topic(bag.types, names[2], ODOMETRY_TYPE, where)
            else:
                reference = require_topic(bag.types, names[2], ODOMETRY_TYPE, where, by_type=False)
            topics = [imu, joints, *([reference] if reference else [])]
            for topic in (imu, joints):
                if not _has_messages(bag, topic):
                    raise TraceError(f"{where}: the bag is empty: no messages on {topic}")
        return topics

    # -- the player's thread --

    def _play(self) -> None:
        try:
            self._wait_for_subscribers()
            while not self._closing.is_set():
                self._play_once()
                if not self._params.flag("loop"):
                    break
            self._closing.wait(self._params.number("end_delay"))
            if not self._stop.done():
                self._stop.set_result(None)
        except Exception as error:
            # Whatever ends this thread must end the process: a silent player is worse than none.
            if not self._stop.done():
                self._stop.set_exception(error)

    def _wait_for_subscribers(self) -> None:
        limit = self._params.number("wait_for_subscribers")
        if limit <= 0:
            return
        inputs = self._outputs[:2]
        names = ", ".join(publisher.topic_name for publisher in inputs)
        wanted = self._params.integer("subscribers")
        many = "subscribers" if wanted == 1 else f"{wanted} subscribers each"
        self.get_logger().info(f"waiting up to {limit:g} s for {many} to {names}")
        deadline = time.monotonic() + limit
        while min(publisher.get_subscription_count() for publisher in inputs) < wanted:
            if time.monotonic() > deadline:
                some = "no" if wanted == 1 else f"not {wanted}"
                self.get_logger().warning(f"{some} subscribers to {names} within {limit:g} s: playing all the same")
                return
            if self._closing.wait(0.02):
                return
        # The subscriber needs to know of us too, and nothing tells when it does.
        self._closing.wait(self._params.number("start_delay"))

    def _play_once(self) -> None:
        reader = _ReadAhead(self._path, self._topics)
        try:
            self._play_items(iter(reader))
        finally:
            reader.cancel()

    def _play_items(self, items: Iterator[_Item]) -> None:
        first_ns: int | None = None
        counts = [0] * len(self._topics)
        latest = 0.0
        begin_ns = time.monotonic_ns() + round(_MARGIN_S * 1e9)
        offset_ns = round(self._params.number("start_offset") * 1e9)
        clock_step_ns = 0
        if self._clock_publisher is not None:
            clock_step_ns = round(1e9 / self._params.number("clock_rate"))
        next_clock_ns = 0
        shift_ns = 0
        for item in items:
            if first_ns is None:
                first_ns = item.time_ns + offset_ns
                next_clock_ns = first_ns
                # One shift for all topics: intervals stay, and which joint state belongs to which IMU message.
                lead_ns = begin_ns - time.monotonic_ns()
                shift_ns = self.get_clock().now().nanoseconds + lead_ns - first_ns
                self.get_logger().info(f"playing {self._path} at rate {self._rate:g}")
            if item.time_ns < first_ns:
                continue
            while clock_step_ns and next_clock_ns <= item.time_ns:
                if not self._sleep_until(begin_ns + round((next_clock_ns - first_ns) / self._rate)):
                    return
                self._publish_clock(next_clock_ns)
                next_clock_ns += clock_step_ns
            due_ns = begin_ns + round((item.time_ns - first_ns) / self._rate)
            if not self._sleep_until(due_ns):
                return
            latest = max(latest, (time.monotonic_ns() - due_ns) * 1e-9)
            data = item.data
            if self._restamp:
                data = shifted(data, shift_ns)
            self._outputs[item.channel].publish(data)
            counts[item.channel] += 1
        if first_ns is None or not any(counts):
            raise TraceError(f"{self._path}: nothing to play after {self._params.number('start_offset'):g} s")
        played = ", ".join(f"{count} on {out.topic_name}" for count, out in zip(counts, self._outputs, strict=True))
        self.get_logger().info(f"played {played}; the latest was {latest * 1e3:.1f} ms late")

    def _sleep_until(self, due_ns: int) -> bool:
        """Sleep until a time of the steady clock; False if the node closes meanwhile."""
        remaining = due_ns - time.monotonic_ns()
        if remaining > 50_000_000:
            self._closing.wait(remaining * 1e-9 - 0.02)
            remaining = due_ns - time.monotonic_ns()
        if remaining > 0:
            time.sleep(remaining * 1e-9)
        return not self._closing.is_set()

    def _publish_clock(self, time_ns: int) -> None:
        message = ClockMessage()
        set_stamp(message.clock, time_ns)
        self._clock_publisher.publish(message)


def shifted(data: bytes, shift_ns: int) -> bytes:
    """A serialised message that starts with a header, with its stamp moved: bytes 4 to 11 of its CDR encoding."""
    layout = "<iI" if data[1] & 1 else ">iI"
    seconds, nanoseconds = struct.unpack_from(layout, data, 4)
    seconds, nanoseconds = divmod(seconds * 1_000_000_000 + nanoseconds + shift_ns, 1_000_000_000)
    return data[:4] + struct.pack(layout, seconds, nanoseconds) + data[12:]


def _has_messages(bag: OpenBag, topic: str) -> bool:
    return next(iter(bag.messages(topic)), None) is not None


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of ``ros2 run trace_ros replay``."""
    return run("replay", ReplayNode, args, PARAMETERS)


if __name__ == "__main__":
    raise SystemExit(main())
