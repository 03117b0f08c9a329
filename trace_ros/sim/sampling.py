"""When a robot's sensors are read, and what perfect ones would say then.

The IMU averages over the interval between two samples, as the anti-alias filters of real IMUs do, so that integrating
the gyroscope gives the change of orientation and integrating the specific force gives the change of velocity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import LEGS, SensorLog, Trajectory
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig, PhysicsTrace
from trace_ros.sim.contacts import ContactLabelConfig, contact_labels, contact_normals
from trace_ros.sim.ranges import STRICT, Range, draw
from trace_ros.sim.signals import Signals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Probability = Annotated[float, Field(ge=0, le=1)]


class SamplingConfig(BaseModel):
    """When the sensors are read. The stamps always tell the true instants.

    Attributes:
        rates: Hz -> weight, the rates of which each rollout draws one; each must divide the physics rate. Without any
            (or with all weights zero) it is ``physics.sample_rate_hz``.
        jitter_probability: that a sample comes one physics step early or late.
        lost_probability: that samples get lost after one that arrived; drawn for each rollout, [low, high].
        lost_burst: how many get lost in a row, [fewest, most].
        start_ns: stamp of the first physics step (ns).
    """

    model_config = STRICT
    rates: dict[Annotated[int, Field(ge=50, le=2000)], Annotated[float, Field(ge=0)]] = {}
    jitter_probability: Probability = 0.1
    lost_probability: Range = (0.0, 0.0)
    lost_burst: tuple[int, int] = (1, 1)
    start_ns: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _ranges(self) -> SamplingConfig:
        low, high = self.lost_probability
        if low < 0 or high > 1:
            raise ValueError(f"lost_probability: expected [low, high] within 0 and 1, got {[low, high]}")
        fewest, most = self.lost_burst
        if not 1 <= fewest <= most:
            raise ValueError(f"lost_burst: expected [fewest, most] with 1 <= fewest <= most, got {[fewest, most]}")
        return self

    def check_rates(self, physics: PhysicsConfig) -> None:
        """Refuse rates that physics steps do not hit.

        Raises:
            ValueError: a rate with a weight does not divide the physics rate.
        """
        if bad := [rate for rate, weight in self.rates.items() if weight and physics.rate_hz % rate]:
            raise ValueError(
                f"sampling.rates: {', '.join(map(str, bad))} Hz does not divide physics.rate_hz {physics.rate_hz}; "
                "give it weight 0 or take another physics rate"
            )

    def longest_stride(self, physics: PhysicsConfig) -> int:
        """Most physics steps between two nominal samples."""
        return max((physics.rate_hz // rate for rate, w in self.rates.items() if w), default=physics.steps_per_sample)

    def draw_rate(self, physics: PhysicsConfig, rng: np.random.Generator) -> int:
        """The sample rate of one rollout (Hz)."""
        weights = np.array(list(self.rates.values()))
        if not weights.sum():
            return physics.sample_rate_hz
        return int(rng.choice(list(self.rates), p=weights / weights.sum()))


@dataclass(frozen=True)
class SampleSchedule:
    """The instants of one rollout's samples.

    Attributes:
        rate_hz: nominal.
        steps: (N + 1,) physics steps; the first only opens the first interval.
        arrives: (N,) whether the sample at ``steps[1:]`` arrives, or is lost.
    """

    rate_hz: int
    steps: IntArray
    arrives: NDArray[np.bool_]


def draw_schedule(
    first: int, end: int, physics: PhysicsConfig, config: SamplingConfig, rng: np.random.Generator
) -> SampleSchedule:
    """Draw the rate, the jitter and the losses of one rollout.

    The nominal grid begins at ``first``. The first and the last sample have no jitter and are not lost, so that all
    rollouts cover the same time. With fewer than three physics steps a sample there is no room for jitter.

    Args:
        first: physics step that opens the first interval.
        end: the samples lie before this physics step; at least ``longest_stride + 1`` later.
        physics: rates.
        config: the distribution.
        rng: of all draws.

    Raises:
        TraceError: a rate does not divide the physics rate.
    """
    try:
        config.check_rates(physics)
    except ValueError as error:
        raise TraceError(str(error)) from error
    rate = config.draw_rate(physics, rng)
    stride = physics.rate_hz // rate
    count = (end - 1 - first) // stride
    steps = first + stride * np.arange(count + 1, dtype=np.int64)
    if stride >= 3 and config.jitter_probability:
        moved = rng.random(count + 1) < config.jitter_probability
        moved[[0, -1]] = False
        steps += np.where(moved, rng.choice(np.array([-1, 1]), count + 1), 0)
    return SampleSchedule(rate, steps, _arrivals(count, config, rng))


def _arrivals(count: int, config: SamplingConfig, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which of a rollout's samples arrive, (count,)."""
    arrives = np.ones(count, dtype=np.bool_)
    probability = draw(rng, config.lost_probability)
    if not probability:
        return arrives
    fewest, most = config.lost_burst
    burst = rng.integers(fewest, most + 1, count)
    earliest = 0
    for start in np.flatnonzero(rng.random(count) < probability):
        if start >= earliest:
            end = start + burst[start]
            arrives[start:end] = False
            earliest = end + 1  # one arrives before the next burst, or gaps would be longer than configured
    arrives[[0, -1]] = True
    return arrives


