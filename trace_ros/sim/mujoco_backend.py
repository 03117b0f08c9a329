"""The default engine: MuJoCo, all robots of a batch at once through ``mujoco.rollout``, one model for each robot."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, RobotDynamics, Scene
from trace_ros.sim.reproducible import rounded
from trace_ros.sim.terrain import Surface

FloatArray = NDArray[np.float64]

_CONTROL = int(mujoco.mjtState.mjSTATE_CTRL) | int(mujoco.mjtState.mjSTATE_QFRC_APPLIED)
_PHYSICS = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
_FOOT_PRIORITY, _GROUND_PRIORITY = 1, 2
_FOOT_WIDTH = 0.001
"""m; MuJoCo's default width of the contact impedance."""
# The contact sensor's ``intprm``: which data (bits), how contacts are reduced, how many are kept.
_MAXFORCE, _NETFORCE = 2, 3
_FORCE_VALUES, _NORMAL_VALUES = 3, 3
# The friction cone of a foot: sliding only; a point contact resists no spin.
_CONDIM = 3
_USUAL_IMPEDANCE = 0.95
"""MuJoCo's default of a contact under load."""
_SURFACE_PART = 0.9 / 0.95
"""Of the impedance in the depth, that at the surface; MuJoCo's default."""
# Found by letting a Go2 walk with feet of middling softness and damping (0.014 s, 2): their mean depth under load stays
# within a third from an impedance of 0.1 to 0.9. Standing still, and with hard feet, low impedance sinks in deeper.
_SOFTENING = 0.65
# A contact whose damper would stop a foot within one step shakes it instead: at twice this it was seen to.
_MOST_DAMPING = 0.25
# A height field below its lowest sample is solid to this depth (m).
_FIELD_BASE = 0.5


