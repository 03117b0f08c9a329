"""Is the covariance true? How often errors of the twist and of the relative pose lie within 1, 2 and 3 sigma.

Nothing is estimated twice: the estimator walks once over each log, and its increments then go through the same
`PoseCovariance` as on the robot, from many starts at once, as if the pose had been set at each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.spatial.transform import Rotation
from scipy.special import erf
from scipy.stats import chi2

from trace_ros.errors import FallError, TraceError
from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.error_model import ErrorModel, LinearVelocityError, PoseCovariance, unexplained
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.recurrence import recurrence
from trace_ros.estimator.run import EstimatedRun
from trace_ros.evaluation.courses import CourseRun, course_log
from trace_ros.geometry import FloatArray
from trace_ros.logs import SensorLog
from trace_ros.resources import read_yaml
from trace_ros.robot import RobotDescription, describe_validation_error

SIGMAS = (1, 2, 3)
TWIST_AXES = ("vx", "vy", "vz", "wx", "wy", "wz")
POSE_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
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
        twist_error: (K, 6) estimate minus truth, m/s and rad/s, body frame.
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


def walk_of(name: str, run: EstimatedRun, log: SensorLog, settings: CalibrationSettings | None = None) -> Walk:
    """Compare a run with its log's reference.

    Raises:
        TraceError: no reference, one without angular velocity, with gaps, or a log too short.
    """
    settings = settings or CalibrationSettings()
    if log.reference is None or log.reference.angular_velocity is None:
        raise TraceError(f"{name}: needs a reference with angular velocity to be calibrated on")
    reference, known = log.reference.resample(run.trajectory.stamp_ns)
    if not known.all():
        raise TraceError(f"{name}: the reference does not cover the whole run")
    trajectory, still = run.trajectory, run.stationary
    turning, true_turning = trajectory.angular_velocity, reference.angular_velocity
    assert turning is not None and true_turning is not None
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
    error = np.hstack((trajectory.velocity - reference.velocity, turning - true_turning))
    first = int(np.searchsorted(time, settings.warm_up_s)) + 1
    size = settings.samples_per_step
    steps = (len(time) - first) // size
    needed = max(settings.horizon_s, *settings.fit_horizons_s) + settings.warm_up_s
    if steps * size * float(np.median(dt)) < needed:
        raise TraceError(f"{name}: {log.duration_s:.1f} s are too short to be calibrated on: {needed:g} s are needed")
    judged = slice(first, None, settings.twist_stride)
    at = first - 1 + size * np.arange(steps + 1)
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
        reference.position[at],
        trajectory.orientation[at],
        reference.orientation[at],
        time[at],
    )


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
        if not upright:
            return result
        names = [f"{runs[index].course}_{runs[index].seed}" for index, _ in upright]
        whole = [log for _, log in upright]
        samples = sum(map(len, whole))
        estimator = TraceEstimator.load(self.model, self.robot)
        # A sample that is resampled may count more than once.
        estimated = run_logs(estimator, whole, names, None, lambda done: progress(0.5 + min(done / samples, 1.0) / 2))
        for (index, log), name, walked in zip(upright, names, estimated, strict=True):
            result[index] = walk_of(name, walked, log, self.settings)
        return result


@dataclass(frozen=True)
class RelativePoses:
    """W pieces of walks of one length, H steps each; what `predicted` needs, step by step.

    Attributes:
        error: (W, 6) of the relative pose: x, y, z, rotation about X, Y, Z in the odometry frame, after position and
            heading were made equal at the start. m, rad.
        cosine, sine: (H, W) of the heading.
        displacement: (H, W, 3) m, odometry frame.
        conditions: (H, W, 5) as of `Walk`.
        dt: (H, W) s.
    """

    error: FloatArray
    cosine: FloatArray
    sine: FloatArray
    displacement: FloatArray
    conditions: FloatArray
    dt: FloatArray

    def __len__(self) -> int:
        return len(self.error)


def relative_poses(walks: Sequence[Walk], horizon_s: float, stride_s: float) -> RelativePoses:
    """All pieces of this length of the walks, each starting so much (s) after the one before.

    Raises:
        TraceError: no walk is so long.
    """
    parts = []
    for walk in walks:
        step = float(np.median(np.diff(walk.time)))
        length, stride = max(1, round(horizon_s / step)), max(1, round(stride_s / step))
        start = np.arange(0, len(walk.time) - length, stride)
        if start.size:
            parts.append(_pieces(walk, start, length))
    shortest = min((part[1].shape[0] for part in parts), default=0)
    if not shortest:
        raise TraceError(f"no walk is longer than {horizon_s:g} s")
    error, *rest = zip(*parts, strict=True)
    return RelativePoses(
        np.concatenate(error), *(np.concatenate([p[:shortest] for p in part], axis=1) for part in rest)
    )


def _pieces(walk: Walk, start: NDArray[np.intp], length: int) -> tuple[FloatArray, ...]:
    estimated, true = Rotation.from_quat(walk.orientation), Rotation.from_quat(walk.true_orientation)
    heading = _heading(estimated)
    offset = (heading - _heading(true))[start]
    turn = Rotation.from_rotvec(np.column_stack((0 * offset, 0 * offset, offset)))
    end = start + length
    position = (walk.position[end] - walk.position[start]) - turn.apply(
        walk.true_position[end] - walk.true_position[start]
    )
    rotation = (estimated[end] * (turn * true[end]).inv()).as_rotvec()
    index = start + np.arange(length)[:, None]
    return (
        np.hstack((position, rotation)),
        np.cos(heading)[index],
        np.sin(heading)[index],
        np.diff(walk.position, axis=0)[index],
        walk.conditions[index],
        walk.dt[index],
    )


def _heading(rotation: Rotation) -> FloatArray:
    matrix = rotation.as_matrix()
    return np.asarray(np.arctan2(matrix[:, 1, 0], matrix[:, 0, 0]))


def predicted(model: ErrorModel, pieces: RelativePoses, *, exact: bool = False) -> FloatArray:
    """Variances (W, 6) of the relative poses that the model predicts, by the code that runs on the robot.

    Args:
        model: of the errors.
        pieces: W relative poses.
        exact: without what keeps the published variances from shrinking; linear in the variances of the sources.
    """
    sigma = np.sqrt(linear_variances(model, pieces.conditions))
    covariance = PoseCovariance(model, np.maximum)
    steps = zip(pieces.cosine, pieces.sine, pieces.displacement, sigma, pieces.dt, strict=True)
    for cosine, sine, displacement, deviation, dt in steps:
        covariance.propagate(cosine, sine, tuple(displacement.T), tuple(deviation.T), dt)
    variances = covariance.variances()
    if exact:
        variances = (covariance.xx, covariance.yy, covariance.zz, *variances[3:])
    return np.column_stack([np.broadcast_to(variance, len(pieces)) for variance in variances])


def linear_variances(model: ErrorModel, conditions: FloatArray) -> FloatArray:
    """Variances (..., 3) of the linear velocity while moving, of conditions (..., 5) as of `Walk`."""
    error = model.linear_velocity
    squares = np.square((error.base, error.per_speed, error.per_rate, error.per_doubt, error.per_yield))
    return np.asarray(linear_terms(error, conditions) @ squares)


def linear_terms(error: LinearVelocityError, conditions: FloatArray) -> FloatArray:
    """What the variances are sums of, (..., 5), of conditions (..., 5) as of `Walk`."""
    doubt = np.maximum(conditions[..., 3] - error.usual_doubt, 0.0)
    soft = np.maximum(unexplained(conditions[..., 4], error.heave_per_shock**2), 0.0)
    return np.concatenate((conditions[..., :3], np.stack((doubt, soft), axis=-1) ** 2), axis=-1)


def twist_variances(model: ErrorModel, walk: Walk) -> FloatArray:
    """Variances (K, 6) of the twists that the model predicts."""
    linear = linear_variances(model, walk.twist_conditions)
    angular = model.angular_velocity
    moving = np.square(angular.base) + np.square(angular.per_acceleration) * walk.twist_acceleration
    standing = np.square((*model.standing_linear_velocity, *model.standing_angular_velocity))
    return np.where(walk.twist_still[:, None], standing, np.hstack((linear, moving)))


def nominal(sigma: float) -> float:
    """Probability that a normal error lies within so many standard deviations."""
    return float(erf(sigma / math.sqrt(2)))


def coverage(ratio: FloatArray) -> tuple[float, ...]:
    """Shares of errors, given over their standard deviation, within 1, 2 and 3 of it."""
    return tuple(float(np.mean(np.abs(ratio) <= sigma)) for sigma in SIGMAS)


@dataclass(frozen=True)
class Judgement:
    """Errors over their predicted standard deviations, on walks.

    Attributes:
        twist: (K, 6) axes of `TWIST_AXES`.
        pose: (W, 6) relative poses over the horizon, axes of `POSE_AXES`.
        horizon_s: s.
        growth: for each shown horizon (s), (2, 6): the errors' 68.3 % quantile and the predicted standard deviation
            (root of the mean variance), by axis; m, rad.
    """

    twist: FloatArray
    pose: FloatArray
    horizon_s: float
    growth: dict[float, FloatArray]

    def rows(self) -> list[dict[str, Any]]:
        """Coverage of each axis, then of several together: ``of``, ``axis``, ``coverage`` (three shares).

        Where X and Y of the odometry frame point is chance, so x and y, and roll and pitch, stand together too.
        """
        rows = []
        pose = f"pose over {self.horizon_s:g} s"
        level: dict[str, list[int]] = {"x, y": [0, 1], "roll, pitch": [3, 4]}
        for kind, axes, ratio, groups in (("twist", TWIST_AXES, self.twist, {}), (pose, POSE_AXES, self.pose, level)):
            chosen = {axis: [index] for index, axis in enumerate(axes)} | groups | {"all": list(range(len(axes)))}
            rows += [{"of": kind, "axis": axis, "coverage": coverage(ratio[:, of])} for axis, of in chosen.items()]
        return rows

    def joint(self) -> tuple[float, ...]:
        """Shares of the relative positions (three axes at once) within the ellipsoids that should hold as many."""
        square = (self.pose[:, :3] ** 2).sum(axis=1)
        return tuple(float(np.mean(square <= chi2.ppf(nominal(sigma), 3))) for sigma in SIGMAS)

    def worst(self) -> tuple[dict[str, Any], int, float]:
        """The row, the sigma and the deviation (a share) that are farthest from nominal."""
        found = [
            (row, sigma, share - nominal(sigma))
            for row in self.rows()
            for sigma, share in zip(SIGMAS, row["coverage"], strict=True)
        ]
        return max(found, key=lambda entry: abs(entry[2]))


def judge(model: ErrorModel, walks: Sequence[Walk], settings: CalibrationSettings | None = None) -> Judgement:
    """Compare the errors on walks with what a model predicts.

    Raises:
        TraceError: no walk is as long as the horizon.
    """
    settings = settings or CalibrationSettings()
    twist = np.concatenate([walk.twist_error / np.sqrt(twist_variances(model, walk)) for walk in walks])
    pieces = relative_poses(walks, settings.horizon_s, settings.stride_s)
    growth = {}
    longest = max(walk.time[-1] - walk.time[0] for walk in walks)
    for horizon in settings.shown_horizons_s:
        if horizon < longest:
            shown = relative_poses(walks, horizon, settings.stride_s)
            measured = np.quantile(np.abs(shown.error), nominal(1), axis=0)
            growth[horizon] = np.stack((measured, np.sqrt(predicted(model, shown).mean(axis=0))))
    return Judgement(twist, pieces.error / np.sqrt(predicted(model, pieces)), settings.horizon_s, growth)


def together(judgements: Sequence[Judgement]) -> Judgement:
    """Several judgements over the same horizon as one, without the growth."""
    twist, pose = (np.concatenate([getattr(one, name) for one in judgements]) for name in ("twist", "pose"))
    return Judgement(twist, pose, judgements[0].horizon_s, {})
