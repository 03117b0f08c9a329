"""The level and the words of a report follow from the counts."""

from __future__ import annotations

import numpy as np
import pytest

from trace_ros.nodes import diagnostics
from trace_ros.nodes.diagnostics import (
    ERROR,
    OK,
    STALE,
    WARN,
    EstimatorStatistics,
    InputStatistics,
    LevelHold,
    Situation,
)


@pytest.fixture
def statistics() -> EstimatorStatistics:
    return EstimatorStatistics(InputStatistics("/imu/data"), InputStatistics("/joint_states"))


def situation(now_s: float, counts: dict[str, int] | None = None, **more) -> Situation:
    publishers = {"/imu/data": "1 publisher: /driver", "/joint_states": "no publisher"}
    return Situation(now_s, 1.0, 0.1, counts or {}, publishers, {"robot": "go2"}, **more)


def run(statistics: EstimatorStatistics, start_s: float, seconds: float = 1.0) -> None:
    for k in range(round(seconds * 500)):
        # By stamp, both are half as fast as by arrival.
        statistics.imu.arrived(start_s + k * 0.002, round((2 * start_s + k * 0.004) * 1e9))
        statistics.joints.arrived(start_s + k * 0.002, round((2 * start_s + k * 0.004) * 1e9))
        statistics.odometry_messages += 1
        statistics.step_time_s.append(0.0004)
        statistics.latency_s.append(0.001)


def test_nothing_received_names_the_topics_and_their_publishers(statistics: EstimatorStatistics) -> None:
    level, message, values = diagnostics.report(statistics, situation(5.0))
    assert level == STALE
    assert message == (
        "no message on /imu/data yet (1 publisher: /driver); no message on /joint_states yet (no publisher)"
    )
    assert values["imu age (s)"] == "never received"
    assert values["step time (ms)"] == "none yet"


def test_a_healthy_run_then_silence(statistics: EstimatorStatistics) -> None:
    run(statistics, 0.0)
    level, message, values = diagnostics.report(statistics, situation(1.0))
    assert (level, message) == (OK, "estimating")
    assert values["imu rate (Hz)"] == values["odometry rate (Hz)"] == "500.0"
    assert values["imu age (s)"] == "0.002"
    assert values["step time (ms)"] == "p50 0.40, p99 0.40, max 0.40"
    assert values["robot"] == "go2"
    run(statistics, 1.0)
    level, _, values = diagnostics.report(statistics, situation(2.0, now_ns=4_500_000_000))
    assert level == OK
    assert values["imu rate by stamp (Hz)"] == "250.0"
    assert values["imu age by stamp (s)"] == values["joint_states age by stamp (s)"] == "0.504"
    level, message, values = diagnostics.report(statistics, situation(3.0))
    assert level == STALE
    assert "no message on /imu/data for 1.0 s" in message
    assert values["imu rate (Hz)"] == "0.0"
    assert values["odometry messages"] == "1000"
    assert values["imu rate by stamp (Hz)"] == "unknown"


def test_drops_and_jumps_warn_once_each_and_stay_counted(statistics: EstimatorStatistics) -> None:
    counts = {"imu_repeated": 2, "joints_velocity_missing": 4, "imu_before_joints": 7}
    run(statistics, 0.0)
    statistics.drops["step_failed"] += 3
    level, message, _ = diagnostics.report(statistics, situation(1.0, counts))
    # Messages before the other topic's first are nothing to be warned of.
    assert (level, message) == (WARN, "dropped 2 imu_repeated, 3 step_failed; repaired 4 joints_velocity_missing")
    run(statistics, 1.0)
    statistics.time_jumps += 1
    level, message, values = diagnostics.report(statistics, situation(2.0, counts))
    assert (level, message) == (WARN, "time jumped back: the estimator started anew")
    run(statistics, 2.0)
    level, _, values = diagnostics.report(statistics, situation(3.0, counts))
    assert level == OK
    assert values["dropped: step_failed"] == "3"
    assert values["dropped: imu_repeated"] == "2"
    assert values["dropped: imu_before_joints"] == "7"
    assert values["repaired: joints_velocity_missing"] == "4"
    assert values["time jumps"] == "1"


