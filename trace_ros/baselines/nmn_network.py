"""The neural measurement network of NMN-IEKF (Youm et al., arXiv 2402.00366, ICRA 2025).

A GRU on IMU and joints that tells which feet stand and how fast the body moves; a filter takes both as measurements.
What the paper does not say is our choice and stands in docs/baselines.md.
"""

from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

FRAME_SIZE = 43
"""Gyro 3, accelerometer 3, joint position, velocity and target torque 36, dt 1."""
TORQUE = slice(30, 42)
"""Of a frame."""
CONTACTS, VELOCITY = slice(0, 4), slice(4, 7)
"""Of the output."""

Size = Annotated[int, Field(ge=1, le=4096)]


class NmnConfig(BaseModel):
    """Sizes.

    Attributes:
        hidden: state of the GRU (paper: 128).
        head: hidden widths after it (paper: 256, 128).
        memory: samples; see `trace_ros.estimator.network.NetworkConfig`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    hidden: Size = 128
    head: tuple[Size, Size] = (256, 128)
    memory: Annotated[int, Field(ge=1)] = 1000


class NmnOutput(NamedTuple):
    """What the network says of T samples.

    Attributes:
        contact: (B, T, 4) logits of the probabilities that feet stand.
        velocity: (B, T, 3) of the body, m/s, body frame.
        hidden: (B, hidden) state of the GRU after the last sample.
    """

    contact: Tensor
    velocity: Tensor
    hidden: Tensor


def frames_of(observations: Tensor) -> Tensor:
    """Frames from observations. ``(..., 47) -> (..., 43)``."""
    return torch.cat((observations[..., :42], observations[..., 46:47]), dim=-1)


class NmnNetwork(nn.Module):
    """The network, with the normalisation of inputs and velocity inside, and how far its velocity is off (buffers).

    A joint torque that is NaN was not reported; learned values (hip, thigh, calf) stand for it.
    """

    frame_mean: Tensor
    frame_scale: Tensor
    velocity_scale: Tensor
    velocity_variance: Tensor

    def __init__(self, config: NmnConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or NmnConfig()
        self.register_buffer("frame_mean", torch.zeros(FRAME_SIZE))
        self.register_buffer("frame_scale", torch.ones(FRAME_SIZE))
        self.register_buffer("velocity_scale", torch.ones(3))
        self.register_buffer("velocity_variance", torch.ones(3))
        self.absent_torque = nn.Parameter(torch.zeros(3))
        self.gru = nn.GRU(FRAME_SIZE, config.hidden, batch_first=True)
        first, second = config.head
        self.head = nn.Sequential(
            nn.Linear(config.hidden, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 7)
        )
        if config.memory > 1:
            with torch.no_grad():
                parameters, update = dict(self.named_parameters()), slice(config.hidden, 2 * config.hidden)
                parameters["gru.bias_ih_l0"][update] = torch.empty(config.hidden).uniform_(1, config.memory).log()
                parameters["gru.bias_hh_l0"][update] = 0.0

    def set_normalisation(self, mean: Tensor, scale: Tensor, velocity_scale: Tensor) -> None:
        """Set what frames are centred on and divided by, (43,) each, and what velocity is multiplied by, (3,)."""
        for name, value in (("frame_mean", mean), ("frame_scale", scale), ("velocity_scale", velocity_scale)):
            getattr(self, name).copy_(value)
        self.velocity_variance.copy_(velocity_scale.square())

    def initial_hidden(self, batch: int) -> Tensor:
        """The GRU's state before the first sample: zeros (batch, hidden)."""
        return self.frame_mean.new_zeros(batch, self.config.hidden)

    def normalised(self, frames: Tensor) -> Tensor:
        """Frames as the GRU sees them. ``(..., 43) -> (..., 43)``."""
        absent = self.frame_mean[TORQUE] + self.frame_scale[TORQUE] * self.absent_torque.repeat(4)
        torque = torch.where(frames[..., TORQUE].isnan(), absent, frames[..., TORQUE])
        present = torch.cat((frames[..., : TORQUE.start], torque, frames[..., TORQUE.stop :]), dim=-1)
        return (present - self.frame_mean) / self.frame_scale

    def sequence(self, observations: Tensor, hidden: Tensor, bfloat16: bool = False) -> NmnOutput:
        """Run over a batch of sequences at once (training).

        Args:
            observations: (B, T, 47) SI, torque NaN where absent; the fed-back channels are not read.
            hidden: (B, hidden) state of the GRU before them.
            bfloat16: compute matrix products in bfloat16, except in the GRU and the last layer.
        """
        memory, last = self.gru(self.normalised(frames_of(observations)), hidden.unsqueeze(0))
        with torch.autocast(observations.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            features = self.head[:-1](memory)
        raw = self.head[-1](features.float())
        return NmnOutput(raw[..., CONTACTS], raw[..., VELOCITY] * self.velocity_scale, last.squeeze(0))


class StreamingNmn(nn.Module):
    """The deployed network: `prime` and `step` for TorchScript."""

    absent: Tensor
    mean: Tensor
    inverse_scale: Tensor
    velocity_scale: Tensor
    velocity_variance: Tensor

    def __init__(self, network: NmnNetwork) -> None:
        super().__init__()
        frozen = {name: value.detach().clone() for name, value in network.state_dict().items()}
        mean, scale = frozen["frame_mean"], frozen["frame_scale"]
        absent = mean.clone()
        absent[TORQUE] += scale[TORQUE] * frozen["absent_torque"].repeat(4)
        self.register_buffer("absent", absent)
        self.register_buffer("mean", mean)
        self.register_buffer("inverse_scale", 1 / scale)
        self.register_buffer("velocity_scale", frozen["velocity_scale"])
        self.register_buffer("velocity_variance", frozen["velocity_variance"])
        self.hidden = network.config.hidden
        self.gru, self.head = network.gru, network.head

    @torch.jit.export
    def prime(self, frame: Tensor) -> Tensor:
        """The state before the first sample, whose frame (43,) does not matter."""
        return torch.zeros(1, self.hidden, dtype=frame.dtype)

    @torch.jit.export
    def step(self, frame: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take one frame (43,) SI, torque NaN where absent.

        Returns:
            Probabilities that feet stand (4,), velocity of the body (3,) m/s, its variance (3,) m^2/s^2, next state.
        """
        normalised = (torch.where(torch.isnan(frame), self.absent, frame) - self.mean) * self.inverse_scale
        memory, state = self.gru(normalised.unsqueeze(0), state)
        raw = self.head(memory[0])
        return torch.sigmoid(raw[0:4]), raw[4:7] * self.velocity_scale, self.velocity_variance, state
