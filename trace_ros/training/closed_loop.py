"""The network in closed loop over packed rollouts: its own roll, pitch, vx and vy are fed back, as on the robot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trace_ros.baselines.mlp_network import MlpNetwork, StreamingMlp
from trace_ros.estimator import observation as obs
from trace_ros.estimator.folding import fold
from trace_ros.estimator.network import DISPLACEMENT, ROTATION, VELOCITY, TraceNetwork
from trace_ros.estimator.streaming import StreamingState, prime, step
from trace_ros.geometry import so3_exp_torch
from trace_ros.training.dataset import FEEDBACK, MOTION, PREFIX


class Poses(NamedTuple):
    """Poses that motion adds up to, relative to the gravity-aligned frame under the first one (heading zero).

    Attributes:
        position: (B, T, 3) m.
        rotation: (B, T, 3, 3) body to world.
    """

    position: Tensor
    rotation: Tensor


class ClosedLoopRun(NamedTuple):
    """What the estimator did over T = rows - 29 samples.

    Attributes:
        motion: (B, T, 9) as `TraceNetwork.sequence` gives it.
        attention: (B, T, 6).
        poses: integrated motion.
    """

    motion: Tensor
    attention: Tensor
    poses: Poses


class ClosedLoopMetrics(NamedTuple):
    """Errors of closed-loop runs against the truth; means over the rollouts.

    Attributes:
        position_m: distance between the final positions.
        position_percent: the same, of the summed path length of all rollouts.
        velocity_rmse: m/s, norm of the velocity error over all samples.
        tilt_rad: angle between the final gravity directions.
        yaw_rad: final heading error, absolute.
    """

    position_m: float
    position_percent: float
    velocity_rmse: float
    tilt_rad: float
    yaw_rad: float


def attitude(roll_pitch: Tensor) -> Tensor:
    """Rotation matrices with heading zero. ``(..., 2) rad -> (..., 3, 3)``."""
    roll, pitch = roll_pitch.unbind(-1)
    zero = torch.zeros_like(roll)
    about_x = so3_exp_torch(torch.stack((roll, zero, zero), dim=-1))
    return so3_exp_torch(torch.stack((zero, pitch, zero), dim=-1)) @ about_x


def roll_pitch(rotation: Tensor) -> Tensor:
    """Roll and pitch of rotation matrices. ``(..., 3, 3) -> (..., 2) rad``."""
    sine = rotation[..., 2, 0].clamp(-1, 1)
    return torch.stack((torch.atan2(rotation[..., 2, 1], rotation[..., 2, 2]), -torch.asin(sine)), dim=-1)


class LoopStep(NamedTuple):
    """One sample of `run_loop`.

    Attributes:
        fed: (B, 4) roll, pitch, vx and vy that the network was given.
        motion, attention: (B, 9) and (B, 6) that it gave.
        rotation: (B, 3, 3) attitude after it.
        feedback: (B, 4) what is given to it next.
    """

    fed: Tensor
    motion: Tensor
    attention: Tensor
    rotation: Tensor
    feedback: Tensor


class Stepper(Protocol):
    """A network sample by sample, with gradients; the state belongs to it alone."""

    def prime(self, window: Tensor, hidden: Tensor | None = None) -> Any:
        """The state after the 29 samples (B, 29, 47) before the first; ``hidden`` (B, hidden) of the GRU, zero by
        default."""

    def step(self, observation: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Motion (B, 9), attention (B, 6) and the next state of observations (B, 47)."""


class _TraceStepper:
    def __init__(self, network: TraceNetwork) -> None:
        self._weights = fold(network)

    def prime(self, window: Tensor, hidden: Tensor | None = None) -> StreamingState:
        state = prime(self._weights, window)
        return state if hidden is None else state._replace(hidden=hidden)

    def step(self, observation: Tensor, state: StreamingState) -> tuple[Tensor, Tensor, StreamingState]:
        return step(self._weights, observation, state)


