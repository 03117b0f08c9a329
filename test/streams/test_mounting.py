"""The IMU's place: rotation and lever arm, from the robot file, the URDF or static transforms."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from wire import header

from trace_ros.errors import TraceError
from trace_ros.robot import ImuMounting, RobotDescription
from trace_ros.streams.mounting import Mounting, TransformTree
from trace_ros.streams.readings import BadMessageError, ImuReading

ROBOT = RobotDescription.load("go2")


def transform(parent: str, child: str, position, rotation: Rotation):
    x, y, z = map(float, position)
    qx, qy, qz, qw = rotation.as_quat().tolist()
    return SimpleNamespace(
        header=header(0, parent),
        child_frame_id=child,
        transform=SimpleNamespace(
            translation=SimpleNamespace(x=x, y=y, z=z), rotation=SimpleNamespace(x=qx, y=qy, z=qz, w=qw)
        ),
    )


def test_the_robot_files_own_place_changes_nothing_bit_for_bit() -> None:
    reading = ImuReading(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 9.0]), "imu_link")
    angular, linear = Mounting(ROBOT).to_body(0, reading)
    assert angular is reading.angular_velocity
    assert linear is reading.linear_acceleration


def test_the_robot_files_rotation_is_applied() -> None:
    turned = ROBOT.model_copy(update={"imu": ImuMounting(rpy=(0.3, -0.2, 1.0))})
    reading = ImuReading(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 9.0]), "imu_link")
    angular, linear = Mounting(turned).to_body(0, reading)
    np.testing.assert_allclose(angular, turned.rotation_body_imu.apply(reading.angular_velocity), atol=1e-12)
    np.testing.assert_allclose(linear, turned.rotation_body_imu.apply(reading.linear_acceleration), atol=1e-12)


def test_transforms_are_chained_up_and_down() -> None:
    tree = TransformTree()
    first, second, third = Rotation.from_euler("xyz", np.random.default_rng(0).normal(size=(3, 3)))
    tree.add([transform("base_link", "mount", (1, 2, 3), first), transform("mount", "imu", (0.1, 0, 0), second)])
    tree.add([transform("base_footprint", "/base_link", (0, 0, 0.3), third)])
    rotation, position = tree.pose("base_link", "imu")
    np.testing.assert_allclose(rotation, (first * second).as_matrix(), atol=1e-12)
    np.testing.assert_allclose(position, [1, 2, 3] + first.apply([0.1, 0, 0]), atol=1e-12)
    rotation, position = tree.pose("imu", "base_footprint")
    inverse = (third * first * second).inv()
    np.testing.assert_allclose(rotation, inverse.as_matrix(), atol=1e-12)
    assert tree.pose("base_link", "camera") is None
    tree.add([transform("imu", "base_footprint", (0, 0, 0), first)])  # a circle
    assert tree.pose("base_link", "camera") is None


def test_transforms_that_are_none_are_passed_over() -> None:
    tree = TransformTree()
    bad = transform("base_link", "imu", (np.nan, 0, 0), Rotation.identity())
    zero = transform("base_link", "imu", (0, 0, 0), Rotation.identity())
    zero.transform.rotation.w = 0.0
    tree.add([bad, zero])
    assert tree.pose("base_link", "imu") is None


def test_by_tf_the_place_is_taken_once_it_is_known() -> None:
    mounting = Mounting(ROBOT, "tf")
    reading = ImuReading(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 9.0]), "imu_link")
    with pytest.raises(
        BadMessageError, match="no static transform from 'base_link' to the IMU's frame 'imu_link'"
    ) as e:
        mounting.to_body(0, reading)
    assert e.value.kind == "imu_no_transform"
    turn = Rotation.from_euler("xyz", [np.pi, 0.0, 0.5])
    mounting.transforms.add([transform("base_link", "imu_link", ROBOT.imu.position, turn)])
    angular, linear = mounting.to_body(0, reading)
    np.testing.assert_allclose(angular, turn.apply(reading.angular_velocity), atol=1e-12)
    np.testing.assert_allclose(linear, turn.apply(reading.linear_acceleration), atol=1e-12)
    assert "by the transform to 'imu_link'" in mounting.text
    assert "moved" not in mounting.text


def test_the_lever_arm_moves_the_specific_force_to_where_the_model_has_it() -> None:
    """A body that turns unsteadily about a fixed point, read at one place, told at another."""
    place = np.array([0.2, -0.1, 0.15])
    turn = Rotation.from_euler("xyz", [0.2, -0.4, 2.0])
    mounting = Mounting(ROBOT, "tf")
    mounting.transforms.add([transform("base_link", "imu_link", place, turn)])
    t = np.arange(1000) / 500.0
    omega = np.stack((np.sin(5 * t), 2 * np.cos(4 * t), 1.5 * np.sin(3 * t + 1)), axis=1)
    alpha = np.stack((5 * np.cos(5 * t), -8 * np.sin(4 * t), 4.5 * np.cos(3 * t + 1)), axis=1)
    force = np.array([0.3, 0.1, 9.81])  # of the body's origin, in the body frame

    def at(position):
        return force + np.cross(alpha, position) + np.cross(omega, np.cross(omega, position))

    found = np.array(
        [
            mounting.to_body(round(s * 1e9), ImuReading(turn.inv().apply(w), turn.inv().apply(a), "imu_link"))[1]
            for s, w, a in zip(t, omega, at(place), strict=True)
        ]
    )
    wanted = at(np.array(ROBOT.imu.position))
    assert np.abs(at(place) - wanted).max() > 1.0
    # The angular acceleration lags by the low-pass of 20 Hz (8 ms) and half a sample.
    assert np.abs(found[50:] - wanted[50:]).max() < 0.12
    assert "moved by" in mounting.text


def test_the_urdf_has_a_link_for_it_or_says_so() -> None:
    mounting = Mounting(ROBOT, "urdf", "FL_hip")
    _, position = ROBOT.model.pose("base_link", "FL_hip", {})
    x, y, z = position
    assert f"[{x:.4f}, {y:.4f}, {z:.4f}]" in mounting.text
    with pytest.raises(TraceError, match=r"go2.urdf: no link 'camera' for the IMU; it has"):
        Mounting(ROBOT, "urdf", "camera")
    by_message = Mounting(ROBOT, "urdf")
    with pytest.raises(BadMessageError, match="no link 'camera'"):
        by_message.to_body(0, ImuReading(np.zeros(3), np.zeros(3), "camera"))
