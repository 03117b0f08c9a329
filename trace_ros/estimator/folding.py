"""The network's weights multiplied out for single samples, as `streaming.py` and `engines.py` use them.

At batch 1 an operation costs a microsecond whatever it does, so there should be few of them, and what is linear is
multiplied out once and not every step. In particular

- normalisation and the choice of channels are part of the weights. Only the means are subtracted for themselves: the
  mean of dt is many times its spread, and would cost digits as part of a bias;
- gravity is a linear function of five sines: ``2 sin r cos p = sin(r + p) + sin(r - p)``, and cosines are sines;
- a token is a linear function of its features (a leg's hidden layer, the readings of a sensor, its identity), so
  attention is worked out on the features of all six, and the tokens themselves are never made.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trace_ros.estimator.network import (
    LEG_FEATURES,
    LEG_TOKENS,
    OUTPUT_SIZE,
    QUERY_SIZE,
    ROTATION,
    TOKEN_NAMES,
    VELOCITY,
    TraceNetwork,
)
from trace_ros.estimator.observation import ACCEL, DT, GYRO, JOINT_POSITION, JOINT_TORQUE, OBSERVATION_SIZE, ROLL_PITCH
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, LEGS

_SINES = 5
_INPUTS = QUERY_SIZE + _SINES
"""Of a column of the first convolution: gyro, accel, roll, pitch, vx, vy, dt, all less their means, and the sines."""


class FoldedWeights(NamedTuple):
    """The network's parameters as `streaming.step` uses them; differentiable functions of the parameters.

    Attributes:
        centre: (47,) subtracted from observations: their mean; for torque, what stands for an absent one.
        direct, direct_bias: (23, 47) from an observation without its centre to the five sines' angles, and to term and
            factor of the output.
        convolution_1, convolution_1_bias: (d, kernel * 16) from the inputs of the last samples, oldest first.
        convolution_2, convolution_2_bias: (d, kernel * d).
        query, query_bias: (d, d) from the sum of the window's columns.
        features, features_bias, features_floor: (6 F, 52) from the inputs and the joints to the features of the tokens,
            and their lower bounds.
        attention_query, attention_query_bias: (heads * F, d) from the normalised query.
        attention_value, attention_value_bias: (d + 6, heads * F) from weighted features to context and mean attention.
        gru_...: the GRU's matrices by gates and candidate (``new``), of its input and its state.
        head_1 to head_3: of context, state and inputs (256, d + hidden + 16), and so on; the last in SI. Its bias is
            part of the term.
    """

    centre: Tensor
    direct: Tensor
    direct_bias: Tensor
    convolution_1: Tensor
    convolution_1_bias: Tensor
    convolution_2: Tensor
    convolution_2_bias: Tensor
    query: Tensor
    query_bias: Tensor
    features: Tensor
    features_bias: Tensor
    features_floor: Tensor
    attention_query: Tensor
    attention_query_bias: Tensor
    attention_value: Tensor
    attention_value_bias: Tensor
    gru_input_gates: Tensor
    gru_hidden_gates: Tensor
    gru_gates_bias: Tensor
    gru_input_new: Tensor
    gru_input_new_bias: Tensor
    gru_hidden_new: Tensor
    gru_hidden_new_bias: Tensor
    head_1: Tensor
    head_1_bias: Tensor
    head_2: Tensor
    head_2_bias: Tensor
    head_3: Tensor


def fold(network: TraceNetwork) -> FoldedWeights:
    """The weights of a network in the form that `step` wants. Gradients flow back to the network's parameters."""
    config, parameters = network.config, dict(network.named_parameters())
    mean, inverse_scale = network.observation_mean, 1 / network.observation_scale
    normalise, tilt, tilt_bias = _normalisation(network)
    # (out, in, kernel) -> (out, kernel * in): the caches keep one sample after the other.
    convolution_1 = network.convolution_1.weight.transpose(1, 2) @ normalise
    attention_query, attention_query_bias, attention_value, attention_value_bias = network.attention.folded()
    tokens, features, features_bias, features_floor = _token_features(network, normalise, inverse_scale)
    heads, width = config.heads, config.embedding
    # Head-mean attention is the sum of a share of the identities that the heads gather.
    shares = mean.new_zeros(len(TOKEN_NAMES), heads, tokens.shape[1])
    shares[:, :, -len(TOKEN_NAMES) :] = torch.eye(len(TOKEN_NAMES)).to(mean).unsqueeze(1) / heads
    # Layer normalisation ends with a factor and a term for each channel.
    per_head = tokens.T @ attention_query.view(heads, width, width)
    query_bias = (per_head @ parameters["query_norm.bias"] + attention_query_bias.view(heads, width) @ tokens).flatten()
    gates = 2 * config.hidden
    gru_input, gru_input_bias = parameters["gru.weight_ih_l0"], parameters["gru.bias_ih_l0"]
    gru_hidden, gru_hidden_bias = parameters["gru.weight_hh_l0"], parameters["gru.bias_hh_l0"]
    head_1 = parameters["head.0.weight"]
    context = width + config.hidden
    head_dt = head_1.new_zeros(head_1.shape[0], _INPUTS)
    head_dt[:, QUERY_SIZE - 1] = head_1[:, context] * inverse_scale[DT]
    head_3, direct, direct_bias = _output(network)
    return FoldedWeights(
        centre=_centre(network),
        direct=torch.cat((tilt, direct)),
        direct_bias=torch.cat((tilt_bias, direct_bias)),
        convolution_1=convolution_1.flatten(1),
        convolution_1_bias=parameters["convolution_1.bias"],
        convolution_2=network.convolution_2.weight.transpose(1, 2).flatten(1),
        convolution_2_bias=parameters["convolution_2.bias"],
        query=network.query_projection.weight / config.pooled_columns,
        query_bias=network.query_projection.bias,
        features=features,
        features_bias=features_bias,
        features_floor=features_floor,
        attention_query=(per_head * network.query_norm.weight).flatten(0, 1),
        attention_query_bias=query_bias,
        attention_value=torch.cat((attention_value.view(width, heads, width) @ tokens, shares)).flatten(1),
        attention_value_bias=torch.cat((attention_value_bias, mean.new_zeros(len(TOKEN_NAMES)))),
        gru_input_gates=gru_input[:gates],
        gru_hidden_gates=gru_hidden[:gates],
        gru_gates_bias=gru_input_bias[:gates] + gru_hidden_bias[:gates],
        gru_input_new=gru_input[gates:],
        gru_input_new_bias=gru_input_bias[gates:],
        gru_hidden_new=gru_hidden[gates:],
        gru_hidden_new_bias=gru_hidden_bias[gates:],
        head_1=torch.cat((head_1[:, :context], head_dt), dim=1),
        head_1_bias=parameters["head.0.bias"],
        head_2=parameters["head.2.weight"],
        head_2_bias=parameters["head.2.bias"],
        head_3=head_3,
    )


