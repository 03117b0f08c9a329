"""A raw reference and a log's IMU -> a reference on the log's clock and in its base frame, in pieces to be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, IntArray, SensorLog, Trajectory
from trace_ros.references.attitude import GyroAttitude
from trace_ros.references.clock import ClockOffset, estimate_clock_offset
from trace_ros.references.inertial_fit import InertialFit, fit_inertial
from trace_ros.references.segments import Segments, cut_reference
from trace_ros.references.settings import ReferenceSettings, RigidOffset

_VELOCITY_WINDOW = 0.3
"""s; velocities are slopes of the positions over it, or over three poses."""


_SPEED_WINDOW = 0.5
"""s over which it is seen how fast a reference usually is."""


@dataclass(frozen=True)
class CleanReference:
    """A reference that fits a log, row by row.

    Attributes:
        stamp_ns: (N,) ns, the log's.
        position: (N, 3) m, of the base, in a level world; between the reference's poses linear.
        orientation: (N, 4) quaternion x, y, z, w, base to world; between the reference's poses along the gyro.
        velocity: (N, 3) m/s, body frame; slopes of the positions.
        segment: (N,) number of the piece, -1 where there is no reference. Relative motions hold within a piece only.
            Rows without one are zeros, and the identity.
        clock: of the reference against the log.
        inertial: gravity and lever arm as fitted, or None where that could not be done.
        offset: pose of the reference's body in the base, as it was taken out.
        levelled: rad, by which the world was turned, 0 where it was left.
        segments: what was cut.
        notes: what was found and done, one line each.
    """

    stamp_ns: IntArray
    position: FloatArray
    orientation: FloatArray
    velocity: FloatArray
    segment: IntArray
    clock: ClockOffset | None
    inertial: InertialFit | None
    offset: RigidOffset
    levelled: float
    segments: Segments
    notes: tuple[str, ...]

    @property
    def rotation(self) -> Rotation:
        """N, base to world."""
        return Rotation.from_quat(self.orientation)

    @property
    def between_jumps(self) -> IntArray:
        """(N,) number of the stretch between two jumps: in each, all poses are in one world, gaps or not."""
        seconds = (self.stamp_ns - self.stamp_ns[0]) * 1e-9
        jumps = np.array(sorted(cut.end for cut in self.segments.cuts if cut.kind == "jump"))
        return np.searchsorted(jumps, seconds, side="right")

    @property
    def valid(self) -> NDArray[np.bool_]:
        """(N,) where there is a reference."""
        return self.segment >= 0

    def trajectory(self) -> Trajectory:
        """The valid rows."""
        rows = self.valid
        return Trajectory(self.stamp_ns[rows], self.position[rows], self.orientation[rows], self.velocity[rows])

    def to_dict(self) -> dict[str, Any]:
        """What was found, as plain values for JSON."""
        clock, inertial = self.clock, self.inertial
        return {
            "clock_offset_s": clock and clock.seconds,
            "clock_sigma_s": clock and clock.sigma,
            "clock_correlation": clock and clock.correlation,
            "clock_reliable": clock is not None and clock.reliable,
            "offset_position_m": list(self.offset.position),
            "offset_rpy_rad": list(self.offset.rpy),
            "gravity_mps2": None if inertial is None else inertial.gravity.tolist(),
            "levelled_rad": self.levelled,
            "pieces": self.segments.count,
            "covered": float(self.valid.mean()) if self.valid.size else 0.0,
            "cuts": [
                {"kind": cut.kind, "start_s": cut.start, "end_s": cut.end, "size": cut.size, "angle_rad": cut.angle}
                for cut in self.segments.cuts
            ],
            "notes": list(self.notes),
        }


def clean_reference(
    reference: Trajectory,
    log: SensorLog,
    imu_position: tuple[float, float, float] = (0.0, 0.0, 0.0),
    settings: ReferenceSettings | None = None,
) -> CleanReference:
    """Make a raw reference fit to compare with a log.

    The clock is found from rotations, then how the reference's body is turned in the base; then gaps, jumps and stuck
    poses cut it; then gravity and the place of the reference's body are fitted to positions and accelerometer. What is
    not significant is left as it is. A robot that hardly turns gives no clock: the stamps are then trusted, and a note
    says so.

    Args:
        reference: raw poses, any rate from 4 Hz, any frame.
        log: IMU readings, base frame, at their own stamps.
        imu_position: m, of the IMU in the base (``robot.imu.position``).
        settings: limits, and what is known.

    Raises:
        TraceError: too few poses or samples, no overlap of the stamps, or positions that are no metres.
    """
    settings = settings or ReferenceSettings()
    if len(reference) < 4:
        raise TraceError(f"reference: {len(reference)} poses are too few: record it throughout")
    if len(log) < 2:
        raise TraceError(f"log: {len(log)} samples are too few to compare a reference with")
    rate = 1e9 / float(np.median(np.diff(reference.stamp_ns)))
    if 1 / rate > settings.max_gap:
        raise TraceError(
            f"reference: its poses come at {rate:.2f} Hz, more than max_gap ({settings.max_gap} s) apart: too seldom"
        )
    if (speed := _usual_speed(reference)) > settings.max_speed:
        raise TraceError(
            f"reference: it usually moves at {speed:.3g} m/s, faster than max_speed ({settings.max_speed:g} m/s): its "
            "positions must be in metres"
        )
    attitude = GyroAttitude(log.stamp_ns, log.angular_velocity)
    notes: list[str] = []
    clock = _clock(reference, attitude, settings, notes)
    shift = settings.clock_offset if settings.clock_offset is not None else clock.seconds if clock is not None else 0.0
    seconds = np.asarray((reference.stamp_ns - attitude.origin_ns) * 1e-9 + shift, dtype=float)
    turn = _turn(clock, settings, notes)
    rotation = reference.rotation_world_body * turn.inv()
    segments = cut_reference(seconds, reference.position, rotation, attitude, settings)
    notes += _cut_notes(segments)
    inertial = _inertial(seconds, reference.position, rotation, segments, attitude, log, notes)
    place = _place(inertial, np.asarray(imu_position), settings, notes)
    position = reference.position - rotation.apply(place)
    levelled = Rotation.identity()
    if (
        inertial is not None
        and settings.level_world
        and _significant(inertial.tilt, inertial.tilt_sigma, settings.least_angle, settings)
    ):
        levelled = inertial.level
        notes.append(
            f"its world is tilted by {np.degrees(inertial.tilt):.2f} +- {np.degrees(inertial.tilt_sigma):.2f} degrees "
            "against gravity: levelled"
        )
    rows = _rows(seconds, levelled.apply(position), levelled * rotation, segments.label, attitude)
    return CleanReference(
        log.stamp_ns,
        *rows,
        clock,
        inertial,
        RigidOffset(position=_triple(place), rpy=_triple(turn.as_euler("xyz"))),
        float(levelled.magnitude()),
        segments,
        tuple(notes),
    )


def _usual_speed(reference: Trajectory) -> float:
    """m/s, median over half a second each, in which noise hardly counts."""
    seconds = (reference.stamp_ns - reference.stamp_ns[0]) * 1e-9
    apart = min(len(seconds) - 1, max(1, round(_SPEED_WINDOW / float(np.median(np.diff(seconds))))))
    way = np.linalg.norm(reference.position[apart:] - reference.position[:-apart], axis=1)
    return float(np.median(way / (seconds[apart:] - seconds[:-apart])))


def _triple(values: FloatArray) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in values)
    return x, y, z


def _significant(value: float, sigma: float, least: float, settings: ReferenceSettings) -> bool:
    return value > max(least, settings.significance * sigma)


def _clock(
    reference: Trajectory, attitude: GyroAttitude, settings: ReferenceSettings, notes: list[str]
) -> ClockOffset | None:
    try:
        clock = estimate_clock_offset(reference, attitude, settings)
    except TraceError as error:
        if "overlap" in str(error) or settings.clock_offset is not None:
            raise
        notes.append(f"{str(error).removeprefix('reference: ')}; its stamps are taken as they are")
        return None
    if settings.clock_offset is not None:
        notes.append(f"clock offset given: {clock.seconds:+.4f} s")
        return clock
    if clock.reliable:
        late = "late" if clock.latency > 0 else "early"
        notes.append(
            f"it is {abs(clock.latency):.4f} +- {clock.sigma:.4f} s {late} (correlation {clock.correlation:.2f}): put "
            "right"
        )
        return clock
    notes.append(
        f"its clock cannot be told (correlation {clock.correlation:.2f}, elsewhere {clock.rival:.2f}, sigma "
        f"{clock.sigma:.3f} s): its stamps are taken as they are"
    )
    return None


def _turn(clock: ClockOffset | None, settings: ReferenceSettings, notes: list[str]) -> Rotation:
    """Takes vectors of the reference's body to the base."""
    if settings.offset is not None:
        return settings.offset.rotation
    if clock is None or clock.correlation < 0.5:
        return Rotation.identity()
    vector = clock.rotation.as_rotvec()
    angle = float(np.linalg.norm(vector))
    axis = vector / angle if angle else np.array((0.0, 0.0, 1.0))
    sigma = float(np.sqrt(axis @ clock.rotation_covariance @ axis))
    if not _significant(angle, sigma, settings.least_turn, settings):
        return Rotation.identity()
    degrees = np.degrees(clock.rotation.as_euler("xyz"))
    notes.append(
        f"its body is turned in the base by roll {degrees[0]:.2f}, pitch {degrees[1]:.2f}, yaw {degrees[2]:.2f} "
        f"degrees (+- {np.degrees(sigma):.2f}): taken out"
    )
    return clock.rotation


