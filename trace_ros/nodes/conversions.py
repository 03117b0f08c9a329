"""Stamps and poses in ROS messages to numbers and back; see `trace_ros.streams.readings` for those of sensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError

FloatArray = NDArray[np.float64]


def stamp_to_ns(stamp: Any) -> int:
    """builtin_interfaces/Time to nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def set_stamp(stamp: Any, stamp_ns: int) -> None:
    """Nanoseconds into a builtin_interfaces/Time."""
    stamp.sec, stamp.nanosec = divmod(stamp_ns, 1_000_000_000)


def pose_arrays(message: Any, odom_frame: str) -> tuple[FloatArray, FloatArray]:
    """Position (3,) and orientation (4,) x, y, z, w of a geometry_msgs/PoseWithCovarianceStamped.

    Raises:
        TraceError: it is in another frame than the odometry's.
    """
    frame = message.header.frame_id
    if frame not in ("", odom_frame):
        raise TraceError(f"set_pose: the pose is in frame {frame!r}, expected {odom_frame!r}")
    p, q = message.pose.pose.position, message.pose.pose.orientation
    return np.array((p.x, p.y, p.z)), np.array((q.x, q.y, q.z, q.w))


def pose_deviations(message: Any) -> tuple[float, float]:
    """Standard deviations of the position (m, the largest of its axes) and the heading (rad) of the same message.

    Zero where the covariance says nothing; NaN where it is none.
    """
    covariance = message.pose.covariance
    position = float(max(covariance[0], covariance[7], covariance[14]))
    return math.sqrt(max(position, 0.0)), math.sqrt(max(float(covariance[35]), 0.0))
