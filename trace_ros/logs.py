"""What everything exchanges: what the sensors said (`SensorLog`) and where the robot was (`Trajectory`).

SI units. Body frame x forward, y left, z up. Quaternions x, y, z, w, body to world. Time is int64 nanoseconds.
Leg order FL, FR, RL, RR; joint order hip, thigh, calf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from trace_ros.errors import TraceError
from trace_ros.whole_files import DAMAGED_ARCHIVE, whole_file

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

JOINTS = 12
LEGS = 4

TorqueSource = Literal["commanded_effort", "pd_target", "measured_effort", "none"]
"""What ``joint_torque`` is; the estimator wants the target torque, measured effort is the declared fallback."""

LARGEST_READING = 1e6
"""More than any sensor of a robot says in SI units; a larger number is corrupt, and overflows in single precision."""


MAX_NPZ_BYTES = 64 * 1024**3
"""Of a log once unpacked: a hundred hours of a robot."""


def is_reading(values: Any) -> NDArray[np.bool_]:
    """Where numbers can be a sensor's: finite, and no larger than `LARGEST_READING`."""
    return np.asarray(np.abs(values) <= LARGEST_READING)  # false for NaN


def _check_array(
    owner: str,
    name: str,
    value: Any,
    shape: tuple[int, ...],
    dtype: type = np.float64,
    rows_may_be_absent: bool = False,
) -> Any:
    raw = np.asarray(value)
    if raw.dtype.kind not in "biuf":
        raise TraceError(f"{owner}: {name} holds {raw.dtype}, expected numbers")
    array: NDArray[Any] = np.ascontiguousarray(raw, dtype=dtype)
    if array.shape != shape:
        raise TraceError(f"{owner}: {name} has shape {array.shape}, expected {shape}")
    finite = np.isfinite(array)
    if rows_may_be_absent and not finite.all():
        finite[np.isnan(array).all(axis=1)] = True
    if not finite.all():
        raise TraceError(f"{owner}: {name} of sample {_first_row(~finite)} is NaN or infinite")
    return array


def _reported(table: FloatArray | None, index: int) -> FloatArray | None:
    """One row, or None where it is not reported."""
    row = None if table is None else table[index]
    return None if row is None or row[0] != row[0] else row


def _check_members(path: Path) -> None:
    """Refuse an ``.npz`` whose arrays claim more than they hold, before memory is taken for them.

    Raises:
        TraceError: names the array.
    """
    with ZipFile(path) as archive:
        total = sum(item.file_size for item in archive.infolist())
        if total > MAX_NPZ_BYTES:
            raise TraceError(f"{path}: {total} bytes once unpacked are too many for a log (at most {MAX_NPZ_BYTES})")
        for item in archive.infolist():
            with archive.open(item) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
                claimed = math.prod(shape) * dtype.itemsize
                if not dtype.hasobject and claimed != item.file_size - file.tell():
                    raise TraceError(f"{path}: array {item.filename} claims {claimed} bytes and holds another number")


def _first_row(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask.reshape(mask.shape[0], -1).any(axis=1)))


def _check_stamps(owner: str, stamp_ns: Any) -> IntArray:
    stamps = np.ascontiguousarray(stamp_ns)
    if stamps.ndim != 1 or (stamps.size and not np.issubdtype(stamps.dtype, np.integer)):
        raise TraceError(
            f"{owner}: stamp_ns must be one row of integers (nanoseconds), got {stamps.dtype} {stamps.shape}"
        )
    stamps = stamps.astype(np.int64)
    steps = np.diff(stamps)
    if (steps <= 0).any():
        index = int(np.argmax(steps <= 0)) + 1
        raise TraceError(
            f"{owner}: stamps must strictly increase, but sample {index} is {int(steps[index - 1])} ns after the last"
        )
    return stamps


