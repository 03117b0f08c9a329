"""The network on its own feedback: against the estimator's own loop, and metrics on runs with known errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from synthetic import rollout

from trace_ros.estimator import observation as obs
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import (
    ClosedLoopRun,
    attitude,
    closed_loop,
    closed_loop_metrics,
    roll_pitch,
    true_poses,
)
from trace_ros.training.dataset import FEEDBACK, MOTION, PREFIX, pack

ROLLOUTS, SAMPLES = 3, 160


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    robot = RobotDescription.load("go2")
    return torch.from_numpy(np.stack([pack(rollout(seed, SAMPLES), robot, SAMPLES - 1) for seed in range(ROLLOUTS)]))


def perfect_run(rows: torch.Tensor) -> ClosedLoopRun:
    motion = rows[:, PREFIX:, MOTION].clone()
    return ClosedLoopRun(motion, torch.full((*motion.shape[:2], 6), 1 / 6), true_poses(rows))


@settings(deadline=None, max_examples=40)
@given(st.floats(-3, 3), st.floats(-1.5, 1.5), st.floats(-3, 3))
def test_roll_and_pitch_do_not_depend_on_heading(roll, pitch, yaw):
    matrix = Rotation.from_euler("xyz", (roll, pitch, yaw)).as_matrix()
    np.testing.assert_allclose(roll_pitch(torch.tensor(matrix)), (roll, pitch), atol=1e-6)
    level = Rotation.from_euler("xyz", (roll, pitch, 0)).as_matrix()
    np.testing.assert_allclose(attitude(torch.tensor([roll, pitch], dtype=torch.float64)), level, atol=1e-12)


def test_labels_add_up_to_the_reference(rows):
    for seed in range(ROLLOUTS):
        truth = rollout(seed, SAMPLES).clean.reference
        turn = truth.rotation_world_body
        heading = Rotation.from_euler("z", turn[PREFIX].as_euler("xyz")[2])
        expected = heading.inv().apply(truth.position[PREFIX + 1 :] - truth.position[PREFIX])
        np.testing.assert_allclose(true_poses(rows).position[seed], expected, atol=1e-5)
        level = (heading.inv() * turn[PREFIX + 1 :]).as_matrix()
        np.testing.assert_allclose(true_poses(rows).rotation[seed], level, atol=1e-5)


def test_the_loop_feeds_back_what_came_out(rows):
    """Replayed by hand: the observations that the loop must have seen give the motion that it reports."""
    torch.manual_seed(0)
    network = TraceNetwork(NetworkConfig(output_layer_scale=1.0))
    with torch.no_grad():
        run = closed_loop(network, rows)
        seen = rows[..., : obs.OBSERVATION_SIZE].clone()
        fed = torch.cat((roll_pitch(run.poses.rotation), run.motion[..., 6:8]), -1)
        seen[:, PREFIX + 1 :, FEEDBACK] = fed[:, :-1]
        expected = network.sequence(seen, network.initial_hidden(ROLLOUTS))
    torch.testing.assert_close(run.motion, expected.motion, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(run.attention, expected.attention, atol=1e-4, rtol=1e-3)
    position = torch.zeros(ROLLOUTS, 3)
    rotation = attitude(rows[:, PREFIX, obs.ROLL_PITCH])
    for motion in run.motion.unbind(1):
        position = position + (rotation @ motion[:, :3, None])[..., 0]
        rotation = rotation @ torch.tensor(Rotation.from_rotvec(motion[:, 3:6].double()).as_matrix()).float()
    torch.testing.assert_close(run.poses.position[:, -1], position, atol=1e-4, rtol=1e-3)


def test_torque_may_be_absent(rows):
    """The loop over rows with NaN is the one over rows with the learned constant; its gradients are numbers."""
    torch.manual_seed(0)
    network = TraceNetwork(NetworkConfig(output_layer_scale=1.0))
    torch.nn.init.normal_(network.absent_torque)
    absent, told = rows.clone(), rows.clone()
    absent[..., obs.JOINT_TORQUE] = torch.nan
    told[..., obs.JOINT_TORQUE] = network.absent_values()[obs.JOINT_TORQUE].detach()
    run = closed_loop(network, absent)
    with torch.no_grad():
        expected = closed_loop(network, told)
    torch.testing.assert_close(run.motion, expected.motion)
    run.poses.position[:, -1].sum().backward()
    gradients = [p.grad for p in network.parameters() if p.requires_grad]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert network.absent_torque.grad.abs().min() > 0


def test_a_given_start_is_used(rows):
    torch.manual_seed(0)
    network = TraceNetwork()
    start = torch.tensor([[0.1, -0.2, 0.0, 0.0]]).repeat(ROLLOUTS, 1)
    with torch.no_grad():
        run = closed_loop(network, rows, start)
    gyro = rows[:, PREFIX, obs.GYRO] * rows[:, PREFIX, obs.DT]
    after = attitude(start[:, :2]) @ torch.tensor(Rotation.from_rotvec(gyro.double()).as_matrix()).float()
    torch.testing.assert_close(run.poses.rotation[:, 0], after, atol=1e-3, rtol=0)


def test_gradients_run_through_the_feedback(rows):
    network = TraceNetwork(NetworkConfig(output_layer_scale=1.0))
    closed_loop(network, rows[:, : PREFIX + 20]).poses.position[:, -1].sum().backward()
    assert network.gru.weight_hh_l0.grad is not None
    assert network.gru.weight_hh_l0.grad.abs().max() > 0


def test_metrics_of_a_perfect_run_are_zero(rows):
    metrics = closed_loop_metrics(perfect_run(rows), rows)
    assert max(metrics) < 1e-3
    assert min(metrics) >= 0


def test_metrics_see_known_errors(rows):
    run = perfect_run(rows)
    off = run.poses._replace(
        position=run.poses.position + torch.tensor([0.3, 0.0, 0.4]),
        rotation=attitude(torch.zeros(1, 2)) @ run.poses.rotation,
    )
    motion = run.motion.clone()
    motion[..., 7] += 0.2
    metrics = closed_loop_metrics(ClosedLoopRun(motion, run.attention, off), rows)
    assert metrics.position_m == pytest.approx(0.5, abs=1e-3)
    assert metrics.velocity_rmse == pytest.approx(0.2, abs=1e-3)
    length = rows[:, PREFIX:, MOTION][..., :3].norm(dim=-1).sum(1)
    assert metrics.position_percent == pytest.approx(float(100 * 0.5 * ROLLOUTS / length.sum()), rel=1e-3)


@pytest.mark.parametrize(("axis", "tilt", "yaw"), [("x", 0.05, 0.0), ("y", 0.05, 0.0), ("z", 0.0, 0.05)])
def test_tilt_and_heading_are_told_apart(rows, axis, tilt, yaw):
    run = perfect_run(rows)
    # In the world frame, about an axis that is horizontal or vertical there.
    wrong = torch.tensor(Rotation.from_euler(axis, 0.05).as_matrix()).float()
    metrics = closed_loop_metrics(run._replace(poses=run.poses._replace(rotation=wrong @ run.poses.rotation)), rows)
    assert metrics.tilt_rad == pytest.approx(tilt, abs=1e-3)
    assert metrics.yaw_rad == pytest.approx(yaw, abs=1e-2)


def test_metrics_end_where_a_short_rollout_ends(rows):
    short = rows.clone()
    short[:, 100:] = 0
    run = perfect_run(rows)
    position = run.poses.position.clone()
    position[:, 100 - PREFIX :] += 100.0  # nonsense after the end
    metrics = closed_loop_metrics(run._replace(poses=run.poses._replace(position=position)), short)
    assert metrics.position_m < 1e-3
