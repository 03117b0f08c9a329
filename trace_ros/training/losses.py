"""The three losses of the paper's section "Training Losses", ours of drift and attention, and our tilt correction.

Increments are compared in units of dt (m/s and rad/s): the paper leaves weights and scale open, and in these units the
three parts of the estimation loss are of comparable size. All losses are means over the samples that ``valid`` marks.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from trace_ros.estimator.network import DISPLACEMENT, LEG_TOKENS, ROTATION, VELOCITY
from trace_ros.geometry import so3_exp_torch

_KEEP_BETA, _KEEP_DRIFT_BETA = 0.02, 0.004
"""m/s and rad/s, of `keep_loss`: single samples, and their means over a sequence."""

_LEAST_ATTENTION = 1e-12
"""In the logarithms of `contact_loss`."""

FloatArray = NDArray[np.float64]
Weight = Annotated[float, Field(ge=0)]


class LossConfig(BaseModel):
    """Weights of the losses. The paper gives none; these are our choice.

    Attributes:
        estimation, model, foot: w_est, w_model and w_foot.
        displacement, rotation, velocity: w_p, w_R and w_v inside the estimation loss.
        beta: where Smooth L1 turns from quadratic to linear, m/s and rad/s.
        drift: weight of the drift loss (our extension; 0 switches it off), see `drift_loss`.
        drift_beta: its own beta, m/s and rad/s.
        swing, spread: weights of our losses of the attention, see `attention_losses`; 0 switches them off.
        contact: weight of ours that teaches attention which feet stand, see `contact_loss`; 0 switches it off.
        keep: weight of our loss that holds the outputs to those of another model, see `keep_loss`; 0 switches it off.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    estimation: Weight = 1.0
    model: Weight = 0.5
    foot: Weight = 0.1
    displacement: Weight = 1.0
    rotation: Weight = 1.0
    velocity: Weight = 1.0
    beta: Annotated[float, Field(gt=0)] = 0.1
    drift: Weight = 1.0
    drift_beta: Annotated[float, Field(gt=0)] = 0.02
    swing: Weight = 0.0
    spread: Weight = 0.0
    contact: Weight = 0.0
    keep: Weight = 0.0


class Targets(NamedTuple):
    """What a sequence of T outputs is held to.

    Attributes:
        motion: (B, T, 9) displacement in the previous body frame (m), rotation vector (rad), body velocity (m/s).
        previous_velocity: (B, T, 3) true body velocity of the previous sample, in the previous body frame, m/s.
        contact_velocity: (B, T, 4, 3) velocity of each contact point relative to the body's own, m/s; see
            `contact_point_velocity`.
        contact: (B, T, 4) 1 for a foot in contact, else 0.
        dt: (B, T, 1) s.
        valid: (B, T) 1 where the sample counts, else 0.
    """

    motion: Tensor
    previous_velocity: Tensor
    contact_velocity: Tensor
    contact: Tensor
    dt: Tensor
    valid: Tensor


class LossTerms(NamedTuple):
    """The total and its parts, scalars.

    Attributes:
        total: weighted sum.
        estimation: weighted sum of displacement, rotation and velocity.
        model, foot, swing, spread, contact, keep: unweighted.
        drift: weighted sum of drift_displacement and drift_rotation.
        displacement, rotation, velocity, drift_displacement, drift_rotation: unweighted.
        leg_attention: mean total attention on legs (no loss).
    """

    total: Tensor
    estimation: Tensor
    model: Tensor
    foot: Tensor
    swing: Tensor
    spread: Tensor
    contact: Tensor
    keep: Tensor
    drift: Tensor
    displacement: Tensor
    rotation: Tensor
    velocity: Tensor
    drift_displacement: Tensor
    drift_rotation: Tensor
    leg_attention: Tensor


def smooth_l1(error: Tensor, beta: float) -> Tensor:
    """Smooth L1 of each row of an error, averaged over its components. ``(..., n) -> (...)``."""
    size = error.abs()
    return torch.where(size < beta, 0.5 / beta * size.square(), size - 0.5 * beta).mean(-1)


def masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Mean of values (B, T) over the samples that count."""
    return (values * valid).sum() / valid.sum().clamp(min=1e-9)


def estimation_loss(motion: Tensor, targets: Targets, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Equation (9): ``rho(dp^ - dp)``, ``rho(dtheta^ - dtheta)`` and ``rho(v^ - v)``, before their weights.

    The increments are divided by dt (see the module).
    """
    error = motion - targets.motion
    displacement = smooth_l1(error[..., DISPLACEMENT] / targets.dt, beta)
    rotation = smooth_l1(error[..., ROTATION] / targets.dt, beta)
    velocity = smooth_l1(error[..., VELOCITY], beta)
    return (
        masked_mean(displacement, targets.valid),
        masked_mean(rotation, targets.valid),
        masked_mean(velocity, targets.valid),
    )


def model_loss(motion: Tensor, previous_velocity: Tensor, dt: Tensor, valid: Tensor, beta: float) -> Tensor:
    """Equations (10), (11): ``rho(dp^ - dt/2 (v_{t-1} + dR^ v^))``, in units of dt.

    With the tilt correction the predicted rotation holds a little more than the true increment: at 0.5 1/s and an
    offset of 0.02 rad that is 2e-5 rad, or 1e-5 m/s of displacement rate at 1 m/s, far below any error of the network.
    """
    rotation = so3_exp_torch(motion[..., ROTATION])
    rotated = (rotation @ motion[..., VELOCITY].unsqueeze(-1)).squeeze(-1)
    kinematic = 0.5 * (previous_velocity + rotated)
    return masked_mean(smooth_l1(motion[..., DISPLACEMENT] / dt - kinematic, beta), valid)


