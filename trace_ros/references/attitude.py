"""Attitude by the gyro alone, and the rotations that a reference tells between its poses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.logs import FloatArray, IntArray, Trajectory

LONGEST_INTERVAL = 0.1
"""s; across a longer pause of the IMU nothing is known of the rotation."""


class GyroAttitude:
    """Orientation since the first sample by integration of the gyro; drifts, but is good over any second.

    Attributes:
        origin_ns: stamp that seconds are counted from.
        seconds: (N,) s.
        rotation: N orientations, body to the body at the first sample.
    """

    def __init__(self, stamp_ns: IntArray, angular_velocity: FloatArray) -> None:
        """``stamp_ns`` (N,) ns, strictly increasing, N at least 2; ``angular_velocity`` (N, 3) rad/s, base frame."""
        self.origin_ns = int(stamp_ns[0])
        self.seconds: FloatArray = np.asarray((stamp_ns - self.origin_ns) * 1e-9, dtype=float)
        self._velocity = angular_velocity
        interval = np.diff(self.seconds)
        middle = (angular_velocity[1:] + angular_velocity[:-1]) / 2
        steps = Rotation.from_rotvec(np.vstack((np.zeros(3), middle * interval[:, None])))
        self.rotation = _running_product(steps)
        self._pauses = np.concatenate(([0], np.cumsum(interval > LONGEST_INTERVAL)))

    def at(self, seconds: FloatArray) -> Rotation:
        """Orientations at any times (M,), s."""
        index = np.clip(np.searchsorted(self.seconds, seconds, side="right") - 1, 0, self.seconds.size - 1)
        rest = (seconds - self.seconds[index])[:, None] * self._velocity[index]
        return self.rotation[index] * Rotation.from_rotvec(rest)

    def knows(self, start: FloatArray, end: FloatArray) -> NDArray[np.bool_]:
        """Whether the IMU was there all the time from ``start`` to ``end`` (M,), s."""
        first = np.searchsorted(self.seconds, start, side="right") - 1
        last = np.searchsorted(self.seconds, end, side="left")
        inside = (first >= 0) & (last < self.seconds.size)
        pauses = self._pauses[np.clip(last, 0, self.seconds.size - 1)] - self._pauses[np.clip(first, 0, None)]
        return np.asarray(inside & (pauses == 0))


def _running_product(steps: Rotation) -> Rotation:
    """Products of the first 1, 2, ... N rotations, in log2 N rounds (Hillis and Steele 1986)."""
    product, shift, count = steps.as_quat(), 1, len(steps)
    while shift < count:
        later = Rotation.from_quat(product[:-shift]) * Rotation.from_quat(product[shift:])
        product = np.vstack((product[:shift], later.as_quat()))
        shift *= 2
    return Rotation.from_quat(product)


@dataclass(frozen=True)
class Increments:
    """Rotations of a reference between pairs of its poses.

    Attributes:
        start, end: (K,) s, by the reference's own stamps.
        vector: (K, 3) rad, rotation vector in the reference's body at the start.
    """

    start: FloatArray
    end: FloatArray
    vector: FloatArray

    def __len__(self) -> int:
        return int(self.start.size)

    def select(self, index: NDArray[np.int_] | NDArray[np.bool_]) -> Increments:
        """Some of them."""
        return Increments(self.start[index], self.end[index], self.vector[index])

    @property
    def duration(self) -> FloatArray:
        """(K,) s."""
        return self.end - self.start


def reference_increments(reference: Trajectory, origin_ns: int, span: float, fastest: float = 15.0) -> Increments:
    """Rotations over ``span`` (s), or from pose to pose where these are further apart, half a span one after another.

    Those over more than twice the time, and those faster than ``fastest`` (rad/s, faster than a robot turns), are left
    out: gaps and jumps.
    """
    seconds: FloatArray = np.asarray((reference.stamp_ns - origin_ns) * 1e-9, dtype=float)
    usual = float(np.median(np.diff(seconds)))
    reach = max(span, usual)
    stride = max(1, int(span / 2 / usual))
    start = np.arange(0, seconds.size - 1, stride)
    end = np.searchsorted(seconds, seconds[start] + reach - usual / 4)
    keep = end < seconds.size
    start, end = start[keep], end[keep]
    keep = seconds[end] - seconds[start] < 2 * reach
    start, end = start[keep], end[keep]
    rotation = reference.rotation_world_body
    vector = (rotation[start].inv() * rotation[end]).as_rotvec() if start.size else np.zeros((0, 3))
    found = Increments(seconds[start], seconds[end], vector)
    return found.select(np.linalg.norm(vector, axis=1) < fastest * found.duration)
