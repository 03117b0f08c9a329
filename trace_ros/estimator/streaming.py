"""One sample at a time: the network of `network.py` with caches, equal to running the whole window each step.

A new sample adds one column to each convolution, and one term to the sum that is the temporal mean; everything else of
the window is in the caches. Weights come multiplied out from `folding.py`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from trace_ros.estimator.folding import FoldedWeights, fold
from trace_ros.estimator.network import TraceNetwork


class StreamingState(NamedTuple):
    """What a step leaves for the next; a leading batch dimension is optional.

    Attributes:
        inputs: (..., 4 * 16) inputs of the last samples, oldest first.
        columns: (..., 4 * d) of the first convolution.
        pooled: (..., 21, d) columns of the second convolution.
        hidden: (..., hidden) state of the GRU.
    """

    inputs: Tensor
    columns: Tensor
    pooled: Tensor
    hidden: Tensor


def prime(weights: FoldedWeights, window: Tensor) -> StreamingState:
    """Caches as they stand after the 29 samples before the first step.

    Args:
        weights: of `fold`.
        window: (..., 29, 47) SI. Joint channels are not read: only later samples become tokens.

    Returns:
        The state for the first `step`; the GRU starts at zero.
    """
    # TorchScript knows no global numbers: the slices leave out JOINT_POSITION to JOINT_TORQUE; five sines.
    centred = window - weights.centre
    fed_back = centred[..., 42:]
    sines = torch.sin(functional.linear(fed_back, weights.direct[:5, 42:], weights.direct_bias[:5]))
    inputs = torch.cat((centred[..., :6], fed_back, sines), dim=-1)
    kernel = weights.convolution_1.shape[1] // inputs.shape[-1]
    # unfold: (..., columns, channels, kernel) -> kernel outside channels, as the folded weights have it.
    patches = inputs.unfold(-2, kernel, 1).transpose(-1, -2).flatten(-2)
    first = torch.relu(functional.linear(patches, weights.convolution_1, weights.convolution_1_bias))
    patches = first.unfold(-2, kernel, 1).transpose(-1, -2).flatten(-2)
    second = torch.relu(functional.linear(patches, weights.convolution_2, weights.convolution_2_bias))
    hidden = torch.zeros_like(window[..., 0, :1]).repeat_interleave(weights.gru_hidden_new.shape[1], dim=-1)
    return StreamingState(
        inputs[..., 1 - kernel :, :].flatten(-2),
        first[..., 1 - kernel :, :].flatten(-2),
        second,
        hidden,
    )


def step(weights: FoldedWeights, observation: Tensor, state: StreamingState) -> tuple[Tensor, Tensor, StreamingState]:
    """Take one sample.

    Args:
        weights: of `fold`.
        observation: (..., 47) SI, torque NaN where absent.
        state: of `prime` or of the step before.

    Returns:
        Motion (..., 9) SI, attention (..., 6), and the state for the next sample.
    """
    sample = _observe(weights, observation)
    column, cached_inputs, cached_columns = _convolve(weights, sample.inputs, state.inputs, state.columns)
    pooled = torch.cat((state.pooled, column.unsqueeze(-2)), dim=-2)
    motion, attention, hidden = _motion(weights, sample, pooled.sum(dim=-2), state.hidden)
    return motion, attention, StreamingState(cached_inputs, cached_columns, pooled[..., 1:, :], hidden)


def _affine(vector: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`torch.nn.functional.linear`; the bias may differ from row to row. A script, as robots run it, takes one row."""
    if torch.jit.is_scripting():
        return torch.addmv(bias, weight, vector)
    return functional.linear(vector, weight) + bias


class _Sample(NamedTuple):
    """What a step makes of an observation before it looks at the past.

    Attributes:
        inputs: (..., 16) of the first convolution.
        sensors: (..., 52) inputs, and the joints' 36 channels.
        term, factor: (..., 9) what is added to the last layer, and what the sum is multiplied by.
    """

    inputs: Tensor
    sensors: Tensor
    term: Tensor
    factor: Tensor


def _observe(weights: FoldedWeights, observation: Tensor) -> _Sample:
    """Split up observations (..., 47)."""
    centred = observation - weights.centre
    # In place and on its own slice, so that only torque may be absent. The centre of torque is the value for that.
    torch.nan_to_num_(centred[..., 30:42], 0.0, math.inf, -math.inf)
    angles, term, factor = _affine(centred, weights.direct, weights.direct_bias).split_with_sizes([5, 9, 9], dim=-1)
    imu, joints, fed_back = centred.split_with_sizes([6, 36, 5], dim=-1)
    inputs = torch.cat((imu, fed_back, torch.sin(angles)), dim=-1)
    return _Sample(inputs, torch.cat((inputs, joints), dim=-1), term, factor)