def foot_loss(velocity: Tensor, attention: Tensor, contact_velocity: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Equation (15): ``sg(A) sum_i alpha_i / (A + eps) |v_contact,i|`` over the four legs.

    Args:
        velocity: (B, T, 3) predicted body velocity, m/s.
        attention: (B, T, 6) head-mean attention over all tokens.
        contact_velocity: (B, T, 4, 3) of the contact points relative to the body, m/s.
        valid: (B, T).

    Returns:
        The loss, and the mean total leg attention A.
    """
    legs = attention[..., LEG_TOKENS]
    total = legs.sum(-1, keepdim=True)
    share = legs / (total + 1e-6)
    # The root has no gradient at zero; a micrometre a second keeps it finite.
    speed = ((velocity.unsqueeze(-2) + contact_velocity).square().sum(-1) + 1e-12).sqrt()
    loss = total.detach().squeeze(-1) * (share * speed).sum(-1)
    return masked_mean(loss, valid), masked_mean(total.detach().squeeze(-1), valid)


def attention_losses(attention: Tensor, contact: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Our extension: attention on feet that do not stand, and how unevenly the legs share theirs.

    A foot that has just lifted off is still slow, and a joint reading is some milliseconds old: by its speed alone it
    passes for one that stands. The simulator knows better. Nor does the foot velocity loss mind if one standing foot
    gets all that the legs get, but whoever asks the attention which feet stand does.

    Args:
        attention: (B, T, 6) head-mean attention over all tokens.
        contact: (B, T, 4) 1 for a foot in contact, else 0.
        valid: (B, T).

    Returns:
        ``sum_i alpha_i (1 - c_i)``, whose gradient also takes attention from the legs where none stands, and
        ``sg(A) sum_i (alpha_i / A)^2``, which is A for one leg alone and A/4 for all alike.
    """
    legs = attention[..., LEG_TOKENS]
    total = legs.sum(-1, keepdim=True)
    uneven = (legs / (total + 1e-6)).square().sum(-1) * total.detach().squeeze(-1)
    return masked_mean((legs * (1 - contact)).sum(-1), valid), masked_mean(uneven, valid)


def contact_loss(attention: Tensor, contact: Tensor, valid: Tensor) -> Tensor:
    """Our extension: how far the legs' shares of their attention are from those of feet that stand, all alike.

    ``sum_i c_i/n ln(c_i/n / share_i)`` over the n feet that stand, zero where they share evenly what the legs get. Its
    slope grows as a standing foot's share falls, so that one which has just come down is found soon, where
    `attention_losses` ask least of what is least sure. How much the legs get in all it leaves free, and it is silent
    where no foot stands.

    Args:
        attention: (B, T, 6) head-mean attention over all tokens.
        contact: (B, T, 4) 1 for a foot in contact, else 0.
        valid: (B, T).

    Returns:
        Mean over the samples that count, nats.
    """
    # Nothing at all has no logarithm. Below the least there is no slope either: far below what a softmax gives.
    legs = attention[..., LEG_TOKENS].clamp(min=_LEAST_ATTENTION)
    share = legs.log() - legs.sum(-1, keepdim=True).log()
    standing = contact.sum(-1)
    count = standing.clamp(min=1)
    divergence = -(contact * share).sum(-1) / count - count.log()
    return masked_mean(divergence * (standing > 0), valid)


def drift_loss(motion: Tensor, targets: Targets, beta: float) -> tuple[Tensor, Tensor]:
    """Our extension: Smooth L1 of the *mean* error of the increments over a sequence, in units of dt.

    Odometry adds increments up, so what counts is the error that does not average out. The gyroscope's white noise,
    which nothing can predict, is larger than the bias and tilt errors that could be learnt, and hides them in a loss on
    single samples; the mean over a sequence shows them.

    Returns:
        The loss of the displacements and of the rotations, means over the sequences that have valid samples.
    """
    error = (motion - targets.motion)[..., : ROTATION.stop] / targets.dt
    count = targets.valid.sum(1, keepdim=True)
    mean = (error * targets.valid.unsqueeze(-1)).sum(1) / count.clamp(min=1)
    share = count.squeeze(1) / targets.valid.shape[1]
    displacement = masked_mean(smooth_l1(mean[..., DISPLACEMENT], beta), share)
    return displacement, masked_mean(smooth_l1(mean[..., ROTATION], beta), share)


def keep_loss(motion: Tensor, start: Tensor, targets: Targets) -> Tensor:
    """Our extension: by how much outputs differ from those of another model, as a rule the one training started from.

    What a training changes on purpose, such as the attention, moves the outputs along, and the truth, hidden in noise
    that nothing can predict, takes long to bring them back. Another network's outputs on the same inputs hold no noise
    (Hinton et al., "Distilling the knowledge in a neural network", 2015).

    Args:
        motion: (B, T, 9).
        start: (B, T, 9) of that model.
        targets: for dt and what counts.

    Returns:
        Smooth L1 of displacement, rotation and velocity, summed, in units of dt; and half of that of the means of the
        increments over a sequence, which odometry adds up.
    """
    theirs = targets._replace(motion=start)
    each = torch.stack(estimation_loss(motion, theirs, _KEEP_BETA)).sum()
    return each + 0.5 * torch.stack(drift_loss(motion, theirs, _KEEP_DRIFT_BETA)).sum()


def total_loss(
    motion: Tensor, attention: Tensor, targets: Targets, config: LossConfig, start: Tensor | None = None
) -> LossTerms:
    """Equation (8): ``w_est L_est + w_model L_model + w_foot L_foot``, plus our own losses, with its parts.

    Args:
        motion, attention: what the network gave.
        targets: what it is held to.
        config: weights.
        start: motion that the model gave which outputs are kept to, for `keep_loss`; None: it is not asked.
    """
    displacement, rotation, velocity = estimation_loss(motion, targets, config.beta)
    estimation = config.displacement * displacement + config.rotation * rotation + config.velocity * velocity
    model = model_loss(motion, targets.previous_velocity, targets.dt, targets.valid, config.beta)
    foot, leg_attention = foot_loss(motion[..., VELOCITY], attention, targets.contact_velocity, targets.valid)
    swing, spread = attention_losses(attention, targets.contact, targets.valid)
    contact = contact_loss(attention, targets.contact, targets.valid)
    drift_displacement, drift_rotation = drift_loss(motion, targets, config.drift_beta)
    drift = config.displacement * drift_displacement + config.rotation * drift_rotation
    total = config.estimation * estimation + config.model * model + config.foot * foot + config.drift * drift
    keep = torch.zeros_like(model) if start is None else keep_loss(motion, start, targets)
    total = total + config.swing * swing + config.spread * spread + config.contact * contact + config.keep * keep
    return LossTerms(
        total,
        estimation,
        model,
        foot,
        swing,
        spread,
        contact,
        keep,
        drift,
        displacement,
        rotation,
        velocity,
        drift_displacement,
        drift_rotation,
        leg_attention,
    )


def contact_point_velocity(
    angular_velocity: FloatArray,
    joint_velocity: FloatArray,
    foot_position: FloatArray,
    linear_jacobian: FloatArray,
    angular_jacobian: FloatArray,
    contact_normal: FloatArray,
    foot_radius: float,
) -> FloatArray:
    """Equations (12) to (14) without the body's own velocity: what the legs add to it at each contact point.

    ``omega x p_foot + J_v dq + (omega + J_w dq) x r``, where ``r = -r_foot n/|n|`` reaches from the centre of the
    foot to the point that rolls on the ground; without a contact normal r is zero (the foot's centre).

    Args:
        angular_velocity: (N, 3) rad/s, body frame.
        joint_velocity: (N, 12) rad/s.
        foot_position: (N, 4, 3) m; linear_jacobian, angular_jacobian: (N, 4, 3, 3), of `LegKinematics`.
        contact_normal: (N, 4, 3) body frame, any length; zero where there is none.
        foot_radius: m.

    Returns:
        (N, 4, 3) m/s, body frame.
    """
    omega = angular_velocity[:, None, :]
    joints = joint_velocity.reshape(-1, 4, 3, 1)
    foot = np.cross(omega, foot_position) + (linear_jacobian @ joints)[..., 0]
    foot_omega = omega + (angular_jacobian @ joints)[..., 0]
    length = np.linalg.norm(contact_normal, axis=-1, keepdims=True)
    reach = np.where(length > 1e-6, -foot_radius * contact_normal / np.maximum(length, 1e-6), 0.0)
    return foot + np.cross(foot_omega, reach)


def tilt_correction(roll_pitch: Tensor, offset: Tensor) -> Tensor:
    """The body-frame rotation that removes an offset of roll and pitch, ``Log(R^' R)``, to first order in the offset.

    Our extension: the estimator's attitude is ``R^ = Rz(yaw) Ry(pitch + dp) Rx(roll + dr)`` where the truth is
    ``R = Rz(yaw) Ry(pitch) Rx(roll)``. Since ``R^' R = Exp(c)``, the rotation c takes the estimate to the truth, with
    the heading unchanged. Roll turns about the body's own x axis and pitch about the levelled y axis, which in the body
    frame is ``Rx(roll)' y = (0, cos roll, -sin roll)``, hence ``c = -(dr, cos(roll) dp, -sin(roll) dp)``. Adding
    ``rate * dt * c`` to the target of every step makes the offset decay with time constant 1/rate.

    Args:
        roll_pitch: (..., 2) true roll and pitch, rad.
        offset: (..., 2) what the fed-back roll and pitch are off by, rad.

    Returns:
        (..., 3) rad.
    """
    roll = roll_pitch[..., 0]
    d_roll, d_pitch = offset.unbind(-1)
    d_roll, d_pitch, roll = torch.broadcast_tensors(d_roll, d_pitch, roll)
    return -torch.stack((d_roll, torch.cos(roll) * d_pitch, -torch.sin(roll) * d_pitch), dim=-1)