def _inertial(
    seconds: FloatArray,
    position: FloatArray,
    rotation: Rotation,
    segments: Segments,
    attitude: GyroAttitude,
    log: SensorLog,
    notes: list[str],
) -> InertialFit | None:
    try:
        return fit_inertial(seconds, position, rotation, segments.label, attitude, log.linear_acceleration)
    except TraceError as error:
        notes.append(str(error).removeprefix("reference: "))
        return None


def _place(
    inertial: InertialFit | None, imu_position: FloatArray, settings: ReferenceSettings, notes: list[str]
) -> FloatArray:
    """(3,) m, of the reference's body in the base."""
    if settings.offset is not None:
        return np.asarray(settings.offset.position)
    if inertial is None:
        return np.zeros(3)
    place, sigma = imu_position + inertial.lever, inertial.lever_sigma
    # Axis by axis: one that the motion does not show (often z) must not be moved by what the others show.
    shown = np.array(
        [
            _significant(abs(float(value)), float(spread), settings.least_position, settings)
            for value, spread in zip(place, sigma, strict=True)
        ]
    )
    if not shown.any():
        return np.zeros(3)
    told = ", ".join(f"{axis} {place[k]:+.3f} +- {sigma[k]:.3f}" for k, axis in enumerate("xyz") if shown[k])
    notes.append(f"its body is off the base by {told} m: taken out")
    return np.where(shown, place, 0.0)


