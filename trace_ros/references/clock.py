"""Offset of a reference's clock, and how its body is turned in the base, from rotations that both have seen.

The gyro, integrated over the very interval between two poses of the reference, must tell the same rotation, whatever
the rate of the reference. Over a grid of offsets the rotations are correlated (with the best rotation between the two
bodies for each offset, Kabsch 1976), and the best one is refined below the grid by Gauss and Newton.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import correlate, correlation_lags
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, Trajectory
from trace_ros.references.attitude import GyroAttitude, Increments, reference_increments
from trace_ros.references.settings import ReferenceSettings

_GRID, _SPEED_GRID = 0.02, 0.05
_MOST_PRODUCTS = 2_000_000
_FEWEST = 20
_LONGER, _LONGER_CORRELATION = 4.0, 0.75
_BLOCKS = 8
# Rotations (rad) that are compared with 0.01 rad of noise; less motion tells nothing of the clock.
_LEAST_RATE = 0.05
_RELIABLE_CORRELATION = 0.5
_RELIABLE_SIGMA = 0.02
_RIVAL_DISTANCE = 0.15
_RIVAL_VARIANCE = 1.3
"""How many times as much of the rotations the rival must leave unexplained."""


@dataclass(frozen=True)
class ClockOffset:
    """What to add to a reference's stamps, and how sure that is.

    Attributes:
        seconds: s to add to the reference's stamps for the log's clock; negative where the reference is late.
        sigma: s, standard deviation.
        correlation: 0 to 1, of the rotations at this offset.
        rival: the highest correlation of any offset that is more than 0.15 s away; a gait repeats itself.
        rotation: takes vectors of the reference's body to the base, by the same rotations.
        rotation_covariance: (3, 3) rad^2, of a small rotation of that in the base.
        residual: rad, root mean square per axis of what is left of an increment.
        increments: how many rotations were compared.
    """

    seconds: float
    sigma: float
    correlation: float
    rival: float
    rotation: Rotation
    rotation_covariance: FloatArray
    residual: float
    increments: int

    @property
    def reliable(self) -> bool:
        """Whether the offset may be used: the rotations agree, at this offset better than elsewhere, and sharply so."""
        return (
            self.correlation > _RELIABLE_CORRELATION
            and 1 - self.rival**2 > _RIVAL_VARIANCE * (1 - self.correlation**2)
            and self.sigma < _RELIABLE_SIGMA
        )

    @property
    def latency(self) -> float:
        """s by which the reference is late."""
        return -self.seconds


def estimate_clock_offset(
    reference: Trajectory, attitude: GyroAttitude, settings: ReferenceSettings | None = None
) -> ClockOffset:
    """Offset between the clocks of a reference and of a log, from angular motion.

    Args:
        reference: poses of any rate from 4 Hz and in any frame that is fixed to the body and to the world.
        attitude: of the log.
        settings: range of the search; with ``clock_offset`` given, only rotation and agreement are estimated.

    Raises:
        TraceError: too few poses, no overlap, or a robot that did not turn.
    """
    settings = settings or ReferenceSettings()
    if len(reference) < 2:
        raise TraceError(f"reference: {len(reference)} poses are too few")
    clock = _estimate(reference, attitude, settings, settings.span)
    if clock.reliable or settings.clock_offset is not None:
        return clock
    # Over a longer time a noisy reference tells more of what turns there are, if less of their times.
    longer = _estimate(reference, attitude, settings, _LONGER * settings.span)
    return longer if longer.reliable and longer.correlation > _LONGER_CORRELATION else clock


def _estimate(reference: Trajectory, attitude: GyroAttitude, settings: ReferenceSettings, span: float) -> ClockOffset:
    found = reference_increments(reference, attitude.origin_ns, span)
    if len(found) < _FEWEST:
        raise TraceError(
            f"reference: {len(found)} rotations between its {len(reference)} poses are too few to find its clock by: "
            "it is too short, or full of gaps"
        )
    if settings.clock_offset is not None:
        return _fit(found, attitude, settings.clock_offset, 0.0, rival=0.0, refine=False)
    offsets, few = _candidates(found, attitude, settings)
    correlation = np.array([_correlation(few, attitude, offset) for offset in offsets])
    best = int(np.argmax(correlation))
    far = np.abs(offsets - offsets[best]) > _RIVAL_DISTANCE
    rival = float(correlation[far].max()) if far.any() else 0.0
    return _fit(found, attitude, float(offsets[best]), float(correlation[best]), rival, refine=True)


def _candidates(
    found: Increments, attitude: GyroAttitude, settings: ReferenceSettings
) -> tuple[FloatArray, Increments]:
    """Offsets to try, and the increments to try them with, evenly chosen, as many as take a second or two."""
    first, last = float(found.start[0]), float(found.end[-1])
    end = float(attitude.seconds[-1])
    overlap = min(last, end) - max(first, 0.0)
    # Clocks of different epochs meet nowhere.
    around = 0.0 if overlap > 0.5 * min(last - first, end) else _by_speed(found, attitude)
    offsets = around + np.arange(-settings.max_clock_offset, settings.max_clock_offset + _GRID, _GRID)
    most = int(max(100, _MOST_PRODUCTS // offsets.size))
    if len(found) <= most:
        return offsets, found
    return offsets, found.select(np.linspace(0, len(found) - 1, most).astype(int))


def _by_speed(found: Increments, attitude: GyroAttitude) -> float:
    """The offset at which angular speeds correlate best, of all that let half of the shorter one overlap, s."""
    middle = (found.start + found.end) / 2
    speed = np.linalg.norm(found.vector, axis=1) / found.duration
    there = np.arange(middle[0], middle[-1], _SPEED_GRID)
    here = np.arange(0.0, attitude.seconds[-1], _SPEED_GRID)
    reach = float(np.median(found.duration)) / 2
    turned = attitude.at(here - reach).inv() * attitude.at(here + reach)
    theirs, ours = np.interp(there, middle, speed), turned.magnitude() / (2 * reach)
    theirs, ours = theirs - theirs.mean(), ours - ours.mean()
    product = correlate(ours, theirs, mode="full", method="fft")
    energy = correlate(ours**2, np.ones_like(theirs), mode="full", method="fft")
    energy *= correlate(np.ones_like(ours), theirs**2, mode="full", method="fft")
    shift = correlation_lags(ours.size, theirs.size)
    overlap = np.minimum(ours.size, shift + theirs.size) - np.maximum(0, shift)
    score = np.where(
        overlap >= 0.5 * min(ours.size, theirs.size), product / np.sqrt(np.maximum(energy, 1e-12)), -np.inf
    )
    return float(shift[int(np.argmax(score))] * _SPEED_GRID - middle[0])


def _correlation(found: Increments, attitude: GyroAttitude, offset: float) -> float:
    inside, base = _base_increments(found, attitude, offset)
    if inside.sum() < max(_FEWEST, 0.25 * inside.size):
        return 0.0
    return _aligned(found.vector[inside], base)[1]


def _base_increments(found: Increments, attitude: GyroAttitude, offset: float) -> tuple[FloatArray, FloatArray]:
    """Which increments the gyro knows, and what it says of those (rad, base at the start)."""
    start, end = found.start + offset, found.end + offset
    inside = attitude.knows(start, end)
    turned = attitude.at(start[inside]).inv() * attitude.at(end[inside]) if inside.any() else Rotation.identity(0)
    return np.asarray(inside), turned.as_rotvec()


def _aligned(vector: FloatArray, base: FloatArray) -> tuple[Rotation, float]:
    """Rotation that takes the reference's increments to those of the base best, and how well they then correlate."""
    size = np.sqrt((vector**2).sum() * (base**2).sum())
    if size == 0:
        return Rotation.identity(), 0.0
    left, values, right = np.linalg.svd(base.T @ vector)
    sign = np.sign(np.linalg.det(left @ right)) or 1.0
    turn = left @ np.diag((1.0, 1.0, sign)) @ right
    return Rotation.from_matrix(turn), float((values[0] + values[1] + sign * values[2]) / size)


