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
from trace_ros.estimator.network import LEG_TOKENS, OUTPUT_SIZE, QUERY_SIZE, TOKEN_NAMES, VELOCITY, TraceNetwork
from trace_ros.estimator.observation import QUERY_CHANNELS
from trace_ros.estimator.streaming import prime
from trace_ros.geometry import GRAVITY, FloatArray
from trace_ros.logs import JOINTS, LEGS

_FED_BACK = 7
"""Gravity as the body sees it, roll, pitch, vx, vy: what a step adds to seven neighbours of the query's channels."""

_SINES = 5
"""Inputs of the folded weights that stand for gravity; here it comes from the orientation itself."""

_ROOM = 256
"""Steps that a loop has room for at a time; more go through one such after another."""


class LoopState(NamedTuple):
    """What a chunk of steps leaves for the next; of a single log without the batch dimension.

    Attributes:
        channels: ([B,] 4 * 11) of the last samples, oldest first.
        columns: ([B,] 4 * d) of the first convolution.
        pooled: (22, [B,] d) of the second.
        hidden: ([B,] hidden).
        orientation: ([B,] 4) float64 quaternion x, y, z, w.
        fed: ([B,] 7) float32: see `_FED_BACK`; gravity is negative.
    """

    channels: Tensor
    columns: Tensor
    pooled: Tensor
    hidden: Tensor
    orientation: Tensor
    fed: Tensor


class LoopInputs(NamedTuple):
    """What is known of n samples beforehand.

    Attributes:
        channels: ([B,] n * 11) less their means; what is fed back is to be added.
        features: (n, [B,] 6, F) of the tokens; the accelerometer's are not looked at.
        dt: (n, [B]) less its mean.
        term: (n, [B,] 9) of the head's last layer.
    """

    channels: Tensor
    features: Tensor
    dt: Tensor
    term: Tensor


class LoopOutputs(NamedTuple):
    """What n steps give: motion (n, B, 9), attention (n, B, 6), orientation (n, B, 4) after each, float64."""

    motion: Tensor
    attention: Tensor
    orientation: Tensor


def _windows(row: Tensor, size: int, step: int) -> list[Tensor]:
    """Views of ([B,] N): numbers [0, size), [step, step + size), and so on."""
    return list(row.unfold(-1, size, step).unbind(-2))


