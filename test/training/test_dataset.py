"""Packing of rollouts, noise on the fed-back inputs, targets and normalisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from synthetic import SyntheticRollout, rollout

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.differentiation import differentiate
from trace_ros.estimator.network import NetworkConfig
from trace_ros.geometry import roll_pitch_yaw
from trace_ros.robot import RobotDescription
from trace_ros.training.dataset import (
    CONTACT,
    CONTACT_VELOCITY,
    FEEDBACK,
    MOTION,
    PREFIX,
    ROW_SIZE,
    FeedbackNoise,
    make_segment,
    measure_intervals,
    measure_normalisation,
    pack,
)

QUIET = FeedbackNoise(tilt_offset=0, tilt_noise=0, velocity_offset=0, velocity_noise=0, large_fraction=0)


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


def test_a_row_is_one_sample_with_the_feedback_of_the_one_before(robot):
    walk = rollout(0, 100, noise=0.01)
    rows = pack(walk, robot, 120)
    assert rows.shape == (120, ROW_SIZE)
    log, truth = walk.measured, walk.clean.reference
    for index in (0, 41, 98):
        row, now = rows[index], index + 1
        np.testing.assert_allclose(row[obs.GYRO], log.angular_velocity[now], atol=1e-6)
        np.testing.assert_allclose(row[obs.ACCEL], log.linear_acceleration[now], atol=1e-5)
        np.testing.assert_allclose(row[obs.JOINT_POSITION], log.joint_position[now], atol=1e-6)
        np.testing.assert_allclose(row[obs.JOINT_VELOCITY], log.joint_velocity[now], atol=1e-5)
        np.testing.assert_allclose(row[obs.JOINT_TORQUE], log.joint_torque[now], atol=1e-5)
        np.testing.assert_allclose(row[obs.ROLL_PITCH], roll_pitch_yaw(truth.orientation[index])[:2], atol=1e-6)
        np.testing.assert_allclose(row[obs.VELOCITY_XY], truth.velocity[index, :2], atol=1e-6)
        np.testing.assert_allclose(row[obs.DT], 0.002, rtol=1e-6)
    assert (rows[99:] == 0).all()


def test_labels_lead_from_one_pose_to_the_next(robot):
    walk = rollout(1, 100)
    truth = walk.clean.reference
    motion = pack(walk, robot, 99)[:, MOTION].astype(float)
    turn = truth.rotation_world_body
    for index in (0, 50, 98):
        reached = truth.position[index] + turn[index].apply(motion[index, :3])
        np.testing.assert_allclose(reached, truth.position[index + 1], atol=1e-7)
        turned = turn[index] * Rotation.from_rotvec(motion[index, 3:6])
        assert (turned.inv() * turn[index + 1]).magnitude() < 1e-6
        np.testing.assert_allclose(motion[index, 6:], truth.velocity[index + 1], atol=1e-6)


def test_feet_velocity_is_that_of_the_kinematics(robot):
    """The velocity of a foot in the world, by differences, against the body's velocity plus the packed part."""
    walk = rollout(2, 200)
    no_contact = replace(walk.clean, contact_normal=np.zeros((200, 4, 3)))
    rows = pack(replace(walk, clean=no_contact), robot, 199)
    truth = walk.clean.reference
    turn = truth.rotation_world_body
    feet = robot.kinematics.forward(walk.clean.joint_position)
    world = np.stack([turn.apply(feet[:, leg]) + truth.position for leg in range(4)], axis=1)
    by_difference = np.gradient(world, 0.002, axis=0)
    packed = rows[:, CONTACT_VELOCITY].reshape(-1, 4, 3) + rows[:, MOTION][:, None, 6:]
    for leg in range(4):
        in_world = turn[1:].apply(packed[:, leg])
        np.testing.assert_allclose(in_world[5:-5], by_difference[6:-5, leg], atol=0.03)


def test_feet_in_contact_are_those_of_the_labels(robot):
    walk = rollout(3, 50)
    assert walk.clean.contact is not None
    rows = pack(walk, robot, 60)
    np.testing.assert_array_equal(rows[:49, CONTACT], walk.clean.contact[1:])
    unlabelled = pack(replace(walk, clean=replace(walk.clean, contact=None)), robot, 60)
    assert (unlabelled[:49, CONTACT] == 1).all() and (unlabelled[49:] == 0).all()


