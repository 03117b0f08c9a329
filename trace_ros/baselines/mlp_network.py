"""The ablation "without foot-aware attention": a plain MLP takes the place of the query CNN and the cross-attention.

It sees what these see, the window of the query's 11 channels and the joints of the current sample, as one vector; GRU,
head and everything around are those of TRACE.
"""

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from trace_ros.estimator.checkpoint import ModelCard
from trace_ros.estimator.network import (
    QUERY_SIZE,
    TOKEN_NAMES,
    NetworkConfig,
    TraceNetwork,
    motion_from_raw,
    network_inputs,
    query_channels,
    replace_absent,
)
from trace_ros.estimator.observation import ACCEL, ROLL_PITCH, WINDOW
from trace_ros.logs import JOINTS

_JOINTS = slice(ACCEL.stop, ROLL_PITCH.start)
Size = Annotated[int, Field(ge=1, le=4096)]


class MlpConfig(NetworkConfig):
    """Sizes and parametrisation; ``kernel`` and ``heads`` mean nothing here.

    Attributes:
        mlp: hidden widths. The defaults make as many parameters as query CNN and cross-attention have, within 1 %.
    """

    mlp: tuple[Size, Size] = (96, 96)


class MlpCard(ModelCard):
    """The card of a model of the ablation."""

    name: str = "mlp"
    network: MlpConfig = MlpConfig()
    attention: Literal["none"] = "none"


class MlpNetwork(TraceNetwork):
    """`TraceNetwork` with an MLP for a context. Where attention is asked for, it is zero."""

    config: MlpConfig

    def __init__(self, config: MlpConfig | None = None) -> None:
        super().__init__(config or MlpConfig())

    def _make_context(self) -> None:
        first, second = self.config.mlp
        # A window is one column of a convolution as long as it: so windows of a sequence share nothing but the code.
        self.window_layer = nn.Conv1d(QUERY_SIZE, first, WINDOW)
        self.joint_layer = nn.Linear(3 * JOINTS, first, bias=False)
        self.mlp = nn.Sequential(
            nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, self.config.embedding)
        )

    def context(self, normalised: Tensor) -> tuple[Tensor, Tensor]:
        """See `TraceNetwork.context`."""
        windows = self.window_layer(query_channels(normalised).transpose(1, 2)).transpose(1, 2)
        context = self.mlp(windows + self.joint_layer(normalised[:, WINDOW - 1 :, _JOINTS]))
        return context, context.new_zeros(*context.shape[:-1], len(TOKEN_NAMES))


class MlpState(NamedTuple):
    """What a step leaves for the next; a leading batch dimension is optional.

    Attributes:
        window: (..., 29, 11) normalised query channels of the last samples.
        hidden: (..., hidden) state of the GRU.
    """

    window: Tensor
    hidden: Tensor


class StreamingMlp(nn.Module):
    """The network sample by sample, differentiable; scripted, the deployed one."""

    absent: Tensor
    mean: Tensor
    scale: Tensor
    output_scale: Tensor

    def __init__(self, network: MlpNetwork) -> None:
        super().__init__()
        config = network.config
        self.levelled, self.residual = config.acceleration == "levelled", config.increments == "residual"
        self.hidden = config.hidden
        self.register_buffer("absent", network.absent_values())
        self.register_buffer("mean", network.observation_mean)
        self.register_buffer("scale", network.observation_scale)
        self.register_buffer("output_scale", network.output_scale)
        self.window_layer, self.joint_layer, self.mlp = network.window_layer, network.joint_layer, network.mlp
        self.gru, self.head = network.gru, network.head

    def _normalise(self, observation: Tensor) -> Tensor:
        return (network_inputs(observation, self.levelled) - self.mean) / self.scale

    @torch.jit.export
    def prime(self, window: Tensor) -> tuple[Tensor, Tensor]:
        """The state after the 29 samples (..., 29, 47) before the first step; the GRU starts at zero."""
        channels = query_channels(self._normalise(replace_absent(window, self.absent)))
        hidden = torch.zeros_like(window[..., 0, :1]).repeat_interleave(self.hidden, dim=-1)
        return channels, hidden

    @torch.jit.export
    def step(self, observation: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Take one sample (..., 47): motion (..., 9) SI, zeros (..., 6), and the next state."""
        before, hidden = state
        observation = replace_absent(observation, self.absent)
        normalised = self._normalise(observation)
        window = torch.cat((before, query_channels(normalised).unsqueeze(-2)), dim=-2)
        weight = self.window_layer.weight.transpose(1, 2).flatten(1)
        first = nn.functional.linear(window.flatten(-2), weight, self.window_layer.bias)
        context = self.mlp(first + self.joint_layer(normalised[..., 6:42]))
        flat = context.reshape(-1, 1, context.shape[-1])
        memory, _ = self.gru(flat, hidden.reshape(1, -1, self.hidden).contiguous())
        hidden = memory.reshape(hidden.shape)
        raw = self.head(torch.cat((context, hidden, normalised[..., 46:47]), dim=-1))
        motion = motion_from_raw(raw * self.output_scale, observation, self.residual)
        return motion, torch.zeros_like(motion[..., :6]), (window[..., 1:, :], hidden)
