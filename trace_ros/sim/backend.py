"""What a physics engine offers (`SimulationBackend`), what it is given (`Scene`) and what it records (`PhysicsTrace`).

An engine steps a batch of robots, each in its own world. Everything that is not physics (policies, sensors, contact
labels, falls) is computed from the trace, the same for all engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS, LEGS
from trace_ros.robot import RobotDescription
from trace_ros.sim.ranges import STRICT
from trace_ros.sim.terrain import Terrain

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]

CONTROL_RATE_HZ = 100
"""Rate at which the policy acts (Hz)."""

BACKENDS = {
    "bullet": ("trace_ros.sim.bullet_backend", "BulletBackend", "pybullet"),
    "mujoco": ("trace_ros.sim.mujoco_backend", "MujocoBackend", "mujoco"),
    "raisim": ("trace_ros.sim.raisim_backend", "RaisimBackend", "raisimpy"),
}
"""Engine name -> module, class, and the distribution to install."""


class PhysicsConfig(BaseModel):
    """The engine and its time step.

    Attributes:
        backend: a key of `BACKENDS`.
        rate_hz: physics steps a second; a multiple of the estimator's rate. The paper's is 4000; the default costs half
            as much.
        sample_rate_hz: rate of the sensors (Hz).
        threads: threads that step the batch.
        friction_cone: "pyramidal", or "elliptic" (exact; a third slower, and feet are less stable where facets meet).
        noslip_iterations: of the pass that removes what creep is left; costs time.
        friction_impedance: ratio of frictional to normal impedance; above 1 feet creep less under load.
        solver_iterations: of Bullet's contact solver.
    """

    model_config = STRICT
    backend: str = "mujoco"
    rate_hz: Annotated[int, Field(ge=500, le=10_000)] = 2000
    sample_rate_hz: Annotated[int, Field(ge=50, le=2000)] = 500
    threads: Annotated[int, Field(ge=1)] = 1
    friction_cone: Annotated[str, Field(pattern="^(elliptic|pyramidal)$")] = "pyramidal"
    noslip_iterations: Annotated[int, Field(ge=0)] = 0
    friction_impedance: Annotated[float, Field(gt=0)] = 100.0
    solver_iterations: Annotated[int, Field(ge=1)] = 50

    @model_validator(mode="after")
    def _rates_divide(self) -> PhysicsConfig:
        if self.rate_hz % self.sample_rate_hz:
            raise ValueError(f"rate_hz {self.rate_hz} is no multiple of sample_rate_hz {self.sample_rate_hz}")
        if self.rate_hz % CONTROL_RATE_HZ or self.sample_rate_hz % CONTROL_RATE_HZ:
            raise ValueError(f"rate_hz and sample_rate_hz must be multiples of {CONTROL_RATE_HZ} (the policy's rate)")
        return self

    @property
    def steps_per_control(self) -> int:
        """Physics steps for which the policy's targets hold."""
        return self.rate_hz // CONTROL_RATE_HZ

    @property
    def steps_per_sample(self) -> int:
        """Physics steps between two nominal samples."""
        return self.rate_hz // self.sample_rate_hz


@dataclass(frozen=True)
class RobotDynamics:
    """One robot's departure from its description.

    Attributes:
        kp, kd: N m/rad and N m s/rad, gains of the joint controllers.
        torque_limit: (12,) N m.
        base_mass: kg, added to the body.
        base_com_offset: (3,) m, shift of the body's centre of mass.
        mass_scale: factor on each link's mass and inertia, the body included.
        inertia_scale: further factor on the body's inertia.
        joint_friction: N m (Coulomb), or None: the URDF's.
        joint_damping: N m s/rad, or None: the URDF's.
        armature: kg m^2, inertia of the rotors seen at the joints.
        foot_friction: sliding friction coefficient of the feet.
        foot_time_constant: s, how soft the feet are.
        foot_damping_ratio: of the feet's contact; 1 is critical damping, below it feet rebound.
        foot_impedance: how much of the contact's motion is prescribed, whatever presses on it: near 1 a foot follows
            the contact's own damped course, near 0 the contact is a spring with a damper that the load works against,
            and a foot that lifts off leaves its print behind. None: the engine's own. For MuJoCo alone.
        actuator_delay: s, from a joint target's being sent to its reaching the motors.
    """

    kp: float
    kd: float
    torque_limit: FloatArray
    base_mass: float = 0.0
    base_com_offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mass_scale: float = 1.0
    inertia_scale: float = 1.0
    joint_friction: float | None = None
    joint_damping: float | None = None
    armature: float = 0.01
    foot_friction: float = 0.8
    foot_time_constant: float = 0.02
    foot_damping_ratio: float = 1.0
    foot_impedance: float | None = None
    actuator_delay: float = 0.0


