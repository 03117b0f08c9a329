"""Legolas, NMN and the MLP: sizes, and steps that give what whole sequences give."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.baselines import legolas_network, nmn_network
from trace_ros.baselines.attitude import GravityTilt, reported_tilt
from trace_ros.baselines.legolas_network import (
    LegolasConfig,
    LegolasNetwork,
    StreamingLegolas,
    rotation_rate_columns,
    rotation_vector,
)
from trace_ros.baselines.mlp_network import MlpConfig, MlpNetwork, StreamingMlp
from trace_ros.baselines.nmn_network import NmnNetwork, StreamingNmn
from trace_ros.estimator.network import TraceNetwork
from trace_ros.estimator.observation import JOINT_TORQUE
from trace_ros.geometry import GRAVITY, roll_pitch_yaw

IDENTITY = torch.tensor((1.0, 0.0, 0.0, 0.0, 1.0, 0.0))


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def observations(samples: int) -> torch.Tensor:
    """(2, samples, 47), the torque absent here and there."""
    rows = torch.randn(2, samples, 47)
    rows[..., 46] = 0.002 + 0.001 * torch.rand(2, samples)
    rows[:, 3:7, JOINT_TORQUE] = torch.nan
    return rows


def test_sizes_are_those_of_the_papers():
    assert round(size(LegolasNetwork()) / 1e6, 1) == 1.4
    # 132,871 for the 42 channels, three gates of 128 for dt, and what stands for an absent torque.
    assert size(NmnNetwork()) == 132_871 + 3 * 128 + 3
    assert abs(size(MlpNetwork()) / size(TraceNetwork()) - 1) < 0.01


@pytest.mark.parametrize(("stride", "samples"), [(1, 12), (3, 20), (4, 9)])
def test_legolas_steps_as_it_runs_over_sequences(stride, samples):
    torch.manual_seed(0)
    network = LegolasNetwork(LegolasConfig(stride=stride, width=12, trunk=16, head=8, frames=20)).eval()
    for last in network.last:
        torch.nn.init.normal_(last.weight, std=0.5)
    torch.nn.init.normal_(network.absent_torque)
    network.set_normalisation(torch.randn(42), torch.rand(42) + 0.5, torch.rand(9) + 0.5)
    rows = observations(samples)
    # Before the first sample stands that sample again.
    before = rows[:, :1].expand(-1, network.config.history, -1)
    with torch.no_grad():
        whole = network.sequence(torch.cat((before, rows), dim=1))
        script = torch.jit.script(StreamingLegolas(network).eval())
        for lane in range(2):
            frames = legolas_network.frames_of(rows[lane])
            state = script.prime(frames[0])
            for index, frame in enumerate(frames):
                motion, variance, moving, state = script.step(frame, state)
                increment, dt = whole.increment[lane, index], rows[lane, index, 46]
                turn = rotation_vector(increment[3:] * dt + IDENTITY)
                expected = torch.cat((increment[:3] * dt, turn))
                torch.testing.assert_close(motion, expected, atol=1e-6, rtol=1e-4)
                spread = whole.log_variance[lane, index].exp() * dt * dt
                torch.testing.assert_close(variance[:3], spread[:3], atol=1e-12, rtol=1e-3)
                torch.testing.assert_close(variance[5], (spread[4] + spread[6]) / 4, atol=1e-12, rtol=1e-3)
                torch.testing.assert_close(moving, torch.sigmoid(whole.moving[lane, index]), atol=1e-5, rtol=1e-4)


def test_what_legolas_sees_ends_with_its_window():
    torch.manual_seed(0)
    network = LegolasNetwork(LegolasConfig(stride=2, width=8, trunk=8, head=8, frames=20))
    for last in network.last:
        torch.nn.init.normal_(last.weight, std=0.5)
    history = network.config.history
    rows = observations(history + 8).requires_grad_()
    (gradient,) = torch.autograd.grad(network.sequence(rows).increment[0, 5].sum(), rows)
    seen = gradient[0].abs().sum(-1).nan_to_num() > 0
    assert not seen[6 + history :].any()  # not what comes after
    assert not seen[:5].any()
    assert seen[5] and seen[5 + history]
    assert not seen[6 : 5 + history : 2].any()  # nor what lies between the frames


def test_nmn_steps_as_it_runs_over_sequences():
    torch.manual_seed(0)
    network = NmnNetwork().eval()
    torch.nn.init.normal_(network.absent_torque)
    network.set_normalisation(torch.randn(43), torch.rand(43) + 0.5, torch.rand(3) + 0.5)
    rows = observations(15)
    with torch.no_grad():
        whole = network.sequence(rows, network.initial_hidden(2))
        script = torch.jit.script(StreamingNmn(network).eval())
        frames = nmn_network.frames_of(rows[1])
        state = script.prime(frames[0])
        for index, frame in enumerate(frames):
            probability, velocity, variance, state = script.step(frame, state)
            torch.testing.assert_close(probability, torch.sigmoid(whole.contact[1, index]))
            torch.testing.assert_close(velocity, whole.velocity[1, index])
    torch.testing.assert_close(variance, network.velocity_scale.square())
    torch.testing.assert_close(state[0], whole.hidden[1])


@pytest.mark.parametrize("scripted", [False, True])
def test_the_mlp_steps_as_it_runs_over_sequences(scripted):
    torch.manual_seed(0)
    network = MlpNetwork(MlpConfig(output_layer_scale=1.0)).eval()
    torch.nn.init.normal_(network.absent_torque)
    network.set_normalisation(torch.randn(47), torch.rand(47) + 0.5, torch.rand(9) + 0.5)
    rows = observations(29 + 12)
    with torch.no_grad():
        whole = network.sequence(rows, network.initial_hidden(2))
        streaming = StreamingMlp(network).eval()
        streaming = torch.jit.script(streaming) if scripted else streaming
        state = streaming.prime(rows[:, :29])
        for index in range(12):
            motion, attention, state = streaming.step(rows[:, 29 + index], state)
            torch.testing.assert_close(motion, whole.motion[:, index], atol=1e-6, rtol=1e-4)
        one = streaming.step(rows[0, -1], (state[0][0], state[1][0]))[0]
        torch.testing.assert_close(one, streaming.step(rows[:, -1], state)[0][0], atol=1e-6, rtol=1e-4)
    assert not attention.any() and not whole.attention.any()


@given(st.lists(st.floats(-40, 40), min_size=3, max_size=3), st.floats(1e-4, 0.02))
@settings(max_examples=50, deadline=None)
def test_rotations_as_columns_and_back(rate, dt):
    """Against scipy; the rate of the columns has all digits although they differ little from the identity's."""
    vector = torch.tensor([rate], dtype=torch.float64)
    columns = rotation_rate_columns(vector, torch.tensor([[dt]], dtype=torch.float64))
    matrix = Rotation.from_rotvec(dt * vector[0].numpy()).as_matrix()
    expected = ((matrix - np.eye(3)) / dt)[:, :2].T.ravel()
    np.testing.assert_allclose(columns[0].numpy(), expected, atol=1e-8 * max(1.0, np.abs(rate).max()))
    back = rotation_vector((columns * dt + IDENTITY).double())
    np.testing.assert_allclose(back[0].numpy(), dt * vector[0].numpy(), atol=1e-7)


