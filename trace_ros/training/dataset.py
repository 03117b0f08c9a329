"""Rollouts as the network trains on them: fixed-length rows of numbers, and segments cut from them.

A row holds one sample: the observation with the *true* previous roll, pitch, vx, vy in the fed-back channels (47), the
motion since the previous sample (9), what the legs add at the contact points (12), and which feet are in contact (4).
Torque that the measured log lacks is NaN, as for the estimator; joint velocity is differentiated as there. Rows after
the end of a rollout are zero, which a sampling interval never is: that marks them.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.differentiation import differentiate
from trace_ros.estimator.feet import FootChannels
from trace_ros.estimator.network import (
    DISPLACEMENT,
    OUTPUT_SIZE,
    ROTATION,
    VELOCITY,
    NetworkConfig,
    network_inputs,
)
from trace_ros.geometry import roll_pitch_yaw
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.training.losses import Targets, contact_point_velocity, tilt_correction

Rows = NDArray[np.float32]
NonNegative = Annotated[float, Field(ge=0)]

PREFIX = obs.WINDOW - 1
"""Rows that only fill the window of the first output."""

MOTION = slice(obs.OBSERVATION_SIZE, obs.OBSERVATION_SIZE + OUTPUT_SIZE)
CONTACT_VELOCITY = slice(MOTION.stop, MOTION.stop + 12)
CONTACT = slice(CONTACT_VELOCITY.stop, CONTACT_VELOCITY.stop + 4)
ROW_SIZE = CONTACT.stop
_RARE = 1e-3
"""Share of the sampling intervals that are too seldom for the network to learn."""
_STAMP_TOLERANCE = 0.01

FEEDBACK = slice(42, 46)
"""The fed-back channels: roll, pitch, vx, vy."""


class SimulatedRollout(Protocol):
    """What packing needs of `trace_ros.sim.rollout.Rollout`."""

    @property
    def measured(self) -> SensorLog:
        """With sensor noise; joint velocity and torque may be absent."""

    @property
    def clean(self) -> SensorLog:
        """Without noise, at the same stamps, with the reference."""


class FeedbackNoise(BaseModel):
    """How the fed-back roll, pitch, vx and vy differ from the truth in training (the paper: "noisy ground truth").

    Each rollout draws one constant offset, as the estimator's own slowly drifting error would be, and each sample white
    noise on top; all are standard deviations. Nothing else tells the network of the tilt but gravity.

    Attributes:
        tilt_offset, tilt_noise: rad.
        velocity_offset, velocity_noise: m/s.
        large_fraction: share of the rollouts whose offsets are ``large_scale`` times as large, so that the estimator
            knows what to do after it has gone wrong (our extension).
        large_scale: see ``large_fraction``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    tilt_offset: NonNegative = 0.02
    tilt_noise: NonNegative = 0.003
    velocity_offset: NonNegative = 0.05
    velocity_noise: NonNegative = 0.03
    large_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    large_scale: NonNegative = 4.0

    @property
    def tilt_spread(self) -> float:
        """Standard deviation of the roll and pitch offsets over all rollouts, rad."""
        return self.tilt_offset * math.sqrt(1 + self.large_fraction * (self.large_scale**2 - 1))

    def draw_offsets(self, count: int, generator: torch.Generator) -> Tensor:
        """Constant offsets of roll, pitch, vx, vy for some rollouts. ``-> (count, 4)``."""
        spread = torch.tensor([self.tilt_offset] * 2 + [self.velocity_offset] * 2)
        large = torch.rand(count, 1, generator=generator) < self.large_fraction
        scale = torch.where(large, self.large_scale, 1.0)
        return torch.randn(count, 4, generator=generator) * spread * scale

    def apply(self, observations: Tensor, offsets: Tensor, generator: torch.Generator) -> Tensor:
        """Observations (B, N, 47) whose fed-back channels are off by offsets (B, 4) and white noise."""
        noise = torch.tensor([self.tilt_noise] * 2 + [self.velocity_noise] * 2)
        shape = (*observations.shape[:2], 4)
        noisy = observations.clone()
        noisy[..., FEEDBACK] += offsets[:, None] + noise * torch.randn(shape, generator=generator)
        return noisy


