"""Domain randomisation of contact, dynamics and disturbances (the paper, section "Simulation Training Details").

Friction U(0.4, 1.2) and the sudden slip (1 %, U(0.3, 0.4)) are the paper's; it gives no numbers for the rest, which are
our choice. The rare ground with less friction (``low_probability``) is an extension of ours. Each term has a neutral
value that switches it off: a factor of [1, 1], an addition or a delay of [0, 0], a probability of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator, model_validator

from trace_ros.logs import LEGS
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import RobotDynamics
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.ranges import STRICT, NotNegativeRange, PositiveRange, Range, draw
from trace_ros.sim.reproducible import rounded

FloatArray = NDArray[np.float64]
Probability = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]


class OtherContact(BaseModel):
    """Feet on ground that answers otherwise than the engine's own contacts do.

    Feet that sink in as deep rebound, or do not. A network that knows one engine's contacts alone learns their rebound,
    and its height drifts wherever the ground is another.

    Attributes:
        probability: of a rollout with such feet.
        impedance: how much of the contact's motion is prescribed (`RobotDynamics.foot_impedance`; MuJoCo's alone): at
            least 0.05, below which no robot can stand on it.
        damping_ratio: of the contact, as in `ContactRandomization`. What is more than is stable at the physics' rate is
            cut: at 2 kHz a quarter of what is drawn for uneven ground, at 1 kHz two thirds.
    """

    model_config = STRICT
    probability: Probability = 0.5
    impedance: Range = (0.1, 0.95)
    damping_ratio: PositiveRange = (0.7, 4.0)

    @field_validator("impedance")
    @classmethod
    def _bears_a_robot(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not (value[0] >= 0.05 and value[1] <= 0.99):
            raise ValueError(f"must lie between 0.05 and 0.99, got {list(value)}")
        return value


class ContactRandomization(BaseModel):
    """Feet on ground.

    Attributes:
        friction: sliding friction coefficient of a rollout.
        low_probability: that a rollout's friction is drawn from ``low_friction`` instead: slippery ground below the
            paper's range.
        low_friction: the friction coefficient then.
        slip_probability: that a foot starts to slip, drawn anew for each foot in contact in each control step (10 ms);
            it then slips until it lifts off. The paper gives 1 % without the interval that it is drawn for.
        slip_friction: friction coefficient of a slipping foot.
        time_constant: s, softness of the feet (1 / natural frequency of the contact): its stiffness goes with the
            inverse square. Below 0.005 the impacts of a trot pass 600 N.
        time_constant_uneven: s, the same on ground with facets or edges: a foot that sinks in by its own radius is
            pushed aside by the neighbouring facet, and falls are then an artefact.
        damping_ratio: of the contact; 1 is critical, below it feet rebound, above it they creep into the ground.
        other: in some rollouts, another kind of contact; None: in none.
    """

    model_config = STRICT
    friction: NotNegativeRange = (0.4, 1.2)
    low_probability: Probability = 0.0
    low_friction: NotNegativeRange = (0.15, 0.4)
    slip_probability: Probability = 0.01
    slip_friction: NotNegativeRange = (0.3, 0.4)
    time_constant: PositiveRange = (0.005, 0.03)
    time_constant_uneven: PositiveRange = (0.005, 0.014)
    damping_ratio: PositiveRange = (1.0, 1.0)
    other: OtherContact | None = None


class DynamicsRandomization(BaseModel):
    """The body and its motors.

    Attributes:
        base_mass: kg, added to the body (a payload, or a battery left out).
        base_com_offset: m, shift of the body's centre of mass along x, y and z, each drawn from [-value, value].
        mass_scale: factor on the mass and inertia of all links.
        inertia_scale: further factor on the body's inertia.
        joint_friction: N m, Coulomb friction.
        joint_damping: N m s/rad.
        armature: kg m^2, rotor inertia at the joint.
        motor_strength: factor on the torque limits: where the motors saturate.
        torque_constant: factor on the torque that the motors make of what is asked of them, below saturation.
        kp_scale, kd_scale: factors on the gains that the motors really have.
        actuator_delay: s, until a joint target reaches the motors; to the physics step. The log's target torque is made
            of the targets as they are sent.
    """

    model_config = STRICT
    base_mass: Range = (-0.5, 2.0)
    base_com_offset: tuple[NotNegative, NotNegative, NotNegative] = (0.03, 0.02, 0.02)
    mass_scale: PositiveRange = (0.92, 1.08)
    inertia_scale: PositiveRange = (0.8, 1.25)
    joint_friction: NotNegativeRange = (0.0, 0.4)
    joint_damping: NotNegativeRange = (0.0, 0.2)
    armature: NotNegativeRange = (0.005, 0.015)
    motor_strength: PositiveRange = (0.7, 1.0)
    torque_constant: PositiveRange = (1.0, 1.0)
    kp_scale: PositiveRange = (0.9, 1.1)
    kd_scale: NotNegativeRange = (0.8, 1.2)
    actuator_delay: NotNegativeRange = (0.0, 0.0)


class PushKind(BaseModel):
    """One kind of push.

    Attributes:
        share: of all pushes.
        force: N, horizontal, in a random direction.
        torque: N m, about a random axis.
        duration: s.
    """

    model_config = STRICT
    share: Probability
    force: NotNegativeRange
    torque: NotNegativeRange = (0.0, 0.0)
    duration: PositiveRange


class PushRandomization(BaseModel):
    """Forces and torques on the body: knocks, and what lasts longer.

    Attributes:
        probability: that a rollout is pushed at all.
        force: N, horizontal, in a random direction; of a knock, like the next two.
        torque: N m, about a random axis.
        duration: s.
        vertical: largest vertical part of any push, as a factor of its force.
        interval: s, pause between two pushes.
        longer: kinds of push that come instead of a knock, each with its share: being shoved, leaned on, pulled.
    """

    model_config = STRICT
    probability: Probability = 0.4
    force: NotNegativeRange = (10.0, 100.0)
    torque: NotNegativeRange = (0.0, 0.0)
    duration: PositiveRange = (0.05, 0.3)
    vertical: NotNegative = 0.3
    interval: NotNegativeRange = (0.5, 3.0)
    longer: tuple[PushKind, ...] = ()

    @model_validator(mode="after")
    def _shares(self) -> PushRandomization:
        if (total := sum(kind.share for kind in self.longer)) > 1.0:
            raise ValueError(f"longer: the shares add up to {total:g}, more than 1")
        return self

    @property
    def kinds(self) -> tuple[PushKind, ...]:
        """All kinds, their shares adding up to 1; knocks come first."""
        rest = max(1.0 - sum(kind.share for kind in self.longer), 0.0)
        return PushKind(share=rest, force=self.force, torque=self.torque, duration=self.duration), *self.longer


class RandomizationConfig(BaseModel):
    """All that varies between rollouts besides ground, commands, policy and sensors."""

    model_config = STRICT
    contact: ContactRandomization = ContactRandomization()
    dynamics: DynamicsRandomization = DynamicsRandomization()
    push: PushRandomization = PushRandomization()


def nominal_dynamics(robot: RobotDescription, policy: WalkingPolicy) -> RobotDynamics:
    """The robot as its files describe it, with the policy's gains."""
    return RobotDynamics(policy.kp, policy.kd, robot.torque_limits)


