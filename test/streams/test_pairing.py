"""Pairing by stamp: the result follows from the stamps, not from the order of arrival."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.logs import Sample
from trace_ros.streams.kinds import Tally
from trace_ros.streams.pairing import PairingSettings, SamplePairer
from trace_ros.streams.readings import JointReading

MS = 1_000_000
START = 1_000 * MS
ALL = tuple(range(12))


class Pairer:
    """Takes stamps; joints read their own stamp in ms since the start, so that samples tell what they are made of."""

    def __init__(self, **values) -> None:
        self.tally = Tally()
        self.pairer = SamplePairer(PairingSettings(**values), self.tally)
        self.samples: list[Sample] = []

    def imu(self, stamp: int) -> None:
        self.samples += self.pairer.add_imu(stamp, np.full(3, float(stamp)), np.zeros(3))

    def joints(self, stamp: int, slots: tuple[int, ...] = ALL, torque: bool = True) -> bool:
        if not self.pairer.accepts(stamp, slots):
            return False
        value = np.full(len(slots), (stamp - START) / MS)
        reading = JointReading(slots, value, 10 * value, 100 * value if torque else None)
        self.samples += self.pairer.add_joints(stamp, reading)
        return True

    def pairs(self) -> list[tuple[int, float]]:
        """(IMU stamp, time of the joints), both in ms since the start."""
        out = []
        for sample in self.samples:
            assert sample.angular_velocity[0] == sample.stamp_ns
            assert sample.joint_velocity is not None
            np.testing.assert_allclose(sample.joint_velocity, 10 * sample.joint_position)
            out.append(((sample.stamp_ns - START) // MS, float(sample.joint_position[0])))
        return out


@pytest.mark.parametrize("joints_first", [True, False])
def test_equal_stamps_are_paired_whichever_arrives_first(joints_first: bool) -> None:
    pairer = Pairer()
    for stamp in range(START, START + 100 * MS, 2 * MS):
        first, second = (pairer.joints, pairer.imu) if joints_first else (pairer.imu, pairer.joints)
        first(stamp)
        second(stamp)
    assert pairer.pairs() == [(ms, ms) for ms in range(0, 100, 2)]
    assert (pairer.pairer.exact, pairer.pairer.interpolated, pairer.pairer.held) == (50, 0, 0)
    assert not pairer.tally.counts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=150, max_size=150),
    st.booleans(),
    st.sampled_from([2.0, 5.0, 3.7, 20.0]),
    st.sampled_from(["interpolate", "hold"]),
)
def test_the_order_of_arrival_changes_nothing(
    delays: list[tuple[int, bool]], imu_delayed: bool, joint_period: float, mode: str
) -> None:
    """Either stream up to 14 ms late, with messages missing, at any rate of the joints: the samples are the same."""
    imu = [START + 2 * MS * k for k in range(150) if k % 17]
    joints = [START + round(joint_period * MS * k) for k in range(round(300 / joint_period)) if k % 13 != 5]
    runs = []
    for late in (False, True):
        pairer, arrivals, latest = Pairer(joints=mode), [], 0
        for what, stamps in (("imu", imu), ("joints", joints)):
            latest = 0
            for number, stamp in enumerate(stamps):
                delayed = late and (what == "imu") == imu_delayed
                latest = max(latest, stamp + (delays[number % 150][0] * 2 * MS if delayed else 0))
                arrivals.append((latest, what, number, stamp))
        for _, what, _, stamp in sorted(arrivals):
            getattr(pairer, what)(stamp)
        pairer.samples += pairer.pairer.flush()
        runs.append(pairer)
    assert runs[0].pairs() == runs[1].pairs()
    assert runs[0].tally.counts == runs[1].tally.counts


def test_joints_out_of_phase_are_interpolated_onto_the_imus_stamps() -> None:
    pairer = Pairer()
    for k in range(100):
        pairer.imu(START + 2 * MS * k)
        if k % 5 == 0:
            pairer.joints(START + 2 * MS * k - 300_000)
    pairs = pairer.pairs()
    assert pairs == [(ms, pytest.approx(ms)) for ms, _ in pairs]
    assert len(pairs) == 95  # the last wait for the joints after them
    assert pairer.pairer.exact == 0


def test_held_joints_are_the_ones_before() -> None:
    pairer = Pairer(joints="hold")
    for k in range(100):
        pairer.imu(START + 2 * MS * k)
        if k % 5 == 0:
            pairer.joints(START + 2 * MS * k)
    assert pairer.pairs() == [(2 * k, 2 * (k - k % 5)) for k in range(96)]
    assert pairer.pairer.held == 95 - 19


def test_joints_further_apart_than_the_interval_are_held_up_to_the_timeout() -> None:
    pairer = Pairer(joint_interval=0.025, joint_timeout=0.03)
    for ms in range(0, 200, 2):
        if not 20 < ms < 100:
            pairer.joints(START + ms * MS)
        pairer.imu(START + ms * MS)
    expected = [(ms, ms if not 20 < ms < 100 else 20.0) for ms in range(0, 200, 2) if not 50 < ms < 100]
    assert pairer.pairs() == expected
    assert pairer.tally.counts == {"imu_without_joints": 24}


def test_an_imu_reading_waits_no_longer_than_it_is_told() -> None:
    pairer = Pairer(joint_wait=0.01)
    pairer.joints(START)
    for ms in range(0, 40, 2):
        pairer.imu(START + ms * MS)
        newest = pairer.pairs()[-1][0]
        assert ms - newest <= 10
    assert pairer.pairs()[1:] == [(ms, 0.0) for ms in range(2, 30, 2)]


def test_without_waiting_the_newest_joints_are_taken() -> None:
    pairer = Pairer(joint_wait=0.0)
    for k in range(50):
        pairer.imu(START + 2 * MS * k)
        pairer.joints(START + 2 * MS * k)
    assert pairer.pairs() == [(2 * k, 2 * (k - 1)) for k in range(1, 50)]


def test_what_comes_before_the_first_joints_is_no_fault() -> None:
    pairer = Pairer()
    for k in range(100):
        pairer.imu(START + 2 * MS * k)
        if k >= 50:
            pairer.joints(START + 2 * MS * k)
    assert pairer.pairs() == [(2 * k, 2 * k) for k in range(50, 100)]
    assert pairer.tally.counts == {"imu_before_joints": 50}


def test_stamps_of_two_clocks_are_named() -> None:
    pairer = Pairer()
    for k in range(100):
        pairer.imu(START + 2 * MS * k)
        pairer.joints(START * 100 + 2 * MS * k)
    assert not pairer.samples
    assert pairer.tally.counts["imu_other_clock"] > 50
    assert pairer.pairer.apart_s == pytest.approx(99.0, abs=0.1)
    for k in range(100, 200):  # the clock is set right
        pairer.imu(START + 2 * MS * k)
        pairer.pairer._publishers[ALL].stamps.clear()
        pairer.pairer._publishers[ALL].readings.clear()
        pairer.joints(START + 2 * MS * k)
    assert pairer.pairer.apart_s is None


def test_legs_from_several_publishers_at_their_own_stamps() -> None:
    pairer = Pairer()
    front, rear = tuple(range(6)), tuple(range(6, 12))
    for k in range(100):
        pairer.imu(START + 2 * MS * k)
        pairer.joints(START + 2 * MS * k, front)
        if k % 3 == 0:
            pairer.joints(START + 2 * MS * k + MS, rear)
    assert len(pairer.samples) > 90
    for sample in pairer.samples[2:]:
        np.testing.assert_allclose(sample.joint_position, (sample.stamp_ns - START) / MS)
    assert pairer.pairer.exact + pairer.pairer.interpolated + pairer.pairer.held == len(pairer.samples)
    assert pairer.pairer.owners == [0] * 6 + [1] * 6


@pytest.mark.parametrize("joints_first", [True, False])
def test_joints_that_come_whole_only_after_a_pause_are_not_of_another_clock(joints_first: bool) -> None:
    """The last readings before the pause have waited through it, and are far from the joints' newest."""
    pairer = Pairer()
    for pause, slots in ((0, ALL[:-1]), (100_000 * MS, ALL)):
        for k in range(50):
            stamp = START + pause + 2 * MS * k
            if joints_first:
                pairer.joints(stamp, slots)
            pairer.imu(stamp)
            if not joints_first:
                pairer.joints(stamp, slots)
    assert len(pairer.samples) == 50
    assert pairer.pairer.apart_s is None
    assert pairer.tally.counts == {"imu_before_joints": 50}


