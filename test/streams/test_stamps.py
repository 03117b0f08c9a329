"""Stamps of one stream: in order, without stamps, wild ones, new time lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.streams.kinds import KINDS, Tally
from trace_ros.streams.stamps import Stamper, StampOrder

MS = 1_000_000
START = 1_000_000 * MS
ARRIVAL = 1_700_000_000_000 * MS


class Order:
    """A stream whose messages are their own stamps."""

    def __init__(self, follow: bool = True) -> None:
        self.tally = Tally()
        self.jumps: list[tuple[int, int]] = []
        self.order = StampOrder("imu", self.tally, 500 * MS, follow, lambda *jump: self.jumps.append(jump))

    def admit(self, *stamps: int) -> list[int]:
        out = [item for stamp in stamps for item in self.order.admit(stamp, stamp)]
        assert all(stamp == message for stamp, message in out)
        return [stamp for stamp, _ in out]


def regular(count: int, start: int = START, step: float = 2.0) -> list[int]:
    return [start + round(step * MS * k) for k in range(count)]


def test_an_orderly_stream_passes() -> None:
    order = Order()
    assert order.admit(*regular(100)) == regular(100)
    assert not order.tally.counts
    assert order.order.usual_ns() == 2 * MS


def test_repeated_and_disordered_stamps_are_dropped_and_counted() -> None:
    order = Order()
    assert order.admit(START, START + 2, START + 2, START + 1, START + 4) == [START, START + 2, START + 4]
    assert order.tally.counts == {"imu_repeated": 1, "imu_disordered": 1}


@pytest.mark.parametrize("stray", [1, START - 900 * MS, START + 60_000 * MS, START + 10**9 * MS])
def test_one_wild_stamp_costs_one_message(stray: int) -> None:
    order = Order()
    stamps = regular(20)
    assert order.admit(*stamps[:10], stray, *stamps[10:]) == stamps
    assert order.tally.counts == {"imu_stray": 1}
    assert not order.jumps


def test_two_wild_stamps_apart_are_two_strays() -> None:
    order = Order()
    stamps = regular(20)
    assert order.admit(*stamps[:10], 5, START * 5, *stamps[10:]) == stamps
    assert order.tally.counts == {"imu_stray": 2}


def test_a_jump_back_is_a_new_time_line() -> None:
    order = Order()
    first, second = regular(10), regular(10, START - 900 * MS)
    assert order.admit(*first, *second) == [*first, *second]
    assert order.jumps == [(first[-1], second[0])]
    assert not order.tally.counts


def test_a_jump_back_is_waited_out_when_it_is_not_followed() -> None:
    order = Order(follow=False)
    assert order.admit(START, START - 900 * MS, START - 898 * MS, START + 2) == [START, START + 2]
    assert not order.jumps
    assert order.tally.counts == {"imu_disordered": 2}


def test_a_silence_is_a_gap_and_nothing_is_lost() -> None:
    order = Order()
    stamps = [*regular(20), *regular(20, START + 5_000 * MS)]
    assert order.admit(*stamps) == stamps
    assert order.tally.counts == {"imu_gap": 1}


def test_a_lost_message_is_a_gap_and_jitter_is_not() -> None:
    order = Order()
    jitter = np.random.default_rng(0).uniform(-0.5 * MS, 0.5 * MS, 200).astype(int)
    stamps = [stamp + int(shift) for stamp, shift in zip(regular(200), jitter, strict=True)]
    assert order.admit(*stamps) == stamps
    assert not order.tally.counts
    order.admit(stamps[-1] + 4 * MS)
    assert order.tally.counts == {"imu_gap": 1}


def test_stamps_in_packets_are_bursts_and_their_pauses_are_usual() -> None:
    order = Order()
    stamps = [START + 8 * MS * (k // 4) + 50_000 * (k % 4) for k in range(400)]
    assert order.admit(*stamps) == stamps
    assert order.order.usual_ns() == pytest.approx(2 * MS, rel=0.1)
    assert order.tally.counts["imu_burst"] > 250
    assert not order.tally.counts["imu_gap"]


def test_after_a_jump_elsewhere_leftovers_of_the_old_line_are_strays() -> None:
    order = Order()
    old, new = regular(20), regular(20, START - 60_000 * MS)
    order.admit(*old[:15])
    order.order.forget((old[-1], new[0]))
    assert order.admit(*old[15:], *new) == new
    assert order.tally.counts == {"imu_stray": 5}
    assert not order.jumps


def test_after_a_jump_elsewhere_the_first_of_the_new_line_may_be_waiting() -> None:
    order = Order()
    old, new = regular(20), regular(20, START - 60_000 * MS)
    order.admit(*old, new[0])
    order.order.forget((old[-1], new[0]))
    assert order.admit(*new[1:]) == new
    assert not order.tally.counts


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**62), max_size=60) | st.lists(st.integers(START, START + 3000 * MS), max_size=100))
def test_what_passes_increases_on_each_time_line(stamps: list[int]) -> None:
    order = Order()
    out, starts = [], []
    for stamp in stamps:
        before = len(order.jumps)
        passed = order.admit(stamp)
        if len(order.jumps) > before:
            starts.append(len(out))
        out += passed
    for begin, end in zip([0, *starts], [*starts, len(out)], strict=True):
        assert (np.diff(np.array(out[begin:end], dtype=object)) > 0).all()
    assert len(out) + sum(order.tally.counts[f"imu_{kind}"] for kind in ("repeated", "disordered", "stray")) in (
        len(stamps),
        len(stamps) - 1,  # the last one may be waiting
    )
    assert set(order.tally.counts) <= set(KINDS)


def stamp_all(stamps: list[int]) -> tuple[list[tuple[int, int]], Tally]:
    tally = Tally()
    stamper: Stamper[int] = Stamper("joints", tally)
    out = []
    for number, stamp in enumerate(stamps):
        out += stamper.stamp(stamp, ARRIVAL + number, number)
    return out, tally


def test_a_stream_without_stamps_gets_those_of_arrival_and_loses_nothing() -> None:
    out, tally = stamp_all([0] * 10)
    assert out == [(ARRIVAL + k, k) for k in range(10)]
    assert tally.counts == {"joints_restamped": 10}


def test_single_messages_without_stamp_are_dropped() -> None:
    out, tally = stamp_all([START, 0, START + 2, 0, 0, START + 4])
    assert out == [(START, 0), (START + 2, 2), (START + 4, 5)]
    assert tally.counts == {"joints_unstamped": 3}


def test_a_simulation_may_start_at_zero() -> None:
    out, tally = stamp_all([0, 2 * MS, 4 * MS])
    assert out == [(0, 0), (2 * MS, 1), (4 * MS, 2)]
    assert not tally.counts


def test_a_clock_that_comes_later_is_used_once_it_is_there() -> None:
    out, tally = stamp_all([0] * 6 + [START + k for k in range(8)])
    assert [stamp for stamp, _ in out] == [ARRIVAL + k for k in range(10)] + [START + k for k in range(4, 8)]
    assert tally.counts == {"joints_restamped": 10}
