"""What lies between a controller and its motors: the time that joint targets need to get there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.sim.backend import PhysicsConfig

FloatArray = NDArray[np.float64]


class DelayedTargets:
    """Joint targets as they reach the motors of B robots: each robot's late by its own constant time.

    The delay is rounded to whole physics steps, so a target may arrive in the middle of a control step. It delays the
    targets only: the motors' own feedback of position and velocity is not delayed, as it runs in the motors.
    """

    def __init__(self, delay: FloatArray, physics: PhysicsConfig) -> None:
        """``delay``: (B,) s, not negative."""
        steps = physics.steps_per_control
        late = np.rint(delay * physics.rate_hz).astype(np.int64)
        # How many control steps old the target is that holds in each physics step of a control step: (B, S).
        self._age = -((np.minimum(np.arange(steps) - late[:, None], 0)) // steps)
        self._robots = np.arange(len(delay))[:, None]
        self._kept = int(self._age.max(initial=0)) + 1
        self._sent: FloatArray | None = None

    def reset(self, target: FloatArray) -> None:
        """Until the first target arrives, the motors hold this one: (B, 12) rad."""
        self._sent = np.repeat(np.asarray(target, dtype=float)[None], self._kept, axis=0)

    def send(self, target: FloatArray) -> FloatArray:
        """Send one control step's targets, (B, 12) rad; returns what holds in its physics steps, (B, S, 12) rad."""
        if self._sent is None:
            self.reset(target)
        assert self._sent is not None
        self._sent[1:] = self._sent[:-1].copy()
        self._sent[0] = target
        arrived: FloatArray = self._sent[self._age, self._robots]
        return arrived
