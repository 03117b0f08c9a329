"""One sample at a time: the network of `network.py` with caches, equal to running the whole window each step.

A new sample adds one column to each convolution; everything else of the window is already in the caches. Written for
TorchScript and for few, large operations: what is linear is multiplied out once (`fold`), not every step.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from trace_ros.estimator.network import (
    LEG_FEATURES,
    TraceNetwork,
    leg_features,
    motion_from_raw,
    network_inputs,
    query_channels,
    replace_absent,
)


class StreamingState(NamedTuple):
    """What a step leaves for the next; a leading batch dimension is optional.

    Attributes:
        inputs: (..., 4 * 11) normalised query channels of the last samples, oldest first.
        columns: (..., 4 * d) of the first convolution.
        pooled: (..., 21, d) columns of the second convolution.
        hidden: (..., hidden) state of the GRU.
    """

    inputs: Tensor
    columns: Tensor
    pooled: Tensor
    hidden: Tensor


class FoldedWeights(NamedTuple):
    """The network's parameters as `step` uses them; differentiable functions of the parameters (see `fold`)."""

    absent: Tensor
    mean: Tensor
    inverse_scale: Tensor
    output_scale: Tensor
    convolution_1: Tensor
    convolution_1_bias: Tensor
    convolution_2: Tensor
    convolution_2_bias: Tensor
    query: Tensor
    query_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    imu_tokens: Tensor
    imu_tokens_bias: Tensor
    leg_1: Tensor
    leg_1_bias: Tensor
    leg_2: Tensor
    leg_2_bias: Tensor
    attention_query: Tensor
    attention_query_bias: Tensor
    attention_value: Tensor
    attention_value_bias: Tensor
    gru_input: Tensor
    gru_hidden: Tensor
    gru_input_bias: Tensor
    gru_hidden_bias: Tensor
    head_1: Tensor
    head_1_bias: Tensor
    head_2: Tensor
    head_2_bias: Tensor
    head_3: Tensor
    head_3_bias: Tensor


def fold(network: TraceNetwork) -> FoldedWeights:
    """The weights of a network in the form that `step` wants. Gradients flow back to the network's parameters."""
    parameters = dict(network.named_parameters())
    width = network.config.embedding
    leg_1 = parameters["leg_token.0.weight"]
    imu = leg_1.new_zeros(2, width, 6)
    imu[0, :, 3:6] = network.accel_token.weight
    imu[1, :, 0:3] = network.gyro_token.weight
    attention_query, attention_query_bias, attention_value, attention_value_bias = network.attention.folded()
    return FoldedWeights(
        absent=network.absent_values(),
        mean=network.observation_mean,
        inverse_scale=1 / network.observation_scale,
        output_scale=network.output_scale,
        # (out, in, kernel) -> (out, kernel * in): the caches keep one sample after the other.
        convolution_1=network.convolution_1.weight.transpose(1, 2).flatten(1),
        convolution_1_bias=parameters["convolution_1.bias"],
        convolution_2=network.convolution_2.weight.transpose(1, 2).flatten(1),
        convolution_2_bias=parameters["convolution_2.bias"],
        query=network.query_projection.weight,
        query_bias=network.query_projection.bias,
        norm=network.query_norm.weight,
        norm_bias=network.query_norm.bias,
        imu_tokens=imu.flatten(0, 1),
        imu_tokens_bias=torch.cat((network.accel_token.bias, network.gyro_token.bias)),
        leg_1=leg_1[:, :LEG_FEATURES],
        # The one-hot identity picks one column of the weights: a bias for each leg.
        leg_1_bias=leg_1[:, LEG_FEATURES:].T + parameters["leg_token.0.bias"],
        leg_2=parameters["leg_token.2.weight"],
        leg_2_bias=parameters["leg_token.2.bias"],
        attention_query=attention_query,
        attention_query_bias=attention_query_bias,
        attention_value=attention_value,
        attention_value_bias=attention_value_bias,
        gru_input=parameters["gru.weight_ih_l0"],
        gru_hidden=parameters["gru.weight_hh_l0"],
        gru_input_bias=parameters["gru.bias_ih_l0"],
        gru_hidden_bias=parameters["gru.bias_hh_l0"],
        head_1=parameters["head.0.weight"],
        head_1_bias=parameters["head.0.bias"],
        head_2=parameters["head.2.weight"],
        head_2_bias=parameters["head.2.bias"],
        head_3=parameters["head.4.weight"],
        head_3_bias=parameters["head.4.bias"],
    )