def test_the_imus_tilt_follows_gravity_and_forgets_the_gyros_bias():
    truth = Rotation.from_euler("xyz", (0.2, -0.3, 1.0))
    samples, dt = 15_000, 0.002
    accel = np.tile(truth.inv().apply((0, 0, GRAVITY)), (samples, 1))
    gyro = np.tile((0.01, -0.01, 0.02), (samples, 1))
    tilt = reported_tilt(gyro, accel, np.full(samples, dt))
    expected = roll_pitch_yaw(truth.as_quat())[:2]
    # A bias b against a time constant T leaves b T; without gravity it would be 0.7 rad by now.
    np.testing.assert_allclose(tilt[-1], expected, atol=5 * np.linalg.norm(gyro[0]))
    np.testing.assert_allclose(tilt[250], expected, atol=0.02)
    assert GravityTilt().update([0.0] * 3, accel[0].tolist(), 0.0) == (0.0, 0.0)  # a reading that lasted no time
    upside_down = GravityTilt()
    assert [upside_down.update([0.0] * 3, [0.0, 0.0, z], 0.002)[0] for z in (9.81, -9.81)] == [0.0, 0.0]
    step_by_step = GravityTilt()
    alone = [step_by_step.update(gyro[0].tolist(), accel[0].tolist(), dt) for _ in range(5)]
    np.testing.assert_allclose(alone, tilt[:5], atol=1e-7)


def test_the_imus_tilt_turns_with_the_gyro():
    """Half a turn a second about x for a quarter of a second, while the accelerometer says nothing."""
    samples, dt = 125, 0.002
    gyro = np.tile((np.pi, 0.0, 0.0), (samples, 1))
    tilt = reported_tilt(gyro, np.zeros((samples, 3)), np.full(samples, dt))
    np.testing.assert_allclose(tilt[-1], (np.pi / 4, 0.0), atol=1e-3)
