"""A second engine: Bullet through PyBullet, one world for each robot, stepped in Python.

It is for evaluation: its contact solver is one that no estimator was trained on. What differs from MuJoCo:

- Joint torques are explicit, ``kp (q_des - q) - kd dq`` clipped to the limit, anew in every physics step, with the
  joints' damping and dry friction. Bullet's own position control is a velocity constraint without gains in N m/rad.
- Bullet knows no rotor inertia. The links that the first and the third joint of a leg move get it, about the joint's
  axis: each joint then has its inertia (the second joint through the third one's link, whose axis is parallel), but the
  body feels it too, as if the rotors turned with their links: 20 % more inertia in roll on a Go2, 8 % in pitch.
- Contacts are springs with dampers (see `contact_stiffness`), of one stiffness for each part of the ground; friction
  is Coulomb's.

Of `PhysicsConfig`, ``threads``, ``friction_cone``, ``noslip_iterations`` and ``friction_impedance`` belong to MuJoCo,
as ``foot_impedance`` of `RobotDynamics` does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, RobotDynamics, Scene
from trace_ros.sim.bullet_urdf import BulletUrdf
from trace_ros.sim.reproducible import rounded
from trace_ros.sim.terrain import Surface, Terrain

FloatArray = NDArray[np.float64]


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Keeps off the process's own streams what Bullet says there, past Python's; the list has the lines in the end."""
    sys.stdout.flush()
    sys.stderr.flush()
    said: list[str] = []
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    with tempfile.TemporaryFile() as file:
        try:
            for stream in kept:
                os.dup2(file.fileno(), stream)
            yield said
        finally:
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)
            file.seek(0)
            said += file.read().decode(errors="replace").split("\n")


with _quiet():
    import pybullet as bullet  # type: ignore[import-not-found]

_BASE = -1
"""Link index of the root."""
# Stiffness of a foot's contact over that of a quarter of the robot vibrating with the contact's time constant. Found by
# letting a Go2 walk in both engines: so its feet are in the ground as deep as in MuJoCo on average, hard or soft.
_STIFFENING = 2.0
# Part of the full stiffness that soft ground has at its surface (MuJoCo: 9/19, by its impedance of 0.9 and 0.95).
_SURFACE_STIFFNESS = 0.5
_SHALLOWEST = 0.001
"""m; a smaller sinkage of soft ground is none (MuJoCo's default width of the contact impedance)."""
_BODY_FRICTION = 1.0
"""Of all links but the feet on ground without a friction of its own; MuJoCo's default."""
# Coulomb friction of a joint acts on at least this inertia (kg m^2), a tenth of a rotor's.
_SMALLEST_INERTIA = 1e-3
_SMALLEST_FRICTION = 1e-6
_NOWHERE = (0.0, 0.0, 0.0)
"""Normal of a foot without contact."""
# A state: pose and velocity of the root's inertial frame, joints. All in the world frame, quaternions x, y, z, w.
_POSITION, _ORIENTATION, _VELOCITY, _RATE = slice(0, 3), slice(3, 7), slice(7, 10), slice(10, 13)
_JOINT_POSITION, _JOINT_VELOCITY = slice(13, 13 + JOINTS), slice(13 + JOINTS, 13 + 2 * JOINTS)
_STATE_SIZE = 13 + 2 * JOINTS
# Faster joints (rad/s) than Bullet's default of 100 are left alone.
_FASTEST_JOINT = 1e4


class BulletBackend:
    """See `trace_ros.sim.backend.SimulationBackend`."""

    def __init__(self, scenes: Sequence[Scene], robot: RobotDescription, config: PhysicsConfig) -> None:
        """Raises `TraceError`: the URDF does not fit."""
        self._steps = config.steps_per_control
        self._worlds = [_RobotWorld(scene, robot, config) for scene in scenes]

    def reset(self, position: FloatArray, orientation: FloatArray, joint_position: FloatArray) -> None:
        """See the protocol."""
        for world, p, q, joints in zip(self._worlds, position, orientation, joint_position, strict=True):
            world.reset(p, q, joints)

    def advance(self, joint_target: FloatArray, push: FloatArray, trace: PhysicsTrace, start: int) -> None:
        """See the protocol."""
        for index, world in enumerate(self._worlds):
            world.advance(joint_target[index], np.asarray(push[index], dtype=float), self._steps, trace, index, start)

    def set_foot_friction(self, friction: FloatArray) -> None:
        """See the protocol."""
        for world, values in zip(self._worlds, friction, strict=True):
            world.set_foot_friction(values)


