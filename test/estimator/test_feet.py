"""The joints told at the feet: against the kinematics of the URDF, and what they are for."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_ros.estimator.feet import DAMPING, FootChannels
from trace_ros.leg_model import LegModel
from trace_ros.resources import config_directory
from trace_ros.robot import RobotDescription
from trace_ros.training.losses import contact_point_velocity


def joints_of(robot: RobotDescription, seed: int, count: int = 50) -> np.ndarray:
    rng = np.random.default_rng(seed)
    position = robot.nominal_joint_positions + 0.4 * rng.normal(size=(count, 12))
    return np.concatenate((position, 3 * rng.normal(size=(count, 12)), 10 * rng.normal(size=(count, 12))), axis=1)


@pytest.fixture(params=["go2", "a1"])
def robot(request: pytest.FixtureRequest) -> RobotDescription:
    return RobotDescription.load(request.param)


@given(seed=st.integers(0, 2**32 - 1))
def test_positions_and_velocities_are_those_of_the_urdf(seed: int) -> None:
    robot = RobotDescription.load("go2")
    joints, gyro = joints_of(robot, seed), np.random.default_rng(seed + 1).normal(size=(50, 3))
    channels = FootChannels(robot).at(joints, gyro)
    position, linear, angular = robot.kinematics.forward_and_jacobians(joints[:, :12])
    np.testing.assert_allclose(channels[:, :12], position.reshape(-1, 12), atol=1e-12)
    up = np.broadcast_to((0.0, 0.0, 1.0), (50, 4, 3))
    of_contact = contact_point_velocity(
        gyro, joints[:, 12:24], position, linear, angular, up, robot.foot_radius
    )  # of the contact point relative to a body that does not move along
    np.testing.assert_allclose(channels[:, 12:24], -of_contact.reshape(-1, 12), atol=1e-12)


def test_forces_are_those_whose_torques_the_joints_have(robot: RobotDescription) -> None:
    joints = joints_of(robot, 3)
    jacobian = LegModel(robot).at(joints[:, :12]).jacobian
    force = np.random.default_rng(0).normal(scale=50, size=(50, 4, 3))
    joints[:, 24:] = (jacobian.swapaxes(-1, -2) @ force[..., None]).reshape(50, 12)
    told = FootChannels(robot).at(joints, np.zeros((50, 3)))[:, 24:].reshape(50, 4, 3)
    # Damped by what a leg of that posture can bear: less than a tenth where each axis has an arm of 6 cm.
    strong = np.linalg.svd(jacobian, compute_uv=False).min(axis=-1) > 3 * DAMPING
    assert strong.sum() > 20
    error = np.linalg.norm(told - force, axis=-1) / np.linalg.norm(force, axis=-1)
    assert error[strong].max() < 0.1
    assert (np.linalg.norm(told, axis=-1) <= np.linalg.norm(force, axis=-1) + 1e-9).all()


def test_legs_of_any_kind_give_the_same(robot: RobotDescription) -> None:
    """The closed form for legs that turn about x, y, y, and the general one."""
    feet = FootChannels(robot)
    assert feet._plain is not None
    joints, gyro = joints_of(robot, 4), np.random.default_rng(5).normal(size=(50, 3))
    closed = feet.at(joints, gyro)
    feet._plain = None
    np.testing.assert_allclose(closed, feet.at(joints, gyro), rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> RobotDescription:
    """A Go2 whose calves turn about -y, and whose hips' frames are turned: no leg is of the usual kind."""
    folder = tmp_path_factory.mktemp("robot")
    shipped = config_directory() / "robots"
    text = (shipped / "go2.urdf").read_text()
    text = re.sub(r'(<joint name="\w\w_calf_joint".*?<axis xyz=")0 1 0(")', r"\g<1>0 -1 0\2", text, flags=re.DOTALL)
    hip = r'(<joint name="\w\w_hip_joint".*?<origin xyz="[^"]*")'
    text, turns = re.subn(hip, r'\1 rpy="0 0.2 0.3"', text, flags=re.DOTALL)
    assert turns == 4 and text.count('"0 -1 0"') == 4
    (folder / "go2.urdf").write_text(text)
    lines = (shipped / "go2.yaml").read_text().splitlines(keepends=True)
    (folder / "turned.yaml").write_text("".join(line for line in lines if not line.startswith("policy")))
    return RobotDescription.load(folder / "turned.yaml")


def test_a_robot_with_other_axes(turned: RobotDescription) -> None:
    joints, gyro = joints_of(turned, 9), np.random.default_rng(10).normal(size=(50, 3))
    channels = FootChannels(turned).at(joints, gyro)
    position, linear, angular = turned.kinematics.forward_and_jacobians(joints[:, :12])
    np.testing.assert_allclose(channels[:, :12], position.reshape(-1, 12), atol=1e-12)
    up = np.broadcast_to((0.0, 0.0, 1.0), (50, 4, 3))
    of_contact = contact_point_velocity(gyro, joints[:, 12:24], position, linear, angular, up, turned.foot_radius)
    np.testing.assert_allclose(channels[:, 12:24], -of_contact.reshape(-1, 12), atol=1e-12)
    square = linear @ linear.swapaxes(-1, -2) + DAMPING**2 * np.eye(3)
    force = np.linalg.solve(square, linear @ joints[:, 24:].reshape(50, 4, 3, 1))[..., 0]
    np.testing.assert_allclose(channels[:, 24:].reshape(50, 4, 3), force, atol=1e-9)
    # The closed form, which is that of a Go2, would be wrong by far.
    assert np.abs(channels - FootChannels(RobotDescription.load("go2")).at(joints, gyro)).max() > 0.1
    np.testing.assert_allclose(FootChannels(turned).at(joints[0], gyro[0]), channels[0], atol=1e-12)


def test_one_sample_gives_what_many_give(robot: RobotDescription) -> None:
    feet = FootChannels(robot)
    joints, gyro = joints_of(robot, 6), np.random.default_rng(7).normal(size=(50, 3))
    several = feet.at(joints, gyro)
    single = np.array([feet.at(row, rate) for row, rate in zip(joints, gyro, strict=True)])
    np.testing.assert_allclose(single, several, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(feet.at(joints.reshape(5, 10, 36), gyro.reshape(5, 10, 3)).reshape(50, 36), several)


def test_absent_torque_is_an_absent_force_and_nothing_else(robot: RobotDescription) -> None:
    feet, joints = FootChannels(robot), joints_of(robot, 8)
    with_torque = feet.at(joints, np.ones((50, 3)))
    joints[:, 24:] = np.nan
    for without in (feet.at(joints, np.ones((50, 3))), np.array([feet.at(row, np.ones(3)) for row in joints])):
        assert np.isnan(without[:, 24:]).all()
        np.testing.assert_allclose(without[:, :24], with_torque[:, :24], rtol=1e-12, atol=1e-12)


def test_a_straight_leg_gives_finite_forces(robot: RobotDescription) -> None:
    joints = np.zeros(36)
    joints[24:] = 30.0
    channels = FootChannels(robot).at(joints, np.zeros(3))
    assert np.isfinite(channels).all()
    assert np.abs(channels[24:]).max() <= 30 * np.sqrt(3) / (2 * DAMPING) + 1e-9
