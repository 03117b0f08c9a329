"""Stamps and poses in ROS messages to numbers and back; see `trace_ros.streams.readings` for those of sensors."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.streams.readings import shown

FloatArray = NDArray[np.float64]

_FARTHEST = 1e9
"""m; no place is farther away, and squares of it are exact enough to go on from."""

_SHORTEST = 1e-6
"""Quaternions shorter than this, or as many times too long, are no slips of rounding."""


def stamp_to_ns(stamp: Any) -> int:
    """builtin_interfaces/Time to nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def set_stamp(stamp: Any, stamp_ns: int) -> None:
    """Nanoseconds into a builtin_interfaces/Time."""
    stamp.sec, stamp.nanosec = divmod(stamp_ns, 1_000_000_000)


def now_ns(clock: Any) -> int:
    """What a node's clock says, ns. rclpy's own answer takes thrice as long, and is another one in simulation only."""
    return int(clock.now().nanoseconds) if clock.ros_time_is_active else time.time_ns()


def check_frames(odom_frame: str, base_link_frame: str) -> None:
    """The frames of the odometry: two names that TF takes.

    Raises:
        TraceError: one is empty, has a slash where TF allows none, or both are the same.
    """
    for parameter, frame in (("odom_frame", odom_frame), ("base_link_frame", base_link_frame)):
        if not frame.strip():
            raise TraceError(f"parameter {parameter!r} is empty, expected the name of a frame")
        if frame.startswith("/"):
            raise TraceError(f"parameter {parameter!r} is {frame!r}: frames have no leading slash in ROS 2")
    if odom_frame == base_link_frame:
        raise TraceError(f"parameters 'odom_frame' and 'base_link_frame' are both {odom_frame!r}, expected two frames")


def pose_arrays(message: Any, odom_frame: str) -> tuple[FloatArray, FloatArray]:
    """Position (3,) and orientation (4,) x, y, z, w, of length 1, of a geometry_msgs/PoseWithCovarianceStamped.

    Raises:
        TraceError: it is in another frame than the odometry's, or no pose: not finite, beyond all places, or an
            orientation of length zero.
    """
    frame = message.header.frame_id
    if frame not in ("", odom_frame):
        raise TraceError(f"set_pose: the pose is in frame {shown(frame)!r}, expected {odom_frame!r}")
    p, q = message.pose.pose.position, message.pose.pose.orientation
    position, orientation = (p.x, p.y, p.z), (q.x, q.y, q.z, q.w)
    if not all(abs(value) <= _FARTHEST for value in position):  # true for NaN
        raise TraceError(f"set_pose: position {position} is none: expected numbers up to {_FARTHEST:g} m")
    length = math.hypot(*orientation)
    if not _SHORTEST < length < 1 / _SHORTEST:
        raise TraceError(f"set_pose: orientation {orientation} is none: expected a quaternion x, y, z, w of length 1")
    return np.array(position), np.array(orientation) / length


def pose_deviations(message: Any) -> tuple[float, float]:
    """Standard deviations of the position (m, the largest of its axes) and the heading (rad) of the same message.

    Zero where the covariance says nothing.

    Raises:
        TraceError: a variance is not finite, negative, or beyond all places.
    """
    variances = [float(message.pose.covariance[index]) for index in (0, 7, 14, 35)]
    if not all(0.0 <= value <= _FARTHEST**2 for value in variances):  # true for NaN
        listed = ", ".join(f"{value:g}" for value in variances)
        raise TraceError(f"set_pose: the variances of x, y, z and heading are {listed}: expected 0 or more, and finite")
    return math.sqrt(max(variances[:3])), math.sqrt(variances[3])
