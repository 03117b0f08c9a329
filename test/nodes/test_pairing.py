"""Pairing by stamp: the result follows from the stamps, not from the order of arrival."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.logs import Sample
from trace_ros.nodes.pairing import JointSample, PairingSettings, SamplePairer

MS = 1_000_000
START = 1_000 * MS


def imu(pairer: SamplePairer, stamp: int) -> list[Sample]:
    return pairer.add_imu(stamp, np.full(3, float(stamp)), np.zeros(3))


def joints(pairer: SamplePairer, stamp: int) -> list[Sample]:
    return pairer.add_joints(JointSample(stamp, np.full(12, float(stamp)), None, None))


def pairs(samples: list[Sample]) -> list[tuple[int, int]]:
    """(IMU stamp, stamp of the joints used), and the vectors really are those of the stamps."""
    for sample in samples:
        assert sample.angular_velocity[0] == sample.stamp_ns
    return [(sample.stamp_ns, int(sample.joint_position[0])) for sample in samples]


@pytest.mark.parametrize("joints_first", [True, False])
def test_equal_stamps_are_paired_whichever_arrives_first(joints_first: bool) -> None:
    pairer = SamplePairer(PairingSettings())
    samples = []
    for stamp in range(START, START + 100 * MS, 2 * MS):
        first, second = (joints, imu) if joints_first else (imu, joints)
        samples += first(pairer, stamp)
        samples += second(pairer, stamp)
    assert pairs(samples) == [(stamp, stamp) for stamp in range(START, START + 100 * MS, 2 * MS)]
    assert pairer.exact == 50
    assert pairer.held == 0
    assert not pairer.drops


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=200, max_size=200), st.booleans())
def test_late_arrival_within_the_wait_changes_nothing(delays: list[int], imu_delayed: bool) -> None:
    """One stream arrives up to 3 samples late, in order: every sample is still paired exactly."""
    pairer = SamplePairer(PairingSettings(joint_wait=0.01))
    stamps = [START + 2 * MS * k for k in range(200)]
    arrivals = []
    latest = 0
    for k, delay in enumerate(delays):
        latest = max(latest, k + delay)
        punctual, late = (joints, imu) if imu_delayed else (imu, joints)
        arrivals.append((k, 0, punctual, stamps[k]))
        arrivals.append((latest, 1, late, stamps[k]))
    samples = []
    for _, _, add, stamp in sorted(arrivals, key=lambda item: item[:2]):
        samples += add(pairer, stamp)
    assert pairs(samples) == [(stamp, stamp) for stamp in stamps]


def test_a_lost_joint_message_holds_the_one_before() -> None:
    pairer = SamplePairer(PairingSettings())
    samples = []
    for k in range(20):
        samples += imu(pairer, START + 2 * MS * k)
        if k != 10:
            samples += joints(pairer, START + 2 * MS * k)
    expected = [START + 2 * MS * k for k in range(20)]
    assert [pair[0] for pair in pairs(samples)] == expected
    assert [pair[1] for pair in pairs(samples)] == [*expected[:10], expected[9], *expected[11:]]
    assert (pairer.exact, pairer.held) == (19, 1)


def test_streams_that_never_agree_are_not_waited_for() -> None:
    """IMU at 400 Hz, joints at 200 Hz and out of phase: after the evidence is in, each IMU message gives its sample."""
    pairer = SamplePairer(PairingSettings())
    delays, joint_stamp = [], START + 1_200_000
    released = 0
    for k in range(400):
        stamp = START + 2_500_000 * k
        while joint_stamp <= stamp:
            released += len(joints(pairer, joint_stamp))
            joint_stamp += 5 * MS
        samples = imu(pairer, stamp)
        released += len(samples)
        delays.append(k + 1 - released)
        for imu_ns, joint_ns in pairs(samples):
            assert 0 <= imu_ns - joint_ns <= 5 * MS
    assert pairer.drops["imu_without_joints"] == 1  # the one before the first joint state
    assert delays[-100:] == [1] * 100  # that one, and nothing waiting
    assert pairer.exact == 0


def test_streams_that_come_to_agree_are_paired_exactly_again() -> None:
    pairer = SamplePairer(PairingSettings())
    for k in range(50):
        imu(pairer, START + 2 * MS * k)
        joints(pairer, START + 2 * MS * k + MS)
    samples = []
    for k in range(100, 200):
        samples += imu(pairer, START + 2 * MS * k)
        samples += joints(pairer, START + 2 * MS * k)
    assert pairs(samples)[-90:] == [(START + 2 * MS * k, START + 2 * MS * k) for k in range(110, 200)]


def test_joints_that_stop_are_held_for_the_timeout_only() -> None:
    pairer = SamplePairer(PairingSettings(joint_timeout=0.02))
    samples = []
    for k in range(100):
        samples += imu(pairer, START + 2 * MS * k)
        if k < 50:
            samples += joints(pairer, START + 2 * MS * k)
    last_joint = START + 2 * MS * 49
    assert pairs(samples)[-1] == (last_joint + 20 * MS, last_joint)
    assert len(samples) == 60
    assert pairer.drops["imu_without_joints"] > 30


def test_repeated_and_disordered_stamps_are_dropped_and_counted() -> None:
    pairer = SamplePairer(PairingSettings())
    samples = []
    for stamp in (START, START + 2 * MS, START + 2 * MS, START + MS, START + 4 * MS):
        samples += joints(pairer, stamp)
        samples += imu(pairer, stamp)
    assert pairs(samples) == [(s, s) for s in (START, START + 2 * MS, START + 4 * MS)]
    assert pairer.drops == {"imu_repeated": 1, "imu_disordered": 1, "joints_repeated": 1, "joints_disordered": 1}


@pytest.mark.parametrize("first", [imu, joints])
def test_a_jump_back_starts_a_new_time_line(first) -> None:
    jumps: list[float] = []
    pairer = SamplePairer(PairingSettings(), jumps.append)
    second = joints if first is imu else imu
    samples = []
    for start in (START, START - 900 * MS):
        for k in range(10):
            samples += first(pairer, start + 2 * MS * k)
            samples += second(pairer, start + 2 * MS * k)
    assert len(jumps) == 1
    assert jumps[0] == pytest.approx(-0.918)
    assert [s for s, _ in pairs(samples)] == [
        start + 2 * MS * k for start in (START, START - 900 * MS) for k in range(10)
    ]
    assert not pairer.drops


@pytest.mark.parametrize("stray", [0, -5_000 * MS, START - 900 * MS, START + 60_000 * MS, START + 10**9 * MS])
@pytest.mark.parametrize("what", ["imu", "joints"])
def test_one_wild_stamp_costs_one_message_and_no_reset(stray: int, what: str) -> None:
    jumps: list[float] = []
    pairer = SamplePairer(PairingSettings(), jumps.append)
    samples = []
    for k in range(20):
        stamp = START + 2 * MS * k
        samples += joints(pairer, stray if (k, what) == (10, "joints") else stamp)
        samples += imu(pairer, stray if (k, what) == (10, "imu") else stamp)
    assert not jumps
    assert pairer.drops == {f"{what}_stray": 1}
    expected = [(START + 2 * MS * k,) * 2 for k in range(20)]
    # Without its own joint state, the IMU sample holds the one before; without its stamp, it is no sample.
    expected[10:11] = [(START + 20 * MS, START + 18 * MS)] if what == "joints" else []
    assert pairs(samples) == expected


def test_after_a_long_silence_nothing_is_lost() -> None:
    jumps: list[float] = []
    pairer = SamplePairer(PairingSettings(), jumps.append)
    samples = []
    for start in (START, START + 5_000 * MS):
        for k in range(10):
            samples += joints(pairer, start + 2 * MS * k)
            samples += imu(pairer, start + 2 * MS * k)
    assert not jumps
    assert not pairer.drops
    assert len(samples) == 20


def test_a_slow_stream_of_joints_is_no_stray() -> None:
    pairer = SamplePairer(PairingSettings(joint_timeout=2.0))
    samples = []
    for k in range(2500):
        if k % 500 == 0:
            samples += joints(pairer, START + 2 * MS * k)
        samples += imu(pairer, START + 2 * MS * k)
    assert len(samples) > 2490
    assert not pairer.drops


def test_repeated_zeros_between_good_stamps_are_strays() -> None:
    jumps: list[float] = []
    pairer = SamplePairer(PairingSettings(), jumps.append)
    samples = []
    for stamp in (START, 0, 0, START + 2 * MS):
        samples += joints(pairer, START + 2 * MS * len(samples))
        samples += imu(pairer, stamp)
    assert [stamp for stamp, _ in pairs(samples)] == [START, START + 2 * MS]
    assert not jumps
    assert pairer.drops["imu_stray"] == 2


def test_a_jump_back_is_waited_out_when_resets_are_off() -> None:
    jumps: list[float] = []
    pairer = SamplePairer(PairingSettings(reset_on_time_jump=False), jumps.append)
    samples = []
    for stamp in (START, START - 900 * MS, START - 898 * MS, START + 2 * MS):
        samples += joints(pairer, stamp)
        samples += imu(pairer, stamp)
    assert pairs(samples) == [(START, START), (START + 2 * MS, START + 2 * MS)]
    assert not jumps
    assert pairer.drops == {"imu_disordered": 2, "joints_disordered": 2}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=300))
def test_any_stream_gives_increasing_stamps_and_joints_from_the_past(messages: list[tuple[bool, int]]) -> None:
    pairer = SamplePairer(PairingSettings(reset_on_time_jump=False))
    samples = []
    for is_imu, ms in messages:
        samples += (imu if is_imu else joints)(pairer, START + ms * MS)
    stamps = [stamp for stamp, _ in pairs(samples)]
    assert stamps == sorted(set(stamps))
    assert all(0 <= stamp - joint <= 20 * MS for stamp, joint in pairs(samples))


def test_memory_is_bounded_when_one_stream_is_silent() -> None:
    alone = SamplePairer(PairingSettings())
    for k in range(5000):
        imu(alone, START + 2 * MS * k)
    assert alone.drops["imu_without_joints"] > 4000
    alone = SamplePairer(PairingSettings())
    for k in range(5000):
        joints(alone, START + 2 * MS * k)
    assert len(alone._joints) < 600