class MujocoBackend:
    """See `trace_ros.sim.backend.SimulationBackend`."""

    def __init__(self, scenes: Sequence[Scene], robot: RobotDescription, config: PhysicsConfig) -> None:
        template = _robot_spec(robot, config)
        self._models = [_compile(template, scene, robot) for scene in scenes]
        self._steps = config.steps_per_control
        first = self._models[0]
        batch = len(self._models)
        self._state_size = mujoco.mj_stateSize(first, _PHYSICS)
        self._state = np.zeros((batch, self._steps, self._state_size))
        self._sensors = np.zeros((batch, self._steps, first.nsensordata))
        self._control = np.zeros((batch, self._steps, first.nu + first.nv))
        self._current = np.zeros((batch, self._state_size))
        self._warmstart = np.zeros((batch, first.nv))
        self._nu = first.nu
        joints = [mujoco.mj_name2id(first, mujoco.mjtObj.mjOBJ_JOINT, name) for name in robot.joint_names]
        # The state is time, positions, velocities.
        self._qpos = 1
        self._qvel = 1 + first.nq
        self._joint_position = self._qpos + first.jnt_qposadr[joints]
        self._joint_velocity = self._qvel + first.jnt_dofadr[joints]
        root = mujoco.mj_name2id(first, mujoco.mjtObj.mjOBJ_JOINT, _root_name(robot))
        self._root_qpos = self._qpos + int(first.jnt_qposadr[root])
        self._root_qvel = self._qvel + int(first.jnt_dofadr[root])
        self._push = first.nu + int(first.jnt_dofadr[root])
        geoms = [mujoco.mj_name2id(first, mujoco.mjtObj.mjOBJ_GEOM, _foot_geom(name)) for name in robot.foot_links]
        self._friction = [model.geom_friction for model in self._models]
        self._foot_geoms = np.array(geoms)
        # Without a pool the physics runs on the calling thread.
        self._data = [mujoco.MjData(first) for _ in range(config.threads)]
        self._rollout = rollout.Rollout(nthread=config.threads if config.threads > 1 else 0)

    def reset(self, position: FloatArray, orientation: FloatArray, joint_position: FloatArray) -> None:
        """See the protocol."""
        self._current[:] = 0.0
        root = self._root_qpos
        self._current[:, root : root + 3] = position
        self._current[:, root + 3 : root + 7] = orientation[:, [3, 0, 1, 2]]
        self._current[:, self._joint_position] = joint_position

    def advance(self, joint_target: FloatArray, push: FloatArray, trace: PhysicsTrace, start: int) -> None:
        """See the protocol."""
        self._control[:, :, : self._nu] = joint_target
        self._control[:, :, self._push : self._push + 3] = push[:, None, :3]
        self._control[:, :, self._push + 3 : self._push + 6] = self._body_torque(push[:, 3:])[:, None]
        self._rollout.rollout(
            self._models,
            self._data,
            self._current,
            self._control,
            control_spec=_CONTROL,
            skip_checks=True,
            nstep=self._steps,
            initial_warmstart=self._warmstart,
            state=self._state,
            sensordata=self._sensors,
        )
        self._current[:] = self._state[:, -1]
        part = slice(start, start + self._steps)
        state, p, v = self._state, self._root_qpos, self._root_qvel
        trace.position[:, part] = state[:, :, p : p + 3]
        trace.orientation[:, part, :3] = state[:, :, p + 4 : p + 7]
        trace.orientation[:, part, 3] = state[:, :, p + 3]
        trace.velocity[:, part] = state[:, :, v : v + 3]
        trace.angular_velocity[:, part] = state[:, :, v + 3 : v + 6]
        trace.joint_position[:, part] = state[:, :, self._joint_position]
        trace.joint_velocity[:, part] = state[:, :, self._joint_velocity]
        forces = LEGS * _FORCE_VALUES
        normals = forces + LEGS * _NORMAL_VALUES
        shape = (len(self._models), self._steps, LEGS, 3)
        trace.foot_force[:, part] = self._sensors[:, :, :forces].reshape(shape)
        trace.foot_normal[:, part] = self._sensors[:, :, forces:normals].reshape(shape)
        trace.torso_contact[:, part] = self._sensors[:, :, normals] > 0

    def _body_torque(self, torque: FloatArray) -> FloatArray:
        """A torque (B, 3) in the world's axes as the floating base takes it: in the body's, which it then keeps for the
        control step (they turn by a few hundredths of a radian in it)."""
        if not torque.any():
            return torque
        quaternion = self._current[:, self._root_qpos + 3 : self._root_qpos + 7][:, [1, 2, 3, 0]]
        # A state that blew up may have none.
        sound = np.isfinite(quaternion).all(axis=1) & (np.linalg.norm(quaternion, axis=1) > 0)
        turned = np.zeros_like(torque)
        turned[sound] = rounded(Rotation.from_quat(quaternion[sound]).inv().apply(torque[sound]))
        return turned

    def set_foot_friction(self, friction: FloatArray) -> None:
        """See the protocol."""
        for views, values in zip(self._friction, friction, strict=True):
            views[self._foot_geoms, 0] = values


def _root_name(robot: RobotDescription) -> str:
    return f"{robot.base_link}_floating"


def _foot_geom(link: str) -> str:
    return f"{link}_contact"


def _robot_spec(robot: RobotDescription, config: PhysicsConfig) -> mujoco.MjSpec:
    """The robot without ground: floating base, joint controllers, contact sensors."""
    try:
        spec = mujoco.MjSpec.from_file(str(robot.urdf))
    except ValueError as error:
        raise TraceError(f"{robot.urdf}: MuJoCo cannot load it ({' '.join(str(error).split())})") from error
    option = spec.option
    option.timestep = 1.0 / config.rate_hz
    option.gravity = [0.0, 0.0, -GRAVITY]
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    elliptic = config.friction_cone == "elliptic"
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC if elliptic else mujoco.mjtCone.mjCONE_PYRAMIDAL
    option.noslip_iterations = config.noslip_iterations
    option.impratio = config.friction_impedance
    # One robot is one island: looking for more costs 8 %.
    option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    # Links collide with the ground only, not with each other.
    for geom in spec.geoms:
        geom.contype, geom.conaffinity = 1, 0
        geom.condim = _CONDIM
    # A link without inertia in the URDF has none; MuJoCo would give it one by the volume of its shapes.
    for body in spec.bodies:
        if not body.explicitinertial:
            for geom in body.geoms:
                geom.mass = 0.0
    base = spec.body(robot.base_link)
    base.add_freejoint(name=_root_name(robot))
    for link in robot.foot_links:
        shapes = list(spec.body(link).geoms)
        if not shapes:
            raise TraceError(f"{robot.urdf}: foot link {link} has no collision shape")
        shapes[0].name = _foot_geom(link)
        shapes[0].priority = _FOOT_PRIORITY
    for name in robot.joint_names:
        actuator = spec.add_actuator(name=name, trntype=mujoco.mjtTrn.mjTRN_JOINT, target=name)
        actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
        actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        actuator.forcelimited = True
    _add_sensors(spec, robot)
    return spec


