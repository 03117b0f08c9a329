"""The level and the words of a report follow from the counts."""

from __future__ import annotations

import pytest

from trace_ros.nodes import diagnostics
from trace_ros.nodes.diagnostics import ERROR, OK, STALE, WARN, EstimatorStatistics, InputStatistics, Situation


@pytest.fixture
def statistics() -> EstimatorStatistics:
    return EstimatorStatistics(InputStatistics("/imu/data"), InputStatistics("/joint_states"))


def situation(now_s: float, drops: dict[str, int] | None = None) -> Situation:
    return Situation(now_s, 1.0, 0.1, drops or {}, {"/imu/data": 1}, {"robot": "go2"})


def run(statistics: EstimatorStatistics, start_s: float, seconds: float = 1.0) -> None:
    for k in range(round(seconds * 500)):
        statistics.imu.arrived(start_s + k * 0.002)
        statistics.joints.arrived(start_s + k * 0.002)
        statistics.odometry_messages += 1
        statistics.step_time_s.append(0.0004)
        statistics.latency_s.append(0.001)


def test_nothing_received_names_the_topics_and_their_publishers(statistics: EstimatorStatistics) -> None:
    level, message, values = diagnostics.report(statistics, situation(5.0))
    assert level == STALE
    assert message == "no message on /imu/data yet (1 publisher); no message on /joint_states yet (0 publishers)"
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
    level, message, values = diagnostics.report(statistics, situation(2.0))
    assert level == STALE
    assert "no message on /imu/data for 1.0 s" in message
    assert values["imu rate (Hz)"] == "0.0"
    assert values["odometry messages"] == "500"


def test_drops_and_jumps_warn_once_each_and_stay_counted(statistics: EstimatorStatistics) -> None:
    run(statistics, 0.0)
    statistics.drops["imu_not_finite"] += 3
    level, message, _ = diagnostics.report(statistics, situation(1.0, {"imu_repeated": 2}))
    assert (level, message) == (WARN, "dropped 3 imu_not_finite, 2 imu_repeated")
    run(statistics, 1.0)
    statistics.time_jumps += 1
    level, message, values = diagnostics.report(statistics, situation(2.0, {"imu_repeated": 2}))
    assert (level, message) == (WARN, "time jumped back: the estimator started anew")
    run(statistics, 2.0)
    level, _, values = diagnostics.report(statistics, situation(3.0, {"imu_repeated": 2}))
    assert level == OK
    assert values["dropped: imu_not_finite"] == "3"
    assert values["dropped: imu_repeated"] == "2"
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
