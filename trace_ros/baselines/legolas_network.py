"""The network of Legolas (Wasserman et al., CoRL 2024, PMLR 270:2928-2947), for training and step by step.

A 1-D ResNet over 50 frames; pose increment, its variances, and whether the body moves. What the paper does not say is
our choice and stands in docs/baselines.md. Convolutions are unpadded, so that a window that moves on by one frame needs
one new column a layer: `LegolasNetwork.sequence` shares columns between windows, `StreamingLegolas` keeps them, with
equal results.
"""

from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from trace_ros.estimator import observation as obs

FRAME_SIZE = 42
"""Gyro 3, roll and pitch 2, joint position, velocity and target torque 36, dt 1."""
TORQUE = slice(29, 41)
"""Of a frame."""
TRANSLATION, ROTATION = slice(0, 3), slice(3, 9)
"""Of an increment: displacement, and the first two columns of the rotation matrix."""
INCREMENT_SIZE = 9
_OUTPUTS = (INCREMENT_SIZE, INCREMENT_SIZE, 1)
"""Sizes of the increment, its variances and the mask."""
_LOG_VARIANCE_LIMIT = 12.0

Size = Annotated[int, Field(ge=1, le=4096)]


class LegolasConfig(BaseModel):
    """Sizes.

    Attributes:
        frames: in a window (paper: 50).
        stride: samples from one frame to the next (our choice; at 500 Hz 10 makes a window of one second, as the
            paper's at 50 Hz).
        width: channels of the convolutions.
        stem: frames that the first convolution sees; those of the two residual blocks see 3.
        trunk: hidden width between convolutions and heads. It sees the mean of the columns and the newest one: a mean
            alone does not tell the last interval from those before.
        head: hidden width of each head.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    frames: Annotated[int, Field(ge=16, le=512)] = 50
    stride: Annotated[int, Field(ge=1, le=100)] = 10
    width: Size = 256
    stem: Annotated[int, Field(ge=1, le=7)] = 7
    trunk: Size = 448
    head: Size = 64

    @property
    def history(self) -> int:
        """Samples before the one that an output belongs to."""
        return (self.frames - 1) * self.stride

    @property
    def pooled(self) -> int:
        """Columns of a window that the convolutions leave."""
        return self.frames - (self.stem - 1) - 8


class LegolasOutput(NamedTuple):
    """What the network says of T samples; increments in units of dt.

    Attributes:
        increment: (B, T, 9) displacement (m/s), and the first two columns of the rotation matrix less those of the
            identity (1/s).
        log_variance: (B, T, 9) of the increment.
        moving: (B, T) logit of the probability that the body moves.
    """

    increment: Tensor
    log_variance: Tensor
    moving: Tensor


def frames_of(observations: Tensor) -> Tensor:
    """Frames from observations that hold the IMU's own roll and pitch. ``(..., 47) -> (..., 42)``."""
    parts = (observations[..., :3], observations[..., 42:44], observations[..., 6:42], observations[..., 46:47])
    return torch.cat(parts, dim=-1)


def rotation_rate_columns(rate: Tensor, dt: Tensor) -> Tensor:
    """First two columns of ``(Exp(rate dt) - I) / dt``, without the digits that the subtraction would cost.

    ``(..., 3) rad/s, (..., 1) s -> (..., 6)`` 1/s, column after column.
    """
    x, y, z = rate.unbind(-1)
    squared = (rate * rate).sum(-1) * dt.squeeze(-1).square()
    small = squared < 1e-4
    safe = torch.where(small, torch.ones_like(squared), squared)
    angle = safe.sqrt()
    first = torch.where(small, 1 - squared / 6 + squared.square() / 120, torch.sin(angle) / angle)
    second = torch.where(small, 0.5 - squared / 24 + squared.square() / 720, (1 - torch.cos(angle)) / safe)
    second = second * dt.squeeze(-1)
    return torch.stack(
        (
            -second * (y * y + z * z),
            first * z + second * x * y,
            -first * y + second * x * z,
            -first * z + second * x * y,
            -second * (x * x + z * z),
            first * x + second * y * z,
        ),
        dim=-1,
    )


