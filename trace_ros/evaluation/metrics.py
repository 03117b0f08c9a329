"""How far an estimated trajectory is from the reference: absolute trajectory error and relative error over time.

Definitions follow Zhang and Scaramuzza, "A Tutorial on Quantitative Trajectory Evaluation for Visual(-Inertial)
Odometry", IROS 2018. The absolute error compares positions after one alignment of the whole; the relative error aligns
at every start and looks a fixed time later, here by time rather than by distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.estimator.observation import WINDOW
from trace_ros.evaluation.alignment import Alignment, AlignmentMode, align
from trace_ros.geometry import FloatArray
from trace_ros.logs import IntArray, Trajectory


class MetricSettings(BaseModel):
    """How to compare.

    Attributes:
        alignment: how the estimate is brought into the reference's frame for the absolute errors.
        horizon_s: s; time over which the relative errors are taken.
        warm_up_samples: first poses of the estimate to leave out, while the estimator's window fills.
        max_gap_s: s; the reference is never interpolated over longer gaps.
        pair_tolerance_s: s; how far the end of a relative error may lie from start plus horizon (or half the median
            interval, where that is longer).
        minimum_extent_m: m; a reference that stays closer together has its yaw aligned by orientations.
        compensate_rotation: absolute errors as ``p - dR p'`` with the orientation error ``dR`` (Zhang and Scaramuzza,
            equation 22) instead of the plain difference ``p - p'`` that their toolbox and evo compute.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    alignment: AlignmentMode = "posyaw"
    horizon_s: float = Field(default=10.0, gt=0, le=1e5)
    warm_up_samples: int = Field(default=WINDOW, ge=0)
    max_gap_s: float = Field(default=0.25, gt=0)
    pair_tolerance_s: float = Field(default=0.01, ge=0)
    minimum_extent_m: float = Field(default=0.05, ge=0)
    compensate_rotation: bool = False


class Statistics(BaseModel):
    """Mean, population standard deviation and 90th percentile of an error."""

    model_config = ConfigDict(frozen=True)
    mean: float
    std: float
    p90: float

    @classmethod
    def of(cls, error: FloatArray) -> Statistics:
        """Of (N,) errors, N at least 1."""
        return cls(mean=float(error.mean()), std=float(error.std()), p90=float(np.percentile(error, 90)))


