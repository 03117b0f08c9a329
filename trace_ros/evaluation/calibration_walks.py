"""Walks to calibrate on: the estimator goes once over each log, and of it stays what judging the covariance needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.spatial.transform import Rotation

from trace_ros.errors import FallError, TraceError
from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.recurrence import recurrence
from trace_ros.estimator.run import EstimatedRun
from trace_ros.evaluation.courses import CourseRun, course_log
from trace_ros.geometry import FloatArray
from trace_ros.logs import SensorLog
from trace_ros.resources import read_yaml
from trace_ros.robot import RobotDescription, describe_validation_error

Positive = Annotated[float, Field(gt=0)]

_NO_SHOCK = 1e-9
"""rad^2/s^4; less is none."""


class CalibrationSettings(BaseModel):
    """How the covariance is judged, and fitted.

    Attributes:
        horizon_s: s; time over which the relative pose is judged.
        fit_horizons_s: s; times over which relative poses are fitted.
        shown_horizons_s: s; for the picture of the growth.
        stride_s, fit_stride_s: s; between two starts of relative poses that are judged, or fitted.
        warm_up_s: s; left out at the beginning, while the network settles.
        samples_per_step: of the estimator, in one step of the covariance.
        twist_stride: each how manieth sample's twist is judged.
        slow_times_s: s; tried for the slow part of the velocity's error.
        usual_heave: quantile of the heaving for its shocks, of all that is fitted, that counts as firm ground; 1: all.
        doubt_time_s, yield_time_s, yaw_rate_time_s, tilt_time_s: s; taken as they are.
        freedom: degrees of freedom of the Student distribution of the fit, which forgives slips and pushes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    horizon_s: Positive = 10.0
    fit_horizons_s: tuple[Positive, ...] = (2.0, 10.0, 20.0)
    shown_horizons_s: tuple[Positive, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
    stride_s: Positive = 0.5
    fit_stride_s: Positive = 1.0
    warm_up_s: Annotated[float, Field(ge=0)] = 0.4
    samples_per_step: Annotated[int, Field(ge=1)] = 10
    twist_stride: Annotated[int, Field(ge=1)] = 7
    slow_times_s: tuple[Positive, ...] = (3.0, 10.0, 30.0)
    usual_heave: Annotated[float, Field(gt=0, le=1)] = 0.5
    doubt_time_s: Positive = 0.3
    yield_time_s: Positive = 3.0
    yaw_rate_time_s: Positive = 30.0
    tilt_time_s: Positive = 15.0
    freedom: Positive = 6.0

    @classmethod
    def load(cls, path: Path) -> CalibrationSettings:
        """Read from YAML; what is not given keeps its default.

        Raises:
            TraceError: no such file, unknown keys, or values that make no sense.
        """
        try:
            return cls.model_validate(read_yaml(path) or {})
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error


@dataclass(frozen=True)
class Walk:
    """What one run leaves for the calibration; K samples of the twist, T steps of the pose.

    Attributes:
        name: of course and seed.
        twist_error: (K, 6) estimate minus truth, m/s and rad/s, body frame; K = 0: only poses count.
        twist_conditions: (K, 5) what the variance of the linear velocity depends on: 1, squares of speed and rate,
            smoothed share of attention on no leg, and mean square of heaving over that of the angular acceleration; see
            `trace_ros.estimator.error_model`.
        twist_acceleration: (K, 3) squares of the angular acceleration about x, y, z.
        twist_still: (K,) whether the pose was held.
        dt: (T,) s, of the time in which the pose was not held.
        conditions: (T, 5) means over the step.
        position, true_position: (T + 1, 3) m.
        orientation, true_orientation: (T + 1, 4) quaternions x, y, z, w.
        time: (T + 1,) s.
    """

    name: str
    twist_error: FloatArray
    twist_conditions: FloatArray
    twist_acceleration: FloatArray
    twist_still: NDArray[np.bool_]
    dt: FloatArray
    conditions: FloatArray
    position: FloatArray
    true_position: FloatArray
    orientation: FloatArray
    true_orientation: FloatArray
    time: FloatArray


def walk_of(
    name: str, run: EstimatedRun, log: SensorLog, settings: CalibrationSettings | None = None, poses_alone: bool = False
) -> Walk:
    """Compare a run with its log's reference.

    Args:
        name: for messages.
        run, log: of each other.
        settings: of the judgement.
        poses_alone: the reference's twist is not looked at, and it need not cover the whole run: the longest part that
            it covers is judged.

    Raises:
        TraceError: no reference, one without angular velocity, with gaps, or a log too short.
    """
    settings = settings or CalibrationSettings()
    if log.reference is None:
        raise TraceError(f"{name}: needs a reference to be calibrated on")
    if log.reference.angular_velocity is None and not poses_alone:
        raise TraceError(f"{name}: needs a reference with angular velocity to be calibrated on")
    reference, known = log.reference.resample(run.trajectory.stamp_ns)
    if not known.all() and not poses_alone:
        raise TraceError(f"{name}: the reference does not cover the whole run")
    trajectory, still = run.trajectory, run.stationary
    turning = trajectory.angular_velocity
    assert turning is not None
    time = (trajectory.stamp_ns - trajectory.stamp_ns[0]) * 1e-9
    dt = np.diff(time, prepend=-1.0)
    moved = np.diff(trajectory.position, axis=0, prepend=trajectory.position[:1])
    lifted = Rotation.from_quat(trajectory.orientation[:-1]).inv().apply(moved[1:])[:, 2]
    acceleration = np.diff(turning, axis=0, prepend=turning[:1]) / dt[:, None]
    on_no_leg = np.zeros(len(dt)) if run.attention is None else run.attention[:, :2].sum(axis=1)
    doubt = _smoothed(on_no_leg, dt, still, settings.doubt_time_s)
    pace = dt / (dt + settings.yield_time_s) * ~still
    heave = recurrence(1.0 - pace, pace * (np.append(0.0, lifted) / dt) ** 2)
    shock = recurrence(1.0 - pace, pace * (acceleration**2).sum(axis=1))
    squares = ((moved**2).sum(axis=1) / dt**2, (turning**2).sum(axis=1))
    conditions = np.column_stack((np.ones(len(dt)), *squares, doubt, heave / np.maximum(shock, _NO_SHOCK)))
    error = np.zeros((len(dt), 6))
    if not poses_alone and reference.angular_velocity is not None:
        error = np.hstack((trajectory.velocity - reference.velocity, turning - reference.angular_velocity))
    begin, end = longest_run(known)
    first = max(int(np.searchsorted(time, settings.warm_up_s)), begin) + 1
    size = settings.samples_per_step
    steps = max(0, end - first) // size
    dt_s = float(np.median(dt))
    if poses_alone:
        if steps < max(1, round(settings.horizon_s / (size * dt_s))):
            left = f"{max(0, end - first) * dt_s:.1f} s are left of the reference's longest part and after the warm-up"
            raise TraceError(f"{name}: {left}: {settings.horizon_s:g} s are needed")
    else:
        needed = max(settings.horizon_s, *settings.fit_horizons_s) + settings.warm_up_s
        if steps * size * dt_s < needed:
            raise TraceError(
                f"{name}: {log.duration_s:.1f} s are too short to be calibrated on: {needed:g} s are needed"
            )
    judged = slice(len(time) if poses_alone else first, None, settings.twist_stride)
    at = first - 1 + size * np.arange(steps + 1)
    told = np.cumsum(known)[at] - 1  # where the reference, which holds what is known alone, tells of these samples
    inside = slice(first, first + steps * size)
    moving = np.where(still, 0.0, dt)[inside].reshape(steps, size)
    return Walk(
        name,
        error[judged],
        conditions[judged],
        acceleration[judged] ** 2,
        still[judged],
        moving.sum(axis=1),
        conditions[inside].reshape(steps, size, -1).mean(axis=1),
        trajectory.position[at],
        reference.position[told],
        trajectory.orientation[at],
        reference.orientation[told],
        time[at],
    )


def longest_run(known: NDArray[np.bool_]) -> tuple[int, int]:
    """Begin and end of the longest run of True."""
    edges = np.flatnonzero(np.diff(known.astype(np.int8), prepend=0, append=0))
    if not len(edges):
        return 0, 0
    begin, end = edges[::2], edges[1::2]
    longest = int(np.argmax(end - begin))
    return int(begin[longest]), int(end[longest])


def _smoothed(doubt: FloatArray, dt: FloatArray, still: NDArray[np.bool_], time: float) -> FloatArray:
    """As `trace_ros.estimator.error_model.TwistDeviation` does it: anew after each stand."""
    smoothed, last = [], None
    for value, step, held in zip(doubt.tolist(), dt.tolist(), still.tolist(), strict=True):
        before = value if last is None else last
        last = None if held else before + (value - before) * step / (step + time)
        smoothed.append(value if last is None else last)
    return np.array(smoothed)


@dataclass(frozen=True)
class Walker:
    """What turns runs over courses into walks, side by side; for `trace_ros.evaluation.processes.spread`."""

    model: Path
    robot: RobotDescription
    settings: CalibrationSettings
    card: Mapping[str, Any] = field(default_factory=dict)
    """What is to be changed of the model's card."""

    def __call__(self, runs: Sequence[CourseRun], progress: Callable[[float], None]) -> list[Walk | None]:
        """The walks, None where the robot fell; ``progress`` hears the part done, 0 to 1."""
        # One step is a handful of small products: threads cost more than they bring.
        torch.set_num_threads(1)
        logs: list[SensorLog | None] = []
        for index, run in enumerate(runs):

            def simulated(done: float, before: int = index) -> None:
                progress((before + done) / (2 * len(runs)))

            try:
                logs.append(course_log(run, self.robot, simulated))
            except FallError:
                logs.append(None)
        result: list[Walk | None] = [None] * len(runs)
        upright = [(index, log) for index, log in enumerate(logs) if log is not None]
        names = [f"{runs[index].course}_{runs[index].seed}" for index, _ in upright]
        walks = self.over([log for _, log in upright], names, lambda done: progress(0.5 + done / 2))
        for (index, _), walk in zip(upright, walks, strict=True):
            result[index] = walk
        return result

    def over(
        self,
        logs: Sequence[SensorLog],
        names: Sequence[str],
        progress: Callable[[float], None],
        poses_alone: bool = False,
    ) -> list[Walk]:
        """The walks of logs that are there, side by side.

        Raises:
            TraceError: see `walk_of`.
        """
        if not logs:
            return []
        samples = sum(map(len, logs))
        model = load_model(self.model)
        changed = replace(model, card=model.card.model_copy(update=dict(self.card)))
        estimator = TraceEstimator(changed, self.robot)
        # A sample that is resampled may count more than once.
        estimated = run_logs(estimator, logs, names, None, lambda done: progress(min(done / samples, 1.0)))
        return [
            walk_of(name, run, log, self.settings, poses_alone)
            for name, run, log in zip(names, estimated, logs, strict=True)
        ]