def bare(walk: SyntheticRollout) -> SyntheticRollout:
    """Without the channels that a robot may lack."""
    return replace(walk, measured=replace(walk.measured, joint_velocity=None, joint_torque=None, torque_source="none"))


def thinned(walk: SyntheticRollout, kept: np.ndarray) -> SyntheticRollout:
    """Some samples of it: another rate, or lost samples."""
    clean = walk.clean.select(kept)
    assert walk.clean.reference is not None
    return SyntheticRollout(walk.measured.select(kept), replace(clean, reference=walk.clean.reference.select(kept)))


def test_long_rollouts_are_cut(robot):
    assert (pack(rollout(3, 100), robot, 50)[:, obs.DT] > 0).all()


def test_absent_torque_is_nan_and_absent_velocity_differentiated_and_labels_do_not_care(robot):
    walk = rollout(3, 100, noise=0.01)
    full, rows = pack(walk, robot, 120), pack(bare(walk), robot, 120)
    assert np.isnan(rows[:99, obs.JOINT_TORQUE]).all()
    log = walk.measured
    expected = differentiate(log.stamp_ns, log.joint_position).astype(np.float32)
    np.testing.assert_array_equal(rows[:99, obs.JOINT_VELOCITY], expected[1:])
    np.testing.assert_array_equal(pack(bare(walk), robot, 40)[:, obs.JOINT_VELOCITY], expected[1:41])
    others = [channel for channel in range(ROW_SIZE) if not obs.JOINT_VELOCITY.start <= channel < obs.JOINT_TORQUE.stop]
    np.testing.assert_array_equal(rows[:, others], full[:, others])
    assert (rows[99:] == 0).all()


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 5]), st.floats(0, 0.3), st.booleans())
def test_samples_may_be_fewer_or_lost(seed, every, lost, absent):
    """Labels still lead from one pose to the next, over the true time between them."""
    robot = RobotDescription.load("go2")
    walk = rollout(seed, 200)
    kept = np.zeros(200, dtype=bool)
    kept[::every] = True
    kept &= np.random.default_rng(seed).random(200) >= lost
    walk = thinned(walk, kept)
    rows = pack(bare(walk) if absent else walk, robot, 250).astype(float)
    count, truth = int(kept.sum()) - 1, walk.clean.reference
    assert truth is not None
    assert ((rows[:, obs.DT] > 0).sum()) == count
    np.testing.assert_allclose(rows[:count, obs.DT][:, 0], np.diff(truth.stamp_ns) * 1e-9, rtol=1e-6)
    turn = truth.rotation_world_body
    reached = truth.position[:-1] + turn[:-1].apply(rows[:count, MOTION][:, :3])
    np.testing.assert_allclose(reached, truth.position[1:], atol=1e-6)
    turned = turn[:-1] * Rotation.from_rotvec(rows[:count, MOTION][:, 3:6])
    assert (turned.inv() * turn[1:]).magnitude().max() < 1e-5
    assert np.isfinite(np.delete(rows, np.r_[obs.JOINT_TORQUE], axis=1)).all()


def test_repeated_readings_are_packed_as_they_were_seen(robot):
    """An IMU at half the stream's rate, whose every reading comes twice; the labels are the truth's."""
    walk = rollout(5, 100)
    held = np.arange(100) // 2 * 2
    log = walk.measured
    twice = replace(log, angular_velocity=log.angular_velocity[held], linear_acceleration=log.linear_acceleration[held])
    rows, once = pack(replace(walk, measured=twice), robot, 99), pack(walk, robot, 99)
    np.testing.assert_array_equal(rows[1:-1:2, obs.GYRO], rows[2::2, obs.GYRO])
    np.testing.assert_array_equal(rows[:, MOTION], once[:, MOTION])


