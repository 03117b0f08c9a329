"""A watch over a walk tells joints that are a hundredth of a second late, and says nothing of those that are not."""

from __future__ import annotations

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
    assert watched(go2, again_and_again(replace(late, joint_velocity=None))).late
    # Some samples have them, some have not.
    mixed = (replace(s, joint_velocity=None) if n % 7 == 0 else s for n, s in enumerate(again_and_again(late)))
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
    for sample in again_and_again(walk, 2):
        calls.clear()
        watch.update(sample)
        most, total = max(most, len(calls)), total + len(calls)
    assert most == 1
    assert total % 3 == 0 and FEWEST_LOOKS < total / 3 < walk.duration_s
    assert np.isfinite(watch.shares).all()
