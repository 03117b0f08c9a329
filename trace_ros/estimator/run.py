"""A whole log through an estimator, sample by sample, exactly as on the robot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.estimator.interface import Estimator
from trace_ros.estimator.joint_delay import joint_delay_of, with_joints_at_their_time
from trace_ros.estimator.observation import WINDOW
from trace_ros.logs import SensorLog, Trajectory

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class EstimatedRun:
    """What an estimator made of a log.

    Attributes:
        trajectory: M poses with covariance; M is at most N - 29 for a log of N samples.
        attention: (M, 6) head-mean attention over accel, gyro, FL, FR, RL, RR; None from an estimator without.
        stationary: (M,) whether the pose was held.
        step_time_s: (M,) wall time of each step, s.
    """

    trajectory: Trajectory
    attention: FloatArray | None
    stationary: NDArray[np.bool_]
    step_time_s: FloatArray


def too_short(log: SensorLog, given: SensorLog) -> str:
    """Why a log is too short for a first estimate; empty where it is not.

    Args:
        log: what the estimator is to be given.
        given: what that was made of, with the samples that putting joint readings back leaves without any.
    """
    if len(log) >= WINDOW:
        return ""
    lost = len(given) - len(log)
    without = f" with joint readings, and {lost} that have none once they are put back" if lost else ""
    return f"the log has {len(log)} samples{without}; the estimator needs at least {WINDOW} for its first estimate"


def run_estimator(
    estimator: Estimator,
    log: SensorLog,
    initial_pose: tuple[FloatArray, FloatArray] | None = None,
    progress: Callable[[int], None] | None = None,
    joint_delay: float | None = None,
) -> EstimatedRun:
    """Reset the estimator and step it through a log.

    Args:
        estimator: its state is that of the log's end afterwards.
        log: N samples.
        initial_pose: position (3,) m and orientation (4,) quaternion x, y, z, w of the first estimate; None starts at
            the origin, level by the log's own gravity direction.
        progress: called now and then with the number of samples done.
        joint_delay: s; how late joint readings are, so that each IMU reading is given those of its own time; None: as
            late as the estimator knows them to be.

    Raises:
        TraceError: the log is too short, or too full of gaps, to fill the window once.
    """
    given, delay = log, joint_delay_of(estimator) if joint_delay is None else joint_delay
    log = with_joints_at_their_time(given, delay)
    if fault := too_short(log, given):
        raise TraceError(fault)
    estimator.reset()
    if initial_pose is not None:
        estimator.set_pose(*initial_pose)
    estimates = []
    times = []
    for index, sample in enumerate(log):
        begin = time.perf_counter()
        estimate = estimator.step(sample)
        elapsed = time.perf_counter() - begin
        if estimate is not None:
            estimates.append(estimate)
            times.append(elapsed)
        if progress is not None and index % 500 == 499:
            progress(index + 1)
    if not estimates:
        raise TraceError("the log has gaps so often that the window never filled: no estimate was made")
    trajectory = Trajectory(
        np.array([estimate.stamp_ns for estimate in estimates], dtype=np.int64),
        np.array([estimate.position for estimate in estimates]),
        np.array([estimate.orientation for estimate in estimates]),
        np.array([estimate.velocity for estimate in estimates]),
        np.array([estimate.angular_velocity for estimate in estimates]),
        np.array([estimate.pose_covariance for estimate in estimates]),
    )
    return EstimatedRun(
        trajectory,
        np.array([estimate.attention for estimate in estimates], dtype=float)
        if "attention" in estimator.outputs
        else None,
        np.array([estimate.stationary for estimate in estimates]),
        np.array(times),
    )
