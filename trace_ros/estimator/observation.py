"""The 47 numbers that the network sees at each sample, and the window of the last 30 of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

OBSERVATION_SIZE = 47
WINDOW = 30
"""Samples in the query network's window (60 ms at 500 Hz)."""
MAX_GAP_S = 0.1
"""After a longer silence (s) the window no longer describes the present, and is filled anew."""

GYRO = slice(0, 3)
"""Angular velocity, rad/s, body frame."""
ACCEL = slice(3, 6)
"""Specific force, m/s^2, body frame."""
JOINT_POSITION = slice(6, 18)
"""rad; legs FL, FR, RL, RR; joints hip, thigh, calf."""
JOINT_VELOCITY = slice(18, 30)
"""rad/s."""
JOINT_TORQUE = slice(30, 42)
"""Target joint torque, N m; NaN where the robot does not report it."""
JOINTS = slice(6, 42)
"""All three; to a network that is told of the feet, position, velocity and force of these (`estimator.feet`)."""
ROLL_PITCH = slice(42, 44)
"""The estimator's previous roll and pitch, rad."""
VELOCITY_XY = slice(44, 46)
"""The estimator's previous body velocity along x and y, m/s."""
DT = slice(46, 47)
"""Time since the previous sample, s."""

QUERY_CHANNELS: tuple[int, ...] = (*range(6), *range(42, 47))
"""The 11 channels of the query network: gyro, accel, roll, pitch, vx, vy, dt."""


class ObservationWindow:
    """The last 30 observations, oldest first, in float32.

    Each observation is written twice, half a buffer apart, so that the window is always one contiguous view.
    """

    def __init__(self) -> None:
        self._buffer: NDArray[np.float32] = np.zeros((2 * WINDOW, OBSERVATION_SIZE), dtype=np.float32)
        self._next = 0
        self._count = 0

    def clear(self) -> None:
        """Forget all observations."""
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        """Observations held, at most `WINDOW`."""
        return self._count

    @property
    def full(self) -> bool:
        """Whether `WINDOW` observations have been written since the last clear."""
        return self._count == WINDOW

    def append(self, observation: NDArray[np.floating]) -> None:
        """Add the newest observation (47,), dropping the oldest when full."""
        self._buffer[self._next] = observation
        self._buffer[self._next + WINDOW] = observation
        self._next = (self._next + 1) % WINDOW
        self._count = min(self._count + 1, WINDOW)

    def view(self) -> NDArray[np.float32]:
        """The observations held, oldest first: (len, 47), a view that the next `append` changes."""
        start = self._next if self.full else 0
        return self._buffer[start : start + self._count]

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return iter(self.view())