@dataclass(frozen=True)
class Trajectory:
    """Poses and velocities of the body over time.

    Attributes:
        stamp_ns: (N,) ns, strictly increasing.
        position: (N, 3) m, world frame.
        orientation: (N, 4) quaternion x, y, z, w, body to world; normalised on construction.
        velocity: (N, 3) m/s, body frame.
        angular_velocity: (N, 3) rad/s, body frame, or None.
        covariance: (N, 6, 6) of the pose in the order x, y, z, rotation about X, Y, Z (REP-103), or None.
    """

    stamp_ns: IntArray
    position: FloatArray
    orientation: FloatArray
    velocity: FloatArray
    angular_velocity: FloatArray | None = None
    covariance: FloatArray | None = None

    def __post_init__(self) -> None:
        stamps = _check_stamps("trajectory", self.stamp_ns)
        n = stamps.size
        orientation = _check_array("trajectory", "orientation", self.orientation, (n, 4))
        norm = np.linalg.norm(orientation, axis=1, keepdims=True)
        if n and not (norm > 1e-6).all():
            raise TraceError(
                f"trajectory: orientation {int(np.argmin(norm))} is not a quaternion (norm {norm.min():.3g})"
            )
        object.__setattr__(self, "stamp_ns", stamps)
        object.__setattr__(self, "orientation", orientation / norm if n else orientation)
        for name in ("position", "velocity"):
            object.__setattr__(self, name, _check_array("trajectory", name, getattr(self, name), (n, 3)))
        if self.angular_velocity is not None:
            checked = _check_array("trajectory", "angular_velocity", self.angular_velocity, (n, 3))
            object.__setattr__(self, "angular_velocity", checked)
        if self.covariance is not None:
            object.__setattr__(self, "covariance", _check_array("trajectory", "covariance", self.covariance, (n, 6, 6)))

    def __len__(self) -> int:
        return int(self.stamp_ns.size)

    @property
    def duration_s(self) -> float:
        """Time between the first and the last pose (s)."""
        return float(self.stamp_ns[-1] - self.stamp_ns[0]) * 1e-9 if len(self) else 0.0

    @property
    def rotation_world_body(self) -> Rotation:
        """Orientations as one scipy Rotation of length N."""
        return Rotation.from_quat(self.orientation)

    @property
    def path_length_m(self) -> float:
        """Length of the 3-D polyline through the positions (m)."""
        return float(np.linalg.norm(np.diff(self.position, axis=0), axis=1).sum())

    def select(self, index: slice | NDArray[Any]) -> Trajectory:
        """The poses at a slice, a boolean mask or an index array."""
        return replace(self, **{f.name: v[index] for f in fields(self) if (v := getattr(self, f.name)) is not None})

    def resample(self, stamp_ns: IntArray, max_gap_s: float = 0.25) -> tuple[Trajectory, NDArray[np.bool_]]:
        """Interpolate at other stamps: linear for position and velocity, slerp for orientation.

        Args:
            stamp_ns: (M,) ns, strictly increasing.
            max_gap_s: never interpolate between poses further apart than this (s).

        Returns:
            The trajectory at the K <= M stamps that could be reached, and the (M,) mask that tells which those are.
            The covariance is not interpolated (None).
        """
        stamps = _check_stamps("resampling", stamp_ns)
        if len(self) < 2:
            raise TraceError(f"trajectory: needs at least 2 poses to be resampled, has {len(self)}")
        right = np.clip(np.searchsorted(self.stamp_ns, stamps, side="left"), 1, len(self) - 1)
        inside = (stamps >= self.stamp_ns[0]) & (stamps <= self.stamp_ns[-1])
        exact = self.stamp_ns[right] == stamps
        exact |= self.stamp_ns[right - 1] == stamps
        short = (self.stamp_ns[right] - self.stamp_ns[right - 1]) <= int(max_gap_s * 1e9)
        mask = inside & (short | exact)
        wanted = stamps[mask]
        if exact[mask].all():  # as in simulation: nothing lies between poses
            rows = np.where(self.stamp_ns[right] == stamps, right, right - 1)[mask]
            return replace(self.select(rows), covariance=None), mask
        # Seconds from the first pose: absolute nanoseconds do not fit in a double.
        own = (self.stamp_ns - self.stamp_ns[0]) * 1e-9
        new = (wanted - self.stamp_ns[0]) * 1e-9

        def linear(values: FloatArray) -> FloatArray:
            return np.stack([np.interp(new, own, column) for column in values.T], axis=1)

        orientation = Slerp(own, self.rotation_world_body)(np.clip(new, own[0], own[-1])).as_quat().reshape(-1, 4)
        angular = None if self.angular_velocity is None else linear(self.angular_velocity)
        return Trajectory(wanted, linear(self.position), orientation, linear(self.velocity), angular), mask


