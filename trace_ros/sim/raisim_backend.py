"""The paper's engine: RaiSim through its Python module ``raisimpy``, one world for each robot, stepped in Python.

Written against the documented interface of raisimpy (versions 1.1 and 2.0; nearly all that is used, both have) and
tested against a double of it, never against the engine itself, which needs a licence. What the documentation leaves
open is therefore checked while running: joints are matched by name, and where the layout of height maps or the
direction of contact forces is not the expected one, that is refused with one line.

Joint torques are explicit, ``kp (q_des - q) - kd dq`` clipped to the limit, anew in every physics step: RaiSim's own
controller is implicit and does not tell the torque that it applied. Masses, damping, rotor inertia and the feet's
materials go into the URDF that the engine is given (`trace_ros.sim.raisim_urdf`).

Contacts are hard here: the softness, damping and impedance of feet (`RobotDynamics.foot_time_constant`,
``foot_damping_ratio``, ``foot_impedance``) have no effect, and soft ground is refused. Of `PhysicsConfig`, ``threads``,
``friction_cone``, ``noslip_iterations`` and ``friction_impedance`` belong to MuJoCo: raisimpy steps on one thread, with
the exact cone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, Scene
from trace_ros.sim.raisim_urdf import RaisimUrdf, foot_material
from trace_ros.sim.reproducible import rounded
from trace_ros.sim.terrain import Box, HeightField, Plane, Surface, Terrain

FloatArray = NDArray[np.float64]
logger = logging.getLogger(__name__)

KEY_VARIABLE = "RAISIM_ACTIVATION_KEY"
"""Environment variable with the path of the licence file, when that is not ``~/.raisim/activation.raisim``."""

# Generalised coordinates: position (3), quaternion w, x, y, z, joints; velocities: linear (3), angular (3), joints.
_POSITION_SIZE, _VELOCITY_SIZE = 7 + JOINTS, 6 + JOINTS
_BASE = 0
"""Body index of the floating base."""
_GROUND = "ground"
_BODY = "default"
"""Material of all links but the feet: raisimpy's name for what has no other."""
_BODY_FRICTION = 1.0
"""Of those links on the ground; MuJoCo's default."""
# A contact of the leg's last body is the foot's when it is nearer to the foot's centre than so many radii.
_FOOT_REACH = 1.5
# Coulomb friction of a joint acts on at least this inertia (kg m^2), a tenth of a rotor's.
_SMALLEST_INERTIA = 1e-3
# RaiSim's ground is level; an inclined plane is the top of a box of this half size (m).
_PLANE_HALF_SIZE = (100.0, 100.0, 1.0)
# Ground cannot pull. Contacts above this force (N) are counted; so many more pulls than pushes mean that the sign of
# impulses is not the documented one; a foot pressed through an edge may pull once.
_COUNTED_FORCE, _PULLS = 1.0, 20
# Nodes of a height map at which its layout is checked, along each side, and the tolerance (m).
_PROBES, _PROBE_TOLERANCE = 8, 1e-4


class RaisimBackend:
    """See `trace_ros.sim.backend.SimulationBackend`."""

    def __init__(self, scenes: Sequence[Scene], robot: RobotDescription, config: PhysicsConfig) -> None:
        """Raises `TraceError`: raisimpy or its licence is missing, the URDF does not fit, or the ground is soft."""
        for scene in scenes:
            _refuse_soft_ground(scene.terrain)
        engine = _load_engine()
        _say_what_has_no_effect()
        self._steps = config.steps_per_control
        self._worlds = [_RobotWorld(engine, scene, robot, config) for scene in scenes]

    def reset(self, position: FloatArray, orientation: FloatArray, joint_position: FloatArray) -> None:
        """See the protocol."""
        for world, p, q, joints in zip(self._worlds, position, orientation, joint_position, strict=True):
            world.reset(p, q, joints)

    def advance(self, joint_target: FloatArray, push: FloatArray, trace: PhysicsTrace, start: int) -> None:
        """See the protocol."""
        for index, world in enumerate(self._worlds):
            world.advance(joint_target[index], np.array(push[index], dtype=float), self._steps, trace, index, start)

    def set_foot_friction(self, friction: FloatArray) -> None:
        """See the protocol."""
        for world, values in zip(self._worlds, friction, strict=True):
            world.set_foot_friction(values)