def _centre(network: TraceNetwork) -> Tensor:
    """What is subtracted from an observation: its mean; for torque, what stands for an absent one. ``(47,)``."""
    mean, absent = network.observation_mean, network.absent_values()
    return torch.where(torch.isnan(absent), mean, absent)


def _normalisation(network: TraceNetwork) -> tuple[Tensor, Tensor, Tensor]:
    """From the inputs of a column to the query's channels, and from an observation to the sines' angles.

    Returns:
        Normalised channels from inputs (11, 16); angles from the observation (5, 47) and their bias (5).
    """
    mean, inverse_scale = network.observation_mean, 1 / network.observation_scale
    scale = torch.cat((inverse_scale[: ACCEL.stop], inverse_scale[ROLL_PITCH.start :]))
    normalise = torch.cat((torch.eye(QUERY_SIZE).to(mean), mean.new_zeros(QUERY_SIZE, _SINES)), dim=1)
    tilt = mean.new_zeros(_SINES, OBSERVATION_SIZE)
    bias = mean.new_zeros(_SINES)
    if network.config.acceleration == "levelled":
        # Sines of: pitch; roll + pitch, roll - pitch; the same, a right angle on. Gravity at rest, which they add up
        # to, is that of `network_inputs`.
        tilt[:, ROLL_PITCH] = mean.new_tensor(((0, 1), (1, 1), (1, -1), (1, 1), (1, -1)))
        bias[3:] = math.pi / 2
        gravity = mean.new_tensor(((-2, 0, 0, 0, 0), (0, 1, 1, 0, 0), (0, 0, 0, 1, 1))) * (GRAVITY / 2)
        normalise[ACCEL, QUERY_SIZE:] = -gravity
    return normalise * scale.unsqueeze(1), tilt, bias + tilt @ mean