def prime(weights: FoldedWeights, levelled: bool, window: Tensor) -> StreamingState:
    """Caches as they stand after the 29 samples before the first step.

    Args:
        weights: of `fold`.
        levelled: whether gravity is taken out of the acceleration (`NetworkConfig.acceleration`).
        window: (..., 29, 47) SI. Joint channels are not read: only later samples become tokens.

    Returns:
        The state for the first `step`; the GRU starts at zero.
    """
    inputs = query_channels((network_inputs(window, levelled) - weights.mean) * weights.inverse_scale)
    kernel = weights.convolution_1.shape[1] // inputs.shape[-1]
    # unfold: (..., columns, channels, kernel) -> kernel outside channels, as the folded weights have it.
    patches = inputs.unfold(-2, kernel, 1).transpose(-1, -2).flatten(-2)
    first = torch.relu(functional.linear(patches, weights.convolution_1, weights.convolution_1_bias))
    patches = first.unfold(-2, kernel, 1).transpose(-1, -2).flatten(-2)
    second = torch.relu(functional.linear(patches, weights.convolution_2, weights.convolution_2_bias))
    hidden = torch.zeros_like(window[..., 0, :1]).repeat_interleave(weights.gru_hidden.shape[1], dim=-1)
    return StreamingState(
        inputs[..., 1 - kernel :, :].flatten(-2),
        first[..., 1 - kernel :, :].flatten(-2),
        second,
        hidden,
    )


def step(
    weights: FoldedWeights, residual: bool, levelled: bool, observation: Tensor, state: StreamingState
) -> tuple[Tensor, Tensor, StreamingState]:
    """Take one sample.

    Args:
        weights: of `fold`.
        residual: whether increments are residuals (`NetworkConfig.increments`).
        levelled: whether gravity is taken out of the acceleration (`NetworkConfig.acceleration`).
        observation: (..., 47) SI, torque NaN where absent.
        state: of `prime` or of the step before.

    Returns:
        Motion (..., 9) SI, attention (..., 6), and the state for the next sample.
    """
    observation = replace_absent(observation, weights.absent)
    normalised = (network_inputs(observation, levelled) - weights.mean) * weights.inverse_scale
    query_input = query_channels(normalised)
    inputs = torch.cat((state.inputs, query_input), dim=-1)
    column = torch.relu(functional.linear(inputs, weights.convolution_1, weights.convolution_1_bias))
    columns = torch.cat((state.columns, column), dim=-1)
    column = torch.relu(functional.linear(columns, weights.convolution_2, weights.convolution_2_bias))
    pooled = torch.cat((state.pooled, column.unsqueeze(-2)), dim=-2)
    query = functional.linear(pooled.mean(dim=-2), weights.query, weights.query_bias)
    query = functional.layer_norm(query, [query.shape[-1]], weights.norm, weights.norm_bias)

    width = weights.leg_2.shape[0]
    imu = functional.linear(normalised[..., :6], weights.imu_tokens, weights.imu_tokens_bias).unflatten(-1, [2, width])
    legs = torch.relu(functional.linear(leg_features(normalised), weights.leg_1) + weights.leg_1_bias)
    tokens = torch.cat((imu, functional.linear(legs, weights.leg_2, weights.leg_2_bias)), dim=-2)

    projected = functional.linear(query, weights.attention_query, weights.attention_query_bias)
    attention = torch.softmax(torch.matmul(projected.unflatten(-1, [-1, width]), tokens.transpose(-1, -2)), dim=-1)
    gathered = torch.matmul(attention, tokens).flatten(-2)
    context = functional.linear(gathered, weights.attention_value, weights.attention_value_bias)

    size = state.hidden.shape[-1]
    from_input = functional.linear(context, weights.gru_input, weights.gru_input_bias)
    from_hidden = functional.linear(state.hidden, weights.gru_hidden, weights.gru_hidden_bias)
    gates = torch.sigmoid(from_input[..., : 2 * size] + from_hidden[..., : 2 * size])
    candidate = torch.tanh(torch.addcmul(from_input[..., 2 * size :], gates[..., :size], from_hidden[..., 2 * size :]))
    hidden = torch.lerp(candidate, state.hidden, gates[..., size:])

    head = torch.cat((context, hidden, normalised[..., 46:47]), dim=-1)
    head = torch.relu(functional.linear(head, weights.head_1, weights.head_1_bias))
    head = torch.relu(functional.linear(head, weights.head_2, weights.head_2_bias))
    head = functional.linear(head, weights.head_3, weights.head_3_bias)
    motion = motion_from_raw(head * weights.output_scale, observation, residual)
    kept = query_input.shape[-1]
    next_state = StreamingState(inputs[..., kept:], columns[..., width:], pooled[..., 1:, :], hidden)
    return motion, attention.mean(dim=-2), next_state


class StreamingTrace(nn.Module):
    """The deployed network: `prime` and `step` for TorchScript, over weights folded once."""

    weights: FoldedWeights

    def __init__(self, network: TraceNetwork) -> None:
        super().__init__()
        self.residual = network.config.increments == "residual"
        self.levelled = network.config.acceleration == "levelled"
        self.weights = FoldedWeights(*(value.detach().clone().contiguous() for value in fold(network)))

    # The state crosses into Python as a plain tuple: for a NamedTuple, TorchScript defines a class anew at every call,
    # which costs as much time as the network.
    @torch.jit.export
    def prime(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Caches after the 29 samples (29, 47) before the first step; see `prime`."""
        state = prime(self.weights, self.levelled, window)
        return state.inputs, state.columns, state.pooled, state.hidden

    @torch.jit.export
    def step(
        self, observation: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Take one sample (47,); see `step`."""
        caches = StreamingState(state[0], state[1], state[2], state[3])
        motion, attention, after = step(self.weights, self.residual, self.levelled, observation, caches)
        return motion, attention, (after.inputs, after.columns, after.pooled, after.hidden)
