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


def test_a_corrected_transform_counts_and_the_same_again_changes_nothing() -> None:
    mounting, same = Mounting(ROBOT, "tf"), Mounting(ROBOT, "tf")
    place = np.add(ROBOT.imu.position, (0.1, 0.0, 0.2))
    for each in (mounting, same):
        each.add_transforms([transform("base_link", "imu_link", place, Rotation.identity())])
    rng = np.random.default_rng(3)
    readings = [ImuReading(rng.normal(size=3), rng.normal(size=3), "imu_link") for _ in range(20)]
    for number, reading in enumerate(readings):
        if number == 10:  # as a publisher that is started again repeats it
            mounting.add_transforms([transform("base_link", "imu_link", place, Rotation.identity())])
        for one, other in zip(
            mounting.to_body(2_000_000 * number, reading), same.to_body(2_000_000 * number, reading), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    turn = Rotation.from_euler("xyz", [0.0, 0.0, np.pi / 2])
    mounting.add_transforms([transform("base_link", "imu_link", ROBOT.imu.position, turn)])
    angular, linear = mounting.to_body(40_000_000, readings[0])
    np.testing.assert_allclose(angular, turn.apply(readings[0].angular_velocity), atol=1e-12)
    np.testing.assert_allclose(linear, turn.apply(readings[0].linear_acceleration), atol=1e-12)


@pytest.mark.parametrize(
    ("quaternion", "position"),
    [
        ((np.nan,) * 4, (0, 0, 0)),
        ((0, 0, 0, 0), (0, 0, 0)),
        ((0, 0, 0, 1), (0, np.inf, 0)),
        ((0, 0, 0, 1), (1e9, 0, 0)),
    ],
)
def test_a_transform_that_is_none_is_named(quaternion: tuple, position: tuple) -> None:
    mounting = Mounting(ROBOT, "tf")
    bad = transform("base_link", "imu_link", position, Rotation.identity())
    q = bad.transform.rotation
    q.x, q.y, q.z, q.w = map(float, quaternion)
    mounting.add_transforms([bad])
    reading = ImuReading(np.zeros(3), np.zeros(3), "imu_link")
    with pytest.raises(BadMessageError, match=r"frame 'imu_link'; the one to 'imu_link' is none \(NaN"):
        mounting.to_body(0, reading)
    mounting.add_transforms([transform("base_link", "imu_link", ROBOT.imu.position, Rotation.identity())])
    np.testing.assert_array_equal(mounting.to_body(0, reading)[0], reading.angular_velocity)


def test_transforms_in_a_circle_are_named() -> None:
    mounting = Mounting(ROBOT, "tf")
    links = [("imu_link", "mount"), ("mount", "imu_link")]
    mounting.add_transforms([transform(parent, child, (0, 0, 0), Rotation.identity()) for parent, child in links])
    with pytest.raises(BadMessageError, match=r"the ones above '.*' run in a circle"):
        mounting.to_body(0, ImuReading(np.zeros(3), np.zeros(3), "imu_link"))


def test_a_publisher_that_invents_frames_fills_no_memory() -> None:
    tree = TransformTree()
    tree.add([transform("base_link", "imu", (0, 0, 0), Rotation.identity())])
    one = transform("base_link", "", (0, 0, 0), Rotation.identity())
    for number in range(12_000):
        one.child_frame_id = f"frame_{number}"
        tree.add([one])
    assert len(tree._parents) == 10_000
    tree.add([transform("base_link", "imu", (1, 0, 0), Rotation.identity())])
    np.testing.assert_array_equal(tree.pose("base_link", "imu")[1], [1, 0, 0])