def test_what_cannot_be_trained_on_is_refused(robot):
    walk = rollout(4, 50)
    with pytest.raises(TraceError, match="reference"):
        pack(replace(walk, clean=replace(walk.clean, reference=None)), robot, 50)
    with pytest.raises(TraceError, match="stamps of the measured log"):
        pack(replace(walk, clean=walk.clean.select(slice(1, None))), robot, 50)
    with pytest.raises(TraceError, match="stamps of the measured log"):
        pack(replace(walk, clean=replace(walk.clean, stamp_ns=walk.clean.stamp_ns + 1)), robot, 50)
    with pytest.raises(TraceError, match="no joint velocity"):
        pack(replace(walk, clean=replace(walk.clean, joint_velocity=None)), robot, 50)


def segment_rows(robot, count=3, samples=130):
    return torch.from_numpy(np.stack([pack(rollout(seed, samples), robot, samples) for seed in range(count)]))


def test_without_noise_a_segment_is_the_truth(robot):
    rows = segment_rows(robot)
    segment = make_segment(rows, torch.zeros(3, 4), QUIET, 1.0, torch.Generator())
    assert (segment.observations == rows[..., : obs.OBSERVATION_SIZE]).all()
    targets = segment.targets
    assert (targets.motion == rows[:, PREFIX:, MOTION]).all()
    assert (targets.previous_velocity[:, 1:] == targets.motion[:, :-1, 6:]).all()
    assert targets.valid.sum(1).tolist() == [100.0] * 3  # 130 samples give 129 rows
    assert targets.valid.shape == (3, 101) and targets.dt[0, -1, 0] == 1.0


def test_offsets_are_constant_and_noise_is_white(robot):
    rows = segment_rows(robot)
    noise = FeedbackNoise(tilt_noise=0.003, velocity_noise=0.03, large_fraction=0)
    offsets = torch.tensor([[0.02, -0.01, 0.1, -0.1]]).repeat(3, 1)
    segment = make_segment(rows, offsets, noise, 0.0, torch.Generator().manual_seed(0))
    off = (segment.observations - rows[..., : obs.OBSERVATION_SIZE])[..., FEEDBACK]
    np.testing.assert_allclose(off.mean((0, 1)), offsets[0], atol=0.005)
    np.testing.assert_allclose((off - offsets[:, None]).std((0, 1)), [0.003, 0.003, 0.03, 0.03], rtol=0.15)
    others = [channel for channel in range(47) if not FEEDBACK.start <= channel < FEEDBACK.stop]
    assert (segment.observations[..., others] == rows[..., others]).all()
    assert (segment.targets.motion == rows[:, PREFIX:, MOTION]).all()  # rate 0 asks for the true increment


def test_a_share_of_the_offsets_is_large():
    noise = FeedbackNoise(tilt_offset=0.02, velocity_offset=0.05, large_fraction=0.25, large_scale=10.0)
    offsets = noise.draw_offsets(20_000, torch.Generator().manual_seed(0))
    large = (offsets[:, 0].abs() > 0.08).float().mean()  # four deviations of the small ones
    assert 0.13 < large < 0.22  # 0.25 of them, of which 69 % are beyond 0.4 of a deviation
    assert float(offsets[:, 0].std()) == pytest.approx(noise.tilt_spread, rel=0.03)