def clean_log(
    trace: PhysicsTrace,
    robot_index: int,
    steps: IntArray,
    rate_hz: float,
    signals: Signals,
    robot: RobotDescription,
    physics: PhysicsConfig,
    labels: ContactLabelConfig,
) -> SensorLog:
    """What perfect sensors of one robot would have said.

    The gyroscope and the specific force are means over the time since the previous sample, foot forces likewise; joints
    and the reference are of the instant itself.

    Args:
        trace: the physics.
        robot_index: which robot of the batch.
        steps: (N + 1,) physics steps of the samples; the first only opens the first interval.
        rate_hz: nominal sample rate.
        signals: of that robot and trace.
        robot: its name.
        physics: rates.
        labels: thresholds of the contact labels.

    Returns:
        A log of N samples with reference and contact labels. Body frame: base link.
    """
    b = robot_index
    window = slice(int(steps[0]), int(steps[-1]) + 1)
    at = steps[1:]
    rotation = Rotation.from_quat(trace.orientation[b, at])
    to_body = rotation.inv().as_matrix()
    foot_force = _interval_mean(trace.foot_force[b, window].reshape(-1, 3 * LEGS).astype(float), steps - steps[0])
    foot_force = np.einsum("nij,nlj->nli", to_body, foot_force.reshape(-1, LEGS, 3))
    contact = contact_labels(np.linalg.norm(foot_force, axis=-1), labels, 1.0 / rate_hz)
    normal = np.einsum("nij,nlj->nli", to_body, trace.foot_normal[b, at].astype(float))

    # The state after step i is that of the instant (i + 1) steps after the start.
    time = (steps + 1) / physics.rate_hz
    stamps = signals.epoch_ns + np.rint(time[1:] * 1e9).astype(np.int64)
    gyro, force = signals.imu(time[:-1], time[1:])
    joints = signals.joints(time[1:])
    reference = Trajectory(
        stamps,
        trace.position[b, at],
        trace.orientation[b, at],
        np.einsum("nij,nj->ni", to_body, trace.velocity[b, at]),
        trace.angular_velocity[b, at],
    )
    return SensorLog(
        stamps,
        gyro,
        force,
        joints.position,
        joints.velocity,
        joints.torque,
        torque_source="pd_target",
        robot=robot.name,
        reference=reference,
        contact=contact,
        contact_normal=contact_normals(normal, contact),
        foot_force=foot_force,
    )


def _interval_mean(values: FloatArray, at: IntArray) -> FloatArray:
    """Means of the rows ``at[k] + 1 .. at[k + 1]``: (S, D), (N + 1,) -> (N, D)."""
    return np.add.reduceat(values[1:], at[:-1], axis=0)[: len(at) - 1] / np.diff(at)[:, None]
