"""The networks that `latency.py` times beside the streaming one."""

import math

import torch
from torch import Tensor, nn

from trace_ros.estimator.folding import fold
from trace_ros.estimator.network import (
    TraceNetwork,
    leg_features,
    motion_from_raw,
    network_inputs,
    query_channels,
    replace_absent,
)


class PaperWindow(nn.Module):
    """`TraceNetwork` as the paper writes it down: each sample runs the whole window, keys and values are projected.

    Takes a batch of windows (B, 30, 47) and the GRU's state (B, hidden); gives motion (B, 9), attention (B, 6) and the
    next state.
    """

    absent: Tensor
    mean: Tensor
    scale: Tensor
    output_scale: Tensor
    identity: Tensor

    def __init__(self, network: TraceNetwork) -> None:
        super().__init__()
        self.residual = network.config.increments == "residual"
        self.levelled = network.config.acceleration == "levelled"
        self.heads = network.config.heads
        self.register_buffer("absent", network.absent_values().detach())
        self.register_buffer("mean", network.observation_mean)
        self.register_buffer("scale", network.observation_scale)
        self.register_buffer("output_scale", network.output_scale)
        self.register_buffer("identity", network.leg_identity)
        self.convolution_1, self.convolution_2 = network.convolution_1, network.convolution_2
        self.query_projection, self.query_norm = network.query_projection, network.query_norm
        self.accel_token, self.gyro_token, self.leg_token = network.accel_token, network.gyro_token, network.leg_token
        attention = network.attention
        self.query, self.key, self.value, self.out = attention.query, attention.key, attention.value, attention.out
        self.gru, self.head = network.gru, network.head

    def forward(self, window: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One sample: the last of the window."""
        window = replace_absent(window, self.absent)
        normalised = (network_inputs(window, self.levelled) - self.mean) / self.scale
        columns = query_channels(normalised).transpose(1, 2)
        columns = torch.relu(self.convolution_2(torch.relu(self.convolution_1(columns))))
        query = self.query_norm(self.query_projection(columns.mean(dim=2)))
        current = normalised[:, -1]
        legs = leg_features(current)
        identity = self.identity.expand(legs.shape[0], -1, -1)
        legs = self.leg_token(torch.cat((legs, identity), dim=-1))
        imu = torch.stack((self.accel_token(current[:, 3:6]), self.gyro_token(current[:, 0:3])), dim=1)
        tokens = torch.cat((imu, legs), dim=1)
        asked = self.query(query).view(-1, self.heads, 1, query.shape[-1] // self.heads)
        keys = self.key(tokens).unflatten(-1, [self.heads, -1]).transpose(1, 2)
        values = self.value(tokens).unflatten(-1, [self.heads, -1]).transpose(1, 2)
        scores = torch.matmul(asked, keys.transpose(-1, -2)) / math.sqrt(keys.shape[-1])
        attention = torch.softmax(scores, dim=-1)
        context = self.out(torch.matmul(attention, values).flatten(1))
        memory, last = self.gru(context.unsqueeze(1), hidden.unsqueeze(0))
        raw = self.head(torch.cat((context, memory[:, 0], current[:, 46:47]), dim=-1))
        motion = motion_from_raw(raw * self.output_scale, window[:, -1], self.residual)
        return motion, attention.mean(dim=1)[:, 0], last[0]


class LegolasSized(nn.Module):
    """A network of the size that Legolas (Wasserman et al., CoRL 2024) states; weights are random.

    A 1-D ResNet over 50 frames of 44 channels with two residual blocks, and three heads: pose increment (9), its
    variances (9) and a mask (1). Widths, kernels and strides are ours: they make 1.36 M parameters, and the strides
    make it three times as quick as a network without.
    """

    def __init__(self) -> None:
        super().__init__()
        width, trunk = 256, 512
        self.stem = nn.Conv1d(44, width, 7, stride=2, padding=3)
        self.first = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.second = nn.ModuleList(nn.Conv1d(width, width, 3, stride=stride, padding=1) for stride in (2, 1))
        self.trunk = nn.Sequential(nn.Linear(width, trunk), nn.ReLU(), nn.Linear(trunk, trunk), nn.ReLU())
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(trunk, 64), nn.ReLU(), nn.Linear(64, size)) for size in (9, 9, 1)
        )

    def forward(self, frames: Tensor) -> list[Tensor]:
        """Frames (B, 44, 50) to increment (B, 9), variances (B, 9) and mask (B, 1)."""
        hidden = torch.relu(self.stem(frames))
        branch = hidden
        for layer in self.first:
            branch = layer(torch.relu(branch))
        hidden = hidden + branch
        branch = hidden
        for layer in self.second:
            branch = layer(torch.relu(branch))
        features = self.trunk(torch.relu(hidden[:, :, ::2] + branch).mean(dim=2))
        return [head(features) for head in self.heads]


class NmnSized(nn.Module):
    """The network of NMN (Youm et al., arXiv 2402.00366) with random weights: 132,871 parameters.

    42 channels, GRU of 128, hidden layers of 256 and 128; four contact probabilities and the body's velocity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(42, 128, batch_first=True)
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 7))

    def forward(self, frame: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One frame (B, 1, 42) and the state (1, B, 128) to outputs (B, 7) and the next state."""
        memory, hidden = self.gru(frame, hidden)
        return self.head(memory[:, 0]), hidden


class Products(nn.Module):
    """Nothing but the products of a matrix with a vector that a streaming step needs."""

    weights: list[Tensor]

    def __init__(self, network: TraceNetwork) -> None:
        super().__init__()
        folded = [value.detach() for value in fold(network)]
        # Column by column, as StreamingTrace keeps them: that is the quicker order.
        self.weights = [value.T.contiguous().T for value in folded if value.dim() == 2]

    # TorchScript leaves out what is not given back, and works out once what does not depend on arguments.
    def forward(self, vectors: list[Tensor]) -> list[Tensor]:
        """The products, one for each vector of `vectors`."""
        return [torch.mv(weight, vector) for weight, vector in zip(self.weights, vectors)]  # noqa: B905

    def vectors(self) -> list[Tensor]:
        """Vectors of the right lengths."""
        return [torch.ones(weight.shape[1]) for weight in self.weights]
