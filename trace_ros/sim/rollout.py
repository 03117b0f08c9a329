"""Many short simulated walks with ground truth, for training."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from trace_ros.logs import SensorLog
from trace_ros.resources import config_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import CONTROL_RATE_HZ, PhysicsConfig, Scene
from trace_ros.sim.commands import CommandConfig, draw_commands, hold_phases
from trace_ros.sim.contacts import ContactLabelConfig
from trace_ros.sim.domain_randomization import (
    RandomizationConfig,
    SlipProcess,
    SlipSchedule,
    draw_dynamics,
    draw_pushes,
    draw_slips,
)
from trace_ros.sim.placement import CommandedWay, farthest_reach
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.policy_randomization import (
    PolicyRandomizationConfig,
    PolicyVariation,
    RandomizedPolicy,
    draw_variation,
)
from trace_ros.sim.ranges import STRICT, load_yaml_model
from trace_ros.sim.recording import record
from trace_ros.sim.sampling import SamplingConfig
from trace_ros.sim.scaling import RobotSize, fit_to_robot
from trace_ros.sim.sensors import SensorConfig
from trace_ros.sim.terrain import Terrain
from trace_ros.sim.terrain_generation import TerrainConfig, TerrainKind, generate_terrain
from trace_ros.sim.walk import FallConfig, Walk, first_departure, first_fall, standing_pose
from trace_ros.sim.walkers import Walkers

FloatArray = NDArray[np.float64]
logger = logging.getLogger(__name__)

# Kinds of ground whose worlds are built alike, so that they can share a batch.
_BATCHED_KINDS: tuple[tuple[TerrainKind, ...], ...] = (
    ("flat", "slope"),
    ("perlin",),
    ("discrete", "random_steps", "inclined_steps"),
    ("stairs",),
)


class SimulationConfig(BaseModel):
    """Everything that decides what is simulated for training (``config/training/simulation.yaml``).

    Attributes:
        duration: s, length of a rollout.
        settle: s, simulated before the recording begins.
        minimum_duration: s; what is left of a rollout after a fall is dropped when it is shorter.
        batch: robots that are simulated at once (about 3 MB each at 2 kHz).
        sized_for: robot that forces, masses, torques and the ground's heights were chosen for; they are scaled to the
            one that is simulated (`trace_ros.sim.scaling`). None: taken as they are, whatever the robot.
        physics, sampling, terrain, commands, randomization, policy, sensors, contact_labels, falls: see there.
    """

    model_config = STRICT
    duration: Annotated[float, Field(gt=0)] = 4.0
    settle: Annotated[float, Field(ge=0.1)] = 1.0
    minimum_duration: Annotated[float, Field(gt=0)] = 1.0
    batch: Annotated[int, Field(ge=1)] = 64
    sized_for: RobotSize | None = None
    physics: PhysicsConfig = PhysicsConfig()
    sampling: SamplingConfig = SamplingConfig()
    terrain: TerrainConfig = TerrainConfig()
    commands: CommandConfig = CommandConfig()
    randomization: RandomizationConfig = RandomizationConfig()
    policy: PolicyRandomizationConfig = PolicyRandomizationConfig()
    sensors: SensorConfig = SensorConfig()
    contact_labels: ContactLabelConfig = ContactLabelConfig()
    falls: FallConfig = FallConfig()

    @model_validator(mode="after")
    def _rates_divide(self) -> SimulationConfig:
        self.sampling.check_rates(self.physics)
        return self

    @classmethod
    def load(cls, path: Path | None = None) -> SimulationConfig:
        """Read a YAML file; without one, the package's ``config/training/simulation.yaml``.

        Raises:
            TraceError: the file is missing or a key or value is bad (named in the message).
        """
        return load_yaml_model(cls, path or config_directory() / "training" / "simulation.yaml", "simulation config")

    @property
    def control_steps(self) -> int:
        """Control steps of one rollout, settling included."""
        return int(np.ceil((self.settle + self.duration) * CONTROL_RATE_HZ - 1e-9))


@dataclass(frozen=True)
class Rollout:
    """One simulated walk.

    Attributes:
        measured: what the sensors said, with noise.
        clean: what perfect sensors would have said, at the same stamps. Both have the reference, contacts, contact
            normals and foot forces.
        info: what was drawn, by name.
    """

    measured: SensorLog
    clean: SensorLog
    info: dict[str, float | str] = field(default_factory=dict)


@dataclass
class RolloutStatistics:
    """Counts that `simulate_rollouts` keeps while it runs.

    Attributes:
        simulated: rollouts simulated.
        fallen: rollouts with a fall, or that left their ground (cut).
        dropped: rollouts that were too short after the cut.
        by_terrain: (simulated, fallen) of each kind of ground.
    """

    simulated: int = 0
    fallen: int = 0
    dropped: int = 0
    by_terrain: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, kind: str, fallen: bool, dropped: bool) -> None:
        """Add one rollout."""
        self.simulated += 1
        self.fallen += fallen
        self.dropped += dropped
        before = self.by_terrain.get(kind, (0, 0))
        self.by_terrain[kind] = (before[0] + 1, before[1] + fallen)


@dataclass(frozen=True)
class _Plan:
    """All that is drawn for one rollout before it is simulated."""

    scene: Scene
    start: FloatArray
    yaw: float
    variation: PolicyVariation
    commands: FloatArray
    hold: NDArray[np.bool_]
    pushes: FloatArray
    slips: SlipSchedule
    rng: np.random.Generator


def simulate_rollouts(
    config: SimulationConfig,
    robot: RobotDescription,
    seed: int,
    count: int,
    statistics: RolloutStatistics | None = None,
) -> Iterator[Rollout]:
    """Simulate ``count`` rollouts, batch by batch; deterministic in (config, robot, seed, count).

    Rollouts come grouped by the structure of their ground, and a batch is walked by one of the robot's policies, so
    shuffle them before use. A rollout with a fall ends
    before it; one that is shorter than ``minimum_duration`` after that is dropped, so fewer than ``count`` may come.

    Args:
        config: the distribution.
        robot: whom to simulate; its file must name a policy.
        seed: of all randomness.
        count: rollouts to simulate.
        statistics: counts falls and dropped rollouts, when given.

    Raises:
        TraceError: no policy for this robot, an unknown or missing engine, or a model that it cannot load.
    """
    walkers = Walkers.load(robot)
    # Of its own, so that a rollout's draws do not depend on how many policies there are.
    drawing = np.random.default_rng([seed, count, 1])
    config = fit_to_robot(config, robot)
    statistics = RolloutStatistics() if statistics is None else statistics
    # The first draw of each rollout's own generator is its kind of ground; grouped by it, a batch has one structure.
    generators = [np.random.default_rng([seed, index]) for index in range(count)]
    groups: dict[TerrainKind, list[np.random.Generator]] = {}
    for rng in generators:
        groups.setdefault(config.terrain.draw_kind(rng), []).append(rng)
    for kinds in _BATCHED_KINDS:
        members = [(kind, rng) for kind in kinds for rng in groups.get(kind, [])]
        for start in range(0, len(members), config.batch):
            policy = walkers.draw(drawing)
            plans = [
                _draw_plan(config, robot, policy, kind, rng) for kind, rng in members[start : start + config.batch]
            ]
            yield from _simulate_batch(config, robot, policy, plans, statistics)
    logger.info(
        "simulated %d rollouts, %d falls, %d dropped", statistics.simulated, statistics.fallen, statistics.dropped
    )


def _draw_plan(
    config: SimulationConfig,
    robot: RobotDescription,
    policy: WalkingPolicy,
    kind: TerrainKind,
    rng: np.random.Generator,
) -> _Plan:
    duration = config.control_steps / CONTROL_RATE_HZ
    randomization = config.randomization
    commands = draw_commands(config.commands, policy.command_limits, duration, CONTROL_RATE_HZ, rng)
    holds = rng.random() < config.commands.hold
    yaw = float(rng.uniform(-np.pi, np.pi))
    way = CommandedWay.of(commands, yaw, CONTROL_RATE_HZ)
    reach = farthest_reach(config.commands.limit * policy.command_limits, duration)
    terrain = generate_terrain(kind, config.terrain, reach, rng, way.half_extent)
    return _Plan(
        scene=Scene(terrain, draw_dynamics(randomization, robot, policy, terrain.smooth, rng)),
        start=way.start_on(terrain),
        yaw=yaw,
        variation=draw_variation(config.policy, policy, rng),
        commands=commands,
        hold=hold_phases(commands, config.commands.hold_after, CONTROL_RATE_HZ) & holds,
        pushes=draw_pushes(randomization.push, config.settle, duration, CONTROL_RATE_HZ, rng),
        slips=draw_slips(randomization.contact, duration, CONTROL_RATE_HZ, rng),
        rng=rng,
    )


def _simulate_batch(
    config: SimulationConfig,
    robot: RobotDescription,
    policy: WalkingPolicy,
    plans: list[_Plan],
    statistics: RolloutStatistics,
) -> Iterator[Rollout]:
    varied = RandomizedPolicy(policy, [plan.variation for plan in plans], 1.0 / CONTROL_RATE_HZ)
    walk = Walk([plan.scene for plan in plans], varied, robot, config.physics, config.control_steps)
    walk.reset(
        *standing_pose(
            [plan.scene.terrain for plan in plans],
            np.stack([plan.start for plan in plans]),
            np.array([plan.yaw for plan in plans]),
            policy.default_joint_position,
            robot,
        )
    )
    friction = np.array([plan.scene.dynamics.foot_friction for plan in plans])
    slips = SlipProcess(friction, [plan.slips for plan in plans])
    commands = np.stack([plan.commands for plan in plans], axis=1)
    hold = np.stack([plan.hold for plan in plans], axis=1)
    pushes = np.stack([plan.pushes for plan in plans], axis=1)
    for step in range(config.control_steps):
        walk.step(commands[step], hold[step], pushes[step], slips)

    rate = config.physics.rate_hz
    # The sample that opens the first interval is the last instant of the settling.
    first = round(config.settle * rate) - 1
    stride = config.sampling.longest_stride(config.physics)
    shortest = max(config.minimum_duration * rate - stride, stride)
    departures = first_departure(walk.trace, [plan.scene.terrain for plan in plans], config.falls)
    falls = np.minimum(first_fall(walk.trace, config.falls), departures)
    total = walk.trace.position.shape[1]
    for index, plan in enumerate(plans):
        fell = bool(falls[index] < total)
        end = int(falls[index]) - int(config.falls.margin * rate) if fell else total
        dropped = bool(end - 1 - first < shortest)
        statistics.count(plan.scene.terrain.kind, fell, dropped)
        if dropped:
            continue
        recording = record(
            walk.trace,
            index,
            (first, end),
            walk.joint_target[index],
            (policy.kp, policy.kd),
            robot,
            config.physics,
            config.sampling,
            config.sensors,
            config.contact_labels,
            plan.rng,
        )
        info = _describe(plan.scene.terrain, plan) | {"policy": policy.name}
        info.update(recording.info, slips=float(slips.onsets[index]), fell=float(fell))
        yield Rollout(recording.measured, recording.clean, info)


def _describe(terrain: Terrain, plan: _Plan) -> dict[str, float | str]:
    dynamics = plan.scene.dynamics
    moving = np.any(plan.commands != 0, axis=1)
    return {
        "terrain": terrain.kind,
        "difficulty": terrain.difficulty,
        "friction": dynamics.foot_friction,
        "foot_time_constant": dynamics.foot_time_constant,
        "base_mass": dynamics.base_mass,
        "action_scale": plan.variation.scale,
        "low_pass": plan.variation.low_pass,
        "standing": float(1 - moving.mean()),
        "held": float(plan.hold.mean()),
        "largest_push": float(np.linalg.norm(plan.pushes[:, :3], axis=1).max(initial=0.0)),
        "largest_push_torque": float(np.linalg.norm(plan.pushes[:, 3:], axis=1).max(initial=0.0)),
        "actuator_delay": dynamics.actuator_delay,
    }
