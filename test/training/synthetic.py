"""Made-up walks with exact truth, quick enough for tests; importable by the simulation process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription


@dataclass(frozen=True)
class SyntheticRollout:
    """As `trace_ros.sim.rollout.Rollout`."""

    measured: SensorLog
    clean: SensorLog


def rollout(seed: int, samples: int = 400, robot: str = "go2", noise: float = 0.0) -> SyntheticRollout:
    """A body on a smooth path whose joints move smoothly; the IMU agrees with the motion."""
    rng = np.random.default_rng(seed)
    dt = 0.002
    time = np.arange(samples) * dt
    stamps = (np.arange(samples) * 2_000_000).astype(np.int64)

    def waves(count: int, size: float, fastest: float) -> np.ndarray:
        rate, phase = rng.uniform(0.5, fastest, count), rng.uniform(0, 2 * np.pi, count)
        return size * np.sin(2 * np.pi * rate * time[:, None] + phase)

    angles = waves(3, 0.15, 2.0)
    rotation = Rotation.from_euler("xyz", angles)
    position = waves(3, 0.2, 1.0) + time[:, None] * rng.uniform(-0.5, 0.5, 3)
    velocity_world = np.gradient(position, dt, axis=0)
    omega = np.zeros((samples, 3))
    omega[1:] = (rotation[:-1].inv() * rotation[1:]).as_rotvec() / dt
    specific = rotation.inv().apply(np.gradient(velocity_world, dt, axis=0) + (0, 0, 9.81))
    joints = np.tile([0.0, 0.8, -1.5], 4) + waves(12, 0.3, 3.0)
    truth = Trajectory(stamps, position, rotation.as_quat(), rotation.inv().apply(velocity_world), omega)
    contact = rng.random((samples, 4)) < 0.6
    normal = np.where(contact[..., None], rotation.inv().apply((0, 0, 1))[:, None], 0.0)
    clean = SensorLog(
        stamps,
        omega,
        specific,
        joints,
        np.gradient(joints, dt, axis=0),
        10 * waves(12, 1.0, 3.0),
        "pd_target",
        robot,
        truth,
        contact,
        normal,
    )
    measured = replace(
        clean,
        angular_velocity=omega + noise * rng.normal(size=omega.shape),
        linear_acceleration=specific + 10 * noise * rng.normal(size=omega.shape),
    )
    return SyntheticRollout(measured, clean)


@dataclass(frozen=True)
class SyntheticSource:
    """A `RolloutSource`."""

    samples: int = 400

    def __call__(self, robot: RobotDescription, seed: int, count: int) -> Iterator[SyntheticRollout]:
        return (rollout(seed + index, self.samples, robot.name, noise=0.01) for index in range(count))


@dataclass(frozen=True)
class PartlyBlindSource(SyntheticSource):
    """Every other rollout lacks the channels that a robot may lack."""

    def __call__(self, robot: RobotDescription, seed: int, count: int) -> Iterator[SyntheticRollout]:
        for index, walk in enumerate(super().__call__(robot, seed, count)):
            bare = replace(walk.measured, joint_velocity=None, joint_torque=None, torque_source="none")
            yield walk if index % 2 else replace(walk, measured=bare)


@dataclass(frozen=True)
class FailingSource:
    """Has nothing to give."""

    reason: str = "the ground is missing"

    def __call__(self, _robot: RobotDescription, _seed: int, _count: int) -> Iterator[SyntheticRollout]:
        raise TraceError(self.reason)
