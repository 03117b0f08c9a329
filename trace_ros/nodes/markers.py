"""Markers for RViz and Foxglove: the legs, coloured by the attention paid to them, and how uncertain the position is.

The messages are of visualization_msgs; where that is not installed there are no markers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from geometry_msgs.msg import Point
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.nodes.conversions import set_stamp
from trace_ros.robot import LEG_NAMES, RobotDescription

try:
    from visualization_msgs.msg import Marker, MarkerArray
except ImportError:
    Marker = MarkerArray = None

FloatArray = NDArray[np.float64]

_LIFETIME_S = 0.5
"""A marker that is not renewed for so long goes."""

_WIDTH = 0.02
"""m, of the lines."""

_FULL = 0.5
"""Share of the legs' attention at which a leg has its full colour; a quarter is the average."""

_THINNEST = 1e-3
"""m; viewers complain about markers without any extent."""

_COVARIANCE_COLOUR = (0.8, 0.2, 0.8, 0.3)

_LITTLE, _MUCH = np.array((0.35, 0.42, 0.55)), np.array((1.0, 0.45, 0.05))


def available() -> bool:
    """Whether markers can be made."""
    return MarkerArray is not None


def leg_colour(share: float) -> FloatArray:
    """(3,) red, green, blue from 0 to 1 of a leg with this share (0 to 1) of the attention paid to legs."""
    much = min(max(share / _FULL, 0.0), 1.0)
    return (1.0 - much) * _LITTLE + much * _MUCH


def leg_points(robot: RobotDescription, joint_position: FloatArray) -> FloatArray:
    """Thigh joint, calf joint and foot of each leg in the body frame, m. ``(12,) rad -> (4, 3, 3)``.

    A joint is drawn at the point of its axis that is nearest to the foot: the lines lie in the plane of the leg.
    """
    foot, linear, axis = (part[0] for part in robot.kinematics.forward_and_jacobians(joint_position))
    # A column of the linear Jacobian is the axis crossed with the arm from the joint to the foot.
    arm = np.cross(linear, axis, axisa=1, axisb=1)
    points = np.empty((4, 3, 3))
    points[:, :2] = foot[:, None] - arm[:, 1:]
    points[:, 2] = foot
    return points


class LegMarkers:
    """A line and a sphere for each leg in the body frame, made once and refilled."""

    def __init__(self, robot: RobotDescription, frame: str) -> None:
        """Make the markers; `available` must hold."""
        self._robot = robot
        self.message: Any = MarkerArray()
        for leg, name in enumerate(LEG_NAMES):
            line = _marker(frame, f"leg {name}", leg, Marker.LINE_STRIP)
            line.scale.x = _WIDTH
            line.points = [Point() for _ in range(3)]
            foot = _marker(frame, f"foot {name}", leg, Marker.SPHERE)
            foot.scale.x = foot.scale.y = foot.scale.z = 3.0 * robot.foot_radius
            self.message.markers += [line, foot]

    def fill(self, stamp_ns: int, joint_position: FloatArray, reliability: FloatArray) -> Any:
        """The message for an instant.

        Args:
            stamp_ns: ns.
            joint_position: (12,) rad.
            reliability: (4,) attention on the legs.
        """
        points = leg_points(self._robot, joint_position)
        total = float(reliability.sum())
        shares = reliability / total if total > 0 else np.zeros(4)
        for leg in range(4):
            line, foot = self.message.markers[2 * leg : 2 * leg + 2]
            colour = leg_colour(float(shares[leg]))
            for marker in (line, foot):
                set_stamp(marker.header.stamp, stamp_ns)
                marker.color.r, marker.color.g, marker.color.b = colour.tolist()
            for point, (x, y, z) in zip(line.points, points[leg].tolist(), strict=True):
                point.x, point.y, point.z = x, y, z
            at = foot.pose.position
            at.x, at.y, at.z = points[leg, -1].tolist()
        return self.message


class CovarianceMarker:
    """The ellipsoid of one standard deviation of the position, in the frame of the odometry.

    RViz draws the covariance of odometry itself; the 3D panel of Foxglove draws no odometry.
    """

    def __init__(self, odom_frame: str) -> None:
        """Make the marker; `available` must hold."""
        self.marker: Any = _marker(odom_frame, "position covariance", 0, Marker.SPHERE)
        colour = self.marker.color
        colour.r, colour.g, colour.b, colour.a = _COVARIANCE_COLOUR

    def fill(self, stamp_ns: int, pose: Any) -> Any:
        """The marker of a geometry_msgs/PoseWithCovariance at an instant (ns)."""
        variances, axes = np.linalg.eigh(np.reshape(pose.covariance, (6, 6))[:3, :3])
        axes[:, 2] *= np.sign(np.linalg.det(axes))
        marker = self.marker
        set_stamp(marker.header.stamp, stamp_ns)
        marker.pose.position = pose.pose.position
        q, scale = marker.pose.orientation, marker.scale
        q.x, q.y, q.z, q.w = Rotation.from_matrix(axes).as_quat().tolist()
        scale.x, scale.y, scale.z = np.maximum(2.0 * np.sqrt(np.maximum(variances, 0.0)), _THINNEST).tolist()
        return marker


def _marker(frame: str, namespace: str, number: int, kind: int) -> Any:
    marker = Marker()
    marker.header.frame_id = frame
    marker.ns, marker.id, marker.type = namespace, number, kind
    marker.action = Marker.ADD
    marker.pose.orientation.w = 1.0
    marker.color.a = 1.0
    marker.lifetime.sec, marker.lifetime.nanosec = 0, round(_LIFETIME_S * 1e9)
    return marker
