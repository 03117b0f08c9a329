"""Legolas in training: increments with variances, and a mask of motion (docs/baselines.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor
from torch.nn import functional

from trace_ros.baselines.attitude import reported_tilt
from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.legolas_network import (
    ROTATION as ROTATION_COLUMNS,
)
from trace_ros.baselines.legolas_network import (
    TRANSLATION,
    LegolasConfig,
    LegolasNetwork,
    LegolasOutput,
    StreamingLegolas,
    frames_of,
    rotation_rate_columns,
    rotation_vector,
)
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import Card, export_script
from trace_ros.estimator.network import DISPLACEMENT, ROTATION
from trace_ros.geometry import so3_exp_torch
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import ClosedLoopRun, Poses, attitude, closed_loop_metrics
from trace_ros.training.config import CommonTraining
from trace_ros.training.dataset import MOTION, PREFIX, Segment, Targets, channel_spread, make_targets, samples_of
from trace_ros.training.learner import Compute, LaneBatch, Learner
from trace_ros.training.losses import masked_mean

Weight = Annotated[float, Field(ge=0)]
_VARIANCES = 0.01
"""Weight of the likelihood while increments learn from squared errors."""
_EVALUATED = 512
"""Outputs at a time, so that evaluation takes little memory."""


class LegolasLoss(BaseModel):
    """The loss (the paper gives its parts, the rest is our choice).

    Attributes:
        squared_until: share of the budget up to which increments are held to by squared errors; then by the Gaussian
            likelihood. Variances learn from the likelihood throughout.
        rotation: weight of squared errors of the rotation, in units of dt, against those of the displacement.
        mask: weight of the mask's cross entropy.
        moving_speed, moving_rate: m/s and rad/s, above one of which the body moves.
        rate_weight: m, by which a turn rate counts as a speed where misjudged motion is weighed by its size.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    squared_until: Annotated[float, Field(ge=0, le=1)] = 0.3
    rotation: Weight = 10.0
    mask: Weight = 0.1
    moving_speed: Annotated[float, Field(gt=0)] = 0.01
    moving_rate: Annotated[float, Field(gt=0)] = 0.03
    rate_weight: Weight = 0.2


class LegolasTraining(CommonTraining):
    """A training run of Legolas.

    Attributes:
        network: sizes.
        loss: its parts.
    """

    method: Literal["legolas"] = "legolas"
    network: LegolasConfig = LegolasConfig()
    loss: LegolasLoss = LegolasLoss()

    @model_validator(mode="after")
    def _window_is_long_enough(self) -> LegolasTraining:
        if self.network.history < PREFIX:
            raise ValueError(f"network: frames and stride must reach back {PREFIX} samples at least")
        return self


class LegolasTerms(NamedTuple):
    """The total and its parts, scalars.

    Attributes:
        total: what is minimised.
        displacement, rotation: mean squared errors in units of dt, (m/s)^2 and 1/s^2.
        likelihood: negative log likelihood of an increment, in units of dt.
        mask: cross entropy.
        misjudged: share of the samples whose motion is misjudged (no loss).
    """

    total: Tensor
    displacement: Tensor
    rotation: Tensor
    likelihood: Tensor
    mask: Tensor
    misjudged: Tensor


class LegolasLearner(Learner[LegolasNetwork, LegolasTraining]):
    """See the module."""

    def __init__(self, config: LegolasTraining, robot: RobotDescription | None = None) -> None:
        super().__init__(config, robot)
        self.history = config.network.history

    def make_network(self) -> LegolasNetwork:
        """See `Learner`."""
        return LegolasNetwork(self.config.network)

    def prepare(self, rows: Tensor) -> Tensor:
        """The fed-back roll and pitch become those that the IMU reports, with all its errors."""
        prepared = rows.clone()
        for rollout in prepared.view(-1, *rows.shape[-2:]):
            inputs = rollout[: int((rollout[:, obs.DT] > 0).sum())]
            dt = inputs[:, obs.DT].squeeze(-1)
            tilt = reported_tilt(inputs[:, obs.GYRO].numpy(), inputs[:, obs.ACCEL].numpy(), dt.numpy())
            inputs[:, obs.ROLL_PITCH] = torch.from_numpy(tilt)
        return prepared

    def measure(self, rollouts: Tensor) -> tuple[Tensor, ...]:
        """See `Learner`. Increments stand on top of the gyro's rotation, so it is the rest whose size counts."""
        samples = samples_of(self.prepare(rollouts))
        mean, scale = channel_spread(frames_of(samples[:, : obs.OBSERVATION_SIZE]))
        true, base = true_increments(samples[:, MOTION], samples[:, obs.DT]), torch.zeros(len(samples), 9).double()
        base[:, ROTATION_COLUMNS] = rotation_rate_columns(samples[:, obs.GYRO], samples[:, obs.DT])
        return mean, scale, (true - base).square().mean(0).sqrt().clamp(min=1e-3).float()

    def segment(self, rows: Tensor, offsets: Tensor, _generator: torch.Generator) -> Segment:
        """See `Learner`; without noise, since nothing is fed back."""
        targets = make_targets(rows[:, self.history - PREFIX :], offsets[:, None, :2], 0.0)
        return Segment(rows[..., : obs.OBSERVATION_SIZE], targets)

    def loss(self, compute: Compute[LegolasNetwork], batch: LaneBatch, progress: float) -> tuple[LegolasTerms, Tensor]:
        """See `Learner`."""
        segment, bfloat16 = batch.segment, self.config.bfloat16
        output = compute(lambda network: network.sequence(segment.observations, bfloat16))
        return legolas_loss(output, segment.targets, self.config.loss, progress), batch.hidden

    def evaluate(self, network: LegolasNetwork, rollouts: Tensor) -> dict[str, float]:
        """The loss, and the errors of poses that increments add up to; the velocity is displacement over time."""
        rows = self.prepare(rollouts)
        rows = torch.cat((rows[:, :1].expand(-1, self.history - PREFIX, -1), rows), dim=1)
        with torch.no_grad():
            outputs = [
                network.sequence(rows[:, start : start + self.history + _EVALUATED, : obs.OBSERVATION_SIZE])
                for start in range(0, rows.shape[1] - self.history, _EVALUATED)
            ]
            output = LegolasOutput(*(torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True)))
            targets = make_targets(rollouts, torch.zeros(1, 1, 2), 0.0)
            terms = legolas_loss(output, targets, self.config.loss, 1.0)
            metrics = closed_loop_metrics(_integrated(output, rollouts), rollouts)
        return {name: float(value) for name, value in terms._asdict().items()} | metrics._asdict()

    def card(self, fields: dict[str, Any]) -> Card:
        """See `Learner`."""
        return LegolasCard(network=self.config.network, **fields)

    def export(self, network: LegolasNetwork, card: Card, path: Path) -> Path:
        """See `Learner`."""
        return export_script(StreamingLegolas(network), network.state_dict(), card, path)