def pack(rollout: SimulatedRollout, robot: RobotDescription, rows: int) -> Rows:
    """Turn a rollout into ``(rows, 72)`` numbers; what is longer is cut, what is shorter padded with zeros.

    The first sample has no predecessor and gives no row. Labels follow equations (3) to (6) of the paper; foot
    velocities use the clean joint and body velocities. Samples may be any time apart. Without contact labels all feet
    count as in contact.

    Raises:
        TraceError: the log has no reference at its own stamps, or the clean one no joint velocity.
    """
    log, clean = rollout.measured, rollout.clean
    truth = clean.reference
    if truth is None or not all(np.array_equal(log.stamp_ns, other.stamp_ns) for other in (clean, truth)):
        raise TraceError("training rollout: needs a reference and a clean log at the stamps of the measured log")
    count = min(len(log) - 1, rows)
    packed = np.zeros((rows, ROW_SIZE), dtype=np.float32)
    if count < 1:
        return packed
    now, before = slice(1, count + 1), slice(0, count)
    observation = packed[:count, : obs.OBSERVATION_SIZE]
    observation[:, obs.GYRO] = log.angular_velocity[now]
    observation[:, obs.ACCEL] = log.linear_acceleration[now]
    observation[:, obs.JOINT_POSITION] = log.joint_position[now]
    if log.joint_velocity is not None:
        observation[:, obs.JOINT_VELOCITY] = log.joint_velocity[now]
    else:
        observation[:, obs.JOINT_VELOCITY] = differentiate(log.stamp_ns[: now.stop], log.joint_position[: now.stop])[1:]
    observation[:, obs.JOINT_TORQUE] = np.nan if log.joint_torque is None else log.joint_torque[now]
    observation[:, obs.ROLL_PITCH] = roll_pitch_yaw(truth.orientation[before])[:, :2]
    observation[:, obs.VELOCITY_XY] = truth.velocity[before, :2]
    observation[:, obs.DT] = (np.diff(log.stamp_ns[: count + 1]) * 1e-9)[:, None]

    rotation = truth.rotation_world_body
    motion = packed[:count, MOTION]
    motion[:, DISPLACEMENT] = rotation[before].inv().apply(truth.position[now] - truth.position[before])
    motion[:, ROTATION] = (rotation[before].inv() * rotation[now]).as_rotvec()
    motion[:, VELOCITY] = truth.velocity[now]

    if clean.joint_velocity is None:
        raise TraceError("training rollout: the clean log has no joint velocity, which the foot velocity loss needs")
    omega = truth.angular_velocity if truth.angular_velocity is not None else clean.angular_velocity
    normal = np.zeros((len(log), 4, 3)) if clean.contact_normal is None else clean.contact_normal
    position, linear, angular = robot.kinematics.forward_and_jacobians(clean.joint_position[now])
    contact = contact_point_velocity(
        omega[now], clean.joint_velocity[now], position, linear, angular, normal[now], robot.foot_radius
    )
    packed[:count, CONTACT_VELOCITY] = contact.reshape(count, 12)
    packed[:count, CONTACT] = 1.0 if clean.contact is None else clean.contact[now]
    return packed


def told_at_feet(rows: Tensor, feet: FootChannels | None) -> Tensor:
    """Packed rows (..., 72), the legs as a network is told of them: by ``feet``, or as they are where it is None."""
    if feet is None:
        return rows
    told, values = rows.clone(), rows.double().numpy()
    told[..., obs.JOINTS] = torch.from_numpy(feet.at(values[..., obs.JOINTS], values[..., obs.GYRO])).to(rows.dtype)
    return told


class Segment(NamedTuple):
    """Inputs and targets of T consecutive outputs.

    Attributes:
        observations: (B, T + rows before them, 47) with fed-back channels as the network shall see them.
        targets: of the last T rows.
    """

    observations: Tensor
    targets: Targets


def make_segment(
    rows: Tensor,
    offsets: Tensor,
    noise: FeedbackNoise,
    tilt_correction_rate: float,
    generator: torch.Generator,
) -> Segment:
    """Noise on the fed-back inputs, and targets that pull their tilt back to gravity.

    Args:
        rows: (B, T + 29, 72) as `pack` makes them.
        offsets: (B, 4) of `FeedbackNoise.draw_offsets`; the same for all segments of a rollout.
        noise: of the fed-back channels.
        tilt_correction_rate: 1/s; see `losses.tilt_correction`. 0 asks for the true increment.
        generator: for the white noise.
    """
    observations = noise.apply(rows[..., : obs.OBSERVATION_SIZE], offsets, generator)
    return Segment(observations, make_targets(rows, offsets[:, None, :2], tilt_correction_rate))


