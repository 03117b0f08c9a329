"""The control loop: a batch of robots, each with its policy variation, driven through an engine and recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from scipy.spatial.transform import Rotation

from trace_ros.logs import JOINTS
from trace_ros.robot import RobotDescription
from trace_ros.sim.actuation import DelayedTargets
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, Scene, create_backend
from trace_ros.sim.domain_randomization import SlipProcess
from trace_ros.sim.policy import PolicyInput
from trace_ros.sim.policy_randomization import RandomizedPolicy
from trace_ros.sim.ranges import STRICT
from trace_ros.sim.reproducible import rounded
from trace_ros.sim.terrain import Terrain

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class FallConfig(BaseModel):
    """When a robot has fallen or left its ground, and how much before that is not to be used.

    Attributes:
        tilt: rad, angle of the body's z axis from the vertical.
        margin: s, cut before the fall.
        edge: m, distance from the end of the ground, where it has one, at which a robot has left it.
    """

    model_config = STRICT
    tilt: float = Field(default=1.047, gt=0, lt=3.15)
    margin: float = Field(default=0.3, ge=0)
    edge: float = Field(default=0.5, ge=0)


class Walk:
    """A batch of robots walking: `step` runs one control step (10 ms) of all."""

    def __init__(
        self,
        scenes: Sequence[Scene],
        policy: RandomizedPolicy,
        robot: RobotDescription,
        physics: PhysicsConfig,
        control_steps: int,
    ) -> None:
        self._backend = create_backend(scenes, robot, physics)
        self._policy = policy
        self._physics = physics
        self._robots = len(scenes)
        self._delayed = DelayedTargets(np.array([scene.dynamics.actuator_delay for scene in scenes]), physics)
        self._step = 0
        self.trace = PhysicsTrace.allocate(self._robots, control_steps * physics.steps_per_control)
        """All that happened so far, at the physics rate."""
        self.joint_target = np.zeros((self._robots, control_steps, JOINTS))
        """(B, T, 12) rad, targets of each control step, as they are sent: the motors may get them later."""

    def reset(self, position: FloatArray, orientation: FloatArray) -> None:
        """Put the robots at rest in the policy's default posture: (B, 3) m, (B, 4) x, y, z, w."""
        joints = np.tile(self._policy.policy.default_joint_position, (self._robots, 1))
        self._backend.reset(position, orientation, joints)
        self._delayed.reset(joints)
        self._position, self._orientation = position.copy(), orientation.copy()
        self._rate = np.zeros((self._robots, 3))
        self._joint_position, self._joint_velocity = joints, np.zeros_like(joints)
        self._contact = np.zeros((self._robots, 4), dtype=np.bool_)
        self._step = 0

    @property
    def position(self) -> FloatArray:
        """(B, 3) m, world: where the robots are now."""
        return self._position

    @property
    def orientation(self) -> FloatArray:
        """(B, 4) x, y, z, w: how they are turned now."""
        return self._orientation

    def step(self, command: FloatArray, hold: BoolArray, push: FloatArray, slips: SlipProcess | None = None) -> None:
        """Ten milliseconds.

        Args:
            command: (B, 3) m/s, m/s, rad/s.
            hold: (B,) keep still.
            push: (B, 6) force (N) and torque (N m) on the base link's origin, world frame.
            slips: sudden slips of the feet.
        """
        if slips is not None and (friction := slips.update(self._step, self._contact)) is not None:
            self._backend.set_foot_friction(friction)
        gravity = Rotation.from_quat(self._orientation).inv().apply([0.0, 0.0, -1.0])
        observed = PolicyInput(self._rate, gravity, command, self._joint_position, self._joint_velocity)
        target = self._policy.act(observed, hold)
        self.joint_target[:, self._step] = target
        start = self._step * self._physics.steps_per_control
        self._backend.advance(self._delayed.send(target), push, self.trace, start)
        last = start + self._physics.steps_per_control - 1
        trace = self.trace
        self._position = trace.position[:, last]
        self._orientation = trace.orientation[:, last]
        self._rate = trace.angular_velocity[:, last]
        self._joint_position = trace.joint_position[:, last].astype(float)
        self._joint_velocity = trace.joint_velocity[:, last].astype(float)
        self._contact = np.any(trace.foot_normal[:, last] != 0, axis=-1)
        self._step += 1


def standing_pose(
    terrains: Sequence[Terrain], xy: FloatArray, yaw: FloatArray, default_joint_position: FloatArray,
    robot: RobotDescription, clearance: float = 0.01,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Level poses in which the lowest foot is just above the ground.

    Args:
        terrains: B grounds.
        xy: (B, 2) m.
        yaw: (B,) rad.
        default_joint_position: (12,) rad.
        robot: for the kinematics.
        clearance: m, between the lowest foot and the ground.

    Returns:
        Positions (B, 3) m and orientations (B, 4) x, y, z, w.
    """
    feet = robot.kinematics.forward(default_joint_position)[0]
    rotation = Rotation.from_euler("z", yaw[:, None])
    position = np.zeros((len(terrains), 3))
    position[:, :2] = xy
    for index, terrain in enumerate(terrains):
        placed = rotation[index].apply(feet)
        ground = terrain.height_at(xy[index] + placed[:, :2])
        position[index, 2] = np.max(ground - placed[:, 2]) + robot.foot_radius + clearance
    return rounded(position), rounded(rotation.as_quat().reshape(-1, 4))


def first_departure(trace: PhysicsTrace, terrains: Sequence[Terrain], config: FallConfig) -> NDArray[np.int64]:
    """First physics step at which each robot has come too near to the end of its ground; the number of steps where it
    has not. (B,)."""
    half_size = np.array([terrain.half_size for terrain in terrains])
    steps = trace.position.shape[1]
    outside = np.abs(trace.position[..., :2]).max(axis=-1) > (half_size - config.edge)[:, None]
    return np.where(outside.any(axis=1), outside.argmax(axis=1), steps)


def first_fall(trace: PhysicsTrace, config: FallConfig) -> NDArray[np.int64]:
    """First physics step at which each robot has fallen (tilt or torso contact, or a state that is not finite); the
    number of steps where it has not. (B,)."""
    x, y = trace.orientation[..., 0], trace.orientation[..., 1]
    upright = 1 - 2 * (x**2 + y**2)  # z component of the body's z axis
    fallen = ~(upright >= np.cos(config.tilt)) | trace.torso_contact
    steps = fallen.shape[1]
    return np.where(fallen.any(axis=1), fallen.argmax(axis=1), steps)