class _RobotWorld:
    """One robot on its ground."""

    def __init__(self, engine: Any, scene: Scene, robot: RobotDescription, config: PhysicsConfig) -> None:
        self._dynamics = scene.dynamics
        self._period = 1.0 / config.rate_hz
        self._world = _create_world(engine)
        self._world.setTimeStep(self._period)
        self._world.setGravity(np.array([0.0, 0.0, -GRAVITY]))
        # Friction, restitution, and the speed above which there is restitution.
        self._world.setDefaultMaterial(_BODY_FRICTION, 0.0, 0.0)
        _add_terrain(engine, self._world, scene.terrain)
        urdf = RaisimUrdf(robot)
        friction = urdf.apply(scene.dynamics)
        self._system = self._add_robot(urdf, robot)
        self._system.setControlMode(engine.ControlMode.FORCE_AND_TORQUE)
        slots = self._joint_slots(urdf, robot)
        self._joint_position = 7 + slots
        self._joint_velocity = 6 + slots
        # Links collide with the ground only, not with each other.
        for first, second in combinations(range(1 + JOINTS), 2):
            self._system.ignoreCollisionBetween(first, second)
        self._leg_of_body = {self._body(urdf, urdf.foot_bodies[leg]): leg for leg in range(LEGS)}
        self._foot_frames = [self._system.getFrameIdxByName(urdf.foot_joints[leg]) for leg in range(LEGS)]
        self._reach = _FOOT_REACH * robot.foot_radius
        # Coulomb friction stops a joint within one step where it can, and never turns it round.
        self._friction_limit = friction
        self._friction_slope = max(scene.dynamics.armature, _SMALLEST_INERTIA) / self._period
        self._force = np.zeros(_VELOCITY_SIZE)
        self._pushes = 0
        self._foot_friction = np.full(LEGS, np.nan)
        self.set_foot_friction(np.full(LEGS, scene.dynamics.foot_friction))

    def _add_robot(self, urdf: RaisimUrdf, robot: RobotDescription) -> Any:
        try:
            system = self._world.addArticulatedSystem(urdf.text, str(robot.urdf.parent), list(robot.joint_names))
        except (RuntimeError, ValueError) as error:
            raise TraceError(f"{robot.urdf}: RaiSim cannot load it ({' '.join(str(error).split())})") from error
        found = system.getGeneralizedCoordinateDim(), system.getDOF()
        if found != (_POSITION_SIZE, _VELOCITY_SIZE):
            raise TraceError(
                f"{robot.urdf}: RaiSim finds {found[1]} degrees of freedom, expected {_VELOCITY_SIZE}: "
                f"a floating base and the {JOINTS} joints that the robot file names"
            )
        if system.getBodyIdx(robot.base_link) != _BASE:
            raise TraceError(f"{robot.urdf}: base_link {robot.base_link} must be the root link for RaiSim")
        return system

    def _body(self, urdf: RaisimUrdf, link: str) -> int:
        """Index of the body that the link is, or heads; bodies are numbered as their joints are."""
        index = int(self._system.getBodyIdx(link))
        if not 1 <= index <= JOINTS:
            raise TraceError(f"{urdf.path}: RaiSim knows no body {link}")
        return index

    def _joint_slots(self, urdf: RaisimUrdf, robot: RobotDescription) -> NDArray[np.int64]:
        """Where each joint of the package's order stands among the engine's, by name: asked for, not taken on trust."""
        bodies = [self._body(urdf, urdf.child_of(joint)) for joint in robot.joint_names]
        if sorted(bodies) != list(range(1, 1 + JOINTS)):
            raise TraceError(f"{urdf.path}: RaiSim's order of joints {bodies} is none")
        return np.array(bodies, dtype=np.int64) - 1

    def reset(self, position: FloatArray, orientation: FloatArray, joint_position: FloatArray) -> None:
        """At rest: (3,) m, (4,) x, y, z, w, (12,) rad."""
        coordinates = np.zeros(_POSITION_SIZE)
        coordinates[:3] = position
        coordinates[3:7] = orientation[[3, 0, 1, 2]]
        coordinates[self._joint_position] = joint_position
        self._state = coordinates, np.zeros(_VELOCITY_SIZE)
        self._broken = False
        self._system.setState(*self._state)
        self._force[:] = 0.0
        self._system.setGeneralizedForce(self._force)
        # The solver's sweeps go to and fro; the same one first makes runs repeatable. Version 1 has no such call.
        if hasattr(self._world, "setContactSolverIterationOrder"):
            self._world.setContactSolverIterationOrder(True)

    def set_foot_friction(self, friction: FloatArray) -> None:
        """(4,); ground that has its own friction keeps it."""
        for leg in np.flatnonzero(friction != self._foot_friction):
            self._world.setMaterialPairProp(foot_material(int(leg)), _GROUND, float(friction[leg]), 0.0, 0.0)
        self._foot_friction = friction.copy()

    def advance(
        self, target: FloatArray, push: FloatArray, steps: int, trace: PhysicsTrace, robot: int, start: int
    ) -> None:
        """``steps`` physics steps; target (steps, 12) rad, push (6,) N, N m. Records them as the protocol says."""
        states = np.empty((steps, _POSITION_SIZE)), np.empty((steps, _VELOCITY_SIZE))
        if not self._broken:
            self._state = self._system.getState()
        for step in range(steps):
            if not self._broken:
                self._step(target[step], push)
            states[0][step], states[1][step] = self._state
            self._record_contacts(trace, robot, start + step)
        self._record_states(*states, trace, robot, slice(start, start + steps))

    def _step(self, target: FloatArray, push: FloatArray) -> None:
        coordinates, velocities = self._state
        self._force[self._joint_velocity] = self._torque(
            target, coordinates[self._joint_position], velocities[self._joint_velocity]
        )
        self._system.setGeneralizedForce(self._force)
        # World frame, the force at a point of the body's frame; both last for one step.
        if push[:3].any():
            self._system.setExternalForce(_BASE, np.zeros(3), push[:3])
        if push[3:].any():
            self._system.setExternalTorque(_BASE, push[3:])
        self._world.integrate()
        state = self._system.getState()
        # A state that blew up ends the rollout as a fall, and the engine is left alone with it.
        self._broken = not all(np.isfinite(part).all() for part in state)
        if not self._broken:
            self._state = state

    def _torque(self, target: FloatArray, position: FloatArray, velocity: FloatArray) -> FloatArray:
        """Motors within their limits, and the joints' dry friction: (12,) N m."""
        dynamics = self._dynamics
        motor = dynamics.kp * (target - position) - dynamics.kd * velocity
        motor = np.clip(motor, -dynamics.torque_limit, dynamics.torque_limit)
        return motor + np.clip(-self._friction_slope * velocity, -self._friction_limit, self._friction_limit)

    def _record_states(
        self, coordinates: FloatArray, velocities: FloatArray, trace: PhysicsTrace, robot: int, part: slice
    ) -> None:
        trace.position[robot, part] = coordinates[:, :3]
        quaternion = coordinates[:, [4, 5, 6, 3]]
        trace.orientation[robot, part] = quaternion
        trace.velocity[robot, part] = velocities[:, :3]
        # RaiSim's angular velocity is in the world frame.
        trace.angular_velocity[robot, part] = Rotation.from_quat(quaternion).inv().apply(velocities[:, 3:6])
        trace.joint_position[robot, part] = coordinates[:, self._joint_position]
        trace.joint_velocity[robot, part] = velocities[:, self._joint_velocity]

    def _record_contacts(self, trace: PhysicsTrace, robot: int, step: int) -> None:
        strongest = [-1.0] * LEGS
        # One step may be recorded twice when a trace is used again.
        trace.foot_force[robot, step] = 0.0
        trace.foot_normal[robot, step] = 0.0
        trace.torso_contact[robot, step] = self._broken
        if self._broken:
            return
        for contact in self._system.getContacts():
            if contact.skip() or contact.isSelfCollision():
                continue
            body = contact.getlocalBodyIndex()
            if body == _BASE:
                trace.torso_contact[robot, step] = True
                continue
            leg = self._leg_of_body.get(body)
            if leg is None:
                continue
            # The foot is merged with the shank: where the contact is tells which of the two it belongs to.
            to_centre = self._system.getFramePosition(self._foot_frames[leg]) - contact.get_position()
            if np.linalg.norm(to_centre) > self._reach:
                continue
            normal = contact.getNormal()
            if normal @ to_centre < 0:
                normal = -normal
            # The frame is stored transposed; impulses act from object B on object A.
            force = contact.getContactFrame().T @ contact.getImpulse() / self._period
            if not contact.isObjectA():
                force = -force
            pressure = float(force @ normal)
            self._check_sign(pressure)
            trace.foot_force[robot, step, leg] += force
            if pressure > strongest[leg]:
                strongest[leg] = pressure
                trace.foot_normal[robot, step, leg] = normal

    def _check_sign(self, pressure: float) -> None:
        if not abs(pressure) >= _COUNTED_FORCE:  # nor a force that is not a number
            return
        self._pushes += 1 if pressure > 0 else -1
        if self._pushes <= -_PULLS:
            raise TraceError(
                "RaiSim reports that the ground pulls the feet: the contact impulses of this version do not have the "
                "documented sign; use physics.backend: mujoco"
            )