def rotation_vector(columns: Tensor) -> Tensor:
    """Rotation vector (rad) of the two columns (..., 6) of a matrix near the identity, made orthonormal first.

    Gram-Schmidt as in Zhou et al., "On the continuity of rotation representations", CVPR 2019.
    """
    first = functional.normalize(columns[..., 0:3], dim=-1)
    second = columns[..., 3:6]
    second = functional.normalize(second - (first * second).sum(-1, keepdim=True) * first, dim=-1)
    third = torch.cross(first, second, dim=-1)
    axis = 0.5 * torch.stack(
        (
            second[..., 2] - third[..., 1],
            third[..., 0] - first[..., 2],
            first[..., 1] - second[..., 0],
        ),
        dim=-1,
    )
    sine = (axis * axis).sum(-1, keepdim=True).sqrt()
    return torch.where(sine < 1e-3, axis, axis * (torch.asin(sine.clamp(max=1.0)) / sine.clamp(min=1e-6)))


def _block(width: int) -> nn.Sequential:
    """A residual block without its shortcut."""
    return nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 3), nn.ReLU(), nn.Conv1d(width, width, 3))


class LegolasNetwork(nn.Module):
    """The network, with the normalisation of its inputs and outputs inside (buffers).

    A joint torque that is NaN was not reported; learned values (hip, thigh, calf) stand for it.
    """

    frame_mean: Tensor
    frame_scale: Tensor
    output_scale: Tensor

    def __init__(self, config: LegolasConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LegolasConfig()
        self.register_buffer("frame_mean", torch.zeros(FRAME_SIZE))
        self.register_buffer("frame_scale", torch.ones(FRAME_SIZE))
        self.register_buffer("output_scale", torch.ones(INCREMENT_SIZE))
        self.absent_torque = nn.Parameter(torch.zeros(3))
        width = config.width
        self.stem = nn.Conv1d(FRAME_SIZE, width, config.stem)
        self.first = _block(width)
        self.second = _block(width)
        self.trunk = nn.Sequential(
            nn.Linear(2 * width, config.trunk), nn.ReLU(), nn.Linear(config.trunk, config.trunk), nn.ReLU()
        )
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(config.trunk, config.head), nn.ReLU()) for _ in range(len(_OUTPUTS))
        )
        self.last = nn.ModuleList(nn.Linear(config.head, size) for size in _OUTPUTS)
        with torch.no_grad():  # from the guess that the body stands and the gyro is right
            for name, parameter in self.last.named_parameters():
                parameter.mul_(0.01 if name.endswith("weight") else 0.0)

    def set_normalisation(self, mean: Tensor, scale: Tensor, output_scale: Tensor) -> None:
        """Set what frames are centred on and divided by, (42,) each, and what outputs are multiplied by, (9,)."""
        for name, value in (("frame_mean", mean), ("frame_scale", scale), ("output_scale", output_scale)):
            getattr(self, name).copy_(value)

    def normalised(self, frames: Tensor) -> Tensor:
        """Frames as the first convolution sees them. ``(..., 42) -> (..., 42)``."""
        absent = self.frame_mean[TORQUE] + self.frame_scale[TORQUE] * self.absent_torque.repeat(4)
        torque = torch.where(frames[..., TORQUE].isnan(), absent, frames[..., TORQUE])
        present = torch.cat((frames[..., : TORQUE.start], torque, frames[..., TORQUE.stop :]), dim=-1)
        return (present - self.frame_mean) / self.frame_scale

    def sequence(self, observations: Tensor, bfloat16: bool = False) -> LegolasOutput:
        """Run over a batch of sequences at once (training).

        Args:
            observations: (B, T + history, 47) SI, torque NaN where absent, roll and pitch those that the IMU reports.
            bfloat16: compute matrix products in bfloat16, except in the last layers.
        """
        features = self.features(observations, bfloat16)
        return self.answer(features, observations[:, self.config.history :], bfloat16)

    def features(self, observations: Tensor, bfloat16: bool = False) -> Tensor:
        """What all heads are given, (B, T, trunk), of the observations of `sequence`."""
        stride, batch = self.config.stride, observations.shape[0]
        count = observations.shape[1] - self.config.history
        normalised = self.normalised(frames_of(observations))
        # Windows of the same phase share their columns: each phase is a sequence of its own at the frames' rate.
        missing = -normalised.shape[1] % stride
        normalised = functional.pad(normalised, [0, 0, missing, 0])
        phases = normalised.unflatten(1, [-1, stride]).permute(0, 2, 3, 1).flatten(0, 1)
        with torch.autocast(observations.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            hidden = self.stem(phases)
            hidden = hidden[..., 2:-2] + self.first(hidden)
            hidden = hidden[..., 2:-2] + self.second(hidden)
            columns = torch.relu(hidden)
            # The mean tells of the gait, the newest column of the moment that the increment belongs to.
            mean = functional.avg_pool1d(columns, self.config.pooled, stride=1)
            pooled = torch.cat((mean, columns[..., self.config.pooled - 1 :]), dim=1)
            pooled = pooled.unflatten(0, [batch, stride]).permute(0, 3, 1, 2).flatten(1, 2)[:, -count:]
            features: Tensor = self.trunk(pooled)
        return features

    def answer(self, features: Tensor, observations: Tensor, bfloat16: bool = False) -> LegolasOutput:
        """What the heads say of features (B, T, trunk) of observations (B, T, 47)."""
        with torch.autocast(observations.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            hidden = [head(features) for head in self.heads]
        raw = [last(feature.float()) for last, feature in zip(self.last, hidden, strict=True)]
        return self.outputs(raw, observations)

    def outputs(self, raw: list[Tensor], observations: Tensor) -> LegolasOutput:
        """What the heads' outputs mean; the increment stands on top of the gyro's rotation (our choice)."""
        base = rotation_rate_columns(observations[..., obs.GYRO], observations[..., obs.DT])
        scaled = raw[0] * self.output_scale
        increment = torch.cat((scaled[..., TRANSLATION], base + scaled[..., ROTATION]), dim=-1)
        log_variance = _LOG_VARIANCE_LIMIT * torch.tanh(raw[1] / _LOG_VARIANCE_LIMIT) + 2 * self.output_scale.log()
        return LegolasOutput(increment, log_variance, raw[2].squeeze(-1))


class StreamingLegolas(nn.Module):
    """The deployed network: `prime` and `step` for TorchScript.

    Each layer keeps its columns of the last samples in a ring; those of one phase of the stride lie ``stride`` apart.
    A step uses up the state that it is given: the rings change.
    """

    absent: Tensor
    mean: Tensor
    inverse_scale: Tensor
    output_scale: Tensor
    identity: Tensor
    stem: Tensor
    stem_bias: Tensor
    first_0: Tensor
    first_0_bias: Tensor
    first_1: Tensor
    first_1_bias: Tensor
    second_0: Tensor
    second_0_bias: Tensor
    second_1: Tensor
    second_1_bias: Tensor

    def __init__(self, network: LegolasNetwork) -> None:
        super().__init__()
        config = network.config
        self.stride, self.stem_size, self.pooled = config.stride, config.stem, config.pooled
        frozen = {name: value.detach().clone() for name, value in network.state_dict().items()}
        mean, scale = frozen["frame_mean"], frozen["frame_scale"]
        absent = mean.clone()
        absent[TORQUE] += scale[TORQUE] * frozen["absent_torque"].repeat(4)
        self.register_buffer("absent", absent)
        self.register_buffer("mean", mean)
        self.register_buffer("inverse_scale", 1 / scale)
        self.register_buffer("output_scale", frozen["output_scale"])
        self.register_buffer("identity", torch.tensor((1.0, 0.0, 0.0, 0.0, 1.0, 0.0)))
        self.trunk, self.heads, self.last = network.trunk, network.heads, network.last
        # A block is rectifier, convolution, rectifier, convolution.
        blocks = {f"{block}_{layer // 2}": f"{block}.{layer}" for block in ("first", "second") for layer in (1, 3)}
        for kept, name in {"stem": "stem", **blocks}.items():
            # (out, in, kernel) -> (out, kernel * in): the oldest column first.
            weight = frozen[f"{name}.weight"].transpose(1, 2).flatten(1).contiguous()
            self.register_buffer(kept, weight)
            self.register_buffer(f"{kept}_bias", frozen[f"{name}.bias"])

    def _columns(self, ring: Tensor, column: Tensor, count: int) -> Tensor:
        """Put the newest column into its ring; the last of its phase, oldest first: (k, C)."""
        size = ring.shape[0] // self.stride
        row = (count // self.stride) % size
        columns = ring.view(size, self.stride, ring.shape[1]).select(1, count % self.stride)
        columns[row] = column
        return torch.roll(columns, size - 1 - row, 0)

    @torch.jit.export
    def prime(self, frame: Tensor) -> tuple[list[Tensor], int]:
        """The state before the first sample, as if its frame (42,) had stood since ever."""
        stride, width = self.stride, self.stem.shape[0]
        sizes = [self.stem_size, 3, 3, 3, 3, self.pooled]
        rings = [
            torch.zeros(size * stride, frame.shape[0] if layer == 0 else width) for layer, size in enumerate(sizes)
        ]
        values = self._constant(frame)
        for ring, value in zip(rings, values):  # noqa: B905 (TorchScript)
            ring.copy_(value.expand_as(ring))
        return rings, 0

    def _normalise(self, frame: Tensor) -> Tensor:
        return (torch.where(torch.isnan(frame), self.absent, frame) - self.mean) * self.inverse_scale

    def _constant(self, frame: Tensor) -> list[Tensor]:
        """What each ring holds while the same frame comes again and again."""
        normalised = self._normalise(frame)
        stem = torch.mv(self.stem, normalised.repeat(self.stem_size)) + self.stem_bias
        inner = torch.mv(self.first_0, torch.relu(stem).repeat(3)) + self.first_0_bias
        middle = stem + torch.mv(self.first_1, torch.relu(inner).repeat(3)) + self.first_1_bias
        second = torch.mv(self.second_0, torch.relu(middle).repeat(3)) + self.second_0_bias
        last = middle + torch.mv(self.second_1, torch.relu(second).repeat(3)) + self.second_1_bias
        return [normalised, stem, inner, middle, second, torch.relu(last)]

    @torch.jit.export
    def step(
        self, frame: Tensor, state: tuple[list[Tensor], int]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[list[Tensor], int]]:
        """Take one frame (42,) SI, torque NaN where absent.

        Returns:
            Displacement and rotation vector of the last interval (6,) m, rad; their variances (6,) m^2, rad^2; the
            probability that the body moves, (); and the next state.
        """
        rings, count = state
        frames = self._columns(rings[0], self._normalise(frame), count)
        stem = torch.mv(self.stem, frames.flatten()) + self.stem_bias
        middle = self._block(
            stem, rings[1], rings[2], self.first_0, self.first_0_bias, self.first_1, self.first_1_bias, count
        )
        last = self._block(
            middle, rings[3], rings[4], self.second_0, self.second_0_bias, self.second_1, self.second_1_bias, count
        )
        newest = torch.relu(last)
        mean = self._columns(rings[5], newest, count).mean(dim=0)
        features = self.trunk(torch.cat((mean, newest)))
        raw = [
            self.last[0](self.heads[0](features)),
            self.last[1](self.heads[1](features)),
            self.last[2](self.heads[2](features)),
        ]
        dt = frame[41:42]
        scaled = raw[0] * self.output_scale
        log_variance = 12.0 * torch.tanh(raw[1] / 12.0) + 2 * self.output_scale.log()
        columns = (rotation_rate_columns(frame[0:3], dt) + scaled[3:9]) * dt + self.identity
        motion = torch.cat((scaled[0:3] * dt, rotation_vector(columns)))
        rates = torch.exp(log_variance)
        # A small rotation about z moves y of the first column and x of the second, and so on.
        turning = torch.stack((rates[8], rates[5], (rates[4] + rates[6]) / 4))
        variance = torch.cat((rates[0:3], turning)) * dt * dt
        return motion, variance, torch.sigmoid(raw[2][0]), (rings, count + 1)

    def _block(
        self,
        column: Tensor,
        outer: Tensor,
        inner: Tensor,
        weight_0: Tensor,
        bias_0: Tensor,
        weight_1: Tensor,
        bias_1: Tensor,
        count: int,
    ) -> Tensor:
        """A residual block's newest column, from the newest of the layer before it. (C) -> (C)"""
        columns = self._columns(outer, column, count)
        hidden = torch.mv(weight_0, torch.relu(columns).flatten()) + bias_0
        branch = torch.mv(weight_1, torch.relu(self._columns(inner, hidden, count)).flatten()) + bias_1
        # The shortcut of an unpadded block is the middle of the five columns that it sees.
        return columns[0] + branch