def test_a_fault_outweighs_all_else(statistics: EstimatorStatistics) -> None:
    statistics.fault = "joint names missing"
    assert diagnostics.report(statistics, situation(1.0, {"imu_repeated": 1}))[:2] == (ERROR, "joint names missing")


def test_inputs_without_odometry_warn(statistics: EstimatorStatistics) -> None:
    statistics.imu.arrived(0.99)
    statistics.joints.arrived(0.99)
    level, message, _ = diagnostics.report(statistics, situation(1.0))
    assert level == WARN
    assert "gave no odometry yet" in message


def test_faults_and_warnings_of_the_situation(statistics: EstimatorStatistics) -> None:
    run(statistics, 0.0)
    level, message, _ = diagnostics.report(statistics, situation(1.0, warnings=["two nodes"]))
    assert (level, message) == (WARN, "two nodes")
    statistics.fault = "joint names missing"
    level, message, _ = diagnostics.report(statistics, situation(2.0, faults=["upside down"], warnings=["two nodes"]))
    assert (level, message) == (ERROR, "joint names missing; upside down")


def test_an_estimator_that_does_not_keep_up_warns(statistics: EstimatorStatistics) -> None:
    for second in range(2):
        run(statistics, float(second))
        statistics.step_time_s.extend([0.006] * 2000)
        level, message, _ = diagnostics.report(statistics, situation(second + 1.0))
    assert (level, message) == (WARN, "a step takes 6.00 ms, longer than the IMU's 4.00 ms")


def test_a_level_gets_worse_at_once_and_better_after_a_while() -> None:
    hold = LevelHold()
    assert hold.update(0.0, STALE, "nothing yet", 2.0) == (STALE, "nothing yet")
    assert hold.update(0.5, OK, "estimating", 2.0) == (OK, "estimating")  # nothing had worked before it
    assert hold.update(1.0, WARN, "dropped", 2.0) == (WARN, "dropped")
    assert hold.update(1.5, OK, "estimating", 2.0) == (WARN, "dropped (over since 0.0 s)")
    assert hold.update(2.5, OK, "estimating", 2.0) == (WARN, "dropped (over since 1.0 s)")
    assert hold.update(3.0, WARN, "again", 2.0) == (WARN, "again")
    assert hold.update(4.5, OK, "estimating", 2.0)[0] == WARN
    assert hold.update(6.5, OK, "estimating", 2.0) == (OK, "estimating")
    assert hold.update(7.0, ERROR, "broken", 2.0) == (ERROR, "broken")
    # STALE is less bad than ERROR, whatever the numbers say.
    assert hold.update(7.5, STALE, "silent", 2.0)[0] == ERROR
    assert hold.update(9.5, STALE, "silent", 2.0) == (STALE, "silent")
    assert hold.update(9.6, OK, "estimating", 0.0) == (OK, "estimating")


def test_the_usual_rate_is_that_of_the_sender_whatever_is_lost() -> None:
    stream = InputStatistics("/imu/data")
    rng = np.random.default_rng(0)
    for k in range(400):
        if rng.random() < 0.6 or k == 0:
            stream.arrived(0.0, k * 2_000_000)
        if k == 150:
            assert stream.usual_rate_hz() is None
    assert stream.usual_rate_hz() == pytest.approx(500.0)


def test_the_rate_of_a_slow_stream_is_known_after_five_intervals() -> None:
    stream = InputStatistics("/imu/data")
    for k in range(6):
        assert stream.usual_rate_hz() is None
        stream.arrived(0.0, 1_000_000_000 * k)
    assert stream.usual_rate_hz() == pytest.approx(1.0)
