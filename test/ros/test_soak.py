"""`trace soak`: what it computes from a run, and a short run of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trace_ros.cli.soak import judge
from trace_ros.nodes.estimator_process import own_memory_mb
from trace_ros.nodes.soak import SoakResult, SoakSample, _step_times, soak
from trace_ros.robot import RobotDescription


def result(growth_mb: float = 0.0, p99_end: float = 0.5, lost: int = 0, missing: int = 0) -> SoakResult:
    """Thirty minutes: memory settles in the first minute and grows evenly afterwards, p99 goes up in the last third."""
    samples = [
        SoakSample(
            float(t),
            300.0 + min(t, 60) / 10 + growth_mb * max(t - 60, 0) / 1740,
            0.2,
            0.3,
            math.nan if t < 5 else 0.5 if t < 1200 else p99_end,
        )
        for t in range(1, 1801)
    ]
    sent = 900_000
    return SoakResult(500.0, sent, (sent, sent - lost), sent - 29 - missing, sent - 29 - missing, {}, samples)


def test_a_good_run_passes() -> None:
    good = result()
    assert good.lost == good.without_odometry == good.lost_on_return == 0
    assert good.memory_growth_mb == pytest.approx(0.0, abs=0.01)
    assert good.p99_ratio == pytest.approx(1.0)
    assert all(passed for passed, _ in judge(good))
    assert json.dumps(good.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (result(growth_mb=3.0), "memory grew by 2.8"),
        (result(p99_end=0.9), "is 1.80 of the first's"),
        (result(lost=1), "1 of 1800000 messages lost"),
        (result(missing=2), "2 of 900000 samples gave no odometry"),
    ],
)
def test_a_bad_one_fails_by_name(bad: SoakResult, words: str) -> None:
    failed = [text for passed, text in judge(bad) if not passed]
    assert len(failed) == 1
    assert words in failed[0]


def test_step_times_are_read_from_diagnostics() -> None:
    assert _step_times("p50 0.31, p99 0.52, max 3.10") == (0.31, 0.52)
    assert all(map(math.isnan, _step_times("none yet")))


def test_a_processs_own_memory_is_without_mapped_files() -> None:
    status = (
        "Name:\ta b\nVmRSS:\t  5000 kB\nRssAnon:\t 1000 kB\nRssFile:\t 3900 kB\nRssShmem:\t 100 kB\nVmSwap:\t 20 kB\n"
    )
    assert own_memory_mb(status) == pytest.approx(1120 * 1024 / 1e6)
    assert own_memory_mb("Name:\tkthread\n") == 0.0


def test_a_short_run(robot: RobotDescription, model: Path) -> None:
    seen: list[SoakSample] = []
    found = soak(3.0, 100.0, robot, "go2", model, seen.append)
    assert found.sent == 300
    assert seen == found.samples
    assert all(sample.memory_mb > 50 for sample in seen)
    assert found.arrived[0] > 0
    assert found.received > 0
    assert any("active: waiting for" in line for line in found.log)
    assert not any("not finite" in line or "no odometry until" in line for line in found.log)