class _RobotWorld:
    """One robot on its ground."""

    def __init__(self, scene: Scene, robot: RobotDescription, config: PhysicsConfig) -> None:
        self._dynamics = scene.dynamics
        self._client = bullet.connect(bullet.DIRECT)
        if self._client < 0:
            raise TraceError(
                "Bullet gives no further world (its limit is about a thousand at once): use smaller batches"
            )
        weakref.finalize(self, bullet.disconnect, self._client)
        bullet.setGravity(0.0, 0.0, -GRAVITY, physicsClientId=self._client)
        period = 1.0 / config.rate_hz
        bullet.setPhysicsEngineParameter(
            fixedTimeStep=period,
            numSubSteps=0,
            numSolverIterations=config.solver_iterations,
            solverResidualThreshold=0.0,
            enableConeFriction=1,
            deterministicOverlappingPairs=1,
            physicsClientId=self._client,
        )
        urdf = BulletUrdf(robot)
        self._friction_limit, self._damping = urdf.apply(scene.dynamics)
        # Coulomb friction stops a joint within one step where it can, and never turns it round.
        self._friction_slope = max(scene.dynamics.armature, _SMALLEST_INERTIA) / period
        self._robot = self._add_robot(urdf, robot)
        self._find_parts(robot)
        mass = self._prepare_links()
        self._own_friction: set[int] = set()
        self._add_terrain(scene.terrain, mass)
        # The inertial frame in the base link's, which it is turned to as well: Bullet's pose and velocity are its.
        info = bullet.getDynamicsInfo(self._robot, _BASE, physicsClientId=self._client)
        self._inertial = np.array(info[3]), Rotation.from_quat(info[4])
        self._on_own = [False] * LEGS
        self._foot_friction = np.full(LEGS, scene.dynamics.foot_friction)
        for leg in range(LEGS):
            self._apply_foot_friction(leg)
        self._broken = False

    def _add_robot(self, urdf: BulletUrdf, robot: RobotDescription) -> int:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "robot.urdf"
            path.write_text(urdf.text, encoding="utf-8")
            try:
                with _quiet() as said:
                    body = bullet.loadURDF(
                        str(path), flags=bullet.URDF_USE_INERTIA_FROM_FILE, physicsClientId=self._client
                    )
            except bullet.error as error:
                reason = next((line.strip() for line in said if line.strip()), str(error))
                raise TraceError(f"{robot.urdf}: Bullet cannot load it ({reason})") from error
        root = bullet.getBodyInfo(body, physicsClientId=self._client)[0].decode()
        if root != robot.base_link:
            raise TraceError(
                f"{robot.urdf}: base_link {robot.base_link} must be the root link for Bullet, which is {root}"
            )
        return int(body)

    def _find_parts(self, robot: RobotDescription) -> None:
        """Indices of joints and feet, by name, and of the links that are the base."""
        infos = [
            bullet.getJointInfo(self._robot, index, physicsClientId=self._client)
            for index in range(bullet.getNumJoints(self._robot, physicsClientId=self._client))
        ]
        moving = {info[1].decode(): info[0] for info in infos if info[2] != bullet.JOINT_FIXED}
        links = {info[12].decode(): info[0] for info in infos}
        if set(moving) != set(robot.joint_names):
            raise TraceError(
                f"{robot.urdf}: has {len(moving)} moving joints, expected the {JOINTS} that the robot file names"
            )
        self._links = [_BASE, *(info[0] for info in infos)]
        self._joints = [moving[name] for name in robot.joint_names]
        self._axes = {info[0]: np.array(info[13]) for info in infos if info[0] in moving.values()}
        self._feet = [links[name] for name in robot.foot_links]
        self._leg_of_link = {link: leg for leg, link in enumerate(self._feet)}
        # Parents come before their children.
        self._torso = {_BASE}
        for info in infos:
            if info[2] == bullet.JOINT_FIXED and info[16] in self._torso:
                self._torso.add(info[0])

    def _prepare_links(self) -> float:
        """What can only be set afterwards; returns the robot's mass (kg)."""
        friction = max(self._dynamics.foot_friction, _SMALLEST_FRICTION)
        mass = 0.0
        for link in self._links:
            mass += bullet.getDynamicsInfo(self._robot, link, physicsClientId=self._client)[0]
            bullet.changeDynamics(
                self._robot,
                link,
                linearDamping=0.0,
                angularDamping=0.0,
                jointDamping=0.0,
                maxJointVelocity=_FASTEST_JOINT,
                restitution=0.0,
                spinningFriction=0.0,
                rollingFriction=0.0,
                # Bullet multiplies the coefficients of both; the ground's is the feet's.
                lateralFriction=_BODY_FRICTION / friction,
                physicsClientId=self._client,
            )
        for leg in range(LEGS):
            for joint in (self._joints[3 * leg], self._joints[3 * leg + 2]):
                self._add_rotor(joint)
        bullet.setJointMotorControlArray(
            self._robot,
            self._joints,
            bullet.VELOCITY_CONTROL,
            forces=[0.0] * JOINTS,
            physicsClientId=self._client,
        )
        return mass

    def _add_rotor(self, joint: int) -> None:
        info = bullet.getDynamicsInfo(self._robot, joint, physicsClientId=self._client)
        # Bullet gives the axis in the link's inertial frame, whose axes are the principal ones.
        inertia = np.array(info[2]) + self._dynamics.armature * self._axes[joint] ** 2
        bullet.changeDynamics(self._robot, joint, localInertiaDiagonal=inertia.tolist(), physicsClientId=self._client)

    def reset(self, position: FloatArray, orientation: FloatArray, joint_position: FloatArray) -> None:
        """At rest: (3,) m, (4,) x, y, z, w, (12,) rad."""
        rotation = Rotation.from_quat(orientation)
        offset, turn = self._inertial
        bullet.resetBasePositionAndOrientation(
            self._robot,
            rounded(position + rotation.apply(offset)).tolist(),
            rounded((rotation * turn).as_quat()).tolist(),
            physicsClientId=self._client,
        )
        bullet.resetBaseVelocity(self._robot, [0.0] * 3, [0.0] * 3, physicsClientId=self._client)
        for joint, angle in zip(self._joints, joint_position, strict=True):
            bullet.resetJointState(self._robot, joint, float(angle), 0.0, physicsClientId=self._client)
        self._broken = False
        self._read_state()

    def set_foot_friction(self, friction: FloatArray) -> None:
        """(4,); ground that has its own friction keeps it."""
        changed = np.flatnonzero(friction != self._foot_friction)
        self._foot_friction = friction.copy()
        for leg in changed:
            self._apply_foot_friction(int(leg))

    def _apply_foot_friction(self, leg: int) -> None:
        # The ground has the feet's ordinary friction, or its own; a foot has the part that it has of the ordinary one.
        ordinary = max(self._dynamics.foot_friction, _SMALLEST_FRICTION)
        part = 1.0 if self._on_own[leg] else float(self._foot_friction[leg]) / ordinary
        bullet.changeDynamics(self._robot, self._feet[leg], lateralFriction=part, physicsClientId=self._client)

    def advance(
        self, target: FloatArray, push: FloatArray, steps: int, trace: PhysicsTrace, robot: int, start: int
    ) -> None:
        """``steps`` physics steps; target (steps, 12) rad, push (6,) N, N m. Records them as the protocol says."""
        states = np.empty((steps, _STATE_SIZE))
        for step in range(steps):
            if not self._broken:
                self._step(target[step], push)
            states[step] = self._state
            self._record_contacts(trace, robot, start + step)
        part = slice(start, start + steps)
        offset, turn = self._inertial
        rotation = Rotation.from_quat(states[:, _ORIENTATION]) * turn.inv()
        arm = rotation.apply(-offset)
        velocity, rate = states[:, _VELOCITY], states[:, _RATE]
        trace.position[robot, part] = states[:, _POSITION] + arm
        trace.orientation[robot, part] = rotation.as_quat()
        trace.velocity[robot, part] = velocity + np.cross(rate, arm)
        trace.angular_velocity[robot, part] = rotation.inv().apply(rate)
        trace.joint_position[robot, part] = states[:, _JOINT_POSITION]
        trace.joint_velocity[robot, part] = states[:, _JOINT_VELOCITY]

    def _step(self, target: FloatArray, push: FloatArray) -> None:
        bullet.setJointMotorControlArray(
            self._robot,
            self._joints,
            bullet.TORQUE_CONTROL,
            forces=self._torque(target, self._state[_JOINT_POSITION], self._state[_JOINT_VELOCITY]).tolist(),
            physicsClientId=self._client,
        )
        if push.any():
            self._push(push)
        bullet.stepSimulation(physicsClientId=self._client)
        self._read_state()

    def _torque(self, target: FloatArray, position: FloatArray, velocity: FloatArray) -> FloatArray:
        """Motors within their limits, and the joints' friction: (12,) N m."""
        dynamics = self._dynamics
        motor = dynamics.kp * (target - position) - dynamics.kd * velocity
        limit = dynamics.torque_limit
        motor = np.minimum(np.maximum(motor, -limit), limit)
        dry = np.minimum(np.maximum(self._friction_slope * velocity, -self._friction_limit), self._friction_limit)
        torque: FloatArray = motor - self._damping * velocity - dry
        return torque

    def _push(self, push: FloatArray) -> None:
        """Lasts for one step."""
        offset, turn = self._inertial
        rotation = Rotation.from_quat(self._state[_ORIENTATION]) * turn.inv()
        # The force acts at the base link's origin: at the centre of mass it is the same with a torque.
        force, torque = push[:3], rounded(push[3:] + np.cross(rotation.apply(-offset), push[:3]))
        place = self._state[_POSITION].tolist()
        bullet.applyExternalForce(
            self._robot, _BASE, force.tolist(), place, bullet.WORLD_FRAME, physicsClientId=self._client
        )
        bullet.applyExternalTorque(
            self._robot, _BASE, torque.tolist(), bullet.WORLD_FRAME, physicsClientId=self._client
        )

    def _read_state(self) -> None:
        client = self._client
        pose = bullet.getBasePositionAndOrientation(self._robot, physicsClientId=client)
        speed = bullet.getBaseVelocity(self._robot, physicsClientId=client)
        joints = bullet.getJointStates(self._robot, self._joints, physicsClientId=client)
        state = np.array([*pose[0], *pose[1], *speed[0], *speed[1], *(j[0] for j in joints), *(j[1] for j in joints)])
        # A state that blew up ends the rollout as a fall, and the engine is left alone with it.
        self._broken = not np.isfinite(state).all()
        if not self._broken:
            self._state = state

    def _record_contacts(self, trace: PhysicsTrace, robot: int, step: int) -> None:
        trace.torso_contact[robot, step] = self._broken
        forces, normals, strongest = np.zeros((LEGS, 3)), [_NOWHERE] * LEGS, [0.0] * LEGS
        # Bullet also lists points that are only near: without pressure.
        for contact in () if self._broken else bullet.getContactPoints(self._robot, physicsClientId=self._client):
            link, normal, pressure = contact[3], contact[7], contact[9]
            if pressure <= 0.0:
                continue
            if link in self._torso:
                trace.torso_contact[robot, step] = True
            leg = self._leg_of_link.get(link)
            if leg is None:
                continue
            along, aside = contact[11], contact[13]
            forces[leg] += [pressure * normal[i] + contact[10] * along[i] + contact[12] * aside[i] for i in range(3)]
            if pressure > strongest[leg]:
                strongest[leg], normals[leg] = pressure, normal
                if (own := contact[2] in self._own_friction) != self._on_own[leg]:
                    self._on_own[leg] = own
                    self._apply_foot_friction(leg)
        trace.foot_force[robot, step] = forces
        trace.foot_normal[robot, step] = normals

    def _add_terrain(self, terrain: Terrain, mass: float) -> None:
        for plane in terrain.planes:
            shape = self._shape(bullet.GEOM_PLANE, planeNormal=[0.0, 0.0, 1.0])
            # Rising along +x is a turn about -y.
            rotation = Rotation.from_euler("y", -plane.inclination)
            self._add_ground(shape, (0.0, 0.0, plane.height), rotation, plane.surface, mass)
        for field in terrain.height_fields:
            rows, columns = field.heights.shape
            shape = self._shape(
                bullet.GEOM_HEIGHTFIELD,
                meshScale=[field.cell, field.cell, 1.0],
                heightfieldData=[float(height) for height in field.heights.ravel()],
                # Bullet's rows run along x.
                numHeightfieldRows=columns,
                numHeightfieldColumns=rows,
                # Feet that slide from facet to facet shall not catch on the edge between.
                flags=bullet.GEOM_CONCAVE_INTERNAL_EDGE,
            )
            # Its origin is half-way between the lowest and the highest sample.
            middle = (float(field.heights.min()) + float(field.heights.max())) / 2
            self._add_ground(shape, (*field.centre, middle), Rotation.identity(), field.surface, mass)
        for box in terrain.boxes:
            shape = self._shape(bullet.GEOM_BOX, halfExtents=[float(half) for half in box.half_size])
            self._add_ground(shape, box.centre, box.rotation, box.surface, mass)

    def _shape(self, kind: int, **parameters: Any) -> int:
        with _quiet():
            return int(bullet.createCollisionShape(kind, physicsClientId=self._client, **parameters))

    def _add_ground(
        self, shape: int, place: tuple[float, float, float], rotation: Rotation, surface: Surface, mass: float
    ) -> None:
        body = bullet.createMultiBody(
            0.0,
            shape,
            basePosition=[float(value) for value in place],
            baseOrientation=rounded(rotation.as_quat()).tolist(),
            physicsClientId=self._client,
        )
        stiffness, damping = contact_stiffness(surface, self._dynamics, mass)
        ordinary = max(self._dynamics.foot_friction, _SMALLEST_FRICTION)
        if surface.friction is not None:
            self._own_friction.add(body)
        bullet.changeDynamics(
            body,
            _BASE,
            lateralFriction=ordinary if surface.friction is None else surface.friction,
            contactStiffness=stiffness,
            contactDamping=damping,
            restitution=0.0,
            physicsClientId=self._client,
        )


