"""The network of NMN-IEKF in training: contact and body velocity (docs/baselines.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from trace_ros.baselines.cards import NmnCard
from trace_ros.baselines.nmn_network import NmnConfig, NmnNetwork, NmnOutput, StreamingNmn, frames_of
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import Card, export_script
from trace_ros.estimator.network import VELOCITY
from trace_ros.robot import RobotDescription
from trace_ros.training.config import CommonTraining
from trace_ros.training.dataset import MOTION, PREFIX, Segment, Targets, channel_spread, make_targets, samples_of
from trace_ros.training.learner import Compute, LaneBatch, Learner
from trace_ros.training.losses import masked_mean, smooth_l1

Weight = Annotated[float, Field(ge=0)]
_AXES = ("x", "y", "z")


class NmnLoss(BaseModel):
    """The loss (all our choice; the paper's text gives none).

    Attributes:
        contact: weight of the cross entropy of contact.
        velocity: weight of the velocity's Smooth L1.
        beta: m/s, where that turns linear.
        smoothness: weight of the squared change of the velocity's error (m/s) and of the probabilities from one sample
            to the next.
        standing_speed: m/s; a foot stands while its contact point moves more slowly than this over the ground.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    contact: Weight = 0.1
    velocity: Weight = 1.0
    beta: Annotated[float, Field(gt=0)] = 0.1
    smoothness: Weight = 0.1
    standing_speed: Annotated[float, Field(gt=0)] = 0.2


class NmnTraining(CommonTraining):
    """A training run of NMN.

    Attributes:
        network: sizes.
        loss: weights.
    """

    method: Literal["nmn_iekf"] = "nmn_iekf"
    network: NmnConfig = NmnConfig()
    loss: NmnLoss = NmnLoss()


class NmnTerms(NamedTuple):
    """The total and its parts, scalars.

    Attributes:
        total: weighted sum.
        contact, velocity, smoothness: unweighted.
        misjudged: share of the feet whose contact is misjudged (no loss).
    """

    total: Tensor
    contact: Tensor
    velocity: Tensor
    smoothness: Tensor
    misjudged: Tensor


class NmnLearner(Learner[NmnNetwork, NmnTraining]):
    """See the module."""

    def __init__(self, config: NmnTraining, robot: RobotDescription | None = None) -> None:
        super().__init__(config, robot)
        self.hidden = config.network.hidden

    def make_network(self) -> NmnNetwork:
        """See `Learner`."""
        return NmnNetwork(self.config.network)

    def measure(self, rollouts: Tensor) -> tuple[Tensor, ...]:
        """See `Learner`."""
        samples = samples_of(rollouts)
        mean, scale = channel_spread(frames_of(samples[:, : obs.OBSERVATION_SIZE]))
        return mean, scale, samples[:, MOTION][:, VELOCITY].square().mean(0).sqrt().clamp(min=1e-3).float()

    def segment(self, rows: Tensor, offsets: Tensor, _generator: torch.Generator) -> Segment:
        """See `Learner`; the GRU needs no window."""
        return Segment(rows[:, PREFIX:, : obs.OBSERVATION_SIZE], make_targets(rows, offsets[:, None, :2], 0.0))

    def loss(self, compute: Compute[NmnNetwork], batch: LaneBatch, _progress: float) -> tuple[NmnTerms, Tensor]:
        """See `Learner`."""
        segment, bfloat16 = batch.segment, self.config.bfloat16
        output: NmnOutput = compute(lambda network: network.sequence(segment.observations, batch.hidden, bfloat16))
        return nmn_loss(output, segment.targets, self.config.loss), output.hidden

    def evaluate(self, network: NmnNetwork, rollouts: Tensor) -> dict[str, float]:
        """The loss, and how far the velocity is off: by axis, and for how long such errors last (s)."""
        segment = self.segment(rollouts, torch.zeros(len(rollouts), 4), torch.Generator())
        with torch.no_grad():
            output = network.sequence(segment.observations, network.initial_hidden(len(rollouts)))
            terms = nmn_loss(output, segment.targets, self.config.loss)
            error = (output.velocity - segment.targets.motion[..., VELOCITY]) * segment.targets.valid.unsqueeze(-1)
            variance = error.square().sum((0, 1)) / segment.targets.valid.sum().clamp(min=1)
        figures = {name: float(value) for name, value in terms._asdict().items()}
        figures["velocity_rmse"] = float(variance.sum().sqrt())
        figures |= {f"velocity_rmse_{axis}": float(value.sqrt()) for axis, value in zip(_AXES, variance, strict=True)}
        return figures | {"velocity_error_lasts_s": _correlation_time(error, segment.targets)}

    def card(self, fields: dict[str, Any]) -> Card:
        """See `Learner`."""
        return NmnCard(network=self.config.network, **fields)

    def finish(self, network: NmnNetwork, figures: Mapping[str, float]) -> None:
        """The filter takes the velocity as uncertain as it was on held-out rollouts."""
        if all(f"velocity_rmse_{axis}" in figures for axis in _AXES):
            measured = [figures[f"velocity_rmse_{axis}"] ** 2 for axis in _AXES]
            network.velocity_variance.copy_(torch.tensor(measured))

    def export(self, network: NmnNetwork, card: Card, path: Path) -> Path:
        """See `Learner`."""
        return export_script(StreamingNmn(network), network.state_dict(), card, path)


def standing_feet(targets: Targets, speed: float) -> Tensor:
    """Which feet stand: their contact point moves over the ground with less than ``speed`` (m/s). ``-> (B, T, 4)``.

    Rollouts keep the velocity of contact points, no flags of contact; and what a filter needs are feet that do not
    move. A foot that slides counts as lifted.
    """
    over_ground = targets.motion[..., VELOCITY].unsqueeze(-2) + targets.contact_velocity
    return (over_ground.square().sum(-1) < speed * speed).to(targets.motion.dtype)


def nmn_loss(output: NmnOutput, targets: Targets, config: NmnLoss) -> NmnTerms:
    """Cross entropy of contact, Smooth L1 of velocity, and a penalty on outputs that jump."""
    valid = targets.valid
    stands = standing_feet(targets, config.standing_speed)
    entropy = functional.binary_cross_entropy_with_logits(output.contact, stands, reduction="none")
    contact = masked_mean(entropy.mean(-1), valid)
    error = output.velocity - targets.motion[..., VELOCITY]
    velocity = masked_mean(smooth_l1(error, config.beta), valid)
    jumps = error.diff(dim=1).square().mean(-1) + torch.sigmoid(output.contact).diff(dim=1).square().mean(-1)
    smoothness = masked_mean(jumps, valid[:, 1:] * valid[:, :-1])
    misjudged = masked_mean(((output.contact > 0) != (stands > 0)).to(valid.dtype).mean(-1), valid)
    total = config.contact * contact + config.velocity * velocity + config.smoothness * smoothness
    return NmnTerms(total, contact, velocity, smoothness, misjudged)


def _correlation_time(error: Tensor, targets: Targets) -> float:
    """How long errors (B, T, 3) hang together: the span in which the mean of independent ones would vary as much, s.

    From the variance of means over one second: for white noise it is the variance times dt.
    """
    dt = float(targets.dt[targets.valid > 0].median())
    span = min(error.shape[1], max(1, round(1.0 / dt)))
    blocks = error.unfold(1, span, span)
    whole = targets.valid.unfold(1, span, span).min(-1).values > 0
    means = blocks.mean(-1)[whole]
    variance = error.square().sum((0, 1)) / targets.valid.sum().clamp(min=1)
    return float((means.square().mean(0) / variance.clamp(min=1e-12)).mean()) * span * dt if len(means) else 0.0
