"""The network: its size, its attention against torch's own, and streaming against sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.spatial.transform import Rotation
from torch import nn

from trace_ros.estimator.folding import fold
from trace_ros.estimator.network import (
    ABSENT_TORQUE,
    DISPLACEMENT,
    ROTATION,
    VELOCITY,
    CrossAttention,
    NetworkConfig,
    TraceNetwork,
    leg_features,
    motion_from_raw,
    network_inputs,
    query_channels,
)
from trace_ros.estimator.observation import (
    ACCEL,
    DT,
    GYRO,
    JOINT_TORQUE,
    JOINT_VELOCITY,
    OBSERVATION_SIZE,
    QUERY_CHANNELS,
    ROLL_PITCH,
    WINDOW,
)
from trace_ros.estimator.streaming import StreamingTrace, prime, step


def network(seed: int = 0, **changes: object) -> TraceNetwork:
    """A network with everything at work: no tiny last layer, no identity normalisation."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    made = TraceNetwork(NetworkConfig(output_layer_scale=1.0, **changes))  # type: ignore[arg-type]
    made.set_normalisation(
        torch.randn(OBSERVATION_SIZE, generator=generator),
        0.5 + torch.rand(OBSERVATION_SIZE, generator=generator),
        0.5 + torch.rand(9, generator=generator),
    )
    with torch.no_grad():
        made.absent_torque.normal_(generator=generator)
    return made.eval()