def _convolve(
    weights: FoldedWeights, inputs: Tensor, cached_inputs: Tensor, cached_columns: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The newest column of the second convolution (..., d), and the caches for the next."""
    inputs_now = torch.cat((cached_inputs, inputs), dim=-1)
    column = torch.relu_(_affine(inputs_now, weights.convolution_1, weights.convolution_1_bias))
    columns = torch.cat((cached_columns, column), dim=-1)
    newest = torch.relu_(_affine(columns, weights.convolution_2, weights.convolution_2_bias))
    return newest, inputs_now[..., inputs.shape[-1] :], columns[..., column.shape[-1] :]


def _motion(weights: FoldedWeights, sample: _Sample, pooled: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From the sum of the window's columns (..., d) to motion (..., 9), attention (..., 6) and the GRU's next state."""
    query = _affine(pooled, weights.query, weights.query_bias)
    query = functional.layer_norm(query, [query.shape[-1]])
    asked = _affine(query, weights.attention_query, weights.attention_query_bias)
    features = _affine(sample.sensors, weights.features, weights.features_bias)
    features = torch.maximum(features, weights.features_floor).unflatten(-1, [6, -1])
    scores = torch.matmul(asked.unflatten(-1, [-1, features.shape[-1]]), features.transpose(-1, -2))
    gathered = torch.matmul(torch.softmax(scores, dim=-1), features).flatten(-2)
    # The features' identity makes the attention itself part of what is gathered.
    context = _affine(gathered, weights.attention_value, weights.attention_value_bias)
    context, mean_attention = context.split_with_sizes([context.shape[-1] - 6, 6], dim=-1)

    gates = _affine(context, weights.gru_input_gates, weights.gru_gates_bias)
    gates = torch.sigmoid(_affine(hidden, weights.gru_hidden_gates, gates))
    reset, update = gates.split_with_sizes([hidden.shape[-1], hidden.shape[-1]], dim=-1)
    candidate = torch.addcmul(
        _affine(context, weights.gru_input_new, weights.gru_input_new_bias),
        reset,
        _affine(hidden, weights.gru_hidden_new, weights.gru_hidden_new_bias),
    )
    hidden = torch.lerp(torch.tanh(candidate), hidden, update)

    head = torch.relu_(
        _affine(torch.cat((context, hidden, sample.inputs), dim=-1), weights.head_1, weights.head_1_bias)
    )
    head = torch.relu_(_affine(head, weights.head_2, weights.head_2_bias))
    return _affine(head, weights.head_3, sample.term) * sample.factor, mean_attention, hidden


class StreamingTrace(nn.Module):
    """The deployed network: `prime` and `step` for TorchScript, over weights folded once.

    Its state holds the last 22 columns of the second convolution in a ring with their running sum, which is added up
    anew once a round, so that rounding cannot grow. A step uses up the state that it is given: the ring changes.
    """

    weights: FoldedWeights

    def __init__(self, network: TraceNetwork) -> None:
        super().__init__()
        # Matrix times vector is quicker column by column.
        self.weights = FoldedWeights(
            *(
                v.detach().T.clone().contiguous().T if v.dim() == 2 else v.detach().clone().contiguous()
                for v in fold(network)
            )
        )

    # The state crosses into Python as a plain tuple: for a NamedTuple, TorchScript defines a class anew at every call,
    # which costs as much time as the network.
    @torch.jit.export
    def prime(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]:
        """Caches after the 29 samples (29, 47) before the first step; see `prime`."""
        state = prime(self.weights, window)
        ring = functional.pad(state.pooled, [0, 0, 0, 1])
        return state.inputs, state.columns, ring, ring.sum(dim=0), state.hidden, ring.shape[0] - 1

    @torch.jit.export
    def step(
        self, observation: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]]:
        """Take one sample (47,); see `step`."""
        cached_inputs, cached_columns, ring, total, hidden, index = state
        sample = _observe(self.weights, observation)
        column, cached_inputs, cached_columns = _convolve(self.weights, sample.inputs, cached_inputs, cached_columns)
        oldest = ring.select(0, index)
        total = torch.sub(total, oldest).add_(column)
        oldest.copy_(column)
        index += 1
        if index == ring.shape[0]:
            index = 0
            total = ring.sum(dim=0)
        motion, attention, hidden = _motion(self.weights, sample, total, hidden)
        return motion, attention, (cached_inputs, cached_columns, ring, total, hidden, index)