def make_targets(rows: Tensor, tilt_offset: Tensor, tilt_correction_rate: float) -> Targets:
    """What the outputs at the last T rows are held to.

    Args:
        rows: (B, T + 29, 72) as `pack` makes them.
        tilt_offset: (B, T, 2), or what broadcasts to it: by how much the fed-back roll and pitch are off, rad.
        tilt_correction_rate: 1/s; see `losses.tilt_correction`. 0 asks for the true increment.
    """
    current = rows[:, PREFIX:]
    dt = current[..., obs.DT]
    valid = dt > 0
    # Padding must stay harmless where increments are divided by dt.
    dt = torch.where(valid, dt, 1.0)
    motion = current[..., MOTION].clone()
    if tilt_correction_rate > 0:
        correction = tilt_correction(current[..., obs.ROLL_PITCH], tilt_offset)
        motion[..., ROTATION] += tilt_correction_rate * dt * correction
    return Targets(
        motion=motion,
        previous_velocity=rows[:, PREFIX - 1 : -1, MOTION][..., VELOCITY],
        contact_velocity=current[..., CONTACT_VELOCITY].unflatten(-1, (4, 3)),
        contact=current[..., CONTACT],
        dt=dt,
        valid=valid.squeeze(-1).to(rows.dtype),
    )


def _mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Of each column without its NaN; zero where nothing is left. ``(n, c) -> (c,), (c,)``."""
    present = ~values.isnan()
    count = present.sum(0)
    mean = values.nansum(0) / count.clamp(min=1)
    squares = torch.where(present, values - mean, 0.0).square().sum(0)
    return mean, (squares / (count - 1).clamp(min=1)).sqrt()


def measure_intervals(rollouts: Tensor) -> tuple[float, float]:
    """Shortest and longest sampling interval (s) of packed rollouts (n, rows, 72), but for a thousandth at either end.

    One percent wider, since a robot's stamps are not exactly on its period.

    Raises:
        TraceError: there is no sample.
    """
    dt = rollouts[..., obs.DT].double()
    dt = dt[dt > 0]
    if not len(dt):
        raise TraceError("training data: no samples to measure their intervals from")
    shortest, longest = np.quantile(dt.numpy(), [_RARE, 1 - _RARE])
    return float(shortest) * (1 - _STAMP_TOLERANCE), float(longest) * (1 + _STAMP_TOLERANCE)


def samples_of(rollouts: Tensor) -> Tensor:
    """The samples of packed rollouts (n, rows, 72), without padding. ``-> (m, 72)``, float64.

    Raises:
        TraceError: there is none.
    """
    flat = rollouts.reshape(-1, ROW_SIZE)
    flat = flat[flat[:, obs.DT].squeeze(-1) > 0].double()
    if not len(flat):
        raise TraceError("training data: no samples to measure the normalisation from")
    return flat


def channel_spread(channels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean, and what to divide by, of each channel (n, c), float32; see `measure_normalisation`."""
    mean, scale = _mean_and_deviation(channels)
    floor = torch.where(mean.abs() > 1e-9, 0.1 * mean.abs(), torch.ones_like(mean))
    constant = scale < 1e-2 * mean.abs() + 1e-9
    return mean.float(), torch.where(constant, floor, scale).float()


class Normalisation(NamedTuple):
    """For `TraceNetwork.set_normalisation`: (47,), (47,) and (9,)."""

    mean: Tensor
    scale: Tensor
    output_scale: Tensor


def measure_normalisation(rollouts: Tensor, config: NetworkConfig, correction_spread: float) -> Normalisation:
    """Mean and standard deviation of each input channel, and the spread of what the head has to predict.

    A channel that hardly varies (the sampling interval at one rate; a torque that is always zero) is divided by a tenth
    of its mean, or by one, so that a small change later does not become a huge input. Where torque is absent it does
    not count; where it always is, mean 0 and scale 1 stand for it.

    Args:
        rollouts: (n, rows, 72) as `pack` makes them.
        config: says how inputs are transformed and what the head predicts.
        correction_spread: standard deviation of the tilt correction that is asked for on top of the true rotation,
            rad/s.

    Raises:
        TraceError: there is no sample.
    """
    flat = samples_of(rollouts)
    inputs = flat[:, : obs.OBSERVATION_SIZE]
    mean, scale = channel_spread(network_inputs(inputs, config.acceleration == "levelled"))
    motion, dt = flat[:, MOTION], inputs[:, obs.DT]
    displacement, rotation, velocity = motion[:, DISPLACEMENT] / dt, motion[:, ROTATION] / dt, motion[:, VELOCITY]
    if config.increments == "residual":
        displacement, rotation = displacement - velocity, rotation - inputs[:, obs.GYRO]
    spread = [part.square().mean(0).sqrt().clamp(min=1e-3) for part in (displacement, rotation, velocity)]
    spread[1][:2] = torch.hypot(spread[1][:2], torch.tensor(correction_spread, dtype=torch.float64))
    output = torch.cat(spread)
    return Normalisation(mean, scale, output.float())
