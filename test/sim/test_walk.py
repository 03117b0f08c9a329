"""The control loop between policy and engine."""

import numpy as np
import pytest

import trace_ros.sim.walk as walk_module
from trace_ros.sim.backend import PhysicsConfig, RobotDynamics, Scene
from trace_ros.sim.policy_randomization import UNCHANGED, RandomizedPolicy
from trace_ros.sim.terrain import Plane, Terrain
from trace_ros.sim.walk import Walk, standing_pose

FLAT = Terrain("flat", planes=(Plane(),))
PHYSICS = PhysicsConfig()
STEPS = PHYSICS.steps_per_control


def walk_of(go2, policy, delays, control_steps) -> Walk:
    scenes = [
        Scene(FLAT, RobotDynamics(policy.kp, policy.kd, go2.torque_limits, actuator_delay=delay)) for delay in delays
    ]
    robots = len(delays)
    varied = RandomizedPolicy(policy, [UNCHANGED] * robots, 0.01)
    walk = Walk(scenes, varied, go2, PHYSICS, control_steps)
    pose = standing_pose([FLAT] * robots, np.zeros((robots, 2)), np.zeros(robots), policy.default_joint_position, go2)
    walk.reset(*pose)
    return walk


def test_targets_are_kept_as_sent_and_arrive_late(go2, policy, monkeypatch):
    arrived = []
    original = walk_module.create_backend

    def create(*arguments):
        backend = original(*arguments)
        accept = backend.advance

        def advance(target, *others):
            arrived.append(target.copy())
            accept(target, *others)

        backend.advance = advance
        return backend

    monkeypatch.setattr(walk_module, "create_backend", create)
    walk = walk_of(go2, policy, [0.0, 0.0125], 30)
    for _ in range(30):
        walk.step(np.tile([0.5, 0.0, 0.0], (2, 1)), np.zeros(2, np.bool_), np.zeros((2, 6)))
    motors = np.concatenate(arrived, axis=1)
    sent = np.repeat(walk.joint_target, STEPS, axis=1)
    late = round(0.0125 * PHYSICS.rate_hz)
    assert np.array_equal(motors[0], sent[0])
    assert np.array_equal(motors[1, late:], sent[1, :-late])
    assert np.allclose(motors[1, :late], policy.default_joint_position)


def test_a_delay_changes_the_gait_and_not_its_footing(go2, policy):
    walk = walk_of(go2, policy, [0.0, 0.008], 200)
    for _ in range(200):
        walk.step(np.tile([0.6, 0.0, 0.0], (2, 1)), np.zeros(2, np.bool_), np.zeros((2, 6)))
    prompt, late = walk.trace.position[:, -1]
    assert prompt[0] == pytest.approx(1.1, abs=0.25)
    assert late[0] == pytest.approx(1.1, abs=0.25)
    assert np.linalg.norm(prompt - late) > 1e-3
    assert not walk.trace.torso_contact.any()


@pytest.mark.parametrize("delay", [0.0, 0.008, 0.015])
def test_holding_still_bears_a_delay(go2, policy, delay):
    walk = walk_of(go2, policy, [delay], 250)
    for step in range(250):
        walk.step(np.zeros((1, 3)), np.array([step > 50]), np.zeros((1, 6)))
    late = slice(-400, None)
    assert np.abs(walk.trace.joint_velocity[0, late]).max() < 0.05
    assert np.abs(walk.trace.velocity[0, late]).max() < 5e-3
