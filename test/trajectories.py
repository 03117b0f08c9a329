"""Motions with known poses and velocities, for tests of the evaluation."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from trace_ros.logs import SensorLog, Trajectory

START_NS = 1_700_000_000_123_456_789


def stamps(duration_s: float, rate_hz: float = 500.0) -> np.ndarray:
    return START_NS + np.arange(round(duration_s * rate_hz), dtype=np.int64) * round(1e9 / rate_hz)


def walk(duration_s: float = 30.0, rate_hz: float = 500.0) -> Trajectory:
    """A lissajous walk with the heading along the path and some tilt; velocities are exact derivatives."""
    stamp = stamps(duration_s, rate_hz)
    t = (stamp - stamp[0]) * 1e-9
    position = np.stack((4 * np.sin(0.21 * t), 3 * np.sin(0.34 * t), 0.3 + 0.1 * np.sin(0.5 * t)), axis=1)
    world = np.stack((0.84 * np.cos(0.21 * t), 1.02 * np.cos(0.34 * t), 0.05 * np.cos(0.5 * t)), axis=1)
    yaw = np.arctan2(world[:, 1], world[:, 0])
    rotation = Rotation.from_euler("ZYX", np.stack((yaw, 0.05 * np.sin(3 * t), 0.04 * np.cos(2 * t)), axis=1))
    return Trajectory(stamp, position, rotation.as_quat(), rotation.inv().apply(world))


def disturb(truth: Trajectory, seed: int = 0, scale: float = 1.0) -> Trajectory:
    """An estimate that drifts: a random walk in position and heading, white noise in velocity and tilt."""
    rng = np.random.default_rng(seed)
    n = len(truth)
    drift = np.cumsum(rng.normal(scale=0.001 * scale, size=(n, 3)), axis=0)
    yaw = np.cumsum(rng.normal(scale=0.0002 * scale, size=n))
    tilt = rng.normal(scale=0.003 * scale, size=(n, 2))
    wrong = Rotation.from_euler("ZYX", np.column_stack((yaw, tilt)))
    return Trajectory(
        truth.stamp_ns,
        truth.position + drift,
        (wrong * truth.rotation_world_body).as_quat(),
        truth.velocity + rng.normal(scale=0.02 * scale, size=(n, 3)),
    )


def moved(trajectory: Trajectory, rotation: Rotation, translation: np.ndarray) -> Trajectory:
    """The same motion seen from another world frame."""
    return Trajectory(
        trajectory.stamp_ns,
        rotation.apply(trajectory.position) + translation,
        (rotation * trajectory.rotation_world_body).as_quat(),
        trajectory.velocity,
    )


def sensor_log(trajectory: Trajectory, seed: int = 0, *, simulated: bool = False) -> SensorLog:
    """Sensor values without physical meaning, with the trajectory as reference."""
    rng = np.random.default_rng(seed)
    n = len(trajectory)
    extra = {}
    if simulated:
        extra = {
            "contact": rng.random((n, 4)) < 0.6,
            "contact_normal": rng.normal(size=(n, 4, 3)),
            "foot_force": rng.normal(size=(n, 4, 3)),
        }
    return SensorLog(
        trajectory.stamp_ns,
        rng.normal(size=(n, 3)),
        rng.normal(size=(n, 3)) + np.array([0.0, 0.0, 9.81]),
        rng.normal(size=(n, 12)),
        rng.normal(size=(n, 12)),
        rng.normal(size=(n, 12)),
        "commanded_effort",
        "go2",
        trajectory,
        **extra,
    )