def _add_sensors(spec: mujoco.MjSpec, robot: RobotDescription) -> None:
    """Net force (world frame) on each foot, normal of each foot's strongest contact, and the torso's contacts."""
    force = 1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE)
    normal = 1 << int(mujoco.mjtConDataField.mjCONDATA_NORMAL)
    found = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)
    geom, body = mujoco.mjtObj.mjOBJ_GEOM, mujoco.mjtObj.mjOBJ_BODY

    def add(name: str, kind: mujoco.mjtObj, target: str, data: int, reduction: int) -> None:
        # From the world's body to the target: forces act on the target, normals point at it.
        sensor = spec.add_sensor(name=name, type=mujoco.mjtSensor.mjSENS_CONTACT)
        sensor.objtype, sensor.objname = body, "world"
        sensor.reftype, sensor.refname = kind, target
        sensor.intprm[0], sensor.intprm[1], sensor.intprm[2] = data, reduction, 1

    # The net force always comes with the normal (1, 0, 0); only the strongest contact has a true one.
    for link in robot.foot_links:
        add(f"{link}_force", geom, _foot_geom(link), force, _NETFORCE)
    for link in robot.foot_links:
        add(f"{link}_normal", geom, _foot_geom(link), normal, _MAXFORCE)
    add("torso", body, robot.base_link, found, _MAXFORCE)


def _compile(template: mujoco.MjSpec, scene: Scene, robot: RobotDescription) -> mujoco.MjModel:
    spec = template.copy()
    _apply_dynamics(spec, scene.dynamics, robot)
    _add_terrain(spec, scene)
    model = spec.compile()
    if model.nv != 6 + JOINTS:
        raise TraceError(
            f"{robot.urdf}: has {model.nv - 6} moving joints, expected the {JOINTS} that the robot file names"
        )
    return model


def _apply_dynamics(spec: mujoco.MjSpec, dynamics: RobotDynamics, robot: RobotDescription) -> None:
    for body in spec.bodies:
        body.mass *= dynamics.mass_scale
        body.fullinertia *= dynamics.mass_scale
        body.inertia *= dynamics.mass_scale
    base = spec.body(robot.base_link)
    base.fullinertia *= dynamics.inertia_scale * (1 + dynamics.base_mass / base.mass)
    base.inertia *= dynamics.inertia_scale * (1 + dynamics.base_mass / base.mass)
    base.mass += dynamics.base_mass
    base.ipos += dynamics.base_com_offset
    for slot, name in enumerate(robot.joint_names):
        joint = spec.joint(name)
        joint.armature = dynamics.armature
        if dynamics.joint_friction is not None:
            joint.frictionloss = dynamics.joint_friction
        if dynamics.joint_damping is not None:
            joint.damping = np.eye(1, len(np.atleast_1d(joint.damping)))[0] * dynamics.joint_damping
        actuator = spec.actuator(name)
        actuator.gainprm[0] = dynamics.kp
        actuator.biasprm[:3] = [0.0, -dynamics.kp, -dynamics.kd]
        limit = float(dynamics.torque_limit[slot])
        actuator.forcerange = [-limit, limit]
        # The limit is the actuator's; a second one at the joint (from the URDF) would hide a stronger motor.
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
    for link in robot.foot_links:
        foot = spec.geom(_foot_geom(link))
        foot.friction[0] = dynamics.foot_friction
        _make_soft(foot, dynamics.foot_time_constant, dynamics, spec.option.timestep)


