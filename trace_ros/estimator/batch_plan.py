"""What a whole log gives the network, worked out before the network runs: all that its own output does not feed back.

That is every step of `TraceEstimator` but roll, pitch and velocity: which samples are steps as they are, which are
bridged or resampled, where windows start anew, the observations, and whether the robot stands still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator import observation as obs
from trace_ros.estimator.differentiation import JointDifferentiator
from trace_ros.estimator.feet import FOOT_POSITION, FootChannels
from trace_ros.estimator.gyro_bias import gyro_biases
from trace_ros.estimator.recurrence import recurrence
from trace_ros.geometry import GRAVITY
from trace_ros.logs import FloatArray, IntArray, Sample, SensorLog
from trace_ros.robot import RobotDescription, StationaryThresholds
from trace_ros.streams.intervals import GridResampler, Interval, IntervalPlanner, between, usual_interval

_JUDGED = 8
"""Intervals after which `IntervalPlanner` tells the usual one anew, from the last 32."""
_USUAL = 32

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rate:
    """What intervals a network knows.

    Attributes:
        nominal_s: its own.
        known_s: shortest and longest of a stream that it follows sample by sample.
        trained_s: shortest and longest single one that it is told.
        max_gap_s: over longer ones nothing is interpolated.
    """

    nominal_s: float
    known_s: tuple[float, float]
    trained_s: tuple[float, float]
    max_gap_s: float


@dataclass(frozen=True)
class Steps:
    """A row for each time that the window takes in a sample.

    Attributes:
        stamp_ns: (M,).
        dt: (M,) s since the row before.
        told_dt: (M,) s; what the network is told of it.
        observation: (M, 47) float32; what is fed back is zero.
        gyro: (M, 3) rad/s, without its bias.
        still: (M,) whether the stationary clamp holds.
        begins: rows at which a window starts anew, the first included.
        bridged: s that are bridged, by the first row of the bridge.
        sample: (M,) which of the log's samples the row gives the estimate for; -1: for none.
        foot_position: (M, 12) m, body frame; None where nobody asked.
    """

    stamp_ns: IntArray
    dt: FloatArray
    told_dt: FloatArray
    observation: NDArray[np.float32]
    gyro: FloatArray
    still: Flags
    begins: tuple[int, ...]
    bridged: dict[int, float]
    sample: IntArray
    foot_position: FloatArray | None = None

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """For each window: its first row, the first row that the network steps at, and the end; possibly no steps."""
        ends = (*self.begins[1:], len(self.dt))
        return [(begin, min(begin + obs.WINDOW - 1, end), end) for begin, end in zip(self.begins, ends, strict=True)]


def plan_steps(
    log: SensorLog,
    rate: Rate,
    robot: RobotDescription,
    absent_torque: NDArray[np.float32],
    feet: FootChannels | None = None,
    legs: FootChannels | None = None,
) -> Steps:
    """The rows of a log.

    Args:
        log: N samples, at least one.
        rate: of the network.
        robot: whose stationary clamp and legs these are.
        absent_torque: (12,) what stands in the observation for torque that is not reported.
        feet: tells of the feet where the network is told of them instead of the joints.
        legs: tells where the feet are, if that is asked for.
    """
    elapsed = np.diff(log.stamp_ns) * 1e-9
    gap = np.concatenate(([False], elapsed > rate.max_gap_s))
    rows = _Rows(log)
    if _all_plain(elapsed[~gap[1:]], rate):
        rows.take(0, len(log), np.concatenate(([rate.nominal_s], elapsed)))
        begins = [0, *np.flatnonzero(gap).tolist()]
    else:
        begins = _walk(log, rate, elapsed, rows)
    return rows.steps(rate, robot, absent_torque, begins, feet, legs)


def _all_plain(elapsed: FloatArray, rate: Rate) -> bool:
    """Whether `IntervalPlanner` takes every interval (s, gaps left out) for a step as it is.

    Told from its usual intervals, with margins to what would change its mind; otherwise it is asked itself.
    """
    learned = np.concatenate(([rate.nominal_s], elapsed))
    shortest, longest = rate.known_s
    if learned[:_JUDGED].max() > longest:
        return False
    early = range(_JUDGED, min(_USUAL, learned.size + 1), _JUDGED)
    usual = [usual_interval(learned[:judged].tolist()) for judged in early]
    if learned.size >= _USUAL:
        windows = np.lib.stride_tricks.sliding_window_view(learned, _USUAL)[::_JUDGED]
        ordered = np.sort(windows, axis=1)
        median = ordered[:, _USUAL // 2]
        if (12 * (ordered > 4 * median[:, None]).sum(axis=1) >= _USUAL).any():
            return False
        usual += median.tolist()
    of_block = np.array(usual)
    if of_block.size and not (shortest <= of_block.min() and of_block.max() <= longest):
        return False
    ratio = learned[_JUDGED - 1 :] / np.repeat(of_block, _JUDGED)[: max(learned.size - _JUDGED + 1, 0)]
    return not ratio.size or bool(ratio.min() > 0.26 and ratio.max() < 1.59)


def _walk(log: SensorLog, rate: Rate, elapsed: FloatArray, rows: _Rows) -> list[int]:
    """Sample by sample, where the intervals ask for it; returns the rows at which windows start anew."""
    planner, grid = IntervalPlanner(rate.known_s, rate.nominal_s, rate.max_gap_s), GridResampler(rate.nominal_s)
    begins, plain_from = [0], 0
    planner.plan(rate.nominal_s)
    for index, dt in enumerate(elapsed.tolist(), start=1):
        plan: Interval = planner.plan(dt)
        if plan.kind != "resample":
            grid.reset()
        if plan.kind == "step" and plan.steps == 1:
            continue
        rows.plain(plain_from, index)
        plain_from = index
        if plan.kind == "gap":
            begins.append(len(rows))
            rows.take(index, index + 1, np.array([dt]))
            plain_from = index + 1
            continue
        before, sample = log.sample(index - 1), log.sample(index)
        if plan.kind == "resample":
            made = grid.push(before, sample, planner.usual_s)
            rows.made(made, None, index)
        else:
            dt = (sample.stamp_ns - rows.last_ns) * 1e-9
            rows.bridged[len(rows)] = dt
            bridge = [between(before, sample, step / plan.steps) for step in range(1, plan.steps)]
            rows.made([*bridge, sample], dt / plan.steps, index)
        plain_from = index + 1
    rows.plain(plain_from, len(log))
    return begins


class _Rows:
    """Gathers rows."""

    def __init__(self, log: SensorLog) -> None:
        self._log = log
        self._velocity = _table(log.joint_velocity, log.joint_position)
        self._torque = _table(log.joint_torque, log.joint_position)
        self._parts: list[tuple[IntArray, FloatArray, FloatArray, IntArray]] = []
        self._rows = 0
        self.bridged: dict[int, float] = {}
        self.last_ns = 0

    def __len__(self) -> int:
        return self._rows

    def take(self, start: int, stop: int, dt: FloatArray) -> None:
        """Samples of the log as they are, with the time before each."""
        log, part = self._log, slice(start, stop)
        values = (
            log.angular_velocity[part],
            log.linear_acceleration[part],
            log.joint_position[part],
            self._velocity[part],
            self._torque[part],
        )
        self._add(log.stamp_ns[part], np.concatenate(values, axis=1), dt, np.arange(start, stop))

    def plain(self, start: int, stop: int) -> None:
        """Samples of the log as they are, each after the row before."""
        if stop > start:
            before = self.last_ns if self._rows else self._log.stamp_ns[start]
            dt = np.diff(self._log.stamp_ns[start:stop], prepend=before) * 1e-9
            self.take(start, stop, dt)

    def made(self, samples: list[Sample], dt: float | None, index: int) -> None:
        """Samples that are made for one of the log; the last of them gives its estimate. ``dt``: see `take`."""
        for place, sample in enumerate(samples):
            absent = np.full(len(sample.joint_position), np.nan)
            values = (
                sample.angular_velocity,
                sample.linear_acceleration,
                sample.joint_position,
                absent if sample.joint_velocity is None else sample.joint_velocity,
                absent if sample.joint_torque is None else sample.joint_torque,
            )
            since = (sample.stamp_ns - self.last_ns) * 1e-9 if dt is None else dt
            wanted = index if place == len(samples) - 1 else -1
            self._add(np.array([sample.stamp_ns]), np.concatenate(values)[None], np.array([since]), np.array([wanted]))

    def _add(self, stamp_ns: IntArray, values: FloatArray, dt: FloatArray, sample: IntArray) -> None:
        self._parts.append((stamp_ns, values, dt, sample))
        self._rows += len(dt)
        self.last_ns = int(stamp_ns[-1])

    def steps(
        self,
        rate: Rate,
        robot: RobotDescription,
        absent_torque: NDArray[np.float32],
        begins: list[int],
        feet: FootChannels | None,
        legs: FootChannels | None,
    ) -> Steps:
        """All rows."""
        stamp_ns, values, dt, sample = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if begins[0] == 0 and len(dt):
            dt[0] = rate.nominal_s
        shortest, longest = rate.trained_s
        told_dt = np.where((shortest <= dt) & (dt <= longest), dt, rate.nominal_s)
        _differentiate_absent(values, dt)
        still = stationary(robot.stationary, stamp_ns, values[:, : obs.JOINT_VELOCITY.stop], begins)
        gyro = values[:, obs.GYRO]
        memory_s, joints = robot.stationary.gyro_bias_memory, values[:, obs.JOINT_POSITION]
        gyro -= gyro_biases(stamp_ns, gyro, joints, still, dt, memory_s, robot.kinematics)
        observation = np.zeros((len(dt), obs.OBSERVATION_SIZE), dtype=np.float32)
        observation[:, : obs.JOINT_TORQUE.stop] = values
        told = None if (either := feet or legs) is None else either.at(values[:, obs.JOINTS], gyro)
        if feet is not None:
            observation[:, obs.JOINTS] = told
        torque = observation[:, obs.JOINT_TORQUE]
        torque[np.isnan(torque[:, 0])] = absent_torque
        observation[:, obs.DT] = told_dt[:, None]
        standing = None if legs is None or told is None else told[:, FOOT_POSITION].copy()
        return Steps(
            stamp_ns, dt, told_dt, observation, gyro.copy(), still, tuple(begins), self.bridged, sample, standing
        )


def _table(values: FloatArray | None, like: FloatArray) -> FloatArray:
    return np.full(like.shape, np.nan) if values is None else values


def _differentiate_absent(values: FloatArray, dt: FloatArray) -> None:
    """Put velocities in the place of absent ones, as the estimator does."""
    velocity = values[:, obs.JOINT_VELOCITY]
    absent = np.isnan(velocity[:, 0])
    if not absent.any():
        return
    differentiator = JointDifferentiator()
    before = -1
    for row in np.flatnonzero(absent).tolist():
        if row != before + 1:
            differentiator.reset()
        velocity[row] = differentiator.update(values[row, obs.JOINT_POSITION], float(dt[row]))
        before = row


def stationary(thresholds: StationaryThresholds, stamp_ns: IntArray, readings: FloatArray, begins: list[int]) -> Flags:
    """What `StationaryDetector` says at each row. ``-> (M,)``.

    Args:
        thresholds: of the robot.
        stamp_ns: (M,).
        readings: (M, 30) of observations: gyro, specific force, joint positions (not looked at) and velocities.
        begins: rows at which it forgets the past.
    """
    used = np.concatenate((readings[:, : obs.ACCEL.stop], readings[:, obs.JOINT_VELOCITY]), axis=1)
    fresh = np.zeros(len(stamp_ns), dtype=bool)
    fresh[begins] = True
    if thresholds.smoothing > 0:
        weight = 1.0 - np.exp(-np.diff(stamp_ns, prepend=stamp_ns[:1]) * 1e-9 / thresholds.smoothing)
        weight[fresh] = 1.0
        used = recurrence(1.0 - weight, weight[:, None] * used)
    still = (
        (np.sqrt((used[:, :3] ** 2).sum(axis=1)) < thresholds.angular_velocity)
        & (np.abs(np.sqrt((used[:, 3:6] ** 2).sum(axis=1)) - GRAVITY) < thresholds.acceleration)
        & (np.abs(used[:, 6:]).max(axis=1) < thresholds.joint_velocity)
    )
    rows = np.arange(len(still))
    since = np.maximum.accumulate(np.where(~still | fresh, rows, 0))
    # A dwell begins at the first still row: the one after a moving one, or a fresh start itself.
    since = np.where(still[since], since, np.minimum(since + 1, rows))
    result: Flags = still & (stamp_ns - stamp_ns[since] >= round(thresholds.dwell * 1e9))
    return result
