"""Recording from the physics: delayed and held readings belong to other instants, and the truth stays where it is."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.sim.backend import CONTROL_RATE_HZ, PhysicsConfig, Scene
from trace_ros.sim.contacts import ContactLabelConfig
from trace_ros.sim.domain_randomization import nominal_dynamics
from trace_ros.sim.policy_randomization import UNCHANGED, RandomizedPolicy
from trace_ros.sim.recording import Recording, record
from trace_ros.sim.sampling import SamplingConfig
from trace_ros.sim.sensors import SensorConfig
from trace_ros.sim.terrain import Plane, Terrain
from trace_ros.sim.walk import Walk, standing_pose

PHYSICS = PhysicsConfig()
PERFECT = {name: 0.0 for name, value in SensorConfig() if isinstance(value, float)} | {"joint_velocity_lag": (0.0, 0.0)}
STEADY = {"jitter_probability": 0.0}
CHANNELS = ("angular_velocity", "linear_acceleration", "joint_position", "joint_velocity", "joint_torque")
FIRST = 600
"""Physics step that opens the first interval."""


@dataclass(frozen=True)
class Walked:
    """A second of walking, to be recorded again and again."""

    walk: Walk
    policy: object
    robot: object

    def record(self, seed: int, sampling: dict, **sensors) -> Recording:
        return record(
            self.walk.trace,
            0,
            (FIRST, self.walk.trace.position.shape[1]),
            self.walk.joint_target[0],
            (self.policy.kp, self.policy.kd),
            self.robot,
            PHYSICS,
            SamplingConfig(**sampling),
            SensorConfig(**(PERFECT | sensors)),
            ContactLabelConfig(),
            np.random.default_rng(seed),
        )


@pytest.fixture(scope="module")
def walked(go2, policy) -> Walked:
    steps = 130
    varied = RandomizedPolicy(policy, [UNCHANGED], 1.0 / CONTROL_RATE_HZ)
    ground = Terrain("flat", planes=(Plane(),))
    walk = Walk([Scene(ground, nominal_dynamics(go2, policy))], varied, go2, PHYSICS, steps)
    walk.reset(*standing_pose([ground], np.zeros((1, 2)), np.zeros(1), policy.default_joint_position, go2))
    for _ in range(steps):
        walk.step(np.array([[0.6, 0.0, 0.3]]), np.array([False]), np.zeros((1, 6)))
    return Walked(walk, policy, go2)


def test_perfect_sensors_say_what_is_true(walked):
    measured, clean, info = walked.record(0, STEADY)
    for name in CHANNELS:
        assert np.allclose(getattr(measured, name), getattr(clean, name), atol=1e-8)
    assert info["rate_hz"] == 500.0
    assert info["lost"] == 0.0
    trace, at = walked.walk.trace, np.arange(FIRST + 4, 2600, 4)
    assert np.array_equal(clean.stamp_ns, (at + 1) * 500_000)
    assert np.allclose(clean.joint_position, trace.joint_position[0, at])
    assert np.array_equal(clean.reference.position, trace.position[0, at])
    assert np.allclose(clean.angular_velocity[5], trace.angular_velocity[0, at[5] - 3 : at[5] + 1].mean(axis=0))


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_delayed_readings_are_those_of_earlier_physics_steps(walked, steps):
    """Also of steps at which no sample is taken, and from before the first."""
    delay = steps / PHYSICS.rate_hz
    measured, clean, info = walked.record(0, STEADY, imu_delay=(delay, delay), joint_delay=(delay, delay))
    trace, at = walked.walk.trace, np.arange(FIRST + 4, 2600, 4) - steps
    assert np.allclose(measured.joint_position, trace.joint_position[0, at], atol=1e-7)
    assert np.allclose(measured.joint_velocity, trace.joint_velocity[0, at], atol=1e-5)
    rate = np.stack([trace.angular_velocity[0, k - 3 : k + 1].mean(axis=0) for k in at])
    assert np.allclose(measured.angular_velocity, rate, atol=1e-8)
    now = walked.record(0, STEADY).clean
    assert np.array_equal(clean.contact, now.contact)
    assert np.array_equal(measured.reference.position, now.reference.position)
    assert (info["imu_delay"], info["joint_delay"]) == (delay, delay)


def test_a_delay_need_not_be_a_whole_number_of_steps(walked):
    delays = (0.001, 0.00125, 0.0015)
    early, between, late = (
        walked.record(0, STEADY, joint_delay=(delay, delay)).measured.joint_position for delay in delays
    )
    assert np.allclose(between, (early + late) / 2, atol=1e-9)
    assert not np.allclose(between, early, atol=1e-5)


def test_an_imu_with_its_own_clock_reads_means_over_its_own_intervals(walked):
    measured, clean, info = walked.record(3, STEADY, imu_held=1.0, imu_update_rate=(200.0, 200.0))
    assert info["imu_update_hz"] == pytest.approx(200.0)
    changed = np.any(np.diff(measured.angular_velocity, axis=0) != 0, axis=1)
    assert changed.mean() == pytest.approx(200 / 500, abs=0.01)
    assert np.allclose(measured.joint_position, clean.joint_position, atol=1e-8)
    # No turn is lost: each reading, once, times its interval.
    readings = measured.angular_velocity[np.flatnonzero(np.concatenate(([True], changed)))]
    turned = readings[1:].sum(axis=0) / 200
    expected = clean.angular_velocity.sum(axis=0) / 500
    assert np.abs(turned - expected).max() < 0.02


@settings(max_examples=25)
@given(
    st.sampled_from([200, 250, 400, 500]),
    st.floats(0.0, 0.3),
    st.integers(1, 6),
    st.integers(0, 2**32),
)
def test_lost_samples_leave_the_others_as_they_were(walked, rate, lost, burst, seed):
    sampling = {"rates": {rate: 1.0}, "lost_probability": (lost, lost), "lost_burst": (1, burst)}
    measured, clean, info = walked.record(seed, sampling)
    trace = walked.walk.trace
    stamps = clean.stamp_ns
    assert (np.diff(stamps) > 0).all()
    assert np.array_equal(stamps, measured.stamp_ns)
    assert np.array_equal(stamps, clean.reference.stamp_ns)
    # The stamps tell the true instants, hence the true time between samples.
    at = stamps // 500_000 - 1
    assert np.array_equal(clean.reference.position, trace.position[0, at])
    assert np.allclose(clean.joint_position, trace.joint_position[0, at])
    expected = (2600 - 1 - FIRST) // (2000 // rate)
    assert len(clean) == round(expected * (1 - info["lost"]))
    # What was sensed while samples got lost is gone: the next reading covers its own interval only.
    k = len(at) // 2
    stride = 2000 // rate
    means = [
        trace.angular_velocity[0, at[k] - span + 1 : at[k] + 1].mean(axis=0) for span in range(stride - 2, stride + 3)
    ]
    assert min(np.abs(mean - clean.angular_velocity[k]).max() for mean in means) < 1e-8


def test_the_same_generator_gives_the_same_recording(walked):
    sampling = {"rates": {500: 1.0, 250: 1.0}, "lost_probability": (0.0, 0.1)}
    sensors = {"gyro_noise": 0.1, "imu_held": 0.5, "joint_delay": (0.0, 0.01), "joint_torque_absent": 0.5}
    first, second, other = (walked.record(seed, sampling, **sensors) for seed in (5, 5, 6))
    assert first.measured.stamp_ns.tolist() == second.measured.stamp_ns.tolist()
    assert np.array_equal(first.measured.angular_velocity, second.measured.angular_velocity)
    assert np.array_equal(first.measured.joint_position, second.measured.joint_position)
    assert first.info == second.info
    assert first.info != other.info
