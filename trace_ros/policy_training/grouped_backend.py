"""Robots on differing ground, simulated as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from trace_ros.policy_training.restarting_backend import RestartingBackend
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace, Scene

FloatArray = NDArray[np.float64]


class GroupedBackend:
    """An engine takes one structure of ground only; this is several of them."""

    def __init__(
        self, scenes: Sequence[Scene], groups: Sequence[slice], robot: RobotDescription, config: PhysicsConfig
    ) -> None:
        """Build the worlds of ``scenes``; ``groups`` part them into neighbours with the same `Terrain.structure`.

        Raises:
            TraceError: the engine cannot load the robot.
        """
        self._groups = list(groups)
        self._engines = [RestartingBackend(scenes[group], robot, config) for group in self._groups]
        self.trace = PhysicsTrace.allocate(len(scenes), config.steps_per_control)
        """Of the last control step."""
        self._parts = [
            PhysicsTrace(**{field.name: getattr(self.trace, field.name)[group] for field in fields(PhysicsTrace)})
            for group in self._groups
        ]

    def advance(self, joint_target: FloatArray) -> None:
        """A control step: (B, physics steps, 12) rad."""
        for group, engine, part in zip(self._groups, self._engines, self._parts, strict=True):
            target = joint_target[group]
            engine.advance(target, np.zeros((len(target), 6)), part, 0)

    def place(self, rows: NDArray[np.int64], position: FloatArray, orientation: FloatArray, joints: FloatArray) -> None:
        """Put some robots at rest, see `RestartingBackend.place`."""
        for group, engine in zip(self._groups, self._engines, strict=True):
            own = (rows >= group.start) & (rows < group.stop)
            if own.any():
                engine.place(rows[own] - group.start, position[own], orientation[own], joints[own])

    def knock(self, velocity: FloatArray) -> None:
        """Change the bodies' velocities by (B, 3) m/s, world frame."""
        for group, engine in zip(self._groups, self._engines, strict=True):
            engine.knock(velocity[group])
