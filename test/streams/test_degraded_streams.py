"""How much worse the odometry gets with lost messages and at other rates: by the relative error over 10 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from wire import feed, imu_message, in_order, joint_message, log_of, messages_of, samples_of

from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.evaluation.metrics import evaluate
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course
from trace_ros.streams import SensorStreams

ROBOT = RobotDescription.load("go2")
MOST = 1.5


@pytest.fixture(scope="module")
def walk() -> SensorLog:
    return simulate_course(Course.load("demo").model_copy(update={"duration": 30.0}), ROBOT, 3).measured


@pytest.fixture(scope="module")
def estimator() -> TraceEstimator:
    return TraceEstimator.load(models_directory() / "go2" / "trace.pt", ROBOT)


def error(estimator: TraceEstimator, walk: SensorLog, imu: list[Any], joints: list[Any]) -> float:
    """Mean relative error over 10 s (m) of what the messages give."""
    log = log_of(samples_of(feed(SensorStreams(ROBOT), in_order(imu, joints))), walk)
    assert walk.reference is not None
    found = evaluate(run_logs(estimator, [log])[0].trajectory, walk.reference)
    assert found.horizon_s == 10.0
    assert found.re_position_m is not None
    return found.re_position_m.mean


@pytest.fixture(scope="module")
def clean(walk: SensorLog, estimator: TraceEstimator) -> float:
    return error(estimator, walk, *messages_of(walk, ROBOT))


def test_a_tenth_of_both_topics_lost(walk: SensorLog, estimator: TraceEstimator, clean: float) -> None:
    rng = np.random.default_rng(0)
    imu, joints = ([message for message in stream if rng.random() >= 0.1] for stream in messages_of(walk, ROBOT))
    found = error(estimator, walk, imu, joints)
    print(f"a tenth of both lost: {found / clean:.2f}")
    assert found <= MOST * clean


def imu_at(log: SensorLog, rate_hz: float) -> list[Any]:
    """Means over the longer intervals, as an IMU of that rate gives them."""
    stamps = log.stamp_ns.astype(float)
    edges = np.concatenate(([stamps[0] - 2e6], stamps))
    times = np.arange(stamps[0] + 1e9 / rate_hz, stamps[-1], 1e9 / rate_hz)
    columns = []
    for values in (log.angular_velocity, log.linear_acceleration):
        total = np.concatenate((np.zeros((1, 3)), np.cumsum(values, axis=0)))
        at = [
            np.stack([np.interp(t, edges, column) for column in total.T], axis=1)
            for t in (times, times - 1e9 / rate_hz)
        ]
        columns.append((at[0] - at[1]) * (rate_hz / 500.0))
    return [imu_message(round(t), w.tolist(), a.tolist()) for t, w, a in zip(times, *columns, strict=True)]


def joints_at(log: SensorLog, rate_hz: float, phase_s: float) -> list[Any]:
    assert log.joint_velocity is not None
    assert log.joint_torque is not None
    stamps = log.stamp_ns.astype(float)
    times = np.arange(stamps[0] + phase_s * 1e9, stamps[-1], 1e9 / rate_hz)
    rows = [
        np.stack([np.interp(times, stamps, column) for column in values.T], axis=1).tolist()
        for values in (log.joint_position, log.joint_velocity, log.joint_torque)
    ]
    return [joint_message(round(t), ROBOT.joint_names, *row) for t, *row in zip(times, *rows, strict=True)]


@pytest.mark.parametrize(
    ("imu_hz", "joint_hz", "most"),
    [(400, 200, MOST), (500, 200, MOST), (1000, 500, MOST), (200, 100, MOST), (500, 50, 3.0), (100, 100, 3.0)],
)
def test_other_rates(
    walk: SensorLog, estimator: TraceEstimator, clean: float, imu_hz: float, joint_hz: float, most: float
) -> None:
    found = error(estimator, walk, imu_at(walk, imu_hz), joints_at(walk, joint_hz, 0.0007))
    print(f"IMU {imu_hz:g} Hz, joints {joint_hz:g} Hz: {found / clean:.2f}")
    assert found <= most * clean