def contact_stiffness(surface: Surface, dynamics: RobotDynamics, mass: float) -> tuple[float, float]:
    """Spring and damper of a foot on some ground: N/m and N s/m.

    A quarter of the robot's mass on the spring vibrates with the contact's time constant (the ground's, else the
    feet's), but for a factor; the damping ratio is the feet's. Soft ground with a ``sinkage`` grows from half of this
    stiffness at its surface to all of it in that depth. Bullet's springs are linear: they get the stiffness with which
    two feet that carry the robot sink in as far as they would there.

    Args:
        surface: the ground.
        dynamics: the feet.
        mass: of the robot (kg).
    """
    time_constant = dynamics.foot_time_constant if surface.time_constant is None else surface.time_constant
    quarter = mass / LEGS
    stiffness = _STIFFENING * quarter / time_constant**2
    if surface.sinkage is not None and surface.sinkage > _SHALLOWEST:
        load = mass * GRAVITY / 2
        if load < stiffness * surface.sinkage:
            # stiffness (s + (1 - s) x / sinkage) x = load, with s at the surface.
            s = _SURFACE_STIFFNESS
            slope = (1 - s) / surface.sinkage
            depth = (np.sqrt(s**2 + 4 * slope * load / stiffness) - s) / (2 * slope)
            stiffness = float(load / depth)
    return stiffness, 2 * dynamics.foot_damping_ratio * float(np.sqrt(stiffness * quarter))
