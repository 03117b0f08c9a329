"""TraceNetwork: query CNN, foot-aware cross-attention, GRU and head (the paper's section "Network Architecture").

The paper leaves the widths of the convolutions and of the leg MLP open; our choices are in `NetworkConfig`.
The convolutions are unpadded, which makes the query shift-equivariant: `TraceNetwork.sequence` convolves a whole
sequence once for all its windows, and `trace_ros.estimator.streaming` computes one new column a sample, with equal
results.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from trace_ros.estimator.observation import DT, JOINT_TORQUE, OBSERVATION_SIZE, WINDOW
from trace_ros.logs import JOINTS, LEGS

OUTPUT_SIZE = 9
DISPLACEMENT = slice(0, 3)
"""Displacement in the previous body frame, m."""
ROTATION = slice(3, 6)
"""Rotation vector from the previous to the current body frame, rad."""
VELOCITY = slice(6, 9)
"""Velocity in the current body frame, m/s."""

TOKEN_NAMES = ("accel", "gyro", "FL", "FR", "RL", "RR")
"""What the six attention weights belong to."""
LEG_TOKENS = slice(2, 6)

LEG_FEATURES = 9
"""Joint position, velocity and torque of one leg; its one-hot identity makes 13."""
QUERY_SIZE = 11

ABSENT_TORQUE = "absent_torque"
"""Name of the parameter that stands for torque that is not reported."""

Size = Annotated[int, Field(ge=1, le=4096)]


class NetworkConfig(BaseModel):
    """Sizes and parametrisation of the network. The defaults are the paper's where it states them.

    Attributes:
        embedding: width d of the query, the tokens and the attention context (paper: 64).
        kernel: samples each of the two convolutions sees (our choice).
        heads: attention heads (paper: 2).
        hidden: state of the GRU (paper: 128).
        head: hidden widths of the prediction head (paper: 256, 128).
        increments: how the nine outputs become motion (our choice). ``residual``: the rotation is predicted on top of
            gyro * dt and the displacement on top of predicted velocity * dt. ``direct``: both from nothing.
        acceleration: what the network sees of the accelerometer (our choice). ``levelled``: without the gravity that
            the fed-back roll and pitch predict, so that their error shows up as an acceleration that does not average
            out; the query, which is where the paper feeds roll and pitch back, reaches the output through attention
            weights only. ``measured``: the specific force as it is.
        joints: what the network is told of the legs (our choice). ``measured``: joint positions, velocities and
            torques. ``feet``: the same at the feet, see `trace_ros.estimator.feet`; whoever makes observations puts
            that in the joints' place.
        memory: samples; the GRU's units start with time constants spread from 1 to this (our choice, after Tallec and
            Ollivier, "Can recurrent neural networks warp time?", 2018). Gravity takes seconds to tell from the
            accelerations of walking, and gradients over a fifth of a second do not find that by themselves. 1: torch's
            own start.
        output_layer_scale: factor on the starting weights of the last layer, so that training starts from the
            parametrisation's own guess.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    embedding: Size = 64
    kernel: Annotated[int, Field(ge=1, le=(WINDOW - 1) // 2)] = 5
    heads: Annotated[int, Field(ge=1)] = 2
    hidden: Size = 128
    head: tuple[Size, Size] = (256, 128)
    increments: Literal["residual", "direct"] = "residual"
    acceleration: Literal["levelled", "measured"] = "levelled"
    joints: Literal["measured", "feet"] = "measured"
    memory: Annotated[int, Field(ge=1)] = 1000
    output_layer_scale: Annotated[float, Field(gt=0)] = 0.01

    @model_validator(mode="after")
    def _heads_divide_the_embedding(self) -> NetworkConfig:
        if self.embedding % self.heads:
            raise ValueError(f"embedding {self.embedding} is not a multiple of heads {self.heads}")
        return self

    @property
    def pooled_columns(self) -> int:
        """Columns that two unpadded convolutions leave of a window (22 for kernel 5)."""
        return WINDOW - 2 * (self.kernel - 1)


class CrossAttention(nn.Module):
    """Multi-head attention of one query over the tokens, with separate projections (equation (7) of the paper).

    With one query and several tokens it is cheaper to project the query into token space than each token into key
    space: ``q . (W_k t) = (W_k^T q) . t``, and ``sum_i a_i (W_v t_i) = W_v sum_i a_i t_i``. The result is that of
    ``torch.nn.MultiheadAttention``; the tests hold it to that.
    """

    def __init__(self, embedding: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(embedding, embedding)
        self.key = nn.Linear(embedding, embedding)
        self.value = nn.Linear(embedding, embedding)
        self.out = nn.Linear(embedding, embedding)
        # The key's bias adds the same to every score of a query, so the softmax cancels it: nothing to learn there.
        nn.init.zeros_(self.key.bias)
        self.key.bias.requires_grad_(False)

    def folded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Projections multiplied out: query -> scaled token-space queries, and weighted tokens -> context.

        Returns:
            Weight (heads * d, d) and bias (heads * d) of the first, weight (d, heads * d) and bias (d) of the second.
        """
        width = self.query.weight.shape[0]
        size = width // self.heads
        key = self.key.weight.view(self.heads, size, width).transpose(1, 2) / math.sqrt(size)
        query_weight = (key @ self.query.weight.view(self.heads, size, width)).reshape(self.heads * width, width)
        query_bias = (key @ self.query.bias.view(self.heads, size, 1)).reshape(self.heads * width)
        out = self.out.weight.view(width, self.heads, size).transpose(0, 1)
        value_weight = (out @ self.value.weight.view(self.heads, size, width)).transpose(0, 1).reshape(width, -1)
        value_bias = functional.linear(self.value.bias, self.out.weight, self.out.bias)
        return query_weight, query_bias, value_weight, value_bias

    def forward(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: (..., d).
            tokens: (..., n, d).

        Returns:
            Context (..., d) and head-mean weights (..., n).
        """
        query_weight, query_bias, value_weight, value_bias = self.folded()
        projected = functional.linear(query, query_weight, query_bias).unflatten(-1, (self.heads, -1))
        # Products and sums instead of thousands of tiny matrix products: three times as fast on a CPU.
        heads_tokens = tokens.unsqueeze(-3)
        weights = torch.softmax((projected.unsqueeze(-2) * heads_tokens).sum(-1), dim=-1)
        gathered = (weights.unsqueeze(-1) * heads_tokens).sum(-2)
        context = functional.linear(gathered.flatten(-2), value_weight, value_bias)
        return context, weights.mean(dim=-2)


class SequenceOutput(NamedTuple):
    """What `TraceNetwork.sequence` gives for T samples.

    Attributes:
        motion: (B, T, 9) SI: displacement (m), rotation vector (rad), velocity (m/s).
        attention: (B, T, 6) head-mean weights over `TOKEN_NAMES`; each row sums to 1.
        hidden: (B, hidden) state of the GRU after the last sample.
    """

    motion: Tensor
    attention: Tensor
    hidden: Tensor


class TraceNetwork(nn.Module):
    """The estimator's network, with the normalisation of its inputs and outputs inside (as buffers).

    Buffers ``observation_mean``, ``observation_scale`` (47,) and ``output_scale`` (9,) come from the training data
    through `set_normalisation`; they start as 0, 1 and 1.

    A joint torque that is NaN was not reported: the learned ``absent_torque`` (hip, thigh, calf; the same for all legs)
    takes the place of the normalised reading (our extension). It starts at 0, the training mean, which is also what
    weights that lack it get.
    """

    observation_mean: Tensor
    observation_scale: Tensor
    output_scale: Tensor
    leg_identity: Tensor

    def __init__(self, config: NetworkConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or NetworkConfig()
        width = config.embedding
        self.register_buffer("observation_mean", torch.zeros(OBSERVATION_SIZE))
        self.register_buffer("observation_scale", torch.ones(OBSERVATION_SIZE))
        self.register_buffer("output_scale", torch.ones(OUTPUT_SIZE))
        self.register_buffer("leg_identity", torch.eye(LEGS), persistent=False)
        self.absent_torque = nn.Parameter(torch.zeros(JOINTS // LEGS))
        self.register_load_state_dict_pre_hook(_complete_older_weights)
        self._make_context()
        self.gru = nn.GRU(width, config.hidden, batch_first=True)
        first, second = config.head
        self.head = nn.Sequential(
            nn.Linear(width + config.hidden + 1, first),
            nn.ReLU(),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, OUTPUT_SIZE),
        )
        self._start()

    def _make_context(self) -> None:
        """The layers that `context` uses."""
        config = self.config
        width = config.embedding
        self.convolution_1 = nn.Conv1d(QUERY_SIZE, width, config.kernel)
        self.convolution_2 = nn.Conv1d(width, width, config.kernel)
        self.query_projection = nn.Linear(width, width)
        self.query_norm = nn.LayerNorm(width)
        self.accel_token = nn.Linear(3, width)
        self.gyro_token = nn.Linear(3, width)
        self.leg_token = nn.Sequential(nn.Linear(LEG_FEATURES + LEGS, width), nn.ReLU(), nn.Linear(width, width))
        self.attention = CrossAttention(width, config.heads)

    @torch.no_grad()
    def _start(self) -> None:
        """Starting weights where torch's own would not do."""
        config, parameters = self.config, dict(self.named_parameters())
        parameters["head.4.weight"].mul_(config.output_layer_scale)
        parameters["head.4.bias"].zero_()
        if config.memory > 1:
            # h <- z h + (1 - z) n keeps a unit's value for about 1 + exp(bias) samples; the gates are r, z, n.
            update = slice(config.hidden, 2 * config.hidden)
            parameters["gru.bias_ih_l0"][update] = torch.empty(config.hidden).uniform_(1, config.memory).log()
            parameters["gru.bias_hh_l0"][update] = 0.0

    def set_normalisation(self, mean: Tensor, scale: Tensor, output_scale: Tensor) -> None:
        """Set what inputs are centred on and divided by, (47,) each, and what raw outputs are multiplied by, (9,)."""
        for name, value in (("observation_mean", mean), ("observation_scale", scale), ("output_scale", output_scale)):
            getattr(self, name).copy_(value)

    def absent_values(self) -> Tensor:
        """What stands for an observation's NaN, in SI: (47,). NaN where only torque may be absent, so it stays NaN."""
        mean, scale = self.observation_mean, self.observation_scale
        torque = mean[JOINT_TORQUE] + scale[JOINT_TORQUE] * self.absent_torque.repeat(LEGS)
        before, after = JOINT_TORQUE.start, OBSERVATION_SIZE - JOINT_TORQUE.stop
        return torch.cat((mean.new_full((before,), math.nan), torque, mean.new_full((after,), math.nan)))

    def initial_hidden(self, batch: int) -> Tensor:
        """The GRU's state before the first sample: zeros (batch, hidden)."""
        return self.observation_mean.new_zeros(batch, self.config.hidden)

    def tokens(self, normalised: Tensor) -> Tensor:
        """The six sensor tokens of normalised observations. ``(..., 47) -> (..., 6, d)``."""
        legs = leg_features(normalised)
        identity = self.leg_identity.expand(*legs.shape[:-1], LEGS)
        leg_tokens = self.leg_token(torch.cat((legs, identity), dim=-1))
        accel = self.accel_token(normalised[..., 3:6]).unsqueeze(-2)
        gyro = self.gyro_token(normalised[..., 0:3]).unsqueeze(-2)
        return torch.cat((accel, gyro, leg_tokens), dim=-2)

    def context(self, normalised: Tensor) -> tuple[Tensor, Tensor]:
        """What the GRU sees of each window: normalised (B, T + 29, 47) to context (B, T, d) and attention (B, T, 6)."""
        columns = query_channels(normalised).transpose(1, 2)
        columns = torch.relu(self.convolution_2(torch.relu(self.convolution_1(columns))))
        pooled = functional.avg_pool1d(columns, self.config.pooled_columns, stride=1).transpose(1, 2)
        query = self.query_norm(self.query_projection(pooled))
        context, attention = self.attention(query, self.tokens(normalised[:, WINDOW - 1 :]))
        return context, attention

    def sequence(self, observations: Tensor, hidden: Tensor, bfloat16: bool = False) -> SequenceOutput:
        """Run over a batch of sequences at once (training).

        Args:
            observations: (B, T + 29, 47) SI, torque NaN where absent; the first 29 only fill the window of the first
                output.
            hidden: (B, hidden) state of the GRU before the first output, see `initial_hidden`.
            bfloat16: compute matrix products in bfloat16, except in the GRU, whose state must be able to change by less
                than that format resolves, and in the last layer.
        """
        config = self.config
        observations = replace_absent(observations, self.absent_values())
        inputs = network_inputs(observations, config.acceleration == "levelled")
        normalised = (inputs - self.observation_mean) / self.observation_scale
        current = normalised[:, WINDOW - 1 :]
        with torch.autocast(observations.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            context, attention = self.context(normalised)
        context, attention = context.float(), attention.float()
        memory, last = self.gru(context, hidden.unsqueeze(0))
        with torch.autocast(observations.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            features = self.head[:-1](torch.cat((context, memory, current[..., DT]), dim=-1))
        raw = self.head[-1](features.float())
        motion = motion_from_raw(
            raw * self.output_scale, observations[:, WINDOW - 1 :], config.increments == "residual"
        )
        return SequenceOutput(motion, attention, last.squeeze(0))

    def forward(self, observations: Tensor, hidden: Tensor) -> SequenceOutput:
        """`sequence`, under the name that wrappers such as DistributedDataParallel call."""
        return self.sequence(observations, hidden)


def _complete_older_weights(_network: nn.Module, weights: dict[str, Any], prefix: str, *_: object) -> None:
    """Weights from before torque could be absent: as if it had the training mean then."""
    weights.setdefault(prefix + ABSENT_TORQUE, torch.zeros(JOINTS // LEGS))


def replace_absent(observation: Tensor, absent: Tensor) -> Tensor:
    """NaN replaced by ``absent`` (47,) in SI, before any arithmetic that would carry it into gradients.

    ``(..., 47) -> (..., 47)``.
    """
    return torch.where(torch.isnan(observation), absent, observation)


def network_inputs(observation: Tensor, levelled: bool) -> Tensor:
    """Observations as the network normalises them: with ``levelled``, the acceleration is without predicted gravity.

    At rest an accelerometer reads ``R' (0, 0, g) = g (-sin pitch, sin roll cos pitch, cos roll cos pitch)``.
    ``(..., 47) -> (..., 47)``.
    """
    if not levelled:
        return observation
    sine, cosine = torch.sin(observation[..., 42:44]), torch.cos(observation[..., 42:44])
    across = torch.cat((sine[..., :1], cosine[..., :1]), dim=-1) * cosine[..., 1:]
    gravity = torch.cat((-sine[..., 1:], across), dim=-1) * 9.81
    return torch.cat((observation[..., :3], observation[..., 3:6] - gravity, observation[..., 6:]), dim=-1)


def query_channels(observation: Tensor) -> Tensor:
    """Gyro, accel, roll, pitch, vx, vy and dt (`QUERY_CHANNELS`, as two slices). ``(..., 47) -> (..., 11)``."""
    return torch.cat((observation[..., :6], observation[..., 42:47]), dim=-1)


def leg_features(observation: Tensor) -> Tensor:
    """Joint position, velocity and torque gathered by leg. ``(..., 47) -> (..., 4, 9)``."""
    joints = observation[..., 6:42].unflatten(-1, [3, 4, 3])
    return joints.transpose(-3, -2).flatten(-2)


def motion_from_raw(scaled: Tensor, observation: Tensor, residual: bool) -> Tensor:
    """The nine outputs in SI from the head's outputs in units of dt. ``(..., 9), (..., 47) -> (..., 9)``.

    Rates times the true dt; with ``residual`` on top of the measured angular velocity and the predicted velocity.
    """
    # TorchScript knows no slice constants: these are DT, DISPLACEMENT, ROTATION, VELOCITY and GYRO.
    dt = observation[..., 46:47]
    displacement, rotation, velocity = scaled[..., 0:3], scaled[..., 3:6], scaled[..., 6:9]
    if residual:
        displacement = displacement + velocity
        rotation = rotation + observation[..., 0:3]
    return torch.cat((displacement * dt, rotation * dt, velocity), dim=-1)