def draw_dynamics(
    config: RandomizationConfig,
    robot: RobotDescription,
    policy: WalkingPolicy,
    smooth_ground: bool,
    rng: np.random.Generator,
) -> RobotDynamics:
    """One rollout's robot; ``smooth_ground`` decides how soft its feet may be."""
    dynamics, contact = config.dynamics, config.contact
    offset = rng.uniform(-1.0, 1.0, 3) * dynamics.base_com_offset
    torque_constant = draw(rng, dynamics.torque_constant)
    slippery = rng.random() < contact.low_probability
    drawn = RobotDynamics(
        kp=policy.kp * torque_constant * draw(rng, dynamics.kp_scale),
        kd=policy.kd * torque_constant * draw(rng, dynamics.kd_scale),
        torque_limit=robot.torque_limits * draw(rng, dynamics.motor_strength),
        base_mass=draw(rng, dynamics.base_mass),
        base_com_offset=(float(offset[0]), float(offset[1]), float(offset[2])),
        mass_scale=draw(rng, dynamics.mass_scale),
        inertia_scale=draw(rng, dynamics.inertia_scale),
        joint_friction=draw(rng, dynamics.joint_friction),
        joint_damping=draw(rng, dynamics.joint_damping),
        armature=draw(rng, dynamics.armature),
        foot_friction=draw(rng, contact.low_friction if slippery else contact.friction),
        foot_time_constant=draw(rng, contact.time_constant if smooth_ground else contact.time_constant_uneven),
        foot_damping_ratio=draw(rng, contact.damping_ratio),
        actuator_delay=draw(rng, dynamics.actuator_delay),
    )
    # Nothing is drawn where this term is off: walks of courses from before it stay what they were.
    other = contact.other
    if other is None or rng.random() >= other.probability:
        return drawn
    impedance, damping_ratio = draw(rng, other.impedance), draw(rng, other.damping_ratio)
    return replace(drawn, foot_impedance=impedance, foot_damping_ratio=damping_ratio)


