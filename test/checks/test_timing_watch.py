"""A watch over a walk tells joints that are a hundredth of a second late, and says nothing of those that are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from trace_ros.checks import timing_watch
from trace_ros.checks.timing_watch import EVERY_S, FEWEST_LOOKS, TimingWatch
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.logs import Sample, SensorLog
from trace_ros.robot import RobotDescription


def again_and_again(log: SensorLog, times: int = 2, pause_s: float = 0.5) -> Iterator[Sample]:
    """A log as it would come if the robot walked it several times, with pauses in between."""
    span = int(log.stamp_ns[-1] - log.stamp_ns[0] + pause_s * 1e9)
    for number in range(times):
        yield from replace(log, stamp_ns=log.stamp_ns + number * span)


def watched(go2: RobotDescription, samples: Iterator[Sample]) -> TimingWatch:
    watch = TimingWatch(go2)
    for sample in samples:
        watch.update(sample)
    return watch


@pytest.mark.parametrize(
    ("late_s", "expected"),
    [
        (0.012, (True, False)),
        (0.02, (True, False)),
        (-0.012, (False, True)),
        (0.0, (False, False)),
        (0.003, (False, False)),
    ],
)
def test_what_is_late_is_told(
    walk: SensorLog, go2: RobotDescription, late_s: float, expected: tuple[bool, bool]
) -> None:
    watch = watched(go2, again_and_again(with_joints_at_their_time(walk, -late_s), 3))
    assert (watch.late, watch.early) == expected
    assert watch.shares is not None and watch.shares.argmax() == (1 if watch.late else 2 if watch.early else 0)
    older = {(True, False): "joint readings seem", (False, True): "IMU readings seem", (False, False): ""}[expected]
    assert watch.text.startswith(older) and bool(watch.text) == any(expected)
    if watch.late:
        assert "with joints 12 ms later the feet agree" in watch.text


def test_velocities_that_are_not_reported_are_derived(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.015)
    assert watched(go2, again_and_again(replace(late, joint_velocity=None), 4)).late
    # Some samples have them, some have not.
    mixed = (replace(s, joint_velocity=None) if n % 7 == 0 else s for n, s in enumerate(again_and_again(late, 4)))
    assert watched(go2, mixed).late


def test_nothing_is_told_before_there_is_enough(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.012)
    assert walk.duration_s < FEWEST_LOOKS * EVERY_S
    watch = watched(go2, again_and_again(late, 1))
    assert watch.shares is None and not watch.text
    watch.reset()
    for sample in again_and_again(late, 1):
        watch.update(sample)
    assert watch.shares is None and not watch.text


def test_what_changes_while_the_robot_walks_is_told_soon(walk: SensorLog, go2: RobotDescription) -> None:
    """A driver that is started again, or a clock that drifts: what was before must not outvote it for minutes."""
    watch, late, told = TimingWatch(go2), with_joints_at_their_time(walk, -0.014), []
    turns = [walk] * 8 + [late] * 8 + [walk] * 8
    for index, log in enumerate(turns):
        for sample in replace(log, stamp_ns=log.stamp_ns + index * 16_000_000_000):
            watch.update(sample)
        told.append(watch.late)
    assert not any(told[:8])
    assert told[14:16] == [True, True]  # after 90 s, of which the robot stands 20
    assert told[22:] == [False, False]
    assert sum(a != b for a, b in itertools.pairwise(told)) == 2


@pytest.mark.parametrize("pause_every_s", [1.9, 4.0, 9.0])
def test_pauses_neither_silence_nor_freeze_it(walk: SensorLog, go2: RobotDescription, pause_every_s: float) -> None:
    """A tenth of a second is missing now and then."""

    def spoilt(samples: Iterator[Sample]) -> Iterator[Sample]:
        shift, last = 0, None
        for sample in samples:
            last = sample.stamp_ns if last is None else last
            if sample.stamp_ns - last > pause_every_s * 1e9:
                shift, last = shift + 120_000_000, sample.stamp_ns
            yield replace(sample, stamp_ns=sample.stamp_ns + shift)

    assert watched(go2, spoilt(again_and_again(with_joints_at_their_time(walk, -0.014), 6))).late


def test_what_is_told_holds_until_it_is_clearly_over(go2: RobotDescription) -> None:
    """Shares near the threshold must not make it come and go."""
    watch, rng = TimingWatch(go2), np.random.default_rng(0)

    def look(gain: float) -> bool:
        watch._looks.append(np.array((0.27, 0.27 + gain + rng.normal(0, 0.005), 0.2)))
        if len(watch._looks) >= FEWEST_LOOKS:
            watch._judge()
        return watch.late

    assert [look(0.04) for _ in range(12)][-1]
    assert all(look(0.02) for _ in range(40))
    assert not [look(0.0) for _ in range(12)][-1]
    assert not any(look(0.02) for _ in range(40))


def test_legs_or_gyro_that_are_something_else_say_nothing_of_the_time(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.014)
    for turned in (-late.angular_velocity, late.angular_velocity[:, [1, 0, 2]] * (1, -1, 1)):
        assert not watched(go2, again_and_again(replace(late, angular_velocity=turned), 6)).text
    swapped = replace(late, joint_position=np.roll(late.joint_position, 3, axis=1), joint_velocity=None)
    assert not watched(go2, again_and_again(swapped, 6)).text


def test_readings_that_are_none_do_no_harm(walk: SensorLog, go2: RobotDescription) -> None:
    """And what is remembered has an end, however near the stamps."""
    samples = list(again_and_again(with_joints_at_their_time(walk, -0.014), 4))
    for number in range(0, len(samples), 900):
        samples[number] = replace(samples[number], angular_velocity=np.full(3, np.nan))
    assert watched(go2, iter(samples)).late
    watch = TimingWatch(go2)
    for number in range(5000):
        watch.update(replace(samples[0], stamp_ns=number))
    assert len(watch._samples) == timing_watch._MOST_SAMPLES


def test_a_robot_that_stands_tells_nothing(walk: SensorLog, go2: RobotDescription) -> None:
    standing = with_joints_at_their_time(walk.select(slice(0, 600)), -0.012)
    watch = watched(go2, again_and_again(standing, 40, 0.002))
    assert watch.shares is None and not watch.text


@pytest.mark.parametrize("step", [1, 5, 17, 40, 250])
def test_any_rate_and_stamps_that_go_back_or_repeat(walk: SensorLog, go2: RobotDescription, step: int) -> None:
    """No watch may end in an exception: it is the estimator's process."""
    watch = TimingWatch(go2)
    thinned = walk.select(slice(None, None, step))
    for _ in range(3):  # each time from the first stamp on
        for sample in thinned:
            watch.update(sample)
            watch.update(sample)
    assert not watch.text
    if step <= 5:  # a hundred samples a second are enough
        assert watched(go2, again_and_again(with_joints_at_their_time(thinned, -0.012), 3)).late


def test_a_call_compares_one_time_at_most(
    walk: SensorLog, go2: RobotDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look is spread over samples, which would come late otherwise."""
    calls: list[int] = []
    own = timing_watch.agreement
    monkeypatch.setattr(timing_watch, "agreement", lambda *given: (calls.append(1), own(*given))[1])
    watch, most, total = TimingWatch(go2), 0, 0
    for sample in again_and_again(walk, 3):
        calls.clear()
        watch.update(sample)
        most, total = max(most, len(calls)), total + len(calls)
    assert most == 1
    assert total % 3 == 0 and FEWEST_LOOKS <= total / 3 < walk.duration_s
    assert np.isfinite(watch.shares).all()
