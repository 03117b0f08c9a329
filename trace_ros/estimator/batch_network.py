"""The network's step in a loop over many samples, for several logs at once, without Python in between.

What feeds back from one sample to the next is in the loop: the caches, the memory, velocity, roll and pitch. All else
is multiplied out before it for many samples at once: tokens of the legs and the last layer's terms look at nothing that
is fed back. The weights are those of `folding.py`; the pose is followed in double precision, as by the estimator.
"""

import math
import warnings
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trace_ros.estimator import observation as obs
from trace_ros.estimator.folding import FoldedWeights, fold
from trace_ros.estimator.network import LEG_TOKENS, QUERY_SIZE, TOKEN_NAMES, TraceNetwork
from trace_ros.estimator.observation import QUERY_CHANNELS
from trace_ros.estimator.streaming import prime
from trace_ros.geometry import GRAVITY, FloatArray
from trace_ros.logs import JOINTS, LEGS

_FED_BACK = 7
"""Gravity as the body sees it, roll, pitch, vx, vy: what a step adds to seven neighbours of the query's channels."""

_SINES = 5
"""Inputs of the folded weights that stand for gravity; here it comes from the orientation itself."""


class LoopState(NamedTuple):
    """What a chunk of steps leaves for the next; of a single log without the batch dimension.

    Attributes:
        channels: ([B,] 4 * 11) of the last samples, oldest first.
        columns: ([B,] 4 * d) of the first convolution.
        ring: (22, [B,] d) of the second.
        total: ([B,] d) their sum.
        hidden: ([B,] hidden).
        orientation: ([B,] 4) float64 quaternion x, y, z, w.
        fed: ([B,] 7) float32: see `_FED_BACK`; gravity is negative.
        place: of the oldest column in the ring.
    """

    channels: Tensor
    columns: Tensor
    ring: Tensor
    total: Tensor
    hidden: Tensor
    orientation: Tensor
    fed: Tensor
    place: int


class LoopInputs(NamedTuple):
    """What is known of n samples beforehand.

    Attributes:
        channels: ([B,] n * 11) less their means; what is fed back is to be added.
        columns: ([B,] n * d) room for those of the first convolution.
        features: (n, [B,] 6, F) of the tokens.
        head: (n, [B,] 256) of the head's first layer.
        term, factor: (n, [B,] 9) of its last.
    """

    channels: Tensor
    columns: Tensor
    features: Tensor
    head: Tensor
    term: Tensor
    factor: Tensor


class LoopOutputs(NamedTuple):
    """What n steps give: motion (n, [B,] 9), attention (n, [B,] 6), orientation (n, B, 4) after each, float64."""

    motion: Tensor
    attention: Tensor
    orientation: Tensor