def _add_terrain(spec: mujoco.MjSpec, scene: Scene) -> None:
    world, terrain, dynamics = spec.worldbody, scene.terrain, scene.dynamics
    for plane in terrain.planes:
        geom = world.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.0, 0.0, 1.0], pos=[0.0, 0.0, plane.height])
        # Rising along +x is a turn about -y.
        half = -plane.inclination / 2
        geom.quat = rounded([np.cos(half), 0.0, np.sin(half), 0.0])
        _finish_ground(geom, plane.surface, dynamics, spec.option.timestep)
    for index, field in enumerate(terrain.height_fields):
        low, high = float(field.heights.min()), float(field.heights.max())
        span = max(high - low, 1e-6)
        asset = spec.add_hfield(name=f"field{index}")
        asset.nrow, asset.ncol = field.heights.shape
        asset.size = [*field.half_size, span, _FIELD_BASE]
        asset.userdata = ((field.heights - low) / span).astype(np.float32).ravel()
        geom = world.add_geom(type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname=asset.name, pos=[*field.centre, low])
        _finish_ground(geom, field.surface, dynamics, spec.option.timestep)
    for box in terrain.boxes:
        geom = world.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=box.half_size, pos=box.centre)
        geom.quat = rounded(box.rotation.as_quat()[[3, 0, 1, 2]])
        _finish_ground(geom, box.surface, dynamics, spec.option.timestep)


def _finish_ground(geom: mujoco.MjsGeom, surface: Surface, feet: RobotDynamics, timestep: float) -> None:
    geom.contype, geom.conaffinity, geom.condim = 0, 1, _CONDIM
    if not surface.overrides:
        return
    # MuJoCo takes all contact parameters from the geom of higher priority: also those that are the feet's.
    geom.priority = _GROUND_PRIORITY
    geom.friction[0] = feet.foot_friction if surface.friction is None else surface.friction
    time_constant = feet.foot_time_constant if surface.time_constant is None else surface.time_constant
    _make_soft(geom, time_constant, feet, timestep)
    if surface.sinkage is not None:
        geom.solimp[2] = max(surface.sinkage, _FOOT_WIDTH)
        if feet.foot_impedance is not None:
            # It grows over the depth as MuJoCo's own does.
            geom.solimp[0] = feet.foot_impedance * _SURFACE_PART


def _make_soft(geom: mujoco.MjsGeom, time_constant: float, feet: RobotDynamics, timestep: float) -> None:
    """Give a geom the softness of a time constant (s) and the feet's damping and impedance.

    A contact of little impedance is stiff against impacts: its time constant is lengthened so that a walking Go2 sinks
    in about as deep at any impedance, and its damping cut to what is stable in steps of ``timestep`` (s).
    """
    damping_ratio, impedance = feet.foot_damping_ratio, feet.foot_impedance
    if impedance is None:
        geom.solref[:] = _solref(time_constant, damping_ratio)
        return
    time_constant *= (_USUAL_IMPEDANCE / impedance) ** _SOFTENING
    damping_ratio = min(damping_ratio, _MOST_DAMPING * impedance * time_constant / timestep)
    geom.solref[:] = rounded(_solref(time_constant, damping_ratio))
    geom.solimp[:2] = impedance


def _solref(time_constant: float, damping_ratio: float) -> list[float]:
    """MuJoCo's reference parameters of a contact.

    Its stiffness goes with 1 / (time constant x damping ratio)^2 and its damping with 1 / time constant, so another
    damping ratio alone would also change how soft the contact is. Here the time constant is 1 / natural frequency and
    decides the softness alone, as it does in MuJoCo at a ratio of 1.
    """
    return [time_constant / damping_ratio, damping_ratio]