def _turn(
    told: list[float], turns: list[float], moves: list[bool], row: int, gravity: float, pose: list[float]
) -> list[float]:
    """Turn the poses of B logs by what the network told, and say what it is told back: see `LoopState.fed`.

    Number by number: on vectors of three or four, whole tensors cost more up to some twenty logs.

    Args:
        told: B * 9 motions, rotation per dt.
        turns, moves: of all steps.
        row: in those, of the first log.
        gravity: m/s^2, or 0 where it stays in the accelerometer.
        pose: B * 4 quaternions, changed.
    """
    back: list[float] = []
    for log in range(len(pose) // 4):
        share, moving = turns[row + log], moves[row + log]
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
    return back


class TraceLoop(nn.Module):
    """Steps of the network with what feeds back, scripted.

    For a single log, products of matrices are a third of the time, and making tensors would be most of the rest: all
    that a step reads or writes is a view that was made beforehand. Views are made for some hundred steps, the next
    steps use them again.
    """

    width: Final[int]
    hidden_size: Final[int]
    tokens: Final[int]
    kernel: Final[int]
    query_size: Final[int]
    fed_back: Final[int]
    first_fed_back: Final[int]
    gravity: Final[float]
    single: Final[bool]
    room: Final[int]

    def __init__(self, network: TraceNetwork, single: bool) -> None:
        """For a single log, without the batch dimension, or for several."""
        super().__init__()
        config = network.config
        self.single, self.room = single, _ROOM
        self.width, self.hidden_size, self.tokens = config.embedding, config.hidden, len(TOKEN_NAMES)
        self.kernel, self.query_size = config.kernel, QUERY_SIZE
        self.fed_back, self.first_fed_back = _FED_BACK, QUERY_CHANNELS.index(obs.ACCEL.start)
        self.gravity = GRAVITY if config.acceleration == "levelled" else 0.0
        weights = FoldedWeights(*(value.detach() for value in fold(network)))
        width, gates = self.width, 2 * self.hidden_size

        def transposed(*values: Tensor) -> Tensor:
            matrix = torch.cat(values).t().contiguous()
            return matrix.t() if single else matrix

        taps = weights.convolution_1.view(width, config.kernel, QUERY_SIZE + _SINES)
        self.convolution_1 = transposed(taps[:, :, :QUERY_SIZE].flatten(1))
        self.convolution_1_bias = weights.convolution_1_bias
        self.convolution_2 = transposed(weights.convolution_2)
        self.convolution_2_bias = weights.convolution_2_bias
        self.query, self.query_bias = transposed(weights.query), weights.query_bias
        self.asked, self.asked_bias = transposed(weights.attention_query), weights.attention_query_bias
        self.found = transposed(weights.attention_value[width:], weights.attention_value[:width])
        self.found_bias = weights.attention_value_bias.roll(self.tokens)
        # What the memory and the head's first layer make of the context and dt, and of the memory's state: gates,
        # candidate, first layer.
        head_context, head_hidden, head_inputs = weights.head_1.split([width, self.hidden_size, QUERY_SIZE + _SINES], 1)
        head_dt = head_inputs[:, QUERY_SIZE - 1]
        of_dt = torch.cat((head_dt.new_zeros(gates + self.hidden_size), head_dt))
        of_context = torch.cat((weights.gru_input_gates, weights.gru_input_new, head_context))
        self.from_context = transposed(torch.cat((of_context, of_dt[:, None]), dim=1))
        self.from_context_bias = torch.cat((weights.gru_gates_bias, weights.gru_input_new_bias, weights.head_1_bias))
        self.from_hidden = transposed(weights.gru_hidden_gates, weights.gru_hidden_new, head_hidden)
        self.from_hidden_bias = torch.cat(
            (head_dt.new_zeros(gates), weights.gru_hidden_new_bias, torch.zeros_like(head_dt))
        )
        self.head_2, self.head_2_bias = transposed(weights.head_2), weights.head_2_bias
        self.head_3 = transposed(weights.head_3)
        # A levelled accelerometer is the reading less gravity, in the token as in the query.
        accel = slice(width, width + 3)
        self.accel_scale = weights.features[accel, obs.ACCEL].diagonal().contiguous()

    def _affine(self, bias: Tensor, value: Tensor, weight: Tensor, to: Tensor) -> None:
        """``bias + weight @ value`` of one row, or of several, written ``to`` where it is wanted."""
        if self.single:
            torch.addmv(bias, weight, value, out=to)
        else:
            torch.addmm(bias, value, weight, out=to)

    def _product(self, one: Tensor, other: Tensor, to: Tensor) -> None:
        """`torch.matmul` without its questions."""
        if self.single:
            torch.mm(one, other, out=to)
        else:
            torch.bmm(one, other, out=to)

    # Plain tuples go out: for a NamedTuple, TorchScript defines a class anew at every call, which takes a millisecond.
    @torch.jit.export
    def run(
        self, state: LoopState, inputs: LoopInputs, turns: list[float], moves: list[bool]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """n steps of B logs.

        Args:
            state: is used up.
            inputs: are used up.
            turns: n * B factors on the rotation per dt, those of one step after the other; 0 where the pose stays.
            moves: n * B; false where the velocity is held at zero.

        Returns:
            What makes `LoopOutputs`, but displacement and rotation per dt, and a `LoopState`.
        """
        kept, size, width, memory = self.kernel - 1, self.query_size, self.width, self.hidden_size
        steps, lanes = inputs.term.shape[0], list(state.hidden.shape[:-1])
        room, like, summed = min(steps, self.room), state.hidden, state.pooled.shape[0]

        channels = like.new_empty(lanes + [(kept + room) * size])
        old_channels, given = channels.narrow(-1, 0, kept * size), channels.narrow(-1, kept * size, room * size)
        channel_windows = _windows(channels, self.kernel * size, size)
        feelable = given.narrow(-1, self.first_fed_back, room * size - self.first_fed_back)
        fed_back, accel = _windows(feelable, self.fed_back, size), _windows(feelable, 3, size)
        columns = like.new_empty(lanes + [(kept + room) * width])
        old_columns = columns.narrow(-1, 0, kept * width)
        column_windows = _windows(columns, self.kernel * width, width)
        new_columns = _windows(columns.narrow(-1, kept * width, room * width), width, width)
        pooled = like.new_empty([summed + room] + lanes + [width])
        pooled_columns = pooled.unbind(0)
        pooled_windows, ones = pooled.flatten(1).unfold(0, summed, 1).unbind(0), like.new_ones([summed])
        features = torch.empty_like(inputs.features.narrow(0, 0, room))
        values, keys = features.unbind(0), features.transpose(-1, -2).unbind(0)
        accel_token = features.select(-2, 0).narrow(-1, width, 3).unbind(0)
        found = like.new_empty([room] + lanes + [self.tokens + width + 1])
        found_rows = found.narrow(-1, 0, self.tokens + width).unbind(0)
        context = found.narrow(-1, self.tokens, width + 1).unbind(0)
        motion = torch.empty_like(inputs.term.narrow(0, 0, room))
        motion_rows, motion_flat = motion.unbind(0), motion.view(room, -1).unbind(0)
        term = torch.empty_like(motion)
        term_rows = term.unbind(0)

        query, total = like.new_empty(lanes + [width]), like.new_empty(lanes + [width])
        total_flat = total.view(-1)
        asked = like.new_empty(lanes + [len(self.asked_bias)])
        asked_heads, gathered = asked.unflatten(-1, [-1, features.shape[-1]]), torch.empty_like(asked)
        gathered_heads = gathered.view_as(asked_heads)
        scores = like.new_empty(list(asked_heads.shape[:-1]) + [self.tokens])
        from_context = like.new_empty(lanes + [len(self.from_context_bias)])
        from_hidden = torch.empty_like(from_context)
        parts = [2 * memory, memory, from_context.shape[-1] - 3 * memory]
        context_gates, context_new, context_head = from_context.split_with_sizes(parts, dim=-1)
        hidden_gates, hidden_new, hidden_head = from_hidden.split_with_sizes(parts, dim=-1)
        hidden, candidate, gates = state.hidden, torch.empty_like(like), like.new_empty(lanes + [2 * memory])
        reset, update = gates.split_with_sizes([memory, memory], dim=-1)
        inner, last = torch.empty_like(context_head), like.new_empty(lanes + [len(self.head_2_bias)])

        old_channels.copy_(state.channels)
        old_columns.copy_(state.columns)
        pooled.narrow(0, 0, summed).copy_(state.pooled)
        self._affine(self.from_hidden_bias, hidden, self.from_hidden, from_hidden)
        motions: list[Tensor] = []
        attentions: list[Tensor] = []
        orientations: list[float] = []
        pose: list[float] = state.orientation.view(-1).tolist()
        fed, batch = state.fed, len(pose) // 4
        for begin in range(0, steps, room):
            count = min(room, steps - begin)
            given.narrow(-1, 0, count * size).copy_(inputs.channels.narrow(-1, begin * size, count * size))
            features.narrow(0, 0, count).copy_(inputs.features.narrow(0, begin, count))
            found.select(-1, -1).narrow(0, 0, count).copy_(inputs.dt.narrow(0, begin, count))
            term.narrow(0, 0, count).copy_(inputs.term.narrow(0, begin, count))
            for step in range(count):
                fed_back[step].add_(fed)
                self._affine(self.convolution_1_bias, channel_windows[step], self.convolution_1, new_columns[step])
                torch.relu_(new_columns[step])
                column = pooled_columns[summed + step]
                self._affine(self.convolution_2_bias, column_windows[step], self.convolution_2, column)
                torch.relu_(column)
                # As a product, the sum of them all costs no more than to keep a running one, and is exacter.
                torch.mv(pooled_windows[step + 1], ones, out=total_flat)

                self._affine(self.query_bias, total, self.query, query)
                self._affine(self.asked_bias, functional.layer_norm(query, [width]), self.asked, asked)
                torch.mul(accel[step], self.accel_scale, out=accel_token[step])
                self._product(asked_heads, keys[step], scores)
                self._product(torch.softmax(scores, dim=-1), values[step], gathered_heads)
                self._affine(self.found_bias, gathered, self.found, found_rows[step])

                self._affine(self.from_context_bias, context[step], self.from_context, from_context)
                torch.add(context_gates, hidden_gates, out=gates)
                torch.sigmoid_(gates)
                torch.addcmul(context_new, reset, hidden_new, out=candidate)
                torch.tanh_(candidate)
                torch.lerp(candidate, hidden, update, out=hidden)
                self._affine(self.from_hidden_bias, hidden, self.from_hidden, from_hidden)
                torch.add(context_head, hidden_head, out=inner)
                self._affine(self.head_2_bias, torch.relu_(inner), self.head_2, last)
                self._affine(term_rows[step], torch.relu_(last), self.head_3, motion_rows[step])

                told: list[float] = motion_flat[step].tolist()
                back = _turn(told, turns, moves, (begin + step) * batch, self.gravity, pose)
                orientations += pose
                fed = torch.tensor(back, dtype=torch.float32)
                if not self.single:
                    fed = fed.view(batch, -1)
            motions.append(motion.narrow(0, 0, count).clone())
            attentions.append(found.narrow(0, 0, count).narrow(-1, 0, self.tokens).clone())
            old_channels.copy_(channels.narrow(-1, count * size, kept * size).clone())
            old_columns.copy_(columns.narrow(-1, count * width, kept * width).clone())
            pooled.narrow(0, 0, summed).copy_(pooled.narrow(0, count, summed).clone())
        followed = torch.tensor(orientations, dtype=torch.float64).view(steps, batch, 4)
        followed = followed / torch.norm(followed, 2, [2], True)
        return (torch.cat(motions), torch.cat(attentions), followed), (
            old_channels.clone(), old_columns.clone(), pooled.narrow(0, 0, summed).clone(), hidden,
            followed.select(0, -1).view_as(state.orientation), fed,
        )  # fmt: skip


class BatchNetwork:
    """A network for several logs at once: prepares what the loop takes, and runs it."""

    def __init__(self, network: TraceNetwork) -> None:
        with torch.no_grad():
            self._weights = FoldedWeights(*(value.detach() for value in fold(network)))
            loops = [TraceLoop(network, single).eval() for single in (False, True)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
            self._loop, self._single_loop = (
                torch.jit.freeze(torch.jit.script(loop), preserved_attrs=["run"]) for loop in loops
            )
            self._split_features()
        self._gravity = loops[0].gravity
        self._levels = network.config.kernel - 1

    def _split_features(self) -> None:
        """The folded weights of the tokens' features, of which most are zero, token by token."""
        weights, count = self._weights, len(TOKEN_NAMES)
        width = weights.convolution_2.shape[0]
        table = weights.features.view(count, -1, weights.features.shape[1])
        bias = weights.features_bias.view(count, -1).clone()
        self._gyro_scale = table[1, width + 3 : width + 6, obs.GYRO].diagonal()
        joints = table[LEG_TOKENS, :width, QUERY_SIZE + _SINES :].unflatten(-1, (-1, LEGS, JOINTS // LEGS))
        self._leg_weight = torch.stack([joints[leg, :, :, leg].flatten(1).T for leg in range(LEGS)]).contiguous()
        self._leg_bias = bias[LEG_TOKENS, None, :width].clone()
        bias[LEG_TOKENS, :width] = 0.0
        self._feature_bias = bias

    def start(
        self, window: NDArray[np.float32], orientation: tuple[float, ...], velocity: tuple[float, ...]
    ) -> LoopState:
        """The state of one log before the sample that fills its window.

        Args:
            window: (29, 47) the samples before, with roll, pitch and velocity as fed back.
            orientation: quaternion x, y, z, w.
            velocity: m/s.
        """
        with torch.inference_mode():
            primed = prime(self._weights, torch.from_numpy(window))
            channels = primed.inputs.view(self._levels, -1)[:, :QUERY_SIZE].clone()
            tilt = window[-self._levels :, obs.ROLL_PITCH].astype(np.float64)
            channels[:, obs.ACCEL] -= torch.from_numpy(gravity(tilt) * (self._gravity / GRAVITY)).to(torch.float32)
            x, y, z, w = orientation
            nose_down, left_up = 2 * (w * y - z * x), 2 * (w * x + y * z)
            level = 1 - 2 * (x * x + y * y)
            roll, pitch = math.atan2(left_up, level), math.asin(max(-1.0, min(1.0, nose_down)))
            seen = (self._gravity * nose_down, -self._gravity * left_up, -self._gravity * level)
            fed = torch.tensor((*seen, roll, pitch, *velocity[:2]), dtype=torch.float32)
            return LoopState(
                channels.flatten(),
                primed.columns,
                functional.pad(primed.pooled, [0, 0, 1, 0]),
                primed.hidden,
                torch.tensor(orientation, dtype=torch.float64),
                fed,
            )

    def steps(
        self, states: list[LoopState], observation: NDArray[np.float32], turns: FloatArray, moves: NDArray[np.bool_]
    ) -> tuple[LoopOutputs, list[LoopState]]:
        """n steps of B logs.

        Args:
            states: B, used up.
            observation: (B, n, 47); roll, pitch and velocity are zero.
            turns: (B, n) factor on the rotation; 0 where the pose stays.
            moves: (B, n) whether the velocity is not held at zero.

        Returns:
            Outputs with a batch dimension, and the states after.
        """
        dt = observation[:, :, obs.DT].transpose(1, 0, 2)
        factors, moving = (turns.T * dt[:, :, 0]).flatten().tolist(), moves.T.flatten().tolist()
        # The pooled columns have their batch dimension within.
        within = [1 if name == "pooled" else 0 for name in LoopState._fields]
        with torch.inference_mode():
            inputs = self._inputs(torch.from_numpy(observation))
            if len(states) == 1:
                single = LoopInputs(*(value.squeeze(1 if place else 0) for place, value in enumerate(inputs)))
                (motion, attention, orientation), state = self._single_loop.run(states[0], single, factors, moving)
                motion, attention, after = motion.unsqueeze(1), attention.unsqueeze(1), [LoopState(*state)]
            else:
                together = LoopState._make(map(torch.stack, zip(*states, strict=True), within))
                (motion, attention, orientation), state = self._loop.run(together, inputs, factors, moving)
                parts = (value.unbind(dim) for value, dim in zip(state, within, strict=True))
                after = [LoopState._make(part) for part in zip(*parts, strict=True)]
            motion[..., : VELOCITY.start] *= torch.from_numpy(dt)
        return LoopOutputs(motion, attention, orientation), after

    def _inputs(self, observation: Tensor) -> LoopInputs:
        """What can be said of observations (B, n, 47) before the steps."""
        weights = self._weights
        centred = observation.transpose(0, 1) - weights.centre
        torch.nan_to_num_(centred[..., obs.JOINT_TORQUE], 0.0, math.inf, -math.inf)
        channels = centred[..., list(QUERY_CHANNELS)]
        joints = centred[..., obs.JOINT_POSITION.start : obs.JOINT_TORQUE.stop]
        term_part = slice(_SINES, _SINES + OUTPUT_SIZE)
        term = functional.linear(centred, weights.direct[term_part], weights.direct_bias[term_part])
        return LoopInputs(
            channels.transpose(0, 1).flatten(1), self._features(channels, joints), channels[..., -1], term
        )

    def _features(self, channels: Tensor, joints: Tensor) -> Tensor:
        """Features of the tokens (n, B, 6, F) from channels (n, B, 11) and joints (n, B, 36), token by token.

        In one product, as a step has it, most of the weights are zero.
        """
        (steps, batch, _), width = channels.shape, self._weights.convolution_2.shape[0]
        features = self._feature_bias.repeat(steps, batch, 1, 1)
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