def test_rotation_target_also_removes_the_tilt_offset(robot):
    rows = segment_rows(robot)
    offsets = torch.tensor([[0.03, 0.0, 0, 0], [0.0, -0.02, 0, 0], [0, 0, 0.1, 0.1]])
    targets = make_segment(rows, offsets, QUIET, 0.5, torch.Generator()).targets
    extra = ((targets.motion - rows[:, PREFIX:, MOTION]) / targets.dt)[:, :-1, 3:6]
    roll = rows[:, PREFIX:-1, 42]
    torch.testing.assert_close(extra[0, :, 0], torch.full((100,), -0.015), atol=1e-4, rtol=0)
    torch.testing.assert_close(extra[1, :, 1], 0.01 * torch.cos(roll[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(extra[1, :, 2], -0.01 * torch.sin(roll[1]), atol=1e-4, rtol=0)
    assert extra[2].abs().max() == 0


def test_normalisation_makes_inputs_and_outputs_of_size_one(robot):
    rows = torch.from_numpy(np.stack([pack(rollout(s, 300, noise=0.02), robot, 350) for s in range(8)]))
    config = NetworkConfig(acceleration="measured", increments="direct")
    mean, scale, output = measure_normalisation(rows, config, 0.0)
    flat = rows.reshape(-1, ROW_SIZE)
    flat = flat[flat[:, 46] > 0]
    normalised = (flat[:, :47] - mean) / scale
    np.testing.assert_allclose(normalised.mean(0)[:46], 0, atol=1e-3)
    np.testing.assert_allclose(normalised.std(0)[:46], 1, atol=1e-3)
    np.testing.assert_allclose(mean[46], 0.002, rtol=1e-5)
    np.testing.assert_allclose(scale[46], 0.0002, rtol=1e-5)  # never varied: a tenth of its mean
    raw = torch.cat((flat[:, 47:53] / flat[:, 46:47], flat[:, 53:56]), 1) / output
    np.testing.assert_allclose(raw.square().mean(0).sqrt(), 1, atol=1e-3)


def test_normalisation_of_residuals_follows_what_is_left_to_predict(robot):
    rows = torch.from_numpy(np.stack([pack(rollout(s, 300, noise=0.02), robot, 299) for s in range(4)]))
    output = measure_normalisation(rows, NetworkConfig(), 0.0).output_scale
    np.testing.assert_allclose(output[3:6], 0.02, rtol=0.1)  # the gyroscope's noise
    corrected = measure_normalisation(rows, NetworkConfig(), 0.1).output_scale
    np.testing.assert_allclose(corrected[3:5], np.hypot(0.02, 0.1), rtol=0.05)
    assert corrected[5] == output[5]
    with pytest.raises(TraceError, match="no samples"):
        measure_normalisation(torch.zeros(2, 10, ROW_SIZE), NetworkConfig(), 0.0)


def test_normalisation_does_not_count_what_is_absent(robot):
    full = torch.from_numpy(np.stack([pack(rollout(s, 200), robot, 199) for s in range(3)]))
    absent = torch.from_numpy(np.stack([pack(bare(rollout(s, 200)), robot, 199) for s in range(3, 5)]))
    mixed = measure_normalisation(torch.cat((full, absent)), NetworkConfig(), 0.0)
    known = measure_normalisation(full, NetworkConfig(), 0.0)
    torch.testing.assert_close(mixed.mean[obs.JOINT_TORQUE], known.mean[obs.JOINT_TORQUE])
    torch.testing.assert_close(mixed.scale[obs.JOINT_TORQUE], known.scale[obs.JOINT_TORQUE])
    assert not torch.equal(mixed.mean[obs.JOINT_POSITION], known.mean[obs.JOINT_POSITION])
    never = measure_normalisation(absent, NetworkConfig(), 0.0)
    assert (never.mean[obs.JOINT_TORQUE] == 0).all() and (never.scale[obs.JOINT_TORQUE] == 1).all()
    assert all(part.isfinite().all() for part in (*mixed, *never))


def test_noise_and_targets_leave_absent_torque_alone(robot):
    rows = torch.from_numpy(np.stack([pack(bare(rollout(s, 130)), robot, 129) for s in range(2)]))
    segment = make_segment(rows, torch.ones(2, 4), FeedbackNoise(), 1.0, torch.Generator().manual_seed(0))
    assert segment.observations[..., obs.JOINT_TORQUE].isnan().all()
    rest = torch.cat((segment.observations[..., :30], segment.observations[..., 42:]), -1)
    assert rest.isfinite().all()
    assert all(part.isfinite().all() for part in segment.targets)


def test_intervals_are_those_of_the_data_but_for_the_rarest():
    rows = torch.zeros(3, 4000, ROW_SIZE)
    rows[0, :, obs.DT] = 0.002
    rows[1, :, obs.DT] = 0.0025
    rows[2, :1000, obs.DT] = 0.005  # then it fell: padding is no interval
    rows[0, :5, obs.DT] = 0.02  # too seldom to be learned
    rows[1, :5, obs.DT] = 0.0001
    np.testing.assert_allclose(measure_intervals(rows), (0.00198, 0.00505), rtol=1e-6)
    rows[0, :50, obs.DT] = 0.02
    np.testing.assert_allclose(measure_intervals(rows), (0.00198, 0.0202), rtol=1e-6)
    with pytest.raises(TraceError, match="no samples"):
        measure_intervals(torch.zeros(1, 10, ROW_SIZE))
