"""Robots that are told where to walk, fall, and start anew: what a policy is trained in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.logs import JOINTS, LEGS
from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.policy_training.grounds import Grounds
from trace_ros.policy_training.rewards import Motion, reward
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import CONTROL_RATE_HZ, PhysicsConfig, RobotDynamics, Scene
from trace_ros.sim.policy_description import ObservationTerm, PolicyGains
from trace_ros.sim.ranges import draw
from trace_ros.sim.scaling import fit_to_robot
from trace_ros.sim.terrain import Plane, Terrain
from trace_ros.sim.walk import FallConfig, standing_pose

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

TERMS = (
    ObservationTerm(name="angular_velocity", scale=0.25),
    ObservationTerm(name="projected_gravity"),
    ObservationTerm(name="command"),
    ObservationTerm(name="joint_position"),
    ObservationTerm(name="joint_velocity", scale=0.05),
    ObservationTerm(name="last_action"),
)
"""What the policy observes, in order."""

OBSERVED = 45
PRIVILEGED = OBSERVED + 3 + 1 + LEGS + 1
"""What the value network sees: that without noise, and velocity, height, contacts and friction."""


@dataclass(frozen=True)
class Step:
    """What came of an action.

    Attributes:
        reward: (B,).
        done: (B,) whether the episode ended with this step; the robot has already started anew.
        timed_out: (B,) of these, those that did not fall.
        following: mean of how far the command's velocity was missed, m/s.
    """

    reward: FloatArray
    done: BoolArray
    timed_out: BoolArray
    following: float


class WalkingEnvironment:
    """A batch of robots, each with its own dynamics and ground."""

    def __init__(self, robot: RobotDescription, config: PolicyTrainingConfig, seed: int) -> None:
        """Build the worlds.

        Raises:
            TraceError: the engine cannot load the robot.
            ModuleNotFoundError: MuJoCo is not installed.
        """
        self._robot, self._config = robot, config
        self._rng = np.random.default_rng(seed)
        environment, varied = config.environment, config.randomisation
        count = environment.robots
        self._physics = PhysicsConfig(
            rate_hz=environment.physics_rate_hz, friction_impedance=environment.friction_impedance
        )
        gains = environment.gains or PolicyGains(kp=robot.control.kp, kd=robot.control.kd)
        scale = self._rng.uniform(*varied.gain_scale, count)
        self._kp, self._kd = gains.kp * scale, gains.kd * scale
        self._friction = self._rng.uniform(*varied.friction, count)
        ground, self._rewards = environment.ground, config.rewards
        if ground is not None and ground.sized_for is not None:
            ratio = robot.standing_height / ground.sized_for.standing_height
            swing = {"clearance_height": config.rewards.clearance_height * ratio}
            self._rewards, ground = config.rewards.model_copy(update=swing), fit_to_robot(ground, robot)
        self._grounds = Grounds(ground, count, self._rng)
        scenes = [
            Scene(
                terrain,
                RobotDynamics(
                    kp=float(self._kp[index]),
                    kd=float(self._kd[index]),
                    torque_limit=robot.torque_limits,
                    base_mass=robot.mass * draw(self._rng, varied.base_mass),
                    foot_friction=float(self._friction[index]),
                    foot_time_constant=draw(self._rng, varied.time_constant),
                ),
            )
            for index, terrain in enumerate(self._grounds.terrains)
        ]
        # Only who simulates needs the engine.
        from trace_ros.policy_training.grouped_backend import GroupedBackend

        self._engine = GroupedBackend(scenes, self._grounds.groups, robot, self._physics)
        substeps = self._physics.steps_per_control
        late = np.rint(self._rng.uniform(*varied.actuator_delay, count) * environment.physics_rate_hz)
        self._late = np.arange(substeps) < np.minimum(late, substeps)[:, None]
        self._controls = CONTROL_RATE_HZ // environment.rate_hz
        self.duration = 1.0 / environment.rate_hz
        """s, of a step."""
        self._length = round(environment.episode * environment.rate_hz)
        self._nominal = robot.nominal_joint_positions
        self._feet = robot.kinematics.forward(self._nominal)[0]
        level = Terrain("flat", planes=(Plane(),))
        start = standing_pose([level], np.zeros((1, 2)), np.zeros(1), self._nominal, robot)
        self._height = float(start[0][0, 2])
        self._limits = environment.command_limits.array
        self._tilt = float(np.cos(FallConfig().tilt))
        self._command = np.zeros((count, 3))
        self._age = np.zeros(count, dtype=np.int64)
        self._action, self._target = np.zeros((count, JOINTS)), np.tile(self._nominal, (count, 1))
        self._q, self._dq = self._target.copy(), np.zeros((count, JOINTS))
        self._rate, self._velocity = np.zeros((count, 3)), np.zeros((count, 3))
        self._gravity = np.tile([0.0, 0.0, -1.0], (count, 1))
        self._place = np.zeros((count, 2))
        self._lift, self._foot_lift = np.zeros(count), np.zeros((count, LEGS))
        self._contact = np.zeros((count, LEGS), dtype=np.bool_)
        self._air = np.zeros((count, LEGS))
        self._restart(np.arange(count))
        # Episodes that all began together would all end together.
        self._age = self._rng.integers(0, self._length, count)

    @property
    def robots(self) -> int:
        """B."""
        return len(self._command)

    def observe(self) -> tuple[FloatArray, FloatArray]:
        """What the policy sees, (B, 45), and what the value network does, (B, 54)."""
        varied = self._config.randomisation
        exact = (self._rate, self._gravity, self._command, self._q - self._nominal, self._dq, self._action)
        noise = (varied.gyro_noise, varied.gravity_noise, 0.0, varied.position_noise, varied.velocity_noise, 0.0)
        noisy = [value + self._rng.normal(size=value.shape) * size for value, size in zip(exact, noise, strict=True)]
        known = (self._velocity, self._lift[:, None] * 10.0, self._contact, self._friction[:, None])
        return _scaled(noisy), np.concatenate((_scaled(exact), *known), axis=1)

    def step(self, action: FloatArray) -> Step:
        """One step of the policy: (B, 12), package order."""
        config = self._config
        limit = config.environment.action_clip
        action = np.clip(action, -limit, limit)
        target = self._nominal + config.environment.action_scale * action
        before_dq, before_contact = self._dq, self._contact
        torso = np.zeros(self.robots, dtype=np.bool_)
        for control in range(self._controls):
            late = self._late[:, :, None] if control == 0 else np.zeros((1, 1, 1), dtype=np.bool_)
            self._engine.advance(np.where(late, self._target[:, None], target[:, None]))
            torso |= self._engine.trace.torso_contact.any(axis=1)
        self._read()
        self._air += self.duration
        landed = self._contact & ~before_contact
        motion = Motion(
            command=self._command,
            velocity=self._velocity,
            angular_velocity=self._rate,
            gravity=self._gravity,
            height=self._lift,
            torque=self._torque(target) / self._robot.torque_limits,
            joint_offset=self._q - self._nominal,
            joint_acceleration=(self._dq - before_dq) / self.duration,
            action_change=action - self._action,
            contact=self._contact,
            landed=landed,
            air_time=self._air,
            foot_speed=self._foot_speed(),
            foot_lift=self._foot_lift,
        )
        worth = reward(motion, self._rewards, self.duration)
        self._air[self._contact] = 0.0
        self._action, self._target = action, target
        self._age += 1
        sound = np.isfinite(self._q).all(axis=1) & np.isfinite(self._velocity).all(axis=1)
        fell = torso | ~(-self._gravity[:, 2] >= self._tilt) | ~sound
        done = fell | (self._age >= self._length) | self._grounds.left(self._place)
        worth = np.where(sound, worth, 0.0)
        error = np.linalg.norm((self._command - self._velocity)[~fell, :2], axis=1)
        missed = float(error.mean()) if error.size else 0.0
        self._restart(np.flatnonzero(done))
        self._disturb()
        return Step(worth, done, done & ~fell, missed)

    def _read(self) -> None:
        trace = self._engine.trace
        rotation = _rotations(trace.orientation[:, -1])
        self._q = trace.joint_position[:, -1].astype(float)
        self._dq = trace.joint_velocity[:, -1].astype(float)
        self._rate = trace.angular_velocity[:, -1].copy()
        self._velocity = rotation.inv().apply(trace.velocity[:, -1])
        self._gravity = rotation.inv().apply([0.0, 0.0, -1.0])
        position = trace.position[:, -1]
        self._place = position[:, :2].copy()
        self._lift = position[:, 2] - self._ground_under(np.arange(self.robots), rotation, self._place) - self._height
        self._foot_lift = self._lift_of_feet(position, rotation)
        self._contact = np.any(trace.foot_normal[:, -1] != 0, axis=-1)

    def _ground_under(self, rows: NDArray[np.int64], rotation: Rotation, place: FloatArray) -> FloatArray:
        """(N,) m: mean of the ground where feet stand below a robot with nominal joints."""
        beside = np.stack([rotation.apply(foot)[:, :2] for foot in self._feet], axis=1)
        return self._grounds.height_at(rows, place[:, None] + beside).mean(axis=1)

    def _lift_of_feet(self, position: FloatArray, rotation: Rotation) -> FloatArray:
        """(B, 4) m, of the feet's lowest points above the ground below them."""
        feet = self._robot.kinematics.forward(self._q)
        placed = np.stack([rotation.apply(feet[:, leg]) for leg in range(LEGS)], axis=1) + position[:, None]
        ground = self._grounds.height_at(np.arange(self.robots), placed[..., :2])
        return placed[..., 2] - ground - self._robot.foot_radius

    def _torque(self, target: FloatArray) -> FloatArray:
        """(B, 12) N m, of the motors at the end of the step."""
        torque = self._kp[:, None] * (target - self._q) - self._kd[:, None] * self._dq
        limits = self._robot.torque_limits
        return np.clip(np.nan_to_num(torque), -limits, limits)

    def _foot_speed(self) -> FloatArray:
        """(B, 4) m/s, in the body's x-y plane."""
        feet, jacobian, _ = self._robot.kinematics.forward_and_jacobians(self._q)
        legs = self._dq.reshape(-1, LEGS, 3)
        velocity = np.einsum("blij,blj->bli", jacobian, legs)
        velocity += self._velocity[:, None] + np.cross(self._rate[:, None], feet)
        return np.linalg.norm(velocity[..., :2], axis=-1)

    def _restart(self, rows: NDArray[np.int64]) -> None:
        if not rows.size:
            return
        spread = self._config.randomisation.start_joints
        joints = self._nominal + self._rng.uniform(-spread, spread, (rows.size, JOINTS))
        yaw = self._rng.uniform(-np.pi, np.pi, rows.size)
        xy = self._grounds.draw_starts(rows, self._rng)
        terrains = [self._grounds.terrains[row] for row in rows]
        position, orientation = standing_pose(terrains, xy, yaw, self._nominal, self._robot)
        position[:, 2] += 0.02
        self._engine.place(rows, position, orientation, joints)
        self._q[rows], self._dq[rows] = joints, 0.0
        self._rate[rows], self._velocity[rows], self._place[rows] = 0.0, 0.0, xy
        self._lift[rows] = position[:, 2] - self._height
        self._lift[rows] -= self._ground_under(rows, Rotation.from_quat(orientation), xy)
        self._gravity[rows] = (0.0, 0.0, -1.0)
        self._contact[rows], self._air[rows] = False, 0.0
        self._action[rows], self._target[rows] = 0.0, self._nominal
        self._age[rows] = 0
        self._tell(rows)

    def _tell(self, rows: NDArray[np.int64]) -> None:
        """New commands."""
        environment = self._config.environment
        part = self._rng.uniform(-1.0, 1.0, (rows.size, 3))
        # A third of them along one axis: walking straight is worth learning well.
        single = np.eye(3)[self._rng.integers(0, 3, rows.size)]
        part = np.where(self._rng.random((rows.size, 1)) < 1 / 3, part * single, part)
        stands = (self._rng.random(rows.size) < environment.standing) | (
            np.linalg.norm(part, axis=1) < environment.small_command
        )
        self._command[rows] = np.where(stands[:, None], 0.0, part * self._limits)

    def _disturb(self) -> None:
        environment = self._config.environment
        changed = self._rng.random(self.robots) < self.duration / environment.command_interval
        self._tell(np.flatnonzero(changed))
        pushed = self._rng.random(self.robots) < self.duration / environment.push_interval
        if pushed.any():
            knock = self._rng.uniform(-environment.push, environment.push, (self.robots, 3)) * (1.0, 1.0, 0.0)
            self._engine.knock(knock * pushed[:, None])


def _scaled(values: tuple[FloatArray, ...] | list[FloatArray]) -> FloatArray:
    return np.concatenate([value * term.scale for value, term in zip(values, TERMS, strict=True)], axis=1)


def _rotations(quaternion: FloatArray) -> Rotation:
    """Of (B, 4); a state that blew up may have none."""
    sound = np.isfinite(quaternion).all(axis=1) & (np.linalg.norm(quaternion, axis=1) > 0)
    return Rotation.from_quat(np.where(sound[:, None], quaternion, [0.0, 0.0, 0.0, 1.0]))
