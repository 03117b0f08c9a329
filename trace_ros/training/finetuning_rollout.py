"""The network in closed loop over long windows, with gradients, in bounded memory.

The loop is that of the robot: roll, pitch, vx and vy are the network's own, and the stationary clamp holds. Gradients
run through all of it, the feedback included, or, in a fraction of the time, through all but the feedback, as in
pretraining (`backpropagate_open`). A window of 20 s is 10,000 steps, whose activations would be gigabytes; so
`backpropagate` keeps those of one piece at a time (Chen et al., "Training deep nets with sublinear memory cost", 2016):
it runs once without gradients, keeping the state between pieces, and then again piece by piece from the end. The
gradient is that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trace_ros.estimator.folding import FoldedWeights, fold
from trace_ros.estimator.network import OUTPUT_SIZE, ROTATION, VELOCITY, TraceNetwork
from trace_ros.estimator.streaming import StreamingState, prime, step
from trace_ros.geometry import so3_exp_torch
from trace_ros.training.closed_loop import attitude, roll_pitch
from trace_ros.training.dataset import FEEDBACK

VARIANCE = slice(OUTPUT_SIZE, OUTPUT_SIZE + 3)
"""Of a `Rollout.motion` of a method that states variances: those of the displacement, m^2."""


class LoopInputs(NamedTuple):
    """What the sensors give for T samples of B windows.

    Attributes:
        observations: (B, T, 47); what stands in the fed-back channels does not matter.
        factor: (B, T, 9) by which the network's motion is multiplied: zero where the stationary clamp holds; where the
            network is not told the true interval, increments are stretched to it.
    """

    observations: Tensor
    factor: Tensor

    def part(self, begin: int, end: int) -> LoopInputs:
        """Of the samples from ``begin`` to before ``end``."""
        return LoopInputs(self.observations[:, begin:end], self.factor[:, begin:end])


class LoopState(NamedTuple):
    """Where B windows stand between two samples.

    Attributes:
        inputs, columns, pooled, hidden: of `StreamingState`.
        rotation: (B, 3, 3) attitude, heading zero at the start.
        feedback: (B, 4) roll, pitch, vx and vy that the next sample is given.
    """

    inputs: Tensor
    columns: Tensor
    pooled: Tensor
    hidden: Tensor
    rotation: Tensor
    feedback: Tensor

    def detached(self) -> LoopState:
        """The same without gradients."""
        return LoopState(*(part.detach() for part in self))


class Rollout(NamedTuple):
    """What came out of T samples of B windows.

    Attributes:
        motion: (B, T, 9) as the pose takes it in: displacement (m), rotation vector (rad), body velocity (m/s); or
            (B, T, 12), see `VARIANCE`.
        rotation: (B, T, 3, 3) attitude after each.
    """

    motion: Tensor
    rotation: Tensor


Objective = Callable[[Rollout], Tensor]
"""A scalar to be made small."""


def begin(weights: FoldedWeights, window: Tensor, feedback: Tensor) -> LoopState:
    """The state before the first sample of windows.

    Args:
        weights: of `fold`.
        window: (B, 29, 47) the observations before, with the fed-back channels as they are taken to have been.
        feedback: (B, 4) roll, pitch, vx and vy to begin with.
    """
    return LoopState(*prime(weights, window), attitude(feedback[:, :2]), feedback)


def roll_out(weights: FoldedWeights, inputs: LoopInputs, state: LoopState) -> tuple[Rollout, LoopState]:
    """Run windows in closed loop. Differentiable.

    Returns:
        What came out, and the state after it.
    """
    streaming, rotation, feedback = StreamingState(*state[:4]), state.rotation, state.feedback
    motions, rotations = [], []
    for row, factor in zip(inputs.observations.unbind(1), inputs.factor.unbind(1), strict=True):
        given = torch.cat((row[:, : FEEDBACK.start], feedback, row[:, FEEDBACK.stop :]), dim=-1)
        motion, _, streaming = step(weights, given, streaming)
        motion = motion * factor
        rotation = rotation @ so3_exp_torch(motion[:, ROTATION])
        feedback = torch.cat((roll_pitch(rotation), motion[:, VELOCITY][:, :2]), dim=-1)
        motions.append(motion)
        rotations.append(rotation)
    made = Rollout(torch.stack(motions, dim=1), torch.stack(rotations, dim=1))
    return made, LoopState(*streaming, rotation, feedback)


def backpropagate(
    network: TraceNetwork, inputs: LoopInputs, state: LoopState, objective: Objective, piece: int
) -> tuple[Rollout, LoopState]:
    """Run windows in closed loop and add the objective's gradient to that of the network's trainable parameters.

    Args:
        network: parameters that do not require gradients are left alone.
        inputs: T samples.
        state: before them; gradients end there.
        objective: of all T samples together.
        piece: samples whose activations are kept at a time.

    Returns:
        What came out and the state after it, without gradients.
    """
    folded = fold(network)
    weights = FoldedWeights(*(value.detach().requires_grad_(value.requires_grad) for value in folded))
    length = inputs.observations.shape[1]
    bounds = [(first, min(first + piece, length)) for first in range(0, length, piece)]
    state = state.detached()
    if len(bounds) == 1:
        made, after = roll_out(weights, inputs, state)
        objective(made).backward()
    else:
        made, after = _in_pieces(weights, inputs, state, objective, bounds)
    trained = [
        (value, leaf.grad)
        for value, leaf in zip(folded, weights, strict=True)
        if value.requires_grad and leaf.grad is not None
    ]
    torch.autograd.backward([value for value, _ in trained], [grad for _, grad in trained])
    return Rollout(made.motion.detach(), made.rotation.detach()), after.detached()


def _in_pieces(
    weights: FoldedWeights,
    inputs: LoopInputs,
    state: LoopState,
    objective: Objective,
    bounds: list[tuple[int, int]],
) -> tuple[Rollout, LoopState]:
    """Gradients into the weights' own ``grad``; see `backpropagate`."""
    states, parts = [state], []
    with torch.no_grad():
        for first, last in bounds:
            part, state = roll_out(weights, inputs.part(first, last), states[-1])
            states.append(state)
            parts.append(part)
    made = Rollout(*(torch.cat(kind, dim=1).requires_grad_() for kind in zip(*parts, strict=True)))
    objective(made).backward()
    # Of each state, how the objective of all that comes later depends on it.
    later = [torch.zeros_like(part) for part in states[-1]]
    for number in reversed(range(len(bounds))):
        first, last = bounds[number]
        start = LoopState(*(part.requires_grad_(number > 0) for part in states[number].detached()))
        part, after = roll_out(weights, inputs.part(first, last), start)
        outputs = [*part, *after]
        given = [
            value.grad[:, first:last] if value.grad is not None else torch.zeros_like(own)
            for value, own in zip(made, part, strict=True)
        ]
        pairs = [(value, grad) for value, grad in zip(outputs, [*given, *later], strict=True) if value.requires_grad]
        torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])
        later = [torch.zeros_like(value) if value.grad is None else value.grad for value in start]
    return made, states[-1]


