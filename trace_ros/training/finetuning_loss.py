"""The objective of fine-tuning (the paper's section "Real-World Fine-Tuning").

``w_RE (w_pos L_pos + w_rot L_rot) + w_model L_model + w_SP L_SP``. The paper leaves the form of the relative error
open; ours is Smooth L1, as everywhere in the paper, of the displacement (m) and the rotation vector (rad) over the
horizon. Methods that state variances (Legolas) have a Gaussian likelihood of the displacement besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trace_ros.estimator.network import DISPLACEMENT, OUTPUT_SIZE, ROTATION, VELOCITY
from trace_ros.geometry import so3_exp_torch
from trace_ros.training.finetuning_config import FineTuningLoss
from trace_ros.training.finetuning_rollout import VARIANCE, Rollout
from trace_ros.training.losses import smooth_l1


class Frames(NamedTuple):
    """What S frames of B windows are held to, with the L frames before them that anchors may lie in.

    Attributes:
        before: (B, S, 3, 3) reference rotation of the frame before each.
        at_anchor: (B, S, 3, 3) reference rotation of each frame's anchor.
        anchor: (B, S) which of the L + S frames that is; any number where ``paired`` is 0.
        displacement: (B, S, 3) of the reference from anchor to frame, in the anchor's body frame, m.
        turn: (B, S, 3, 3) of the reference from anchor to frame.
        paired: (B, S) 1 where a frame has an anchor in its window and reference all the way from it, else 0.
        dt: (B, S, 1) true time since the frame before, s.
        inside: (B, S) 1 where a frame belongs to its window and does not stand still, else 0.
    """

    before: Tensor
    at_anchor: Tensor
    anchor: Tensor
    displacement: Tensor
    turn: Tensor
    paired: Tensor
    dt: Tensor
    inside: Tensor


class Past(NamedTuple):
    """What the objective needs of the L frames before a segment; without gradients.

    Attributes:
        moved: (B, L, 3) displacements, rotated by the reference, m; (B, L, 6) with their variances, m^2.
        rotation: (B, L, 3, 3) the estimator's attitude.
        velocity: (B, 3) its velocity at the last of them, m/s.
    """

    moved: Tensor
    rotation: Tensor
    velocity: Tensor

    @classmethod
    def none(cls, rotation: Tensor, feedback: Tensor, frames: int, stated: bool = False) -> Past:
        """Before the first segment.

        Args:
            rotation: (B, 3, 3) attitude that the windows begin with.
            feedback: (B, 4) roll, pitch, vx and vy that they begin with; vz is taken to be zero.
            frames: L.
            stated: whether the method states variances.
        """
        batch, size = len(rotation), 6 if stated else 3
        velocity = torch.cat((feedback[:, 2:], torch.zeros_like(feedback[:, :1])), dim=-1)
        return cls(rotation.new_zeros(batch, frames, size), rotation.unsqueeze(1).repeat(1, frames, 1, 1), velocity)

    def then(self, rollout: Rollout, frames: Frames) -> Past:
        """After a segment."""
        length = self.moved.shape[1]
        moved = torch.cat((self.moved, _moved(rollout, frames)), dim=1)
        rotation = torch.cat((self.rotation, rollout.rotation), dim=1)
        kept = moved.shape[1] - length
        return Past(moved[:, kept:].detach(), rotation[:, kept:].detach(), rollout.motion[:, -1, VELOCITY].detach())


class FineTuningTerms(NamedTuple):
    """The objective without L2-SP, and its unweighted parts; scalars.

    Attributes:
        total: ``w_RE L_RE + w_model L_model``, and the likelihood; the sum over frames divided by their number, those
            that have no pair included, so that a pair weighs the same in any segment.
        position, rotation: L_pos and L_rot, means over the pairs.
        model: L_model, mean over the frames.
        likelihood: negative logarithm of the displacement's, by the variances that a method states, mean over the
            pairs; 0 of others.
        position_m: mean distance between predicted and reference displacement, m.
        rotation_rad: mean angle between predicted and reference rotation, rad.
        pairs: how many.
    """

    total: Tensor
    position: Tensor
    rotation: Tensor
    model: Tensor
    likelihood: Tensor
    position_m: Tensor
    rotation_rad: Tensor
    pairs: Tensor


def rotated(rotation: Tensor, vector: Tensor) -> Tensor:
    """``(..., 3, 3), (..., 3) -> (..., 3)``."""
    return (rotation @ vector.unsqueeze(-1)).squeeze(-1)


def _moved(rollout: Rollout, frames: Frames) -> Tensor:
    """Displacements rotated by the reference (B, S, 3) m, and behind them their variances, m^2, where stated."""
    moved = rotated(frames.before, rollout.motion[..., DISPLACEMENT])
    if rollout.motion.shape[-1] == OUTPUT_SIZE:
        return moved
    return torch.cat((moved, rotated(frames.before.square(), rollout.motion[..., VARIANCE])), dim=-1)


def rotation_vector(rotation: Tensor) -> Tensor:
    """Logarithm of rotations by less than half a turn, with gradients at zero too. ``(..., 3, 3) -> (..., 3)`` rad."""
    skewed = 0.5 * (rotation - rotation.transpose(-1, -2))
    axis = torch.stack((skewed[..., 2, 1], skewed[..., 0, 2], skewed[..., 1, 0]), dim=-1)
    cosine = 0.5 * (rotation.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) - 1)
    squared = axis.square().sum(-1, keepdim=True)
    small = squared < 1e-6
    sine = torch.where(small, torch.ones_like(squared), squared).sqrt()
    return axis * torch.where(small, 1 + squared / 6, torch.atan2(sine, cosine) / sine)


def relative_errors(rollout: Rollout, past: Past, frames: Frames) -> tuple[Tensor, Tensor, Tensor]:
    """By how much the predicted motion from each frame's anchor differs from the reference's.

    The predicted translation is rolled out along the reference's rotations, so that it does not depend on predicted
    ones: ``R_a' sum_k R_{k-1} dp^_k`` over the frames k from after the anchor a to the frame, with R of the reference.

    Returns:
        Displacement (B, S, 3) in the anchor's body frame, m; rotation vector (B, S, 3), rad; and the variances of the
        displacement that the method states (B, S, 3), m^2, or (B, S, 0).
    """
    length, size = past.moved.shape[1:]
    moved = torch.cat((past.moved, _moved(rollout, frames)), dim=1).cumsum(dim=1)
    attitude = torch.cat((past.rotation, rollout.rotation), dim=1)
    index = frames.anchor.clamp(0, moved.shape[1] - 1)
    since = moved[:, length:] - torch.gather(moved, 1, index.unsqueeze(-1).expand(-1, -1, size))
    to_anchor = frames.at_anchor.transpose(-1, -2)
    displacement = rotated(to_anchor, since[..., :3])
    variance = rotated(to_anchor.square(), since[..., 3:]) if size > 3 else since[..., 3:]
    anchor = torch.gather(attitude.flatten(-2), 1, index.unsqueeze(-1).expand(-1, -1, 9)).unflatten(-1, (3, 3))
    turn = anchor.transpose(-1, -2) @ rollout.rotation
    return displacement - frames.displacement, rotation_vector(frames.turn.transpose(-1, -2) @ turn), variance


def model_error(motion: Tensor, velocity_before: Tensor, dt: Tensor) -> Tensor:
    """``dp^ / dt - (v^_{t-1} + dR^ v^_t) / 2``: displacement against velocity, both predicted, m/s. ``(B, S, 3)``.

    Args:
        motion: (B, S, 9).
        velocity_before: (B, 3) predicted velocity of the frame before the first.
        dt: (B, S, 1) s.
    """
    velocity = motion[..., VELOCITY]
    previous = torch.cat((velocity_before.unsqueeze(1), velocity[:, :-1]), dim=1)
    turned = rotated(so3_exp_torch(motion[..., ROTATION]), velocity)
    return motion[..., DISPLACEMENT] / dt - 0.5 * (previous + turned)


def finetuning_terms(rollout: Rollout, past: Past, frames: Frames, config: FineTuningLoss) -> FineTuningTerms:
    """The objective of a segment without L2-SP."""
    displacement, turn, variance = relative_errors(rollout, past, frames)
    paired, inside = frames.paired, frames.inside
    position = smooth_l1(displacement, config.position_beta) * paired
    rotation = smooth_l1(turn, config.rotation_beta) * paired
    model = smooth_l1(model_error(rollout.motion, past.velocity, frames.dt), config.model_beta) * inside
    relative = config.position * position + config.rotation * rotation
    likelihood = torch.zeros_like(paired)
    if variance.shape[-1]:
        # Increments do not learn from it, lest they be called unsure rather than put right.
        floor = variance.clamp(min=config.least_variance)
        likelihood = 0.5 * (floor.log() + displacement.detach().square() / floor).mean(-1) * paired
    total = (config.relative * relative + config.model * model + config.likelihood * likelihood).mean()
    pairs, count = paired.sum(), inside.sum().clamp(min=1)
    share = pairs.clamp(min=1)
    return FineTuningTerms(
        total,
        position.sum() / share,
        rotation.sum() / share,
        model.sum() / count,
        likelihood.sum() / share,
        (displacement.detach().norm(dim=-1) * paired).sum() / share,
        (turn.detach().norm(dim=-1) * paired).sum() / share,
        pairs,
    )


def distance_from_start(network: nn.Module, start: Mapping[str, Tensor]) -> Tensor:
    """L2-SP (Li et al., "Explicit inductive bias for transfer learning with convolutional networks", 2018).

    Half the squared distance of the trainable parameters from the pretrained ones, a scalar.
    """
    squares = [
        (value - start[name]).square().sum() for name, value in network.named_parameters() if value.requires_grad
    ]
    return 0.5 * torch.stack(squares).sum()