@dataclass(frozen=True)
class Sample:
    """One instant of a `SensorLog`; what `TraceEstimator.step` takes.

    Attributes:
        stamp_ns: ns.
        angular_velocity: (3,) rad/s.
        linear_acceleration: (3,) specific force, m/s^2 (+g on z at rest, REP-145).
        joint_position: (12,) rad.
        joint_velocity: (12,) rad/s, or None where the robot does not report it.
        joint_torque: (12,) N m, or None where the robot does not report it.
    """

    stamp_ns: int
    angular_velocity: FloatArray
    linear_acceleration: FloatArray
    joint_position: FloatArray
    joint_velocity: FloatArray | None
    joint_torque: FloatArray | None


@dataclass(frozen=True)
class SensorLog:
    """A recording of the body's own sensors at one rate, with the truth where there is one.

    Attributes:
        stamp_ns: (N,) ns, strictly increasing.
        angular_velocity: (N, 3) rad/s, gyroscope, rotated into the body frame.
        linear_acceleration: (N, 3) m/s^2, specific force (+g on z at rest), rotated into the body frame.
        joint_position: (N, 12) rad.
        joint_velocity: (N, 12) rad/s, or None: not reported by this robot. A row of NaN: not reported at this sample.
        joint_torque: (N, 12) N m, or None: not reported by this robot. A row of NaN: not reported at this sample.
        torque_source: what ``joint_torque`` is; "none" exactly when it is None.
        robot: name of the robot description this log belongs to.
        reference: ground truth, any rate, or None.
        contact: (N, 4) bool, simulated logs only.
        contact_normal: (N, 4, 3) body frame, from the ground to the foot; zero without contact. Simulated logs only.
        foot_force: (N, 4, 3) N, ground on foot, body frame. Simulated logs only.
    """

    stamp_ns: IntArray
    angular_velocity: FloatArray
    linear_acceleration: FloatArray
    joint_position: FloatArray
    joint_velocity: FloatArray | None = None
    joint_torque: FloatArray | None = None
    torque_source: TorqueSource = "none"
    robot: str = ""
    reference: Trajectory | None = field(default=None, compare=False)
    contact: NDArray[np.bool_] | None = None
    contact_normal: FloatArray | None = None
    foot_force: FloatArray | None = None

    def __post_init__(self) -> None:
        stamps = _check_stamps("sensor log", self.stamp_ns)
        n = stamps.size
        object.__setattr__(self, "stamp_ns", stamps)
        shapes = {
            "angular_velocity": (n, 3),
            "linear_acceleration": (n, 3),
            "joint_position": (n, JOINTS),
            "joint_velocity": (n, JOINTS),
            "joint_torque": (n, JOINTS),
            "contact_normal": (n, LEGS, 3),
            "foot_force": (n, LEGS, 3),
        }
        for name, shape in shapes.items():
            if getattr(self, name) is not None:
                optional = name in ("joint_velocity", "joint_torque")
                array = _check_array("sensor log", name, getattr(self, name), shape, rows_may_be_absent=optional)
                if not (usable := is_reading(array) | (np.isnan(array) if optional else False)).all():
                    raise TraceError(
                        f"sensor log: {name} of sample {_first_row(~usable)} is beyond {LARGEST_READING:g}"
                    )
                object.__setattr__(self, name, array)
        if self.contact is not None:
            object.__setattr__(
                self, "contact", _check_array("sensor log", "contact", self.contact, (n, LEGS), np.bool_)
            )
        if self.torque_source not in get_args(TorqueSource):
            raise TraceError(f"sensor log: torque_source {self.torque_source!r} is none of {get_args(TorqueSource)}")
        if (self.torque_source == "none") != (self.joint_torque is None):
            raise TraceError(
                f"sensor log: torque_source is {self.torque_source!r} but joint_torque is "
                f"{'absent' if self.joint_torque is None else 'present'}"
            )

    def __len__(self) -> int:
        return int(self.stamp_ns.size)

    def __iter__(self) -> Iterator[Sample]:
        return (self.sample(i) for i in range(len(self)))

    @property
    def duration_s(self) -> float:
        """Time between the first and the last sample (s)."""
        return float(self.stamp_ns[-1] - self.stamp_ns[0]) * 1e-9 if len(self) else 0.0

    @property
    def rate_hz(self) -> float:
        """Rate from the median sampling interval (Hz); 0 with fewer than two samples."""
        return float(1e9 / np.median(np.diff(self.stamp_ns))) if len(self) > 1 else 0.0

    def sample(self, index: int) -> Sample:
        """The sample at one index (views, not copies)."""
        return Sample(
            int(self.stamp_ns[index]),
            self.angular_velocity[index],
            self.linear_acceleration[index],
            self.joint_position[index],
            _reported(self.joint_velocity, index),
            _reported(self.joint_torque, index),
        )

    def select(self, index: slice | NDArray[Any]) -> SensorLog:
        """The samples at a slice, a boolean mask or an index array; the reference is kept whole."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {name: v[index] for name, v in values.items() if isinstance(v, np.ndarray)}
        return replace(self, **changed)

    def save(self, path: Path) -> None:
        """Write to one compressed ``.npz`` without pickles; `load` reads it back equal."""
        arrays: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Trajectory):
                arrays |= {f"reference_{g.name}": v for g in fields(value) if (v := getattr(value, g.name)) is not None}
            elif value is not None:
                arrays[f.name] = value
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> SensorLog:
        """Read what `save` wrote.

        Raises:
            TraceError: the file is missing, is no ``.npz`` of a sensor log, or holds wrong shapes or numbers.
        """
        if path.is_file() and not is_zipfile(path):
            raise TraceError(f"{path}: not a .npz sensor log, or truncated (it is no zip archive)")
        try:
            _check_members(path)
            with np.load(path, allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files}
        except FileNotFoundError as error:
            raise TraceError(f"{path}: no such file") from error
        except DAMAGED_ARCHIVE as error:
            raise TraceError(f"{path}: not a readable .npz sensor log ({error})") from error
        own = {f.name for f in fields(cls)} - {"reference"}
        reference = {f"reference_{f.name}" for f in fields(Trajectory)}
        if unknown := sorted(set(arrays) - own - reference):
            raise TraceError(f"{path}: unknown arrays {', '.join(unknown)}: not a sensor log written by this package")
        needed = {"stamp_ns", "angular_velocity", "linear_acceleration", "joint_position"}
        if missing := sorted(needed - set(arrays)):
            raise TraceError(
                f"{path}: arrays {', '.join(missing)} are missing: not a sensor log written by this package"
            )
        values: dict[str, Any] = {
            name: str(value) if value.dtype.kind == "U" else value for name, value in arrays.items() if name in own
        }
        truth = {k.removeprefix("reference_"): v for k, v in arrays.items() if k in reference}
        needed = {"stamp_ns", "position", "orientation", "velocity"}
        if truth and (missing := sorted(needed - set(truth))):
            raise TraceError(f"{path}: of the reference, {', '.join(missing)} are missing")
        try:
            if truth:
                values["reference"] = Trajectory(**truth)
            return cls(**values)
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from error