def _cut_notes(segments: Segments) -> list[str]:
    notes = []
    words = {"gap": "gaps", "jump": "jumps", "stuck": "times stuck", "short": "short pieces dropped"}
    for kind, word in words.items():
        found = [cut for cut in segments.cuts if cut.kind == kind]
        if found:
            worst = max(found, key=lambda cut: (cut.size, cut.angle))
            size = f"{worst.size:.2f} {'m' if kind == 'jump' else 's'}"
            angle = f" and {np.degrees(worst.angle):.0f} degrees" if worst.angle else ""
            notes.append(f"{len(found)} {word}, the largest {size}{angle} at {worst.start:.2f} s: cut there")
    return notes


def _rows(
    seconds: FloatArray, position: FloatArray, rotation: Rotation, label: IntArray, attitude: GyroAttitude
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Position, orientation, velocity and piece at each sample of the log."""
    t = attitude.seconds
    right = np.clip(np.searchsorted(seconds, t, side="left"), 1, seconds.size - 1)
    left = right - 1
    inside = (t >= seconds[0]) & (t <= seconds[-1]) & (label[left] == label[right]) & (label[left] >= 0)
    segment = np.where(inside, label[left], -1)
    k, left, right = np.flatnonzero(inside), left[inside], right[inside]
    result = [np.zeros((t.size, 3)), np.tile((0.0, 0.0, 0.0, 1.0), (t.size, 1)), np.zeros((t.size, 3))]
    if not k.size:
        return result[0], result[1], result[2], segment
    part = ((t[k] - seconds[left]) / (seconds[right] - seconds[left]))[:, None]
    result[0][k] = position[left] + part * (position[right] - position[left])
    # Along the gyro from the pose before; what it misses at the pose after is spread over the interval.
    start = attitude.at(seconds[left])
    along = rotation[left] * start.inv() * attitude.at(t[k])
    missed = (rotation[left] * start.inv() * attitude.at(seconds[right])).inv() * rotation[right]
    turned = along * Rotation.from_rotvec(part * missed.as_rotvec())
    result[1][k] = turned.as_quat()
    slope = _slopes(seconds, position, label)
    result[2][k] = turned.inv().apply(slope[left] + part * (slope[right] - slope[left]))
    return result[0], result[1], result[2], segment


def _slopes(seconds: FloatArray, position: FloatArray, label: IntArray) -> FloatArray:
    """Velocities in the world at the poses, by a line through those around, within each piece, m/s. ``(M, 3)``"""
    slope = np.zeros_like(position)
    for number in range(int(label.max(initial=-1)) + 1):
        members = np.flatnonzero(label == number)
        t, p = seconds[members] - seconds[members[0]], position[members]
        reach = max(1, round(_VELOCITY_WINDOW / 2 / float(np.median(np.diff(t)))))
        first = np.clip(np.arange(t.size) - reach, 0, None)
        last = np.clip(np.arange(t.size) + reach, None, t.size - 1) + 1
        running = np.vstack((np.zeros(8), np.cumsum(np.column_stack((t, t * t, p, t[:, None] * p)), axis=0)))
        sums = running[last] - running[first]
        n = (last - first)[:, None]
        mean_t, mean_p = sums[:, :1] / n, sums[:, 2:5] / n
        slope[members] = (sums[:, 5:] / n - mean_t * mean_p) / (sums[:, 1:2] / n - mean_t**2)
    return slope