def _load_engine() -> Any:
    """The module, with a licence."""
    try:
        engine = import_module("raisimpy")
    except ImportError as error:
        found = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be loaded ({error})"
        raise TraceError(
            f"simulation backend 'raisim' needs raisimpy, which {found}: it is not on PyPI, build it with CMake "
            "(-DRAISIM_PY=ON) from github.com/raisimTech/raisim2Lib and put raisim/linux/lib on LD_LIBRARY_PATH"
        ) from error
    key = licence_file()
    # Asked for here because the engine itself may end the process without a key.
    if not key.is_file():
        raise TraceError(
            f"{key}: no RaiSim licence there; put your activation.raisim into ~/.raisim or name it in {KEY_VARIABLE} "
            "(licences: raisim.com)"
        )
    engine.World.setActivationKey(str(key))
    return engine


def licence_file() -> Path:
    """Where the licence is looked for: the path in `KEY_VARIABLE`, else ``~/.raisim/activation.raisim``."""
    named = os.environ.get(KEY_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".raisim" / "activation.raisim"


def _create_world(engine: Any) -> Any:
    try:
        return engine.World()
    except (RuntimeError, ValueError) as error:
        raise TraceError(
            f"RaiSim refuses to run ({' '.join(str(error).split())}): check the licence in ~/.raisim/activation.raisim "
            f"or in {KEY_VARIABLE}"
        ) from error


@cache
def _say_what_has_no_effect() -> None:
    """Once in a process."""
    logger.warning(
        "RaiSim's contacts are hard: softness and damping of the feet (time_constant, damping_ratio, other) have no "
        "effect, nor have physics.threads, friction_cone, noslip_iterations and friction_impedance, which are MuJoCo's"
    )


def _refuse_soft_ground(terrain: Terrain) -> None:
    parts: tuple[Plane | HeightField | Box, ...] = (*terrain.planes, *terrain.height_fields, *terrain.boxes)
    for part in parts:
        if part.surface.time_constant is not None or part.surface.sinkage is not None:
            raise TraceError(
                f"ground {terrain.kind!r} is soft (time_constant or sinkage), and RaiSim's contacts are hard: "
                "remove them or use physics.backend: mujoco"
            )


def _add_terrain(engine: Any, world: Any, terrain: Terrain) -> None:
    own: dict[float, str] = {}

    def material(surface: Surface) -> str:
        if surface.friction is None:
            return _GROUND
        if surface.friction not in own:
            own[surface.friction] = name = f"{_GROUND}{len(own)}"
            for other in (_BODY, *map(foot_material, range(LEGS))):
                world.setMaterialPairProp(other, name, surface.friction, 0.0, 0.0)
        return own[surface.friction]

    for plane in terrain.planes:
        if plane.inclination == 0.0:
            world.addGround(plane.height, material(plane.surface))
            continue
        # Rising along +x is a turn about -y; the middle of the box's top is the plane's origin.
        rotation = Rotation.from_euler("y", -plane.inclination)
        centre = rounded(np.array([0.0, 0.0, plane.height]) - rotation.apply([0.0, 0.0, _PLANE_HALF_SIZE[2]]))
        _add_box(engine, world, centre, _PLANE_HALF_SIZE, rotation, material(plane.surface))
    for field in terrain.height_fields:
        _add_height_map(world, field, material(field.surface))
    for box in terrain.boxes:
        _add_box(engine, world, np.array(box.centre), box.half_size, box.rotation, material(box.surface))


def _add_box(
    engine: Any,
    world: Any,
    centre: FloatArray,
    half_size: tuple[float, float, float],
    rotation: Rotation,
    material: str,
) -> None:
    # The mass is of no consequence to what does not move.
    box = world.addBox(*(2.0 * float(half) for half in half_size), 1.0, material)
    x, y, z, w = rounded(rotation.as_quat()).tolist()
    box.setPosition(*(float(value) for value in centre))
    box.setOrientation(w, x, y, z)
    box.setBodyType(engine.BodyType.STATIC)


def _add_height_map(world: Any, field: HeightField, material: str) -> None:
    rows, columns = field.heights.shape
    half_x, half_y = field.half_size
    x, y = (float(value) for value in field.centre)
    heights = [float(value) for value in field.heights.ravel()]
    height_map = world.addHeightMap(columns, rows, 2.0 * half_x, 2.0 * half_y, x, y, heights, material)
    # The documentation does not say how the list is laid out. The outermost nodes are left out: they may lie outside.
    for row in np.unique(np.linspace(1, max(rows - 2, 1), _PROBES).astype(int)):
        for column in np.unique(np.linspace(1, max(columns - 2, 1), _PROBES).astype(int)):
            at = x - half_x + column * field.cell, y - half_y + row * field.cell
            if abs(height_map.getHeight(*map(float, at)) - field.heights[row, column]) > _PROBE_TOLERANCE:
                raise TraceError(
                    "RaiSim lays the samples of height maps out in another order than expected (x first, then y): "
                    "switch perlin ground off, or use physics.backend: mujoco"
                )