def true_increments(motion: Tensor, dt: Tensor) -> Tensor:
    """True motion (..., 9), whose rotation is a vector, as the network gives it: in units of dt."""
    columns = rotation_rate_columns(motion[..., ROTATION] / dt, dt)
    return torch.cat((motion[..., DISPLACEMENT] / dt, columns), dim=-1)


def legolas_loss(output: LegolasOutput, targets: Targets, config: LegolasLoss, progress: float) -> LegolasTerms:
    """Squared errors, then a Gaussian likelihood; and the mask, where misjudging counts by the motion's size.

    Args:
        output: (B, T) samples.
        targets: for them.
        config: weights.
        progress: share of the budget that is spent.
    """
    valid = targets.valid
    true = true_increments(targets.motion, targets.dt)
    error = output.increment - true
    displacement = masked_mean(error[..., TRANSLATION].square().mean(-1), valid)
    rotation = masked_mean(error[..., ROTATION_COLUMNS].square().mean(-1), valid)
    squared = progress < config.squared_until
    # Until then the likelihood teaches the variances alone: increments far off would otherwise only be called unsure.
    residual = error.detach() if squared else error
    density = 0.5 * (output.log_variance + residual.square() * torch.exp(-output.log_variance))
    likelihood = masked_mean(density.mean(-1), valid)

    speed = (targets.motion[..., DISPLACEMENT] / targets.dt).norm(dim=-1)
    rate = (targets.motion[..., ROTATION] / targets.dt).norm(dim=-1)
    moving = ((speed > config.moving_speed) | (rate > config.moving_rate)).to(valid.dtype)
    entropy = functional.binary_cross_entropy_with_logits(output.moving, moving, reduction="none")
    mask = masked_mean((1.0 + speed + config.rate_weight * rate) * entropy, valid)
    misjudged = masked_mean(((output.moving > 0) != (moving > 0)).to(valid.dtype), valid)
    total = likelihood + config.mask * mask
    if squared:
        # Adam takes the size of a head's own gradient out; so the variances learn all the same, but do not have their
        # way with the layers below.
        total = displacement + config.rotation * rotation + _VARIANCES * likelihood + config.mask * mask
    return LegolasTerms(total, displacement, rotation, likelihood, mask, misjudged)


def _integrated(output: LegolasOutput, rollouts: Tensor) -> ClosedLoopRun:
    """Poses from the truth at the start on, as `closed_loop` gives them."""
    dt = rollouts[:, PREFIX:, obs.DT]
    moving = (output.moving > 0).unsqueeze(-1)
    columns = output.increment[..., ROTATION_COLUMNS] * dt + torch.eye(3)[:2].flatten()
    turns = so3_exp_torch(torch.where(moving, rotation_vector(columns), 0.0))
    velocity = torch.where(moving, output.increment[..., TRANSLATION], 0.0)
    rotation = attitude(rollouts[:, PREFIX, obs.ROLL_PITCH])
    position = torch.zeros_like(rotation[..., 0])
    positions, rotations = [], []
    for displacement, turn in zip((velocity * dt).unbind(1), turns.unbind(1), strict=True):
        position = position + (rotation @ displacement.unsqueeze(-1)).squeeze(-1)
        rotation = rotation @ turn
        positions.append(position)
        rotations.append(rotation)
    motion = torch.cat((velocity * dt, torch.zeros_like(velocity), velocity), dim=-1)
    poses = Poses(torch.stack(positions, 1), torch.stack(rotations, 1))
    return ClosedLoopRun(motion, torch.zeros(*motion.shape[:2], 6), poses)
