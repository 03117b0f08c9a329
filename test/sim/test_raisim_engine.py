"""The RaiSim backend on the real engine: skipped without raisimpy and its licence, so never run by its authors.

What its documentation leaves open shows here: frames, signs, orders, how long a push lasts.
"""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from trace_ros.geometry import GRAVITY
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, RobotDynamics, Scene, create_backend
from trace_ros.sim.raisim_backend import licence_file
from trace_ros.sim.terrain import Plane, Terrain
from trace_ros.sim.terrain_generation import TerrainConfig, generate_terrain
from trace_ros.sim.walk import standing_pose

pytest.importorskip("raisimpy", reason="needs raisimpy, which is not on PyPI: docs/training.md tells how to build it")
# Only the file's absence skips: a licence that is there and is refused fails these tests.
if not licence_file().is_file():
    pytest.skip(f"needs a RaiSim licence: {licence_file()} is not there", allow_module_level=True)

CONFIG = PhysicsConfig(backend="raisim", rate_hz=1000)
STEPS = CONFIG.steps_per_control
FLAT = Terrain("flat", planes=(Plane(),))
MASS = 15.2064


def run(
    go2, control_steps, *, height=None, yaw=0.3, push=(0.0, 0.0, 0.0), torque=(0.0, 0.0, 0.0), terrain=FLAT, offset=0.0
):
    dynamics = RobotDynamics(200.0, 5.0, go2.torque_limits, joint_friction=0.0)
    backend = create_backend([Scene(terrain, dynamics)], go2, CONFIG)
    posture = go2.nominal_joint_positions
    position, orientation = standing_pose([terrain], np.zeros((1, 2)), np.array([yaw]), posture, go2)
    if height is not None:
        position[:, 2] = height
    trace = PhysicsTrace.allocate(1, control_steps * STEPS)
    backend.reset(position, orientation, posture[None])
    for step in range(control_steps):
        target = np.tile(posture + offset, (1, STEPS, 1))
        backend.advance(target, np.array([[*push, *torque]]), trace, step * STEPS)
    return trace


def test_free_fall(go2):
    trace = run(go2, 10, height=50.0)
    elapsed = np.arange(1, 10 * STEPS + 1) / CONFIG.rate_hz
    assert np.allclose(trace.velocity[0, :, 2], -GRAVITY * elapsed, atol=0.05)
    assert not trace.torso_contact.any()
    assert (trace.foot_force == 0).all()


@pytest.mark.parametrize("yaw", [0.0, 1.2])
def test_push(go2, yaw):
    trace = run(go2, 10, height=50.0, yaw=yaw, push=(100.0, 0.0, 0.0))
    expected = 100.0 / MASS * 0.1
    assert trace.velocity[0, -1, 0] == pytest.approx(expected, rel=0.1)
    assert abs(trace.velocity[0, -1, 1]) < 0.1 * expected


@pytest.mark.parametrize("yaw", [0.0, 1.2])
def test_torque_is_in_the_world_frame(go2, yaw):
    trace = run(go2, 5, height=50.0, yaw=yaw, torque=(4.0, 0.0, 0.0))
    turned = Rotation.from_quat(trace.orientation[0, -1]) * Rotation.from_euler("z", yaw).inv()
    axis = turned.as_rotvec() / turned.magnitude()
    assert axis[0] > 0.95
    assert turned.magnitude() > 0.02


def test_angular_velocity_is_the_bodys(go2):
    trace = run(go2, 30, height=50.0, yaw=1.2, push=(40.0, 20.0, 0.0))
    rotation = Rotation.from_quat(trace.orientation[0])
    increment = (rotation[:-1].inv() * rotation[1:]).as_rotvec() * CONFIG.rate_hz
    assert np.allclose(increment, trace.angular_velocity[0, 1:], atol=0.02 + 0.02 * np.abs(increment).max())


@pytest.mark.parametrize("joint", range(12))
def test_joints_by_name(go2, joint):
    trace = run(go2, 20, height=50.0, offset=0.1 * np.eye(12)[joint])
    moved = trace.joint_position[0, -1] - go2.nominal_joint_positions
    assert int(np.argmax(moved)) == joint
    assert moved[joint] == pytest.approx(0.1, abs=0.04)


def test_standing(go2):
    trace = run(go2, 100)
    late = slice(-200, None)
    assert trace.foot_force[0, late].sum(axis=1).mean(axis=0) == pytest.approx([0, 0, MASS * GRAVITY], abs=3.0)
    assert np.allclose(trace.foot_normal[0, late], [0, 0, 1], atol=1e-3)
    assert not trace.torso_contact.any()


def test_height_map(go2):
    """Feet stand where `height_at` says."""
    terrain = generate_terrain("perlin", TerrainConfig(), 4.0, np.random.default_rng(5))
    trace = run(go2, 60, terrain=terrain)
    feet = go2.kinematics.forward(trace.joint_position[0, -1].astype(float))[0]
    world = trace.position[0, -1] + Rotation.from_quat(trace.orientation[0, -1]).apply(feet)
    gap = world[:, 2] - terrain.height_at(world[:, :2]) - go2.foot_radius
    touching = np.linalg.norm(trace.foot_normal[0, -1], axis=-1) > 0.5
    assert touching.sum() >= 2
    assert np.abs(gap[touching]).max() < 0.02
