"""The sensor model: each term has the size that the configuration says, and zero switches it off."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from trace_ros.logs import SensorLog
from trace_ros.sim.sensors import SensorConfig, apply_sensor_model

OFF = dict.fromkeys(SensorConfig.model_fields, 0.0) | {"joint_velocity_lag": (0.0, 0.0)}
N = 4000


@pytest.fixture
def clean() -> SensorLog:
    stamps = 2_000_000 * np.arange(N, dtype=np.int64)
    t = stamps * 1e-9
    wave = np.sin(2 * np.pi * 3 * t)[:, None]
    return SensorLog(
        stamps,
        np.tile([0.1, -0.2, 0.3], (N, 1)),
        np.tile([0.5, -1.0, 9.8], (N, 1)),
        np.tile(wave, 12),
        np.tile(wave * 6, 12),
        np.tile(wave * 4, 12),
        torque_source="pd_target",
        contact=np.ones((N, 4), dtype=np.bool_),
    )


def with_only(**terms) -> SensorConfig:
    return SensorConfig(**(OFF | terms))


def test_all_off_changes_nothing(clean):
    result = apply_sensor_model(clean, with_only(), np.random.default_rng(0))
    for name in ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque"):
        assert np.allclose(getattr(result, name), getattr(clean, name), atol=1e-12)
    assert result.contact is not None


@pytest.mark.parametrize(
    ("term", "channel"),
    [
        ("gyro_noise", "angular_velocity"),
        ("accel_noise", "linear_acceleration"),
        ("encoder_noise", "joint_position"),
        ("joint_velocity_noise", "joint_velocity"),
        ("torque_noise", "joint_torque"),
    ],
)
def test_white_noise(clean, term, channel):
    result = apply_sensor_model(clean, with_only(**{term: 0.3}), np.random.default_rng(1))
    error = getattr(result, channel) - getattr(clean, channel)
    assert error.std() == pytest.approx(0.3, rel=0.05)
    assert np.abs(error.mean(axis=0)).max() < 0.03
    assert abs(np.corrcoef(error[1:, 0], error[:-1, 0])[0, 1]) < 0.1


@pytest.mark.parametrize(
    ("term", "channel"),
    [
        ("gyro_bias", "angular_velocity"),
        ("accel_bias", "linear_acceleration"),
        ("encoder_offset", "joint_position"),
    ],
)
def test_bias_is_constant_over_a_log_and_drawn_anew(clean, term, channel):
    rng = np.random.default_rng(2)
    biases = []
    for _ in range(60):
        error = getattr(apply_sensor_model(clean, with_only(**{term: 0.2}), rng), channel) - getattr(clean, channel)
        assert np.ptp(error, axis=0).max() < 1e-9
        biases.append(error[0])
    assert np.std(biases) == pytest.approx(0.2, rel=0.25)


def test_random_walk_grows_with_the_square_root_of_time(clean):
    rng = np.random.default_rng(3)
    ends = [
        apply_sensor_model(clean, with_only(gyro_walk=0.1), rng).angular_velocity[-1] - clean.angular_velocity[-1]
        for _ in range(100)
    ]
    assert np.std(ends) == pytest.approx(0.1 * np.sqrt(N * 0.002), rel=0.2)


def test_misalignment_turns_gyroscope_and_accelerometer_alike(clean):
    result = apply_sensor_model(clean, with_only(misalignment=0.05), np.random.default_rng(4))
    turn, _ = Rotation.align_vectors(
        [result.angular_velocity[0], result.linear_acceleration[0]],
        [clean.angular_velocity[0], clean.linear_acceleration[0]],
    )
    assert 0.005 < turn.magnitude() < 0.3
    assert np.allclose(turn.apply(clean.linear_acceleration), result.linear_acceleration)
    assert np.allclose(np.linalg.norm(result.angular_velocity, axis=1), np.linalg.norm(clean.angular_velocity, axis=1))


def test_joint_velocity_lags(clean):
    lag = 0.01
    result = apply_sensor_model(clean, with_only(joint_velocity_lag=(lag, lag)), np.random.default_rng(5))
    late, early = result.joint_velocity[1000:, 0], clean.joint_velocity[1000:, 0]
    shift = np.argmax([np.dot(late[k:], early[: len(early) - k]) / (len(early) - k) for k in range(15)])
    assert shift == pytest.approx(lag / 0.002, abs=1)
    assert result.joint_velocity[0] == pytest.approx(clean.joint_velocity[0])


def test_same_generator_same_noise_and_absent_channels_stay_absent(clean):
    first, second = (apply_sensor_model(clean, SensorConfig(), np.random.default_rng(6)) for _ in range(2))
    assert np.array_equal(first.angular_velocity, second.angular_velocity)
    bare = SensorLog(clean.stamp_ns, clean.angular_velocity, clean.linear_acceleration, clean.joint_position)
    result = apply_sensor_model(bare, SensorConfig(), np.random.default_rng(6))
    assert result.joint_velocity is None
    assert result.joint_torque is None
