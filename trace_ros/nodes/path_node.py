"""Odometry as nav_msgs/Path, for RViz: the estimate and, where there is one, the reference."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry, Path
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.task import Future
from scipy.spatial.transform import Rotation

from trace_ros.nodes.conversions import stamp_to_ns
from trace_ros.nodes.parameters import Parameter, Parameters
from trace_ros.nodes.spin import run

PARAMETERS = (
    Parameter("min_distance", 0.02, "a pose joins the path once it is this far from the last one", "m", 0.0, 100.0),
    Parameter("max_poses", 5000, "length of a path; the oldest poses go first", "poses", 2, 1000000),
    Parameter("publish_rate", 5.0, "rate of the paths", "Hz", 0.1, 100.0),
    Parameter("align_reference", True, "put the reference's start onto the estimate's, position and heading"),
    Parameter("queue_depth", 500, "depth of the input queues", "messages", 1, 100000),
)

_ALIGN_WITHIN_NS = 20_000_000
_STAMPS_KEPT = 1000
_JUMP_NS = 500_000_000
"""A stamp further back than this begins a new path; a smaller step back is disorder, and the message is ignored."""


class DecimatedPath:
    """A bounded line of poses, each some distance from the one before."""

    def __init__(self, min_distance: float, max_poses: int) -> None:
        self._min_distance = min_distance
        self.poses: deque[PoseStamped] = deque(maxlen=max_poses)
        self.frame = ""
        self.changed = False
        self._last_ns: int | None = None

    def add(self, odometry: Any) -> bool:
        """Take in an odometry message; returns whether time jumped back, which starts the path anew."""
        stamp_ns = stamp_to_ns(odometry.header.stamp)
        jumped = self._last_ns is not None and stamp_ns < self._last_ns - _JUMP_NS
        if jumped:
            self.poses.clear()
            self.changed = True
        elif self._last_ns is not None and stamp_ns < self._last_ns:
            return False
        self._last_ns = stamp_ns
        self.frame = odometry.header.frame_id
        if not is_pose(odometry.pose.pose):
            return jumped
        point = odometry.pose.pose.position
        if self.poses:
            last = self.poses[-1].pose.position
            if math.dist((point.x, point.y, point.z), (last.x, last.y, last.z)) < self._min_distance:
                return jumped
        self.poses.append(PoseStamped(header=odometry.header, pose=odometry.pose.pose))
        self.changed = True
        return jumped

    def clear(self) -> None:
        """Forget all poses."""
        self.poses.clear()
        self._last_ns = None
        self.changed = True


class PathNode(Node):
    """``odom`` -> ``path`` and ``reference/odom`` -> ``reference_path``."""

    def __init__(self, _stop: Future | None = None) -> None:
        super().__init__("path")
        self._params = Parameters(self, PARAMETERS)
        self._params.check()
        self._params.locked = True
        limits = self._params.number("min_distance"), self._params.integer("max_poses")
        self._estimate = DecimatedPath(*limits)
        self._reference = DecimatedPath(*limits)
        self._recent: dict[str, deque[Any]] = {
            "estimate": deque(maxlen=_STAMPS_KEPT),
            "reference": deque(maxlen=_STAMPS_KEPT),
        }
        self._alignment: tuple[Rotation, Any] | None = None
        qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=self._params.integer("queue_depth"),
            reliability=ReliabilityPolicy.BEST_EFFORT,
        )
        # The last path stays available to an RViz that starts later.
        latched = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=1,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
        )
        self._path_publisher = self.create_publisher(Path, "path", latched)
        self._reference_publisher = self.create_publisher(Path, "reference_path", latched)
        self.create_subscription(Odometry, "odom", self._on_estimate, qos)
        self.create_subscription(Odometry, "reference/odom", self._on_reference, qos)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / self._params.number("publish_rate"), self._publish, clock=steady)

    def close(self) -> None:
        """Nothing to put away."""

    def _on_estimate(self, message: Any) -> None:
        if self._estimate.add(message):
            self._restart()
        self._try_to_align("estimate", message)

    def _on_reference(self, message: Any) -> None:
        if self._reference.add(message):
            self._restart()
        self._try_to_align("reference", message)

    def _restart(self) -> None:
        """A bag loop: both start anew, whichever notices first."""
        self._estimate.clear()
        self._reference.clear()
        for recent in self._recent.values():
            recent.clear()
        self._alignment = None

    def _try_to_align(self, source: str, message: Any) -> None:
        """From the first pair of messages at (nearly) the same time: yaw and translation of the reference."""
        if self._alignment is not None or not self._params.flag("align_reference") or not is_pose(message.pose.pose):
            return
        self._recent[source].append(message)
        stamp_ns = stamp_to_ns(message.header.stamp)
        other = "reference" if source == "estimate" else "estimate"
        partners = [m for m in self._recent[other] if abs(stamp_to_ns(m.header.stamp) - stamp_ns) <= _ALIGN_WITHIN_NS]
        if not partners:
            return
        partner = min(partners, key=lambda m: abs(stamp_to_ns(m.header.stamp) - stamp_ns))
        estimate, reference = (message, partner) if source == "estimate" else (partner, message)
        turn = Rotation.from_euler("z", _yaw(estimate) - _yaw(reference))
        self._alignment = turn, _position(estimate.pose.pose) - turn.apply(_position(reference.pose.pose))
        self._reference.changed = True
        for recent in self._recent.values():
            recent.clear()

    def _publish(self) -> None:
        if self._estimate.changed and self._estimate.frame:
            self._path_publisher.publish(_path(self._estimate, self._estimate.frame, list(self._estimate.poses)))
            self._estimate.changed = False
        if self._reference.changed and self._reference.frame:
            poses, frame = list(self._reference.poses), self._reference.frame
            if self._params.flag("align_reference"):
                if self._alignment is None:
                    return  # shown once it can be shown where it belongs
                poses, frame = _moved(poses, *self._alignment), self._estimate.frame
            self._reference_publisher.publish(_path(self._reference, frame, poses))
            self._reference.changed = False


def _path(source: DecimatedPath, frame: str, poses: list[PoseStamped]) -> Path:
    message = Path(poses=poses)
    message.header.frame_id = frame
    if source.poses:
        message.header.stamp = source.poses[-1].header.stamp
    return message


def _moved(poses: list[PoseStamped], turn: Rotation, shift: Any) -> list[PoseStamped]:
    if not poses:
        return []
    positions = turn.apply([_position(pose.pose) for pose in poses]) + shift
    quaternions = (turn * Rotation.from_quat([_quaternion(pose.pose) for pose in poses])).as_quat()
    moved = []
    for pose, (x, y, z), (qx, qy, qz, qw) in zip(poses, positions.tolist(), quaternions.tolist(), strict=True):
        copy = PoseStamped(header=pose.header)
        point, quaternion = copy.pose.position, copy.pose.orientation
        point.x, point.y, point.z = x, y, z
        quaternion.x, quaternion.y, quaternion.z, quaternion.w = qx, qy, qz, qw
        moved.append(copy)
    return moved


def is_pose(pose: Any) -> bool:
    """Whether a geometry_msgs/Pose is one: finite, and with an orientation that is a rotation or was left at zeros."""
    p = pose.position
    return all(abs(value) < 1e9 for value in (p.x, p.y, p.z)) and 1e-6 < math.hypot(*_quaternion(pose)) < 1e6


def _position(pose: Any) -> Any:
    return np.array((pose.position.x, pose.position.y, pose.position.z))


def _quaternion(pose: Any) -> tuple[float, float, float, float]:
    q = pose.orientation
    return (q.x, q.y, q.z, q.w) if any((q.x, q.y, q.z, q.w)) else (0.0, 0.0, 0.0, 1.0)


def _yaw(odometry: Any) -> float:
    return float(Rotation.from_quat(_quaternion(odometry.pose.pose)).as_euler("ZYX")[0])


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of ``ros2 run trace_ros path``."""
    return run("path", PathNode, args, PARAMETERS)


if __name__ == "__main__":
    raise SystemExit(main())