@dataclass(frozen=True)
class Scene:
    """One robot's world."""

    terrain: Terrain
    dynamics: RobotDynamics


@dataclass
class PhysicsTrace:
    """What happened, at the physics rate: (B robots, S steps, ...), the state after each step.

    Attributes:
        position: (B, S, 3) m, world, origin of the base link.
        orientation: (B, S, 4) x, y, z, w, body to world.
        velocity: (B, S, 3) m/s, world, of that origin.
        angular_velocity: (B, S, 3) rad/s, body frame.
        joint_position, joint_velocity: (B, S, 12) rad, rad/s, package order.
        foot_force: (B, S, 4, 3) N, world, ground on foot, during the step.
        foot_normal: (B, S, 4, 3) world, from the ground to the foot; zero without contact.
        torso_contact: (B, S) whether the base link touched the ground.
    """

    position: FloatArray
    orientation: FloatArray
    velocity: FloatArray
    angular_velocity: FloatArray
    joint_position: Float32Array
    joint_velocity: Float32Array
    foot_force: Float32Array
    foot_normal: Float32Array
    torso_contact: NDArray[np.bool_]

    @classmethod
    def allocate(cls, robots: int, steps: int) -> PhysicsTrace:
        """An empty trace (about 300 bytes a robot and step)."""

        def single(*shape: int) -> Float32Array:
            return np.zeros((robots, steps, *shape), dtype=np.float32)

        def double(*shape: int) -> FloatArray:
            return np.zeros((robots, steps, *shape))

        return cls(
            position=double(3),
            orientation=double(4),
            velocity=double(3),
            angular_velocity=double(3),
            joint_position=single(JOINTS),
            joint_velocity=single(JOINTS),
            foot_force=single(LEGS, 3),
            foot_normal=single(LEGS, 3),
            torso_contact=np.zeros((robots, steps), dtype=np.bool_),
        )


class SimulationBackend(Protocol):
    """A batch of robots in one engine. Leg and joint order are the package's."""

    def __init__(self, scenes: Sequence[Scene], robot: RobotDescription, config: PhysicsConfig) -> None:
        """Build the worlds; their terrains have the same `Terrain.structure`."""

    def reset(self, position: FloatArray, orientation: FloatArray, joint_position: FloatArray) -> None:
        """Put the robots at rest: (B, 3) m, (B, 4) x, y, z, w, (B, 12) rad."""

    def advance(self, joint_target: FloatArray, push: FloatArray, trace: PhysicsTrace, start: int) -> None:
        """One control step of S = ``steps_per_control`` physics steps, recorded in the trace from index ``start`` on.

        Args:
            joint_target: (B, S, 12) rad, what the motors follow in each physics step.
            push: (B, 6) force (N, at the base link's origin) and torque (N m) on the base link, world frame, constant.
            trace: where to record.
            start: index of the first of the steps.
        """

    def set_foot_friction(self, friction: FloatArray) -> None:
        """Sliding friction of each foot from now on, (B, 4)."""


def check_backend(name: str) -> None:
    """Raises `TraceError` where no engine has this name."""
    if name not in BACKENDS:
        raise TraceError(f"unknown simulation backend {name!r}: known are {', '.join(sorted(BACKENDS))}")


def create_backend(scenes: Sequence[Scene], robot: RobotDescription, config: PhysicsConfig) -> SimulationBackend:
    """The engine that the configuration names.

    Raises:
        TraceError: unknown engine, or not installed.
    """
    check_backend(config.backend)
    module, name, distribution = BACKENDS[config.backend]
    try:
        backend = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise TraceError(
            f"simulation backend {config.backend!r} needs {distribution}: pip install {distribution}"
        ) from error
    return cast(SimulationBackend, backend(scenes, robot, config))
