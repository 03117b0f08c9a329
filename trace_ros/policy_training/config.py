"""What a walking policy is trained on: commands, randomised robots, rewards and the learner's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from trace_ros.policy_training.grounds import GroundConfig
from trace_ros.resources import config_directory
from trace_ros.sim.policy_description import CommandLimits, PolicyGains
from trace_ros.sim.ranges import STRICT, NotNegativeRange, PositiveRange, Range, load_yaml_model

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]

MAX_DELAY_S = 0.01


def _within_a_control_step(value: tuple[float, float]) -> tuple[float, float]:
    # Targets are held back within one step of the joint controllers; a longer delay would be cut.
    if value[1] > MAX_DELAY_S:
        raise ValueError(f"must be at most {MAX_DELAY_S:g} s, got {list(value)}")
    return value


class EnvironmentConfig(BaseModel):
    """The robots and what they are told.

    Attributes:
        robots: that walk at once, each in its own world.
        physics_rate_hz: physics steps a second, a multiple of 500.
        friction_impedance: see `trace_ros.sim.backend.PhysicsConfig`.
        rate_hz: at which the policy acts.
        episode: s, after which a robot starts anew; a fall ends it earlier.
        action_scale: rad, joint target of an action of 1, beside the robot's nominal position.
        action_clip: largest absolute action.
        gains: of the joint controllers, or None: those of the robot file.
        command_limits: m/s, m/s and rad/s.
        command_interval: s, between changes of the command.
        standing: part of the commands that are zero.
        small_command: commands below it (part of the limits' norm) are zero too: a robot cannot walk that slowly.
        push_interval: s, mean time between pushes.
        push: m/s, largest change of the body's velocity by a push.
        ground: on which robots walk, or None: level ground without end.
    """

    model_config = STRICT
    robots: Annotated[int, Field(ge=1)]
    physics_rate_hz: Annotated[int, Field(ge=500, multiple_of=500)]
    friction_impedance: Positive
    rate_hz: Literal[100, 50, 25, 20]
    episode: Annotated[float, Field(gt=0, le=1e6)]
    action_scale: Positive
    action_clip: Positive
    gains: PolicyGains | None = None
    hold_gains: PolicyGains | None = None
    command_limits: CommandLimits
    command_interval: Positive
    standing: Fraction
    small_command: Fraction
    push_interval: Positive
    push: NotNegative
    ground: GroundConfig | None = None

    @model_validator(mode="after")
    def _an_episode_has_a_step(self) -> EnvironmentConfig:
        if round(self.episode * self.rate_hz) < 1:
            raise ValueError(f"episode: {self.episode:g} s are shorter than a step of the policy")
        return self


class RandomisationConfig(BaseModel):
    """Each robot's draw, for the whole training.

    Attributes:
        friction: of the feet.
        time_constant: s, how soft the feet are.
        base_mass: part of the robot's mass, added to the body.
        gain_scale: factor on the controllers' gains.
        actuator_delay: s, up to 0.01.
        start_joints: rad, spread of the joints at the start of an episode.
        gyro_noise, gravity_noise, position_noise, velocity_noise: rad/s, -, rad, rad/s, of what the policy observes.
    """

    model_config = STRICT
    friction: PositiveRange
    time_constant: PositiveRange
    base_mass: Range
    gain_scale: PositiveRange
    actuator_delay: Annotated[NotNegativeRange, AfterValidator(_within_a_control_step)]
    start_joints: NotNegative
    gyro_noise: NotNegative
    gravity_noise: NotNegative
    position_noise: NotNegative
    velocity_noise: NotNegative


class RewardConfig(BaseModel):
    """Weights, a second. The sum of all is not let below zero, so that an early fall never pays.

    Attributes:
        velocity: of following vx and vy: exp(-(error / velocity_width)^2).
        velocity_width: m/s.
        progress: (m/s)^-1, of the speed along vx and vy, up to what is asked. The first step counts as much as the
            last, so that the robot leaves standing, where ``velocity`` is nearly flat.
        turning: of following wz, as ``velocity``.
        turning_width: rad/s.
        heave: (m/s)^-2, of the body's vertical velocity squared.
        rolling: (rad/s)^-2, of its roll and pitch rates squared.
        tilt: of the horizontal part of the gravity's direction squared.
        height: 1/m^2, of the height's departure from the nominal, squared.
        torque: 1, of the joint torques squared, in parts of their limits.
        joint_acceleration: (rad/s^2)^-2.
        action_rate: of the change of the actions squared.
        hips: 1/rad^2, of the hip joints' departure from the nominal, squared.
        posture: 1/rad, of all joints' departure from the nominal while told to stand.
        air_time: 1/s, of the time a foot was in the air beyond ``air_time_target``, when it comes down.
        air_time_target: s.
        trot: of diagonal feet that share their contact and the other pair that does not, while told to move.
        slip: (m/s)^-1, of the speed of feet in contact.
        clearance: (m^3/s)^-1, of feet in the air that swing lower than ``clearance_height``: what they lack of it,
            squared, times their speed.
        clearance_height: m, above the ground below the foot.
    """

    model_config = STRICT
    velocity: float
    velocity_width: Positive
    progress: float
    turning: float
    turning_width: Positive
    heave: float
    rolling: float
    tilt: float
    height: float
    torque: float
    joint_acceleration: float
    action_rate: float
    hips: float
    posture: float
    air_time: float
    air_time_target: NotNegative
    trot: float
    slip: float
    clearance: float = 0.0
    clearance_height: NotNegative = 0.0


class LearnerConfig(BaseModel):
    """Proximal policy optimisation, as rsl-rl-lib does it.

    Attributes:
        hidden: widths of the layers of policy and value network.
        steps: of each robot between updates.
        epochs, mini_batches: of an update.
        learning_rate: of the first update; afterwards ``desired_kl`` decides.
        desired_kl: of an update.
        clip: of the probability ratio.
        gamma, lam: of the returns.
        entropy: weight.
        initial_spread: standard deviation of the actions at first.
        mirrored: learn from each sample also with left and right exchanged.
    """

    model_config = STRICT
    hidden: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    steps: Annotated[int, Field(ge=2)]
    epochs: Annotated[int, Field(ge=1)]
    mini_batches: Annotated[int, Field(ge=1)]
    learning_rate: Positive
    desired_kl: Positive
    clip: Positive
    gamma: Annotated[float, Field(gt=0, lt=1)]
    lam: Fraction
    entropy: NotNegative
    initial_spread: Positive
    mirrored: bool


class PolicyTrainingConfig(BaseModel):
    """``config/policy/walk.yaml``."""

    model_config = STRICT
    environment: EnvironmentConfig
    randomisation: RandomisationConfig
    rewards: RewardConfig
    learner: LearnerConfig

    @model_validator(mode="after")
    def _mini_batches_hold_samples(self) -> PolicyTrainingConfig:
        samples = self.environment.robots * self.learner.steps
        if self.learner.mini_batches > samples:
            raise ValueError(
                f"learner.mini_batches: {self.learner.mini_batches} are more than the {samples} samples of an update"
            )
        return self

    @classmethod
    def load(cls, name: str | Path) -> PolicyTrainingConfig:
        """A file, or a name in ``config/policy``.

        Raises:
            TraceError: see `load_yaml_model`.
        """
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            path = config_directory() / "policy" / f"{name}.yaml"
        return load_yaml_model(cls, path, "policy training config")