def _fit(
    found: Increments, attitude: GyroAttitude, offset: float, correlation: float, rival: float, *, refine: bool
) -> ClockOffset:
    inside, base = _base_increments(found, attitude, offset)
    if inside.sum() < _FEWEST:
        raise TraceError(
            f"reference: its stamps ({found.start[0]:.2f} to {found.end[-1]:.2f} s after the log's first) and those of "
            f"the log (to {attitude.seconds[-1]:.2f} s) hardly overlap: {inside.sum()} of its steps of "
            f"{np.median(found.duration):.2f} s lie within the log, {_FEWEST} are needed"
        )
    if np.sqrt(((base / found.duration[inside][:, None]) ** 2).sum(axis=1).mean()) < _LEAST_RATE:
        raise TraceError("reference: the robot hardly turns in this log, so that its clock and frame cannot be found")
    kept = np.ones(len(found), dtype=bool)
    sigma = np.inf
    for _ in range(12 if refine else 4):
        inside, base = _base_increments(found, attitude, offset)
        inside, base = inside & kept, base[kept[inside]]
        vector, duration = found.vector[inside], found.duration[inside][:, None]
        turn, correlation = _aligned(vector, base)
        difference = turn.apply(vector) - base
        bias = (difference * duration).sum(axis=0) / (duration**2).sum()
        difference -= bias * duration
        # A few increments may hold a jump of the reference.
        size = np.linalg.norm(difference, axis=1)
        limit = 6 * np.median(size) + 1e-6
        slope = _slope(found.select(inside), attitude, offset)
        good = size < limit
        weight = float((slope[good] ** 2).sum())
        if weight == 0:
            break
        step = float((slope[good] * difference[good]).sum() / weight)
        variance = float((difference[good] ** 2).mean())
        sigma = max(float(np.sqrt(variance / weight)), _scatter(slope[good], difference[good]) / weight)
        kept[np.flatnonzero(inside)[~good]] = False
        if not refine:
            continue
        offset += float(np.clip(step, -_GRID, _GRID))
        if abs(step) < 1e-6:
            break
    rows = turn.apply(vector[good])
    information = (rows**2).sum() * np.eye(3) - rows.T @ rows
    covariance = variance * np.linalg.pinv(information, hermitian=True)
    return ClockOffset(
        offset,
        float(sigma) if refine else 0.0,
        correlation,
        rival,
        turn,
        np.asarray(covariance),
        float(np.sqrt(variance)),
        int(good.sum()),
    )


def _slope(found: Increments, attitude: GyroAttitude, offset: float, by: float = 0.004) -> FloatArray:
    """Change of the base's increments with the offset, rad/s. ``(K, 3)``"""
    both = [
        (attitude.at(found.start + offset + shift).inv() * attitude.at(found.end + offset + shift)).as_rotvec()
        for shift in (-by, by)
    ]
    return np.asarray((both[1] - both[0]) / (2 * by))


def _scatter(slope: FloatArray, difference: FloatArray) -> float:
    """How much eight parts of the log disagree with each other about the offset, in units of the weight: errors that
    last (drift, a soft mount) count so, which a single residual does not show (Liang and Zeger 1986)."""
    pull = (slope * difference).sum(axis=1)
    parts = np.array([part.sum() for part in np.array_split(pull - pull.mean(), _BLOCKS)])
    return float(np.sqrt((parts**2).sum()))
