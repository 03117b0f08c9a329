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
    start = int(draw(rng, config.onset) * rate_hz)
    while start < steps:
        end = start + max(int(draw(rng, config.stretch) * rate_hz), 1)
        command = rng.uniform(-1.0, 1.0, 3) * limits * config.limit
        if rng.random() < config.single_axis:
            command *= np.eye(3)[rng.integers(3)]
        if rng.random() >= config.pause:
            commands[start:end] = command
        start = end
    return commands


def hold_phases(commands: FloatArray, after: float, rate_hz: float) -> NDArray[np.bool_]:
    """Where a robot that obeys these commands (T, 3) has been told to stand for at least ``after`` (s): (T,)."""
    standing = ~np.any(commands != 0, axis=1)
    index = np.arange(len(commands))
    last_moving = np.maximum.accumulate(np.where(standing, -1, index))
    return standing & (index - last_moving > after * rate_hz)