class _MlpStepper:
    def __init__(self, network: MlpNetwork) -> None:
        self._network = StreamingMlp(network)

    def prime(self, window: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        channels, zero = self._network.prime(window)
        return channels, zero if hidden is None else hidden

    def step(self, observation: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Any]:
        return self._network.step(observation, state)


def stepper(network: TraceNetwork) -> Stepper:
    """The network, to be fed back its own output."""
    return _MlpStepper(network) if isinstance(network, MlpNetwork) else _TraceStepper(network)


def run_loop(
    network: Stepper, observations: Tensor, state: Any, rotation: Tensor, feedback: Tensor
) -> Iterator[LoopStep]:
    """Feed a network's own output back to it, sample by sample.

    Args:
        network: of `stepper`.
        observations: (B, T, 47); what stands in the fed-back channels does not matter.
        state: of its ``prime``, before the first of them.
        rotation: (B, 3, 3) attitude before the first.
        feedback: (B, 4) roll, pitch, vx, vy to begin with.
    """
    for row in observations.unbind(1):
        fed = feedback
        given = torch.cat((row[:, : FEEDBACK.start], fed, row[:, FEEDBACK.stop :]), dim=-1)
        motion, attention, state = network.step(given, state)
        rotation = rotation @ so3_exp_torch(motion[:, ROTATION])
        feedback = torch.cat((roll_pitch(rotation), motion[:, VELOCITY][:, :2]), dim=-1)
        yield LoopStep(fed, motion, attention, rotation, feedback)


def closed_loop(network: TraceNetwork, rows: Tensor, initial: Tensor | None = None) -> ClosedLoopRun:
    """Run the network on its own feedback. Differentiable; wrap in ``torch.no_grad()`` to evaluate.

    Args:
        network: the network.
        rows: (B, rows, 72) packed rollouts; the first 29 rows fill the window with the true feedback.
        initial: (B, 4) roll, pitch, vx, vy that the loop starts from; the truth by default.
    """
    running = stepper(network)
    observations = rows[..., : obs.OBSERVATION_SIZE]
    state = running.prime(observations[:, :PREFIX])
    feedback = observations[:, PREFIX, FEEDBACK] if initial is None else initial
    rotation = attitude(feedback[:, :2])
    position = torch.zeros_like(rotation[..., 0])
    motions, attentions, positions, rotations = [], [], [], []
    for after in run_loop(running, observations[:, PREFIX:], state, rotation, feedback):
        position = position + (rotation @ after.motion[:, DISPLACEMENT, None]).squeeze(-1)
        rotation = after.rotation
        motions.append(after.motion)
        attentions.append(after.attention)
        positions.append(position)
        rotations.append(rotation)
    poses = Poses(torch.stack(positions, 1), torch.stack(rotations, 1))
    return ClosedLoopRun(torch.stack(motions, 1), torch.stack(attentions, 1), poses)


def true_poses(rows: Tensor) -> Poses:
    """The poses that the labels of packed rollouts (B, rows, 72) add up to, from the same start as `closed_loop`."""
    rotation = attitude(rows[:, PREFIX, obs.ROLL_PITCH].double())
    position = torch.zeros_like(rotation[..., 0])
    positions, rotations = [], []
    for motion in rows[:, PREFIX:, MOTION].double().unbind(1):
        position = position + (rotation @ motion[:, DISPLACEMENT, None]).squeeze(-1)
        rotation = rotation @ so3_exp_torch(motion[:, ROTATION])
        positions.append(position)
        rotations.append(rotation)
    return Poses(torch.stack(positions, 1).to(rows.dtype), torch.stack(rotations, 1).to(rows.dtype))


def closed_loop_metrics(run: ClosedLoopRun, rows: Tensor) -> ClosedLoopMetrics:
    """Compare a run of `closed_loop` with the truth in the rows it ran on."""
    truth = true_poses(rows)
    current = rows[:, PREFIX:]
    valid = current[..., obs.DT].squeeze(-1) > 0
    keep = valid.any(1)
    last = (valid.sum(1) - 1).clamp(min=0)
    lane = torch.arange(len(rows))

    position = (run.poses.position - truth.position)[lane, last].norm(dim=-1)[keep]
    length = (current[..., MOTION][..., DISPLACEMENT].norm(dim=-1) * valid).sum(1)[keep]
    velocity = (run.motion[..., VELOCITY] - current[..., MOTION][..., VELOCITY]).square().sum(-1)
    estimated, true = run.poses.rotation[lane, last][keep], truth.rotation[lane, last][keep]
    # The last rows are gravity's direction in the body frame; the arc tangent keeps small angles exact.
    sine = torch.linalg.cross(estimated[:, 2], true[:, 2]).norm(dim=-1)
    tilt = torch.atan2(sine, (estimated[:, 2] * true[:, 2]).sum(-1))
    heading = torch.atan2(estimated[:, 1, 0], estimated[:, 0, 0]) - torch.atan2(true[:, 1, 0], true[:, 0, 0])
    heading = torch.remainder(heading + torch.pi, 2 * torch.pi) - torch.pi
    return ClosedLoopMetrics(
        position_m=float(position.mean()),
        position_percent=float(100 * position.sum() / length.sum().clamp(min=1e-6)),
        velocity_rmse=float((velocity[valid].mean()).sqrt()),
        tilt_rad=float(tilt.mean()),
        yaw_rad=float(heading.abs().mean()),
    )