def _token_features(
    network: TraceNetwork, normalise: Tensor, inverse_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the six tokens are linear functions of, F = d + 12 numbers each: hidden layer, accel, gyro, and identity.

    Returns:
        Tokens from features (d, F). Features from the inputs of the column and the joints: weight (6 F, 16 + 36), bias
        (6 F) and lower bound (6 F): that of the rectified ones is 0, others have none.
    """
    parameters = dict(network.named_parameters())
    count, width = len(TOKEN_NAMES), network.config.embedding
    accel, gyro, identity = slice(width, width + 3), slice(width + 3, width + 6), slice(width + 6, None)
    leg_bias = parameters["leg_token.2.bias"]
    biases = torch.stack((network.accel_token.bias, network.gyro_token.bias, *(leg_bias,) * LEGS), dim=1)
    tokens = torch.cat(
        (parameters["leg_token.2.weight"], network.accel_token.weight, network.gyro_token.weight, biases), dim=1
    )
    first = parameters["leg_token.0.weight"]
    # Torques are relative to that of an absent one, the others to their mean.
    leg_first_bias = parameters["leg_token.0.bias"] + first[:, 6:LEG_FEATURES] @ network.absent_torque
    weight = first.new_zeros(count, tokens.shape[1], _INPUTS + 3 * JOINTS)
    bias = first.new_zeros(count, tokens.shape[1])
    floor = first.new_full((count, tokens.shape[1]), -math.inf)
    weight[0, accel, :_INPUTS] = normalise[ACCEL]
    weight[1, gyro, :_INPUTS] = normalise[GYRO]
    bias[:, identity] = torch.eye(count).to(first)
    floor[LEG_TOKENS, :width] = 0.0
    joints = torch.arange(3 * JOINTS).view(3, LEGS, JOINTS // LEGS)
    scale = inverse_scale[JOINT_POSITION.start : JOINT_TORQUE.stop]
    for leg in range(LEGS):
        row, channels = LEG_TOKENS.start + leg, joints[:, leg].flatten()
        weight[row, :width, _INPUTS + channels] = first[:, :LEG_FEATURES] * scale[channels]
        # The one-hot identity that the leg's layer sees picks one column of its weights.
        bias[row, :width] = first[:, LEG_FEATURES + leg] + leg_first_bias
    return tokens, weight.flatten(0, 1), bias.flatten(), floor.flatten()


def _output(network: TraceNetwork) -> tuple[Tensor, Tensor, Tensor]:
    """The last layer in SI per dt; and from the observation, what is added to it and the factor after that.

    Returns:
        Weight (9, width of the head) of the last layer; weight (18, 47) and bias (18) of term and factor.
    """
    parameters, mean = dict(network.named_parameters()), network.observation_mean
    weight = parameters["head.4.weight"] * network.output_scale.unsqueeze(1)
    bias = parameters["head.4.bias"] * network.output_scale
    direct = weight.new_zeros(2 * OUTPUT_SIZE, OBSERVATION_SIZE)
    # Displacement and rotation are rates times the true dt.
    direct[OUTPUT_SIZE : OUTPUT_SIZE + VELOCITY.start, DT] = 1.0
    factor = torch.cat((mean[DT].repeat(VELOCITY.start), mean.new_ones(3)))
    if network.config.increments == "residual":
        weight = torch.cat((weight[:3] + weight[6:], weight[3:]))
        bias = torch.cat((bias[:3] + bias[6:], bias[3:6] + mean[GYRO], bias[6:]))
        direct[ROTATION, GYRO] = torch.eye(3).to(mean)
    return weight, direct, torch.cat((bias, factor))
