"""MuJoCo with single robots put back to their start while the others go on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.sim.mujoco_backend import MujocoBackend

FloatArray = NDArray[np.float64]


class RestartingBackend(MujocoBackend):
    """A batch of robots of which any may start anew or be knocked."""

    def place(self, rows: NDArray[np.int64], position: FloatArray, orientation: FloatArray, joints: FloatArray) -> None:
        """Put some robots at rest.

        Args:
            rows: (N,) which.
            position: (N, 3) m.
            orientation: (N, 4) x, y, z, w.
            joints: (N, 12) rad, package order.
        """
        state = np.zeros((len(rows), self._current.shape[1]))
        root = self._root_qpos
        state[:, root : root + 3] = position
        state[:, root + 3 : root + 7] = orientation[:, [3, 0, 1, 2]]
        state[:, self._joint_position] = joints
        self._current[rows] = state
        self._warmstart[rows] = 0.0

    def knock(self, velocity: FloatArray) -> None:
        """Change the bodies' velocities by (B, 3) m/s, world frame."""
        root = self._root_qvel
        self._current[:, root : root + 3] += velocity