def draw_pushes(
    config: PushRandomization, start: float, duration: float, rate_hz: float, rng: np.random.Generator
) -> FloatArray:
    """Pushes at the policy's rate, none before ``start`` (s).

    Returns:
        (T, 6) force (N) and torque (N m) on the base link's origin, world frame.
    """
    steps = int(np.ceil(duration * rate_hz))
    pushes = np.zeros((steps, 6))
    if rng.random() >= config.probability:
        return pushes
    kinds = config.kinds
    shares = np.array([kind.share for kind in kinds])
    at = start + draw(rng, config.interval) * rng.random()
    while at < duration:
        kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
        angle, force = rng.uniform(0.0, 2 * np.pi), draw(rng, kind.force)
        vertical = rng.uniform(-1.0, 1.0) * config.vertical
        axis, torque = rng.normal(0.0, 1.0, 3), draw(rng, kind.torque)
        length = draw(rng, kind.duration)
        push = pushes[int(at * rate_hz) : int((at + length) * rate_hz) + 1]
        push[:, :3] = force * np.array([np.cos(angle), np.sin(angle), vertical])
        push[:, 3:] = torque * axis / np.linalg.norm(axis)
        push[:] = rounded(push)
        at += length + max(draw(rng, config.interval), 1.0 / rate_hz)
    return pushes


@dataclass(frozen=True)
class SlipSchedule:
    """When each foot would start to slip if it stood on the ground: (T, 4) bool, and on what friction: (T, 4)."""

    starts: NDArray[np.bool_]
    friction: FloatArray


def draw_slips(config: ContactRandomization, duration: float, rate_hz: float, rng: np.random.Generator) -> SlipSchedule:
    """One rollout's sudden slips."""
    shape = (int(np.ceil(duration * rate_hz)), LEGS)
    return SlipSchedule(rng.random(shape) < config.slip_probability, rng.uniform(*config.slip_friction, shape))


class SlipProcess:
    """Friction of each foot over time: a foot that starts to slip keeps its low friction until it lifts off."""

    def __init__(self, friction: FloatArray, schedules: list[SlipSchedule]) -> None:
        """``friction``: (B,), of the feet that do not slip."""
        self._nominal = np.repeat(friction[:, None], LEGS, axis=1)
        self._starts = np.stack([schedule.starts for schedule in schedules], axis=1)
        self._low = np.stack([schedule.friction for schedule in schedules], axis=1)
        self._slipping = np.zeros_like(self._nominal, dtype=np.bool_)
        self._current = self._nominal.copy()
        self.onsets = np.zeros(len(friction), dtype=int)
        """(B,) how many slips each robot has had."""

    def update(self, step: int, contact: NDArray[np.bool_]) -> FloatArray | None:
        """Friction (B, 4) from this control step on, or None where nothing changed. ``contact``: (B, 4)."""
        new = contact & ~self._slipping & self._starts[step]
        self.onsets += new.sum(axis=1)
        slipping = (self._slipping | new) & contact
        if not new.any() and (slipping == self._slipping).all():
            return None
        # A slip lowers friction; on ground that is slippery already it changes nothing.
        low = np.minimum(self._low[step], self._nominal)
        self._current = np.where(new, low, np.where(slipping, self._current, self._nominal))
        self._slipping = slipping
        return self._current
