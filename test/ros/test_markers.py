"""The legs as markers: where they are drawn, and their colours."""

from __future__ import annotations

import numpy as np
import pytest
from geometry_msgs.msg import PoseWithCovariance
from scipy.spatial.transform import Rotation

from trace_ros.nodes import markers
from trace_ros.nodes.markers import leg_colour, leg_points
from trace_ros.robot import LEG_NAMES, RobotDescription


@pytest.mark.parametrize("name", ["go2", "a1"])
def test_joints_lie_on_their_axes_and_feet_where_they_are(name: str) -> None:
    robot = RobotDescription.load(name)
    position = robot.nominal_joint_positions + np.linspace(-0.3, 0.3, 12)
    points = leg_points(robot, position)
    by_name = dict(zip(robot.joint_names, position.tolist(), strict=True))
    for leg, leg_name in enumerate(LEG_NAMES):
        part = robot.legs[leg_name]
        foot = robot.model.pose(robot.base_link, part.foot_link, by_name)[1]
        np.testing.assert_allclose(points[leg, 2], foot, atol=1e-12)
        for index, joint in enumerate(part.joints[1:]):
            rotation, origin = robot.model.pose(robot.base_link, robot.model.joints[joint].child, by_name)
            axis = rotation @ robot.model.joints[joint].axis
            off = points[leg, index] - origin
            np.testing.assert_allclose(np.cross(off, axis), 0, atol=1e-12)  # on the axis
            assert (foot - points[leg, index]) @ axis == pytest.approx(0, abs=1e-12)  # nearest to the foot


def test_more_attention_is_more_colour() -> None:
    reds = [leg_colour(share)[0] for share in (0.0, 0.25, 0.5, 1.0)]
    assert reds[0] < reds[1] < reds[2] == reds[3] == 1.0
    assert (leg_colour(-1.0) == leg_colour(0.0)).all()


def test_the_message(robot: RobotDescription) -> None:
    assert markers.available()  # visualization_msgs is one of the package's dependencies
    made = markers.LegMarkers(robot, "trunk").fill(
        3_000_000_005, robot.nominal_joint_positions, np.array([0.3, 0.1, 0.1, 0.1])
    )
    assert len({(marker.ns, marker.id) for marker in made.markers}) == len(made.markers) == 8
    for marker in made.markers:
        assert marker.header.frame_id == "trunk"
        assert (marker.header.stamp.sec, marker.header.stamp.nanosec) == (3, 5)
        assert marker.color.a == 1.0
        assert marker.lifetime.nanosec > 0
    line, foot, other = made.markers[:3]
    assert line.color.r > other.color.r
    feet = robot.kinematics.forward(robot.nominal_joint_positions)[0]
    assert (foot.pose.position.x, foot.pose.position.z) == pytest.approx((feet[0, 0], feet[0, 2]))
    assert line.points[2].z == pytest.approx(feet[0, 2])


def test_the_ellipsoid_of_the_position() -> None:
    turn = Rotation.from_euler("xyz", [0.3, -0.4, 1.1]).as_matrix()
    variances = np.array([0.04, 0.0, 0.25])
    pose = PoseWithCovariance()
    pose.pose.position.x = 5.0
    covariance = np.zeros((6, 6))
    covariance[:3, :3] = turn @ np.diag(variances) @ turn.T
    covariance[3:, 3:] = 9.0 * np.eye(3)
    pose.covariance = covariance.ravel()
    marker = markers.CovarianceMarker("odom").fill(1_000_000_002, pose)
    assert (marker.header.frame_id, marker.header.stamp.sec, marker.header.stamp.nanosec) == ("odom", 1, 2)
    assert marker.pose.position.x == 5.0
    q, scale = marker.pose.orientation, np.array([getattr(marker.scale, axis) for axis in "xyz"])
    assert sorted(scale) == pytest.approx([1e-3, 0.4, 1.0])  # diameters; one without extent is drawn thin
    axes = Rotation.from_quat([q.x, q.y, q.z, q.w]).as_matrix()
    np.testing.assert_allclose(axes @ np.diag((scale / 2) ** 2) @ axes.T, covariance[:3, :3], atol=1e-6)
