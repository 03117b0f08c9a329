"""Motions with exact IMU readings, and references of them as they come: another clock, frame, rate, with noise."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.spatial.transform import Rotation

from trace_ros.logs import SensorLog, Trajectory

START_NS = 1_700_000_000_123_456_789
IMU_POSITION = (-0.02, 0.0, 0.04)
_GRAVITY = np.array([0.0, 0.0, -9.81])


@dataclass
class Motion:
    """A body that rocks, turns and wanders; sums of sines, so that any time has an exact pose."""

    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        # Amplitude (rad, m), frequency (Hz): slow turns and wandering, and the rocking of a gait.
        self.angles = [
            [(0.04, 2.1), (0.05, 0.3)],
            [(0.03, 2.3), (0.04, 0.4)],
            [(0.9, 0.07), (0.5, 0.23), (0.02, 2.0)],
        ]
        self.places = [
            [(2.0, 0.05), (0.4, 0.21)],
            [(1.5, 0.06), (0.3, 0.25)],
            [(0.02, 2.2), (0.03, 0.2)],
        ]
        for parts in (*self.angles, *self.places):  # no two seeds walk alike
            parts[:] = [(size, rate * self.rng.uniform(0.7, 1.4)) for size, rate in parts]
        self.phases = self.rng.uniform(0, 2 * np.pi, (2, 3, 3))

    def _sum(self, parts: list, phases: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.stack(
            [
                sum(a * np.sin(2 * np.pi * f * t + phases[axis, k]) for k, (a, f) in enumerate(parts[axis]))
                for axis in range(3)
            ],
            axis=1,
        )

    def rotation(self, t: np.ndarray) -> Rotation:
        return Rotation.from_euler("xyz", self._sum(self.angles, self.phases[0], t))

    def position(self, t: np.ndarray) -> np.ndarray:
        return self._sum(self.places, self.phases[1], t)

    def log(self, seconds: float = 20.0, rate: float = 200.0, noise: float = 1.0) -> SensorLog:
        """Readings of an IMU at `IMU_POSITION`, a MEMS one with ``noise`` 1, and joints that do nothing."""
        t = np.arange(round(seconds * rate)) / rate
        h = 1e-4
        gyro = (self.rotation(t - h).inv() * self.rotation(t + h)).as_rotvec() / (2 * h)

        def imu(at: np.ndarray) -> np.ndarray:
            return self.position(at) + self.rotation(at).apply(IMU_POSITION)

        acceleration = (imu(t + h) - 2 * imu(t) + imu(t - h)) / h**2
        force = self.rotation(t).inv().apply(acceleration - _GRAVITY)
        rng = np.random.default_rng(self.seed + 1)
        stamp = START_NS + np.round(t * 1e9).astype(np.int64)
        return SensorLog(
            stamp,
            gyro + noise * (rng.normal(0, 0.01, gyro.shape) + rng.normal(0, 0.003, 3)),
            force + noise * (rng.normal(0, 0.1, force.shape) + rng.normal(0, 0.03, 3)),
            np.zeros((t.size, 12)),
        )

    def truth(self, stamp_ns: np.ndarray) -> Trajectory:
        t = (stamp_ns - START_NS) * 1e-9
        return Trajectory(stamp_ns, self.position(t), self.rotation(t).as_quat(), np.zeros((t.size, 3)))

    def reference(
        self,
        seconds: float = 20.0,
        rate: float = 10.0,
        late: float = 0.0,
        turn: Rotation | None = None,
        place: tuple[float, float, float] = (0.0, 0.0, 0.0),
        world: Rotation | None = None,
        position_noise: float = 0.02,
        angle_noise: float = 0.005,
    ) -> Trajectory:
        """Poses of a body at ``place``, turned by ``turn`` in the base, in another world, ``late`` in their stamps."""
        rng = np.random.default_rng(self.seed + 2)
        t = np.arange(0.013, seconds - 0.5 / rate, 1 / rate)
        base, turn, world = self.rotation(t), turn or Rotation.identity(), world or Rotation.identity()
        position = world.apply(self.position(t) + base.apply(place)) + [3.0, -2.0, 1.0]
        rotation = world * base * turn * Rotation.from_rotvec(rng.normal(0, angle_noise, (t.size, 3)))
        return Trajectory(
            START_NS + np.round((t + late) * 1e9).astype(np.int64),
            position + rng.normal(0, position_noise, position.shape),
            rotation.as_quat(),
            np.zeros((t.size, 3)),
        )