def backpropagate_open(
    network: TraceNetwork, inputs: LoopInputs, state: LoopState, history: Tensor, objective: Objective
) -> tuple[Rollout, LoopState, Tensor]:
    """`backpropagate` with no gradients through what is fed back: that is an input like the others.

    Samples are run through in closed loop without gradients, and then once more, all at once, with what was fed back.

    Args:
        network: parameters that do not require gradients are left alone.
        inputs: T samples.
        state: before them; gradients end there.
        history: (B, 29, 47) the observations before them, with what was fed back.
        objective: of all T samples together.

    Returns:
        What came out, the state after it, and the history then; without gradients.
    """
    with torch.no_grad():
        made, after = roll_out(fold(network), inputs, state)
        fed = torch.cat((roll_pitch(made.rotation), made.motion[..., VELOCITY][..., :2]), dim=-1)
        fed = torch.cat((state.feedback.unsqueeze(1), fed[:, :-1]), dim=1)
        observations = inputs.observations.clone()
        observations[..., FEEDBACK] = fed
        observations = torch.cat((history, observations), dim=1)
    motion = network.sequence(observations, state.hidden).motion * inputs.factor
    rotation, rotations = state.rotation, []
    for turn in so3_exp_torch(motion[..., ROTATION]).unbind(1):
        rotation = rotation @ turn
        rotations.append(rotation)
    objective(Rollout(motion, torch.stack(rotations, dim=1))).backward()
    return made, after, observations[:, -history.shape[1] :]
