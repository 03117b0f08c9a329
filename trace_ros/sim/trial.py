"""Trying a robot out before training: does it stand, does it go where it is told, how often does it fall.

`try_commands` puts one robot for each command on level ground, as its files describe it; `count_falls` walks the
rollouts that training would see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.robot_check import Verdict
from trace_ros.sim.backend import CONTROL_RATE_HZ, PhysicsConfig, Scene
from trace_ros.sim.domain_randomization import nominal_dynamics
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.policy_randomization import UNCHANGED, RandomizedPolicy
from trace_ros.sim.rollout import RolloutStatistics, SimulationConfig, simulate_rollouts
from trace_ros.sim.terrain import Plane, Terrain
from trace_ros.sim.walk import FallConfig, Walk, first_fall, standing_pose

FloatArray = NDArray[np.float64]

STAND, WALK, MEASURED = 1.0, 4.0, 2.0
"""s: standing first, then walking, of which the last part is measured."""
# Commands that are tried, as parts of the policy's largest vx, vy and wz.
_COMMANDS = ((0, 0, 0), (0.5, 0, 0), (1, 0, 0), (-0.5, 0, 0), (0, 0.7, 0), (0, -0.7, 0), (0, 0, 0.7), (0, 0, -0.7))
# Following a command by less than this, along it, is no walking; beside it, more than this is veering off.
_FOLLOWS, _STRAYS = 0.5, 0.3
# A standing robot that is lower than this part of its policy's posture has collapsed.
_COLLAPSED = 0.6
# More rollouts with falls than this cost training; fewer are cut and forgotten.
_MANY_FALLS = 0.1


@dataclass(frozen=True)
class CommandTrial:
    """One robot's attempt.

    Attributes:
        command: (3,) vx, vy (m/s), wz (rad/s).
        achieved: (3,) mean of the same over the measured time, body frame; NaN after a fall.
        height: m, of the base link above the ground, the same mean.
        fell: whether it fell at any time.
    """

    command: FloatArray
    achieved: FloatArray
    height: float
    fell: bool


def try_commands(
    robot: RobotDescription, physics: PhysicsConfig, falls: FallConfig | None = None
) -> list[CommandTrial]:
    """Standing and seven ways of walking, on level ground, without any randomisation.

    Raises:
        TraceError: no policy for this robot, an unknown or missing engine, or a model that it cannot load.
    """
    policy = WalkingPolicy.load(robot)
    terrain = Terrain("flat", planes=(Plane(),))
    commands = np.array(_COMMANDS) * policy.command_limits
    robots = len(commands)
    scenes = [Scene(terrain, nominal_dynamics(robot, policy)) for _ in range(robots)]
    varied = RandomizedPolicy(policy, [UNCHANGED] * robots, 1.0 / CONTROL_RATE_HZ)
    steps = round((STAND + WALK) * CONTROL_RATE_HZ)
    walk = Walk(scenes, varied, robot, physics, steps)
    start = standing_pose(
        [terrain] * robots, np.zeros((robots, 2)), np.zeros(robots), policy.default_joint_position, robot
    )
    walk.reset(*start)
    standing: NDArray[np.bool_] = np.asarray(~commands.any(axis=1))
    for step in range(steps):
        walks = step >= STAND * CONTROL_RATE_HZ
        walk.step(commands * walks, standing, np.zeros((robots, 6)))
    fell = first_fall(walk.trace, falls or FallConfig()) < walk.trace.position.shape[1]
    last = slice(walk.trace.position.shape[1] - round(MEASURED * physics.rate_hz), None)
    trials = []
    for index, command in enumerate(commands):
        trace, achieved = walk.trace, np.full(3, np.nan)
        if not fell[index]:
            body = Rotation.from_quat(trace.orientation[index, last]).inv().apply(trace.velocity[index, last])
            turning = trace.angular_velocity[index, last, 2].mean()
            achieved = np.array([*body[:, :2].mean(axis=0), turning])
        height = float(trace.position[index, last, 2].mean())
        trials.append(CommandTrial(command, achieved, height, bool(fell[index])))
    return trials


def judge_commands(robot: RobotDescription, trials: list[CommandTrial]) -> list[Verdict]:
    """Whether the robot stands and follows."""
    policy = WalkingPolicy.load(robot)
    feet = robot.kinematics.forward(policy.default_joint_position)[0]
    posture = robot.foot_radius - float(feet[:, 2].min())
    verdicts = []
    still = [trial for trial in trials if not trial.command.any()]
    for trial in still:
        where = f"{trial.height:.3f} m high, {posture:.3f} m in the policy's default position"
        if trial.fell or trial.height < _COLLAPSED * posture:
            what = "falls" if trial.fell else f"collapses: {where}"
            verdicts.append(Verdict("fault", "standing", f"{what} (gains or hold_gains too low? masses, limits?)"))
        else:
            verdicts.append(Verdict("ok", "standing", where))
    walking = [trial for trial in trials if trial.command.any()]
    if fallen := [trial for trial in walking if trial.fell]:
        told = "; ".join(_text(trial.command) for trial in fallen)
        verdicts.append(Verdict("fault", "walking", f"falls when told {told} (m/s, m/s, rad/s)"))
        return verdicts
    parts = [_along(trial, policy.command_limits) for trial in walking]
    worst = int(np.argmin([along for along, _ in parts]))
    said = f"follows by {min(a for a, _ in parts):.0%} to {max(a for a, _ in parts):.0%}"
    if parts[worst][0] < _FOLLOWS:
        verdicts.append(
            Verdict("warning", "walking", f"{said}, least when told {_text(walking[worst].command)} (m/s, m/s, rad/s)")
        )
    elif (aside := max(part for _, part in parts)) > _STRAYS:
        verdicts.append(Verdict("warning", "walking", f"{said}, but strays by {aside:.0%} of the largest command"))
    else:
        verdicts.append(Verdict("ok", "walking", said))
    return verdicts


def _along(trial: CommandTrial, limits: FloatArray) -> tuple[float, float]:
    """How much of the command was done, and the rest of the motion as part of the largest commands."""
    limits = np.maximum(limits, 1e-9)
    command, achieved = trial.command / limits, trial.achieved / limits
    part = float(achieved @ command / (command @ command))
    return part, float(np.linalg.norm(achieved - part * command))


def _text(command: FloatArray) -> str:
    return " ".join(f"{value:g}" for value in command)


def count_falls(
    robot: RobotDescription,
    config: SimulationConfig,
    seed: int,
    count: int,
    progress: Callable[[int], None] | None = None,
) -> RolloutStatistics:
    """Simulate rollouts as training would and count those that fall.

    Args:
        robot: whom to simulate.
        config: the distribution.
        seed: of all randomness.
        count: rollouts.
        progress: called now and then with the number done.

    Raises:
        TraceError: see `simulate_rollouts`.
    """
    statistics = RolloutStatistics()
    for _ in simulate_rollouts(config, robot, seed, count, statistics):
        if progress is not None:
            progress(statistics.simulated)
    return statistics


def judge_falls(statistics: RolloutStatistics) -> Verdict:
    """Whether so many falls are a nuisance."""
    share = statistics.fallen / max(statistics.simulated, 1)
    kinds = ", ".join(f"{kind} {fell} of {count}" for kind, (count, fell) in statistics.by_terrain.items() if fell)
    text = f"{statistics.fallen} of {statistics.simulated} rollouts fall" + (f": {kinds}" if kinds else "")
    if share > _MANY_FALLS:
        return Verdict("warning", "rollouts", f"{text}; see docs/robots.md for what to lower")
    return Verdict("ok", "rollouts", text)


def judge_policy(robot: RobotDescription) -> Verdict:
    """Whether the walking policies load and fit; does not simulate. Raises nothing: what is wrong is the verdict."""
    if robot.policy is None:
        return Verdict(
            "warning", "policy", "none named: a trained model runs, but this robot cannot be simulated or trained for"
        )
    told = []
    for file, share in ((robot.policy, None), *robot.other_policies.items()):
        try:
            policy = WalkingPolicy.load(robot, file)
        except TraceError as error:
            return Verdict("fault", "policy", str(error))
        lower, upper = robot.kinematics.lower_limit, robot.kinematics.upper_limit
        default = policy.default_joint_position
        if (outside := (default < lower) | (default > upper)).any():
            names = ", ".join(np.asarray(robot.joint_names)[outside])
            return Verdict(
                "fault", "policy", f"{file.name}: default_joint_position lies outside the URDF's limits: {names}"
            )
        vx, vy, wz = policy.command_limits
        some = "" if share is None else f" for {100 * share:.0f} % of the rollouts"
        told.append(f"{file.name}{some}: up to {vx:g} and {vy:g} m/s, {wz:g} rad/s; kp {policy.kp:g}, kd {policy.kd:g}")
    return Verdict("ok", "policy", "; ".join(told))