def test_when_one_leg_falls_silent_nothing_is_made_up() -> None:
    pairer = Pairer(joint_timeout=0.02)
    legs = [tuple(range(3 * leg, 3 * leg + 3)) for leg in range(4)]
    for k in range(200):
        pairer.imu(START + 2 * MS * k)
        for leg, slots in enumerate(legs):
            if leg != 2 or k < 50:
                pairer.joints(START + 2 * MS * k, slots)
    assert pairer.pairs()[-1][0] == 2 * 49 + 20
    assert pairer.tally.counts["imu_without_joints"] > 50


def test_torque_of_some_legs_only_is_no_torque() -> None:
    pairer = Pairer()
    pairer.joints(START, tuple(range(6)), torque=False)
    pairer.joints(START, tuple(range(6, 12)))
    pairer.imu(START)
    assert pairer.samples[0].joint_torque is None
    assert pairer.samples[0].joint_velocity is not None


def test_a_second_publisher_of_the_same_joints_is_not_listened_to_until_the_first_is_silent() -> None:
    pairer = Pairer()
    leg = tuple(range(3))
    for k in range(100):
        pairer.imu(START + 2 * MS * k)
        assert pairer.joints(START + 2 * MS * k)
        assert not pairer.joints(START + 2 * MS * k + MS, leg)
    assert len(pairer.samples) == 100
    accepted = [pairer.joints(START + 1500 * MS + 2 * MS * k, leg) for k in range(40)]
    assert accepted == [False] * 19 + [True] * 21
    assert pairer.pairer.owners == [0] * 3 + [None] * 9


