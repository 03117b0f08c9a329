import numpy as np
import pinocchio
import pytest

from trace_ros.leg_model import LegModel, cross
from trace_ros.robot import RobotDescription

IMU = np.array([0.03, -0.02, 0.05])


@pytest.fixture(scope="module", params=["go2", "a1"])
def robot(request) -> RobotDescription:
    return RobotDescription.load(request.param)


@pytest.fixture(scope="module")
def turned(tmp_path_factory) -> RobotDescription:
    """A Go2 whose thighs have turned inertia axes and a massive fixed link, and whose feet weigh something."""
    folder = tmp_path_factory.mktemp("robot")
    go2 = RobotDescription.load("go2")
    text = go2.urdf.read_text()
    text = text.replace(
        '<origin xyz="-0.00374 -0.0223 -0.0327"/>', '<origin xyz="-0.004 -0.02 -0.03" rpy="0.4 0.2 1"/>'
    )
    text = text.replace(
        '<link name="FL_foot">',
        '<link name="rotor"><inertial><origin xyz="0.01 0.02 0" rpy="0 0.3 0"/><mass value="0.3"/>'
        '<inertia ixx="1e-3" ixy="0" ixz="1e-4" iyy="2e-3" iyz="0" izz="2e-3"/></inertial></link>'
        '<joint name="rotor_fixed" type="fixed"><parent link="FL_thigh"/><child link="rotor"/>'
        '<origin xyz="0.01 0.03 -0.05" rpy="0.2 0.5 -0.4"/></joint><link name="FL_foot">'
        '<inertial><origin xyz="0 0 0.01"/><mass value="0.05"/>'
        '<inertia ixx="1e-5" ixy="0" ixz="0" iyy="1e-5" iyz="0" izz="1e-5"/></inertial>',
    )
    (folder / "go2.urdf").write_text(text)
    (folder / "turned.yaml").write_text(go2_yaml())
    return RobotDescription.load(folder / "turned.yaml")


def go2_yaml() -> str:
    from trace_ros.resources import config_directory

    text = (config_directory() / "robots" / "go2.yaml").read_text()
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("policy"))


def postures(robot: RobotDescription, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lower = np.maximum(robot.kinematics.lower_limit, -2.0)
    return rng.uniform(lower, np.minimum(robot.kinematics.upper_limit, 2.0), (count, 12))


def test_kinematics_are_those_of_whole_logs(robot):
    q = postures(robot, 20)
    rng = np.random.default_rng(1)
    foot, linear, angular = robot.kinematics.forward_and_jacobians(q)
    model = LegModel(robot)
    for i, row in enumerate(q):
        posture = model.at(row)
        np.testing.assert_allclose(posture.foot, foot[i], atol=1e-14)
        np.testing.assert_allclose(posture.jacobian, linear[i], atol=1e-14)
        dq = rng.normal(size=12)
        legs = dq.reshape(4, 3, 1)
        np.testing.assert_allclose(posture.foot_velocity(dq), (linear[i] @ legs)[..., 0], atol=1e-14)
        np.testing.assert_allclose(posture.shank_rate(dq), (angular[i] @ legs)[..., 0], atol=1e-14)


def check_dynamics(robot: RobotDescription) -> None:
    """Against Pinocchio's recursive Newton-Euler with a free body that moves as the sensors say."""
    reference = pinocchio.buildModelFromUrdf(str(robot.urdf), pinocchio.JointModelFreeFlyer())
    data = reference.createData()
    at_q = [reference.joints[reference.getJointId(name)].idx_q for name in robot.joint_names]
    at_v = [reference.joints[reference.getJointId(name)].idx_v for name in robot.joint_names]
    rng = np.random.default_rng(2)
    model = LegModel(robot)
    for row in postures(robot, 20, 3):
        dq, ddq = rng.normal(0, 5, 12), rng.normal(0, 50, 12)
        rate, force = rng.normal(0, 1, 3), rng.normal(0, 3, 3) + [0, 0, 9.81]
        # Specific force at the body's origin, and from it the spatial acceleration there (the body's axes stand as
        # the world's, gravity along -z).
        at_origin = force - cross(rate, cross(rate, IMU))
        velocity = rng.normal(0, 1, 3)
        q, v, a = pinocchio.neutral(reference), np.zeros(reference.nv), np.zeros(reference.nv)
        q[at_q], v[at_v], a[at_v] = row, dq, ddq
        v[:3], v[3:6] = velocity, rate
        a[:3] = at_origin - [0, 0, 9.81] - np.cross(rate, velocity)
        expected = pinocchio.rnea(reference, data, q, v, a)[at_v].reshape(4, 3)
        actual = model.torque(model.at(row), dq, ddq, rate, force, IMU)
        np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_dynamics_are_pinocchios(robot):
    check_dynamics(robot)


def test_fixed_links_and_turned_inertias_count(turned):
    check_dynamics(turned)


def test_cross_is_numpys():
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 5, 3)), rng.normal(size=(5, 3))
    np.testing.assert_allclose(cross(a, b), np.cross(a, b), atol=1e-15)
