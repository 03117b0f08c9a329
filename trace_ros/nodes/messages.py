"""The messages that leave the estimator, built once and refilled: building them costs more than sending them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import Odometry
from std_msgs.msg import Float32MultiArray, MultiArrayDimension, MultiArrayLayout

from trace_ros.nodes.conversions import set_stamp
from trace_ros.robot import LEG_NAMES

if TYPE_CHECKING:  # the estimator brings torch
    from trace_ros.estimator.estimator import Estimate

LEG_ATTENTION = slice(2, 6)
"""The tokens of the four legs among accel, gyro, FL, FR, RL, RR."""


class OutputMessages:
    """Odometry, transform and reliability of the feet.

    The reliability has no header. Its layout says what the numbers are: the first dimension is labelled
    ``FL,FR,RL,RR``, the second, of size 1, ``stamp=SECONDS.NANOSECONDS`` of the odometry that it belongs to.
    """

    def __init__(self, odom_frame: str, base_link_frame: str) -> None:
        self.odometry = Odometry()
        self.odometry.header.frame_id = odom_frame
        self.odometry.child_frame_id = base_link_frame
        self.transform = TransformStamped()
        self.transform.header.frame_id = odom_frame
        self.transform.child_frame_id = base_link_frame
        self._stamp_label = MultiArrayDimension(label="stamp=0.000000000", size=1, stride=1)
        legs = MultiArrayDimension(label=",".join(LEG_NAMES), size=4, stride=4)
        self.foot_reliability = Float32MultiArray(
            layout=MultiArrayLayout(dim=[legs, self._stamp_label]), data=[0.0] * 4
        )

    def fill(self, estimate: Estimate) -> None:
        """Write an estimate into odometry and transform. Pose in the odometry frame, twist in the child frame."""
        x, y, z = estimate.position.tolist()
        qx, qy, qz, qw = estimate.orientation.tolist()
        odometry = self.odometry
        set_stamp(odometry.header.stamp, estimate.stamp_ns)
        point, quaternion = odometry.pose.pose.position, odometry.pose.pose.orientation
        point.x, point.y, point.z = x, y, z
        quaternion.x, quaternion.y, quaternion.z, quaternion.w = qx, qy, qz, qw
        linear, angular = odometry.twist.twist.linear, odometry.twist.twist.angular
        linear.x, linear.y, linear.z = estimate.velocity.tolist()
        angular.x, angular.y, angular.z = estimate.angular_velocity.tolist()
        odometry.pose.covariance[:] = estimate.pose_covariance.ravel()
        odometry.twist.covariance[:] = estimate.twist_covariance.ravel()
        self.transform.header.stamp = odometry.header.stamp
        translation, rotation = self.transform.transform.translation, self.transform.transform.rotation
        translation.x, translation.y, translation.z = x, y, z
        rotation.x, rotation.y, rotation.z, rotation.w = qx, qy, qz, qw

    def fill_feet(self, stamp_ns: int, reliability: list[float]) -> None:
        """Write what `reliability_of_feet` gives for an estimate into the reliability of the feet."""
        self.foot_reliability.data = reliability
        seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
        self._stamp_label.label = f"stamp={seconds}.{nanoseconds:09d}"


def reliability_of_feet(estimate: Estimate) -> list[float]:
    """How much an estimate relies on each foot, FL, FR, RL, RR: attention, or 1 for those that a filter takes to stand.

    Zeros from an estimator that tells nothing of the feet.
    """
    if estimate.attention is not None:
        return list(estimate.attention[LEG_ATTENTION].tolist())
    return [0.0] * len(LEG_NAMES) if estimate.contact is None else list(estimate.contact.astype(float).tolist())