class Metrics(BaseModel):
    """The errors of one trajectory.

    Attributes:
        alignment: mode of the absolute errors.
        horizon_s: of the relative errors, s.
        path_length_m: length of the reference over the compared poses (gaps excluded), m.
        duration_s: from the first to the last compared pose, s.
        compared_samples: poses compared.
        pairs: starts of the relative error; 0 if there is none.
        ate_position_m, ate_z_m, ate_velocity_mps, ate_velocity_body_mps, ate_orientation_rad: root mean squares over
            the compared poses; z is the vertical part of the position; velocity in the world frame after alignment,
            and in the body frame, where alignment does not matter.
        re_position_m, re_velocity_mps, re_velocity_end_mps, re_orientation_rad: relative errors over the horizon, each
            seen from the start's body frame: displacement, velocity increment, velocity at the end, rotation; None
            without a pair.
        notes: why something is absent or was done otherwise, one line each.
    """

    model_config = ConfigDict(frozen=True)
    alignment: AlignmentMode
    horizon_s: float
    path_length_m: float
    duration_s: float
    compared_samples: int
    pairs: int
    ate_position_m: float
    ate_z_m: float
    ate_velocity_mps: float
    ate_velocity_body_mps: float
    ate_orientation_rad: float
    re_position_m: Statistics | None
    re_velocity_mps: Statistics | None
    re_velocity_end_mps: Statistics | None
    re_orientation_rad: Statistics | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. Keys of relative errors carry the horizon: ``re10_position_m`` for 10 s."""
        plain = self.model_dump(mode="json")
        prefix = f"re{self.horizon_s:g}_"
        return {f"{prefix}{key.removeprefix('re_')}" if key.startswith("re_") else key: plain[key] for key in plain}


@dataclass(frozen=True)
class Comparison:
    """Estimate and reference at common stamps.

    Attributes:
        estimate: N poses as estimated.
        aligned: the same in the reference's frame.
        reference: N poses, interpolated.
        alignment: what was applied.
    """

    estimate: Trajectory
    aligned: Trajectory
    reference: Trajectory
    alignment: Alignment


@dataclass(frozen=True)
class RelativeErrors:
    """Errors at the end of each interval, seen from its start.

    Attributes:
        start, end: (P,) indices of the compared poses.
        position: (P,) m; of the displacement.
        velocity: (P,) m/s; of the velocity increment.
        velocity_end: (P,) m/s; of the velocity at the end.
        orientation: (P,) rad; of the rotation.
    """

    start: NDArray[np.int_]
    end: NDArray[np.int_]
    position: FloatArray
    velocity: FloatArray
    velocity_end: FloatArray
    orientation: FloatArray


def compare(estimate: Trajectory, reference: Trajectory, settings: MetricSettings | None = None) -> Comparison:
    """Interpolate the reference onto the estimate's stamps, and align.

    Raises:
        TraceError: the two share no time.
    """
    settings = settings or MetricSettings()
    if len(estimate) <= settings.warm_up_samples:
        raise TraceError(
            f"nothing to compare: the estimate has {len(estimate)} poses, of which the first "
            f"{settings.warm_up_samples} are left out as warm-up"
        )
    estimate = estimate.select(slice(settings.warm_up_samples, None))
    at_estimate, mask = reference.resample(estimate.stamp_ns, settings.max_gap_s)
    if not mask.any():
        raise TraceError(
            f"nothing to compare: the estimate spans {_span(estimate.stamp_ns)} and the reference "
            f"{_span(reference.stamp_ns)}, with no pose in common"
        )
    estimate = estimate.select(mask)
    alignment = align(estimate, at_estimate, settings.alignment, settings.minimum_extent_m)
    return Comparison(estimate, alignment.apply(estimate), at_estimate, alignment)


def relative_errors(
    estimate: Trajectory, reference: Trajectory, horizon_s: float, tolerance_s: float = 0.01
) -> RelativeErrors:
    """Errors after ``horizon_s`` from every pose; independent of any alignment.

    Args:
        estimate, reference: N poses at the same stamps.
        horizon_s: s.
        tolerance_s: s; the end is the pose nearest to start plus horizon, if it is within this, or within half the
            median interval where that is longer.

    Raises:
        TraceError: there is no such pair.
    """
    start, end = _pairs(estimate.stamp_ns, horizon_s, tolerance_s)
    if not start.size:
        raise TraceError(
            f"no relative error over {horizon_s:g} s: the compared poses span only {estimate.duration_s:.2f} s"
        )
    *mine, my_turn = _relative_motion(estimate, start, end)
    *truth, true_turn = _relative_motion(reference, start, end)
    position, increment, velocity_end = (np.linalg.norm(a - b, axis=1) for a, b in zip(mine, truth, strict=True))
    return RelativeErrors(start, end, position, increment, velocity_end, _angles(true_turn.inv() * my_turn))


def evaluate(estimate: Trajectory, reference: Trajectory, settings: MetricSettings | None = None) -> Metrics:
    """All errors of one trajectory.

    The reference is interpolated onto the estimate's stamps, never over gaps longer than ``max_gap_s``. A run shorter
    than the horizon has absolute errors only; a note says so.

    Raises:
        TraceError: the two share no time, or the alignment is not determined.
    """
    settings = settings or MetricSettings()
    return metrics_of(compare(estimate, reference, settings), settings)


def metrics_of(comparison: Comparison, settings: MetricSettings) -> Metrics:
    """All errors of a trajectory that was compared with these settings: see `evaluate`."""
    mine, truth = comparison.aligned, comparison.reference
    notes = [comparison.alignment.note] if comparison.alignment.note else []
    turn = truth.rotation_world_body * mine.rotation_world_body.inv()
    world_mine = mine.rotation_world_body.apply(mine.velocity)
    world_truth = truth.rotation_world_body.apply(truth.velocity)
    if settings.compensate_rotation:
        position_error = truth.position - turn.apply(mine.position)
        velocity_error = world_truth - turn.apply(world_mine)
    else:
        position_error = truth.position - mine.position
        velocity_error = world_truth - world_mine
    relative: RelativeErrors | None = None
    try:
        relative = relative_errors(comparison.estimate, truth, settings.horizon_s, settings.pair_tolerance_s)
    except TraceError as error:
        notes.append(str(error))
    steps = np.diff(truth.stamp_ns) <= round(settings.max_gap_s * 1e9)
    lengths = np.linalg.norm(np.diff(truth.position, axis=0), axis=1)
    return Metrics(
        alignment=settings.alignment,
        horizon_s=settings.horizon_s,
        path_length_m=float(lengths[steps].sum()),
        duration_s=truth.duration_s,
        compared_samples=len(truth),
        pairs=0 if relative is None else int(relative.start.size),
        ate_position_m=_rms(position_error),
        ate_z_m=_rms(position_error[:, 2:]),
        ate_velocity_mps=_rms(velocity_error),
        ate_velocity_body_mps=_rms(truth.velocity - mine.velocity),
        ate_orientation_rad=_rms(_angles(turn)[:, None]),
        re_position_m=None if relative is None else Statistics.of(relative.position),
        re_velocity_mps=None if relative is None else Statistics.of(relative.velocity),
        re_velocity_end_mps=None if relative is None else Statistics.of(relative.velocity_end),
        re_orientation_rad=None if relative is None else Statistics.of(relative.orientation),
        notes=tuple(notes),
    )


def error_growth(
    comparison: Comparison, horizons_s: tuple[float, ...], tolerance_s: float = 0.01
) -> dict[float, RelativeErrors]:
    """Relative errors over several horizons; those without a pair are left out."""
    growth = {}
    for horizon in horizons_s:
        start, _ = _pairs(comparison.estimate.stamp_ns, horizon, tolerance_s)
        if start.size:
            growth[horizon] = relative_errors(comparison.estimate, comparison.reference, horizon, tolerance_s)
    return growth


def _pairs(stamps: IntArray, horizon_s: float, tolerance_s: float) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Start and end index of every interval of the horizon's length."""
    wanted = stamps + round(horizon_s * 1e9)
    right = np.clip(np.searchsorted(stamps, wanted), 1, max(stamps.size - 1, 1))
    if stamps.size < 2:
        empty = np.empty(0, dtype=int)
        return empty, empty
    nearer_left = wanted - stamps[right - 1] < stamps[right] - wanted
    end = right - nearer_left
    start = np.arange(stamps.size)
    tolerance = max(round(tolerance_s * 1e9), int(np.median(np.diff(stamps))) // 2)
    # At the log's end the nearest pose would be an early one, again and again.
    fits = (np.abs(stamps[end] - wanted) <= tolerance) & (end > start) & (wanted <= stamps[-1])
    return start[fits], end[fits]


def _relative_motion(
    trajectory: Trajectory, start: NDArray[np.int_], end: NDArray[np.int_]
) -> tuple[FloatArray, FloatArray, FloatArray, Rotation]:
    """Displacement, velocity increment, end velocity (all (P, 3), in the start's body frame) and rotation."""
    rotation = trajectory.rotation_world_body
    back = rotation[start].inv()
    turn = back * rotation[end]
    displacement = back.apply(trajectory.position[end] - trajectory.position[start])
    velocity_end = turn.apply(trajectory.velocity[end])
    return displacement, velocity_end - trajectory.velocity[start], velocity_end, turn


def _angles(rotation: Rotation) -> FloatArray:
    return np.atleast_1d(rotation.magnitude())


def _rms(error: FloatArray) -> float:
    """Root mean square of the row norms."""
    return float(np.sqrt(np.mean(np.sum(error**2, axis=1))))


def _span(stamps: IntArray) -> str:
    return f"{stamps[0] * 1e-9:.3f} to {stamps[-1] * 1e-9:.3f} s" if stamps.size else "nothing"