def test_a_publisher_of_all_replaces_one_that_lacked_some_at_once() -> None:
    pairer = Pairer()
    for k in range(10):
        pairer.joints(START + 2 * MS * k, ALL[:-1])
        pairer.imu(START + 2 * MS * k)
    assert not pairer.samples
    for k in range(10, 20):
        assert pairer.joints(START + 2 * MS * k)
        pairer.imu(START + 2 * MS * k)
    assert pairer.pairs() == [(2 * k, 2 * k) for k in range(10, 20)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["imu", "all", "front", "leg"]), st.integers(1, 60)), max_size=300))
def test_any_stream_gives_increasing_stamps_and_nothing_stale(messages: list[tuple[str, int]]) -> None:
    pairer = Pairer()
    now = dict.fromkeys(("imu", "all", "front", "leg"), START)
    slots = {"all": ALL, "front": tuple(range(6)), "leg": tuple(range(3, 6))}
    for what, ms in messages:
        now[what] += ms * MS
        if what == "imu":
            pairer.imu(now[what])
        else:
            pairer.joints(now[what], slots[what])
    stamps = [sample.stamp_ns for sample in pairer.samples]
    assert stamps == sorted(set(stamps))
    for sample in pairer.samples:
        assert (np.abs(sample.joint_position - (sample.stamp_ns - START) / MS) <= 50 + 1e-9).all()


def test_memory_is_bounded_when_one_stream_is_silent() -> None:
    alone = Pairer()
    for k in range(20000):
        alone.imu(START + 2 * MS * k)
    assert len(alone.pairer._waiting) < 100
    alone = Pairer()
    for k in range(20000):
        alone.joints(START + 2 * MS * k)
    assert len(alone.pairer._publishers[ALL].stamps) < 600
    for k in range(20000):  # stamps that hardly advance
        alone.joints(START + 40_000 * MS + k)
    assert len(alone.pairer._publishers[ALL].stamps) <= 4001


# -- late joints --


@pytest.mark.parametrize("delay_ms", [12, 5, -6])
def test_late_joints_are_put_back(delay_ms: int) -> None:
    """Whichever arrives first, a sample has the joints that were stamped later by the delay."""
    runs = []
    for joints_first in (True, False):
        pairer = Pairer(joint_delay=delay_ms / 1e3)
        for stamp in range(START, START + 200 * MS, 2 * MS):
            first, second = (pairer.joints, pairer.imu) if joints_first else (pairer.imu, pairer.joints)
            first(stamp)
            second(stamp)
        runs.append(pairer.pairs())
        assert not set(pairer.tally.counts) - {"imu_before_joints"}
    assert runs[0] == runs[1]
    assert all(joints == imu + delay_ms for imu, joints in runs[0])
    assert len(runs[0]) >= 100 - abs(delay_ms)


def test_an_imu_reading_waits_for_late_joints_as_long_as_for_others_and_the_delay_besides() -> None:
    pairer = Pairer(joint_delay=0.05, joint_wait=0.02)
    for stamp in range(START, START + 100 * MS, 2 * MS):
        pairer.joints(stamp)
        pairer.imu(stamp)
    assert pairer.pairs() == [(ms, ms + 50) for ms in range(0, 50, 2)]


def test_clocks_that_differ_are_told_as_they_are_stamped() -> None:
    pairer = Pairer(joint_delay=0.05)
    for stamp in range(START, START + 300 * MS, 2 * MS):
        pairer.joints(stamp + 100_000 * MS)
        pairer.imu(stamp)
    assert pairer.pairer.apart_s == pytest.approx(100.0, abs=0.3)
