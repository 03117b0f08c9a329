"""The sensor model: each term has the size that the configuration says, and zero switches it off."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.spatial.transform import Rotation

from trace_ros.logs import SensorLog
from trace_ros.sim.sensors import SensorClock, SensorConfig, apply_sensor_model

OFF = {name: 0.0 for name, value in SensorConfig() if isinstance(value, float)} | {"joint_velocity_lag": (0.0, 0.0)}
CHANNELS = ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque")
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
    for name in CHANNELS:
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


def test_scale_errors_are_constant_for_each_axis(clean):
    config = with_only(gyro_scale=0.05, accel_scale=0.02)
    rng = np.random.default_rng(7)
    factors = []
    for _ in range(100):
        result = apply_sensor_model(clean, config, rng)
        gyro = result.angular_velocity / clean.angular_velocity
        assert np.ptp(gyro, axis=0).max() < 1e-9
        factors.append((*gyro[0], *(result.linear_acceleration / clean.linear_acceleration)[0]))
    spread = np.std(factors, axis=0)
    assert spread == pytest.approx([0.05] * 3 + [0.02] * 3, rel=0.3)


def test_noise_scale_makes_good_and_bad_sensors_imu_and_joints_apart(clean):
    config = with_only(gyro_noise=0.1, accel_noise=0.2, encoder_noise=0.3, torque_noise=0.4, noise_scale=(0.5, 2.0))
    rng = np.random.default_rng(8)
    scales = []
    for _ in range(40):
        result = apply_sensor_model(clean, config, rng)
        sizes = [np.std(getattr(result, name) - getattr(clean, name)) for name in CHANNELS if name != "joint_velocity"]
        gyro, accel, encoder, torque = np.array(sizes) / [0.1, 0.2, 0.3, 0.4]
        assert accel == pytest.approx(gyro, rel=0.05)
        assert torque == pytest.approx(encoder, rel=0.05)
        scales.append((gyro, encoder))
    scales = np.array(scales)
    assert scales.min() > 0.47
    assert scales.max() < 2.1
    assert scales.std(axis=0).min() > 0.3
    assert abs(np.corrcoef(scales.T)[0, 1]) < 0.5


def ramp(rng: np.random.Generator, samples: int) -> tuple[SensorLog, dict[str, np.ndarray]]:
    """A log in which everything grows steadily, and by how much a second."""
    stamps = 2_000_000 * np.arange(samples, dtype=np.int64)
    widths = (3, 3, 12, 12, 12)
    slopes = {name: rng.normal(0.0, 3.0, width) for name, width in zip(CHANNELS, widths, strict=True)}
    values = {name: slope * (stamps * 1e-9)[:, None] for name, slope in slopes.items()}
    return SensorLog(stamp_ns=stamps, **values, torque_source="pd_target"), slopes


@given(st.floats(0.0, 0.02), st.floats(0.0, 0.02), st.integers(0, 2**32))
def test_a_delayed_ramp_is_exactly_late(imu, joints, seed):
    rng = np.random.default_rng(seed)
    log, slopes = ramp(rng, 60)
    result = apply_sensor_model(log, with_only(imu_delay=(imu, imu), joint_delay=(joints, joints)), rng)
    assert np.array_equal(result.stamp_ns, log.stamp_ns)
    for name, slope in slopes.items():
        delay = imu if name in CHANNELS[:2] else joints
        known = log.stamp_ns * 1e-9 > delay + 0.004  # before, everything is as in the first sample
        expected = getattr(log, name) - slope * delay
        assert np.allclose(getattr(result, name)[known], expected[known], atol=1e-9)


def test_delay_is_drawn_from_its_range_and_labels_do_not_move():
    rng = np.random.default_rng(9)
    log, slopes = ramp(rng, 200)
    log = replace(log, contact=rng.random((200, 4)) < 0.5)
    delays = []
    for _ in range(50):
        result = apply_sensor_model(log, with_only(imu_delay=(0.002, 0.006)), rng)
        assert np.array_equal(result.contact, log.contact)
        assert np.array_equal(result.joint_position, log.joint_position)
        late = (log.angular_velocity - result.angular_velocity)[-1] / slopes["angular_velocity"]
        assert np.ptp(late) < 1e-9
        delays.append(late[0])
    assert min(delays) >= 0.002
    assert max(delays) <= 0.006
    assert np.ptp(delays) > 0.003


@given(st.floats(50.0, 400.0), st.floats(0.0, 0.01), st.integers(0, 2**32))
def test_held_readings_repeat_at_the_sensors_own_rate(rate, delay, seed):
    rng = np.random.default_rng(seed)
    log, slopes = ramp(rng, 500)
    held = with_only(joint_held=1.0, joint_update_rate=(rate, rate), joint_delay=(delay, delay), encoder_noise=0.1)
    quiet = with_only(joint_held=1.0, joint_update_rate=(rate, rate), joint_delay=(delay, delay))
    noisy, result = (apply_sensor_model(log, config, np.random.default_rng(seed)) for config in (held, quiet))
    changes = np.any(np.diff(result.joint_position, axis=0) != 0, axis=1)
    # Noise is part of a reading, hence repeated with it.
    assert np.array_equal(changes[20:], np.any(np.diff(noisy.joint_position, axis=0) != 0, axis=1)[20:])
    assert changes[20:].mean() * 500 == pytest.approx(rate, abs=500 / 240)
    # A reading's age is between the delay and the delay and one update.
    age = ((log.joint_position - result.joint_position) / slopes["joint_position"])[40:]
    assert age.min() >= delay - 1e-9
    assert age.max() <= delay + 1 / rate + 1e-9
    assert np.allclose(result.angular_velocity, log.angular_velocity, atol=1e-9)


def test_a_slow_imu_averages_over_its_own_interval_and_integrates_to_the_same_turn(clean):
    """A gyroscope that skipped what happens between its updates would see another mean rate."""
    burst = np.zeros((N, 3))
    burst[np.arange(N) % 25 == 7] = 1.0
    log = replace(clean, angular_velocity=burst)
    config = with_only(imu_held=1.0, imu_update_rate=(100.0, 100.0))
    result = apply_sensor_model(log, config, np.random.default_rng(10))
    assert result.angular_velocity.mean() == pytest.approx(1 / 25, rel=0.02)
    assert result.angular_velocity.max() == pytest.approx(0.2, rel=1e-6)


def test_clocks_are_drawn_for_a_share_of_the_logs():
    rng = np.random.default_rng(11)
    clocks = [SensorClock.draw((0.0, 0.0), 0.3, (100.0, 400.0), rng) for _ in range(2000)]
    own = [clock.period for clock in clocks if clock.period is not None]
    assert len(own) / len(clocks) == pytest.approx(0.3, abs=0.04)
    assert 1 / 400 <= min(own) < max(own) <= 1 / 100


def test_absent_channels_come_as_often_as_configured():
    log, _ = ramp(np.random.default_rng(0), 4)
    rng = np.random.default_rng(12)
    config = SensorConfig(joint_velocity_absent=0.2, joint_torque_absent=0.4)
    results = [apply_sensor_model(log, config, rng) for _ in range(1500)]
    velocity = np.array([result.joint_velocity is None for result in results])
    torque = np.array([result.joint_torque is None for result in results])
    assert velocity.mean() == pytest.approx(0.2, abs=0.04)
    assert torque.mean() == pytest.approx(0.4, abs=0.05)
    assert (velocity & torque).mean() == pytest.approx(0.08, abs=0.03)
    assert {result.torque_source for result in results} == {"none", "pd_target"}


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_logs(clean, length):
    config = SensorConfig(imu_held=1.0, joint_held=1.0, imu_delay=(0.0, 0.01), joint_velocity_lag=(0.002, 0.002))
    result = apply_sensor_model(clean.select(slice(0, length)), config, np.random.default_rng(13))
    assert len(result) == length


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("imu_delay", (0.0, 0.2), "at most 0.05"),
        ("joint_delay", (-0.001, 0.0), "no negative"),
        ("imu_update_rate", (10.0, 200.0), "at least 50"),
        ("noise_scale", (1.5, 0.3), "low <= high"),
        ("joint_torque_absent", 1.5, "less than or equal to 1"),
    ],
)
def test_bad_values_are_refused(key, value, words):
    with pytest.raises(ValidationError, match=words):
        SensorConfig(**{key: value})