def _affine(bias: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """``bias + value @ weight`` of one row, or of several."""
    if value.dim() == 1:
        return torch.addmv(bias, weight.t(), value)
    return torch.addmm(bias, value, weight)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """`torch.matmul` without its questions."""
    return torch.mm(one, other) if one.dim() == 2 else torch.bmm(one, other)


class TraceLoop(nn.Module):
    """Steps of the network with what feeds back, scripted."""

    width: Final[int]
    hidden_size: Final[int]
    tokens: Final[int]
    kernel: Final[int]
    query_size: Final[int]
    fed_back: Final[int]
    first_fed_back: Final[int]
    gravity: Final[float]

    def __init__(self, network: TraceNetwork) -> None:
        super().__init__()
        config = network.config
        self.width, self.hidden_size, self.tokens = config.embedding, config.hidden, len(TOKEN_NAMES)
        self.kernel, self.query_size = config.kernel, QUERY_SIZE
        self.fed_back, self.first_fed_back = _FED_BACK, QUERY_CHANNELS.index(obs.ACCEL.start)
        self.gravity = GRAVITY if config.acceleration == "levelled" else 0.0
        weights = FoldedWeights(*(value.detach() for value in fold(network)))

        def transposed(value: Tensor) -> Tensor:
            return value.t().contiguous()

        taps = weights.convolution_1.view(self.width, config.kernel, QUERY_SIZE + _SINES)
        self.convolution_1 = transposed(taps[:, :, :QUERY_SIZE].flatten(1))
        self.convolution_1_bias = weights.convolution_1_bias
        self.convolution_2 = transposed(weights.convolution_2)
        self.convolution_2_bias = weights.convolution_2_bias
        self.query, self.query_bias = transposed(weights.query), weights.query_bias
        self.asked, self.asked_bias = transposed(weights.attention_query), weights.attention_query_bias
        self.found, self.found_bias = transposed(weights.attention_value), weights.attention_value_bias
        self.gru_input = transposed(torch.cat((weights.gru_input_gates, weights.gru_input_new)))
        self.gru_input_bias = torch.cat((weights.gru_gates_bias, weights.gru_input_new_bias))
        self.gru_hidden = transposed(torch.cat((weights.gru_hidden_gates, weights.gru_hidden_new)))
        self.gru_hidden_bias = torch.cat((torch.zeros(2 * config.hidden), weights.gru_hidden_new_bias))
        self.head_1 = transposed(weights.head_1[:, : self.width + config.hidden])
        self.head_2, self.head_2_bias = transposed(weights.head_2), weights.head_2_bias
        self.head_3 = transposed(weights.head_3)
        # A levelled accelerometer is the reading less gravity, in the token as in the query.
        accel = slice(self.width, self.width + 3)
        self.accel_scale = weights.features[accel, obs.ACCEL].diagonal().contiguous()

    def _network(
        self,
        channels: Tensor,
        columns: Tensor,
        ring: Tensor,
        total: Tensor,
        hidden: Tensor,
        features: Tensor,
        accel: Tensor,
        fed: Tensor,
        head: Tensor,
        step: int,
        index: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One step: sum of the window's columns, memory, attention, and the head's hidden layer."""
        kernel, width, hidden_size, size = self.kernel, self.width, self.hidden_size, self.query_size
        channels.narrow(-1, (step + kernel - 1) * size + self.first_fed_back, self.fed_back).add_(fed)
        column = torch.relu_(
            _affine(self.convolution_1_bias, channels.narrow(-1, step * size, kernel * size), self.convolution_1)
        )
        columns.narrow(-1, (step + kernel - 1) * width, width).copy_(column)
        column = torch.relu_(
            _affine(self.convolution_2_bias, columns.narrow(-1, step * width, kernel * width), self.convolution_2)
        )
        oldest = ring.select(0, index)
        total = torch.sub(total, oldest).add_(column)
        oldest.copy_(column)
        if index + 1 == ring.shape[0]:  # added up anew once a round, so that rounding cannot grow
            total = ring.sum(dim=0)

        query = functional.layer_norm(_affine(self.query_bias, total, self.query), [width])
        asked = _affine(self.asked_bias, query, self.asked).unflatten(-1, [-1, features.shape[-1]])
        accel.addcmul_(fed.narrow(-1, 0, 3), self.accel_scale)
        weights = torch.softmax(_product(asked, features.transpose(-1, -2)), dim=-1)
        found = _affine(self.found_bias, _product(weights, features).flatten(-2), self.found)
        context, attention = found.narrow(-1, 0, width), found.narrow(-1, width, self.tokens)

        from_input = _affine(self.gru_input_bias, context, self.gru_input)
        from_hidden = _affine(self.gru_hidden_bias, hidden, self.gru_hidden)
        gates = torch.sigmoid(from_input.narrow(-1, 0, 2 * hidden_size) + from_hidden.narrow(-1, 0, 2 * hidden_size))
        candidate = torch.addcmul(
            from_input.narrow(-1, 2 * hidden_size, hidden_size),
            gates.narrow(-1, 0, hidden_size),
            from_hidden.narrow(-1, 2 * hidden_size, hidden_size),
        )
        hidden = torch.lerp(torch.tanh(candidate), hidden, gates.narrow(-1, hidden_size, hidden_size))
        inner = torch.relu_(_affine(head, torch.cat((context, hidden), dim=-1), self.head_1))
        return total, hidden, attention, torch.relu_(_affine(self.head_2_bias, inner, self.head_2))

    # Plain tuples go out: for a NamedTuple, TorchScript defines a class anew at every call, which takes a millisecond.
    @torch.jit.export
    def run(
        self, state: LoopState, inputs: LoopInputs, turns: list[float], moves: list[bool]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]]:
        """n steps of B logs.

        Args:
            state: is used up.
            inputs: are used up.
            turns: n * B factors on the rotation, those of one step after the other; 0 where the pose stays.
            moves: n * B; false where the velocity is held at zero.

        Returns:
            What makes `LoopOutputs`, and a `LoopState`.
        """
        kept, size = self.kernel - 1, self.query_size
        channels = torch.cat((state.channels, inputs.channels), dim=-1)
        # Lists of rows: to index one costs less than to make a view.
        features, head = inputs.features.unbind(0), inputs.head.unbind(0)
        accel = inputs.features.select(-2, 0).narrow(-1, self.width, 3).unbind(0)
        term, factor = inputs.term.unbind(0), inputs.factor.unbind(0)
        columns = torch.cat((state.columns, inputs.columns), dim=-1)
        motions: list[Tensor] = []
        attentions: list[Tensor] = []
        orientations: list[float] = []
        ring, total, hidden, fed, index = state.ring, state.total, state.hidden, state.fed, state.place
        pose: list[float] = state.orientation.view(-1).tolist()
        batch, gravity = len(pose) // 4, self.gravity
        for step in range(len(term)):
            total, hidden, attention, inner = self._network(
                channels, columns, ring, total, hidden, features[step], accel[step], fed, head[step], step, index
            )
            index = index + 1 if index + 1 < ring.shape[0] else 0
            motion = _affine(term[step], inner, self.head_3).mul_(factor[step])
            motions.append(motion)
            attentions.append(attention)

            # Number by number: on vectors of three or four, whole tensors cost more up to some twenty logs.
            told: list[float] = motion.view(-1).tolist()
            back: list[float] = []
            for log in range(batch):
                share, moving = turns[step * batch + log], moves[step * batch + log]
                first, at = 9 * log, 4 * log
                # As `PoseIntegrator` does it, but that the length, which rounding changes, is set right at the end.
                rx, ry, rz = told[first + 3], told[first + 4], told[first + 5]
                angle = share * math.sqrt(rx * rx + ry * ry + rz * rz)
                scale = share * (0.5 - angle * angle / 48 if angle < 1e-4 else math.sin(angle / 2) / angle)
                bx, by, bz, bw = scale * rx, scale * ry, scale * rz, math.cos(angle / 2)
                ax, ay, az, aw = pose[at], pose[at + 1], pose[at + 2], pose[at + 3]
                x = aw * bx + ax * bw + ay * bz - az * by
                y = aw * by - ax * bz + ay * bw + az * bx
                z = aw * bz + ax * by - ay * bx + az * bw
                w = aw * bw - ax * bx - ay * by - az * bz
                pose[at], pose[at + 1], pose[at + 2], pose[at + 3] = x, y, z, w
                nose_down, left_up, level = 2 * (w * y - z * x), 2 * (w * x + y * z), 1 - 2 * (x * x + y * y)
                back += [
                    gravity * nose_down, -gravity * left_up, -gravity * level,
                    math.atan2(left_up, level), math.asin(max(-1.0, min(1.0, nose_down))),
                    told[first + 6] if moving else 0.0, told[first + 7] if moving else 0.0,
                ]  # fmt: skip
            orientations += pose
            fed = torch.tensor(back, dtype=torch.float32).view_as(fed)
        followed = torch.tensor(orientations, dtype=torch.float64).view(len(term), batch, 4)
        followed = followed / torch.norm(followed, 2, [2], True)
        return (torch.stack(motions), torch.stack(attentions), followed), (
            channels.narrow(-1, channels.shape[-1] - kept * size, kept * size),
            columns.narrow(-1, columns.shape[-1] - kept * self.width, kept * self.width),
            ring, total, hidden, followed.select(0, -1).view_as(state.orientation), fed, index,
        )  # fmt: skip


class BatchNetwork:
    """A network for several logs at once: prepares what the loop takes, and runs it."""

    def __init__(self, network: TraceNetwork) -> None:
        with torch.no_grad():
            self._weights = FoldedWeights(*(value.detach() for value in fold(network)))
            loop = TraceLoop(network).eval()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
            self._loop = torch.jit.freeze(torch.jit.script(loop), preserved_attrs=["run"])
            self._split_features()
        self._gravity = loop.gravity
        self._levels = network.config.kernel - 1

    def _split_features(self) -> None:
        """The folded weights of the tokens' features, of which most are zero, token by token."""
        weights, count = self._weights, len(TOKEN_NAMES)
        width = weights.convolution_2.shape[0]
        table = weights.features.view(count, -1, weights.features.shape[1])
        bias = weights.features_bias.view(count, -1).clone()
        self._accel_scale = table[0, width : width + 3, obs.ACCEL].diagonal()
        self._gyro_scale = table[1, width + 3 : width + 6, obs.GYRO].diagonal()
        joints = table[LEG_TOKENS, :width, QUERY_SIZE + _SINES :].unflatten(-1, (-1, LEGS, JOINTS // LEGS))
        self._leg_weight = torch.stack([joints[leg, :, :, leg].flatten(1).T for leg in range(LEGS)]).contiguous()
        self._leg_bias = bias[LEG_TOKENS, None, :width].clone()
        bias[LEG_TOKENS, :width] = 0.0
        self._feature_bias = bias

    def start(
        self, window: NDArray[np.float32], orientation: tuple[float, ...], velocity: tuple[float, ...], index: int
    ) -> LoopState:
        """The state of one log before the sample that fills its window.

        Args:
            window: (29, 47) the samples before, with roll, pitch and velocity as fed back.
            orientation: quaternion x, y, z, w.
            velocity: m/s.
            index: where the ring of the others stands.
        """
        with torch.inference_mode():
            primed = prime(self._weights, torch.from_numpy(window))
            channels = primed.inputs.view(self._levels, -1)[:, :QUERY_SIZE].clone()
            tilt = window[-self._levels :, obs.ROLL_PITCH].astype(np.float64)
            channels[:, obs.ACCEL] -= torch.from_numpy(gravity(tilt) * (self._gravity / GRAVITY)).to(torch.float32)
            ring = torch.roll(functional.pad(primed.pooled, [0, 0, 0, 1]), index + 1, dims=0)
            x, y, z, w = orientation
            nose_down, left_up = 2 * (w * y - z * x), 2 * (w * x + y * z)
            level = 1 - 2 * (x * x + y * y)
            roll, pitch = math.atan2(left_up, level), math.asin(max(-1.0, min(1.0, nose_down)))
            seen = (self._gravity * nose_down, -self._gravity * left_up, -self._gravity * level)
            fed = torch.tensor((*seen, roll, pitch, *velocity[:2]), dtype=torch.float32)
            return LoopState(
                channels.flatten(),
                primed.columns,
                ring,
                ring.sum(dim=0),
                primed.hidden,
                torch.tensor(orientation, dtype=torch.float64),
                fed,
                index,
            )

    def steps(
        self, states: list[LoopState], observation: NDArray[np.float32], turns: FloatArray, moves: NDArray[np.bool_]
    ) -> tuple[LoopOutputs, list[LoopState]]:
        """n steps of B logs, whose rings stand at the same place.

        Args:
            states: B, used up.
            observation: (B, n, 47); roll, pitch and velocity are zero.
            turns: (B, n) factor on the rotation; 0 where the pose stays.
            moves: (B, n) whether the velocity is not held at zero.

        Returns:
            Outputs with a batch dimension, and the states after.
        """
        factors, moving = turns.T.flatten().tolist(), moves.T.flatten().tolist()
        with torch.inference_mode():
            inputs = self._inputs(torch.from_numpy(observation))
            if len(states) == 1:
                single = LoopInputs(*(value.squeeze(0 if place < 2 else 1) for place, value in enumerate(inputs)))
                (motion, attention, orientation), state = self._loop.run(states[0], single, factors, moving)
                outputs = LoopOutputs(motion.unsqueeze(1), attention.unsqueeze(1), orientation)
                return outputs, [LoopState(*state)]
            *tensors, _ = zip(*states, strict=True)
            # The ring has its batch dimension within.
            stacked = (torch.stack(value, dim=1 if place == 2 else 0) for place, value in enumerate(tensors))
            together = LoopState._make((*stacked, states[0].place))
            outputs, (*tensors, index) = self._loop.run(together, inputs, factors, moving)
            parts = [value.unbind(1 if place == 2 else 0) for place, value in enumerate(tensors)]
            return LoopOutputs(*outputs), [LoopState._make((*part, index)) for part in zip(*parts, strict=True)]

    def _inputs(self, observation: Tensor) -> LoopInputs:
        """What can be said of observations (B, n, 47) before the steps."""
        weights = self._weights
        batch, steps, _ = observation.shape
        centred = observation - weights.centre
        torch.nan_to_num_(centred[..., obs.JOINT_TORQUE], 0.0, math.inf, -math.inf)
        channels = centred[..., list(QUERY_CHANNELS)]
        joints = centred[..., obs.JOINT_POSITION.start : obs.JOINT_TORQUE.stop]
        direct = functional.linear(centred, weights.direct[_SINES:], weights.direct_bias[_SINES:])
        term, factor = direct.transpose(0, 1).chunk(2, dim=-1)
        features = self._features(channels.transpose(0, 1), joints.transpose(0, 1))
        before = weights.convolution_2.shape[0] + weights.gru_hidden_new.shape[1]
        head = functional.linear(
            channels.transpose(0, 1), weights.head_1[:, before : before + QUERY_SIZE], weights.head_1_bias
        )
        columns = channels.new_zeros(batch, steps * weights.convolution_2.shape[0])
        return LoopInputs(channels.flatten(1), columns, features, head, term.contiguous(), factor.contiguous())

    def _features(self, channels: Tensor, joints: Tensor) -> Tensor:
        """Features of the tokens (n, B, 6, F) from channels (n, B, 11) and joints (n, B, 36), token by token.

        In one product, as a step has it, most of the weights are zero.
        """
        (steps, batch, _), width = channels.shape, self._weights.convolution_2.shape[0]
        features = self._feature_bias.repeat(steps, batch, 1, 1)
        features[..., 0, width : width + 3] += channels[..., obs.ACCEL] * self._accel_scale
        features[..., 1, width + 3 : width + 6] += channels[..., obs.GYRO] * self._gyro_scale
        # (n, B, quantity, leg, joint) -> (leg, n * B, quantity and joint)
        of_leg = joints.reshape(steps * batch, -1, LEGS, JOINTS // LEGS).permute(2, 0, 1, 3).flatten(-2)
        hidden = torch.relu_(torch.baddbmm(self._leg_bias, of_leg, self._leg_weight))
        features[..., LEG_TOKENS, :width] = hidden.view(LEGS, steps, batch, width).permute(1, 2, 0, 3)
        return features


def gravity(roll_pitch: FloatArray) -> FloatArray:
    """What an accelerometer at rest reads at a roll and pitch. ``(..., 2) rad -> (..., 3) m/s^2``."""
    roll, pitch = roll_pitch[..., 0], roll_pitch[..., 1]
    parts = (-np.sin(pitch), np.sin(roll) * np.cos(pitch), np.cos(roll) * np.cos(pitch))
    return np.asarray(GRAVITY * np.stack(parts, axis=-1))