def observations(batch: int, samples: int, seed: int = 1, absent: float = 0.0) -> torch.Tensor:
    """Random ones, with that share of the torques absent."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(batch, samples, OBSERVATION_SIZE, generator=generator)
    drawn[..., DT] = 0.002 * (1 + 0.2 * drawn[..., DT])
    torque = drawn[..., JOINT_TORQUE]
    torque[torch.rand(torque.shape, generator=generator) < absent] = torch.nan
    return drawn


def test_has_the_stated_number_of_parameters():
    counts = {name: parameter.numel() for name, parameter in TraceNetwork().named_parameters()}
    assert counts.pop(ABSENT_TORQUE) == 3  # our extension
    assert sum(counts.values()) == 208_841


def test_a_window_leaves_22_columns_to_pool():
    assert NetworkConfig().pooled_columns == 22


@pytest.mark.parametrize("bad", [{"heads": 3}, {"kernel": 15}, {"increments": "both"}, {"layers": 2}])
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(ValidationError):
        NetworkConfig(**bad)


def test_channels_are_those_of_the_observation():
    numbered = torch.arange(OBSERVATION_SIZE, dtype=torch.float32)
    assert query_channels(numbered).tolist() == list(QUERY_CHANNELS)
    joints = [[start + 3 * leg + joint for start in (6, 18, 30) for joint in range(3)] for leg in range(4)]
    assert joints[1] == [9, 10, 11, 21, 22, 23, 33, 34, 35]
    assert leg_features(numbered).tolist() == joints


@settings(deadline=None, max_examples=30)
@given(st.floats(-3, 3), st.floats(-1.5, 1.5), st.floats(-3, 3))
def test_levelling_removes_gravity_at_rest(roll, pitch, yaw):
    at_rest = Rotation.from_euler("xyz", (roll, pitch, yaw)).inv().apply((0, 0, 9.81))
    observation = torch.arange(OBSERVATION_SIZE, dtype=torch.float64)
    observation[ACCEL] = torch.tensor(at_rest)
    observation[ROLL_PITCH] = torch.tensor((roll, pitch), dtype=torch.float64)
    levelled = network_inputs(observation, levelled=True)
    np.testing.assert_allclose(levelled[ACCEL], 0, atol=1e-12)
    others = [channel for channel in range(OBSERVATION_SIZE) if channel not in (3, 4, 5)]
    assert (levelled[others] == observation[others]).all()
    assert (network_inputs(observation, levelled=False) == observation).all()


def test_a_wrong_tilt_shows_up_as_acceleration():
    observation = torch.zeros(OBSERVATION_SIZE)
    observation[ACCEL] = torch.tensor([0, 0, 9.81])
    observation[ROLL_PITCH] = torch.tensor([0.02, -0.01])
    levelled = network_inputs(observation, levelled=True)[ACCEL]
    np.testing.assert_allclose(levelled[:2], (-0.01 * 9.81, -0.02 * 9.81), rtol=1e-3)


def test_attention_equals_torchs_own():
    torch.manual_seed(0)
    ours, theirs = CrossAttention(64, 2), nn.MultiheadAttention(64, 2, batch_first=True)
    with torch.no_grad():
        ours.key.bias.normal_()  # it must not matter
        for parameter in (ours.query.bias, ours.value.bias, ours.out.bias):
            parameter.normal_()
        theirs.in_proj_weight.copy_(torch.cat((ours.query.weight, ours.key.weight, ours.value.weight)))
        theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key.bias, ours.value.bias)))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
        query, tokens = torch.randn(50, 64), torch.randn(50, 6, 64)
        context, weights = ours(query, tokens)
        expected, expected_weights = theirs(query[:, None], tokens, tokens)
    torch.testing.assert_close(context, expected[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(weights, expected_weights[:, 0], atol=1e-6, rtol=1e-4)


def test_each_token_sees_only_its_own_sensor():
    made = network()
    with torch.no_grad():
        base = torch.randn(OBSERVATION_SIZE)
        before = made.tokens(base)
        for channel in range(42):
            changed = base.clone()
            changed[channel] += 1
            moved = (made.tokens(changed) - before).abs().amax(-1) > 1e-7
            token = {0: 1, 1: 0}.get(channel // 3) if channel < 6 else 2 + (channel - 6) % 12 // 3
            assert moved.nonzero().flatten().tolist() == [token]


def test_attention_is_a_distribution_over_six_tokens():
    made = network()
    with torch.no_grad():
        attention = made.sequence(observations(3, 40), made.initial_hidden(3)).attention
    assert attention.shape == (3, 11, 6)
    assert (attention >= 0).all()
    torch.testing.assert_close(attention.sum(-1), torch.ones(3, 11))


def test_one_pass_over_a_sequence_equals_its_windows_one_by_one():
    made, rows = network(), observations(2, 45)
    with torch.no_grad():
        whole = made.sequence(rows, made.initial_hidden(2))
        hidden = made.initial_hidden(2)
        for index in range(45 - WINDOW + 1):
            single = made.sequence(rows[:, index : index + WINDOW], hidden)
            hidden = single.hidden
            torch.testing.assert_close(single.motion[:, 0], whole.motion[:, index], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden, whole.hidden, atol=1e-5, rtol=1e-5)


def test_carrying_the_hidden_state_joins_segments():
    made, rows = network(), observations(2, 69)
    with torch.no_grad():
        whole = made.sequence(rows, made.initial_hidden(2)).motion
        first = made.sequence(rows[:, :49], made.initial_hidden(2))
        second = made.sequence(rows[:, 20:], first.hidden)
    torch.testing.assert_close(torch.cat((first.motion, second.motion), 1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("absent", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes",
    [{}, {"increments": "direct"}, {"acceleration": "measured"}, {"kernel": 3, "heads": 4, "hidden": 32}],
)
def test_streaming_equals_the_sequence(changes, absent):
    made, rows = network(**changes), observations(3, 150, absent=absent)
    with torch.no_grad():
        expected = made.sequence(rows, made.initial_hidden(3))
        streaming = StreamingTrace(made)
        for lane in range(3):
            state = streaming.prime(rows[lane, : WINDOW - 1])
            for index in range(150 - WINDOW + 1):
                motion, attention, state = streaming.step(rows[lane, index + WINDOW - 1], state)
                torch.testing.assert_close(motion, expected.motion[lane, index], atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(attention, expected.attention[lane, index], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(state[-2], expected.hidden[lane], atol=1e-5, rtol=1e-5)


def test_streaming_does_not_drift_from_the_sequence():
    """Ten seconds of random inputs through the caches, one sample at a time."""
    made, rows = network(), observations(1, 5000)
    with torch.no_grad():
        expected = made.sequence(rows, made.initial_hidden(1))
        streaming = StreamingTrace(made)
        state = streaming.prime(rows[0, : WINDOW - 1])
        for row in rows[0, WINDOW - 1 :]:
            motion, attention, state = streaming.step(row, state)
    torch.testing.assert_close(motion, expected.motion[0, -1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention, expected.attention[0, -1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state[-2], expected.hidden[0], atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31 - 1))
def test_a_batch_streams_as_its_members_do(seed):
    made, rows = network(seed % 7), observations(2, 33, seed)
    weights = fold(made)
    with torch.no_grad():
        batch = prime(weights, rows[:, : WINDOW - 1])
        singles = [prime(weights, row[: WINDOW - 1]) for row in rows]
        for index in range(WINDOW - 1, 33):
            motion, _, batch = step(weights, rows[:, index], batch)
            for lane in range(2):
                alone, _, singles[lane] = step(weights, rows[lane, index], singles[lane])
                torch.testing.assert_close(alone, motion[lane], atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("absent", [0.0, 0.3, 1.0])
def test_torchscript_equals_eager(absent):
    made, rows = network(), observations(1, 130, absent=absent)[0]
    eager = StreamingTrace(made)
    scripted = torch.jit.freeze(torch.jit.script(StreamingTrace(made).eval()), preserved_attrs=["prime", "step"])
    with torch.no_grad():
        one, two = eager.prime(rows[: WINDOW - 1]), scripted.prime(rows[: WINDOW - 1])
        for row in rows[WINDOW - 1 :]:
            motion, attention, one = eager.step(row, one)
            motion_2, attention_2, two = scripted.step(row, two)
            torch.testing.assert_close(motion_2, motion, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(attention_2, attention, atol=1e-6, rtol=1e-6)
            assert motion_2.isfinite().all()


@settings(deadline=None, max_examples=15)
@given(st.sets(st.integers(0, 11)), st.integers(0, 2**31 - 1))
def test_an_absent_torque_is_the_learned_constant_joint_by_joint(joints, seed):
    made, rows = network(seed % 5), observations(1, WINDOW + 1, seed)
    filled, absent = rows.clone(), rows.clone()
    for joint in joints:
        channel = JOINT_TORQUE.start + joint
        absent[..., channel] = torch.nan
        # Hip, thigh and calf have a constant each, which all legs share.
        filled[..., channel] = (
            made.observation_mean[channel] + made.observation_scale[channel] * made.absent_torque[joint % 3]
        ).detach()
    with torch.no_grad():
        expected = made.sequence(filled, made.initial_hidden(1))
        actual = made.sequence(absent, made.initial_hidden(1))
        before = made.sequence(rows, made.initial_hidden(1))
    torch.testing.assert_close(actual.motion, expected.motion, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(actual.attention, expected.attention, atol=1e-6, rtol=1e-5)
    assert torch.equal(actual.motion, before.motion) == (not joints)


def test_until_it_is_trained_an_absent_torque_is_the_mean():
    """Bit for bit, so that weights from before torque could be absent say the same as ever."""
    made = network()
    older = {name: value for name, value in made.state_dict().items() if name != ABSENT_TORQUE}
    again = TraceNetwork(made.config)
    again.set_normalisation(made.observation_mean, made.observation_scale, made.output_scale)
    again.load_state_dict(older)
    assert (again.absent_torque == 0).all()
    rows = observations(2, 40, absent=0.5)
    filled = torch.where(rows.isnan(), made.observation_mean, rows)
    with torch.no_grad():
        expected = again.sequence(filled, again.initial_hidden(2)).motion
        assert torch.equal(again.sequence(rows, again.initial_hidden(2)).motion, expected)
    # The moving average of the weights holds them under a prefix.
    averaged = torch.optim.swa_utils.AveragedModel(made)
    averaged.load_state_dict({f"module.{name}": value for name, value in older.items()} | {"n_averaged": torch.ones(1)})
    assert (averaged.module.absent_torque == 0).all()
    assert made.absent_torque.abs().min() > 0
    with pytest.raises(RuntimeError, match="Missing key"):
        again.load_state_dict({name: value for name, value in older.items() if name != "gyro_token.bias"})


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("absent", [0.0, 0.3, 1.0])
def test_absent_torque_is_trained_and_no_nan_reaches_a_gradient(absent, bfloat16):
    made, rows = network(), observations(2, 40, absent=absent).requires_grad_()
    made.sequence(rows, made.initial_hidden(2), bfloat16).motion.square().sum().backward()
    gradients = {name: p.grad for name, p in made.named_parameters() if p.requires_grad}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    assert (gradients[ABSENT_TORQUE].abs().min() > 0) == (absent > 0)
    assert rows.grad.isfinite().all()
    assert (rows.grad[rows.isnan()] == 0).all()


@pytest.mark.parametrize("channel", [GYRO.start, ACCEL.start, JOINT_VELOCITY.start, DT.start])
def test_only_torque_may_be_absent(channel):
    """A NaN that nobody meant is not smoothed over."""
    made, rows = network(), observations(1, WINDOW)
    rows[0, -1, channel] = torch.nan
    with torch.no_grad():
        assert made.sequence(rows, made.initial_hidden(1)).motion.isnan().any()


@pytest.mark.parametrize("absent", [0.0, 0.5])
def test_streaming_gradients_reach_the_network(absent):
    """Closed-loop fine-tuning differentiates through the folded weights."""
    made, rows = network(), observations(1, WINDOW, absent=absent)
    made.sequence(rows, made.initial_hidden(1)).motion.sum().backward()
    expected = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    made.zero_grad()
    weights = fold(made)
    motion, _, _ = step(weights, rows[:, -1], prime(weights, rows[:, :-1]))
    motion.sum().backward()
    assert len(expected) == len(list(made.parameters())) - 1  # all but the key's bias, which cancels
    for name, parameter in made.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], atol=1e-4, rtol=1e-3)


def test_motion_in_units_of_dt():
    raw = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 9])
    observation = torch.zeros(OBSERVATION_SIZE)
    observation[GYRO] = torch.tensor([0.1, 0.2, 0.3])
    observation[DT] = 0.5
    direct = motion_from_raw(raw, observation, residual=False)
    residual = motion_from_raw(raw, observation, residual=True)
    np.testing.assert_allclose(direct, [0.5, 1, 1.5, 2, 2.5, 3, 7, 8, 9])
    np.testing.assert_allclose(residual[DISPLACEMENT], [4, 5, 6])
    np.testing.assert_allclose(residual[ROTATION], [2.05, 2.6, 3.15], rtol=1e-6)
    np.testing.assert_allclose(residual[VELOCITY], [7, 8, 9])


def test_training_starts_near_the_parametrisations_own_guess():
    torch.manual_seed(0)
    made, rows = TraceNetwork(), observations(2, 40)
    with torch.no_grad():
        motion = made.sequence(rows, made.initial_hidden(2)).motion
    gyro = rows[:, WINDOW - 1 :, GYRO] * rows[:, WINDOW - 1 :, DT]
    assert (motion[..., ROTATION] - gyro).abs().max() < 0.02 * gyro.abs().max()
    assert motion[..., VELOCITY].abs().max() < 0.05


def test_bfloat16_is_close_and_keeps_the_hidden_state_exact():
    made, rows = network(), observations(2, 60)
    with torch.no_grad():
        exact = made.sequence(rows, made.initial_hidden(2))
        rough = made.sequence(rows, made.initial_hidden(2), bfloat16=True)
    assert rough.motion.dtype == rough.hidden.dtype == torch.float32
    scale = exact.motion[..., VELOCITY].std()
    assert 0 < (rough.motion - exact.motion)[..., VELOCITY].abs().max() < 0.1 * scale
