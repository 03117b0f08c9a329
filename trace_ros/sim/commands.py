"""Velocity commands over a rollout: standing, walking, turning, and changes between them."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from trace_ros.sim.ranges import STRICT, Range, draw

FloatArray = NDArray[np.float64]
Probability = Annotated[float, Field(ge=0, le=1)]


class CommandConfig(BaseModel):
    """What is asked of the robot.

    Attributes:
        standing: probability that a rollout stands throughout.
        pause: probability that one stretch of a walking rollout is standing.
        stretch: s, how long a command holds before the next is drawn.
        single_axis: probability that a walking command uses one axis only (forward or back, sideways, or turning).
        cruise: probability that a walking rollout goes ahead steadily, as robots mostly do: forward or, one time in
            four, back at 0.4 to 1 of the limit, with little else, for ``cruise_stretch`` before the next command.
        cruise_stretch: s, see ``cruise``.
        limit: factor on the policy's largest commands.
        hold: probability that a rollout's robot holds still while it is told to stand, as a robot's standing mode does;
            otherwise the policy keeps balancing, which trembles.
        hold_after: s of standing after which the robot holds still.
        onset: s after the start of the simulation, when the first command comes; until then the robot stands.
    """

    model_config = STRICT
    standing: Probability = 0.1
    pause: Probability = 0.1
    stretch: Range = (1.0, 3.0)
    single_axis: Probability = 0.3
    cruise: Probability = 0.0
    cruise_stretch: Range = (4.0, 12.0)
    limit: Annotated[float, Field(gt=0, le=2)] = 1.0
    hold: Probability = 0.6
    hold_after: Annotated[float, Field(ge=0)] = 0.5
    onset: Range = (0.2, 1.5)


def draw_commands(
    config: CommandConfig, limits: FloatArray, duration: float, rate_hz: float, rng: np.random.Generator
) -> FloatArray:
    """Commands of one rollout at the policy's rate.

    Args:
        config: the distribution.
        limits: (3,) largest vx, vy (m/s), wz (rad/s).
        duration: s.
        rate_hz: steps a second.
        rng: source of randomness.

    Returns:
        (T, 3) vx, vy, wz.
    """
    steps = int(np.ceil(duration * rate_hz))
    commands = np.zeros((steps, 3))
    if rng.random() < config.standing:
        return commands
    cruises = rng.random() < config.cruise
    stretch = config.cruise_stretch if cruises else config.stretch
    start = int(draw(rng, config.onset) * rate_hz)
    while start < steps:
        end = start + max(int(draw(rng, stretch) * rate_hz), 1)
        command = limits * config.limit * (_ahead(rng) if cruises else _any_way(config, rng))
        if rng.random() >= config.pause:
            commands[start:end] = command
        start = end
    return commands


def _any_way(config: CommandConfig, rng: np.random.Generator) -> FloatArray:
    """A command in parts of the limits, (3,)."""
    command = rng.uniform(-1.0, 1.0, 3)
    if rng.random() < config.single_axis:
        command *= np.eye(3)[rng.integers(3)]
    return command


def _ahead(rng: np.random.Generator) -> FloatArray:
    """A steady command in parts of the limits, (3,)."""
    forward = rng.uniform(0.4, 1.0) * (1.0 if rng.random() < 0.75 else -1.0)
    return np.array([forward, rng.uniform(-0.1, 0.1), rng.uniform(-0.3, 0.3)])


def hold_phases(commands: FloatArray, after: float, rate_hz: float) -> NDArray[np.bool_]:
    """Where a robot that obeys these commands (T, 3) has been told to stand for at least ``after`` (s): (T,)."""
    standing = ~np.any(commands != 0, axis=1)
    index = np.arange(len(commands))
    last_moving = np.maximum.accumulate(np.where(standing, -1, index))
    return standing & (index - last_moving > after * rate_hz)
