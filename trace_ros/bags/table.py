"""`SensorLog` as ``.csv``: one row a sample, a header row, and the reference in a second file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import LEG_NAMES, RobotDescription
from trace_ros.whole_files import whole_file

_XYZ = ("x", "y", "z")


def write_csv(path: Path, log: SensorLog, robot: RobotDescription) -> None:
    """Write a log; the reference goes to ``<stem>.reference.csv`` beside it.

    Columns are ``stamp_ns``, ``angular_velocity.x`` and so on, ``<joint>.position``, ``<joint>.velocity``,
    ``<joint>.torque``, and for simulated logs ``<leg>.contact`` and the like. Comment lines hold robot and torque
    source. Numbers have 17 digits, so that reading returns the same values.
    """
    columns = {name: getattr(log, name) for name in _log_columns(robot) if getattr(log, name) is not None}
    names = _log_columns(robot)
    notes = {"robot": robot.name, "torque_source": log.torque_source}
    _write(path, log.stamp_ns, {name: (names[name], values) for name, values in columns.items()}, notes)
    if log.reference is not None:
        truth = log.reference
        table = {
            name: (labels, values)
            for name, labels in _trajectory_columns().items()
            if (values := getattr(truth, name)) is not None
        }
        _write(_reference_path(path), truth.stamp_ns, table, {})


def read_csv(path: Path, robot: RobotDescription) -> SensorLog:
    """Read what `write_csv` wrote, or any table with these columns; absent velocity or torque is not reported.

    Raises:
        TraceError: no such file, a number that is none, or missing columns (listed).
    """
    stamps, table, notes = _read(path)
    values = _gather(path, table, _log_columns(robot), ("angular_velocity", "linear_acceleration", "joint_position"))
    if "contact" in values:
        values["contact"] = values["contact"].astype(bool)
    for name in ("contact_normal", "foot_force"):
        if name in values:
            values[name] = values[name].reshape(-1, len(LEG_NAMES), 3)
    source: Any = notes.get("torque_source", "measured_effort") if "joint_torque" in values else "none"
    if source == "none":
        values.pop("joint_torque", None)
    reference = None
    if _reference_path(path).is_file():
        truth_stamps, truth, _ = _read(_reference_path(path))
        parts = _gather(path, truth, _trajectory_columns(), ("position", "orientation", "velocity"))
        if "covariance" in parts:
            parts["covariance"] = parts["covariance"].reshape(-1, 6, 6)
        reference = Trajectory(truth_stamps, **parts)
    try:
        return SensorLog(stamps, **values, torque_source=source, robot=notes.get("robot", ""), reference=reference)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _reference_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.reference.csv")


def _log_columns(robot: RobotDescription) -> dict[str, list[str]]:
    joints = robot.joint_names
    return {
        "angular_velocity": [f"angular_velocity.{axis}" for axis in _XYZ],
        "linear_acceleration": [f"linear_acceleration.{axis}" for axis in _XYZ],
        "joint_position": [f"{joint}.position" for joint in joints],
        "joint_velocity": [f"{joint}.velocity" for joint in joints],
        "joint_torque": [f"{joint}.torque" for joint in joints],
        "contact": [f"{leg}.contact" for leg in LEG_NAMES],
        "contact_normal": [f"{leg}.contact_normal.{axis}" for leg in LEG_NAMES for axis in _XYZ],
        "foot_force": [f"{leg}.foot_force.{axis}" for leg in LEG_NAMES for axis in _XYZ],
    }


def _trajectory_columns() -> dict[str, list[str]]:
    axes = ("x", "y", "z", "roll", "pitch", "yaw")
    return {
        "position": [f"position.{axis}" for axis in _XYZ],
        "orientation": [f"orientation.{axis}" for axis in (*_XYZ, "w")],
        "velocity": [f"velocity.{axis}" for axis in _XYZ],
        "angular_velocity": [f"angular_velocity.{axis}" for axis in _XYZ],
        "covariance": [f"covariance.{row}.{column}" for row in axes for column in axes],
    }


def _write(
    path: Path, stamps: NDArray[np.int64], table: dict[str, tuple[list[str], NDArray[Any]]], notes: dict[str, str]
) -> None:
    columns = [values.reshape(stamps.size, -1).astype(float) for _, values in table.values()]
    labels = ["stamp_ns", *(label for names, _ in table.values() for label in names)]
    rows = np.concatenate(columns, axis=1).tolist()
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in notes.items())
        file.write(",".join(labels) + "\n")
        # repr of a float is the shortest text that reads back as the same number.
        file.writelines(
            f"{stamp},{','.join(map(repr, row))}\n" for stamp, row in zip(stamps.tolist(), rows, strict=True)
        )


def _read(path: Path) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]], dict[str, str]]:
    notes: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8") as file:
            line = file.readline()
            while line.startswith("#"):
                key, _, value = line.lstrip("#").partition(":")
                notes[key.strip()] = value.strip()
                line = file.readline()
            labels = [label.strip() for label in line.strip().split(",")]
            if labels[0] != "stamp_ns":
                raise TraceError(f"{path}: the first column must be stamp_ns, found {labels[0]!r}")
            # Nanoseconds since 1970 do not fit in a double: the first column stays an integer.
            row = np.dtype([("stamp", np.int64), ("values", np.float64, (len(labels) - 1,))])
            data = np.atleast_1d(np.loadtxt(file, dtype=row, delimiter=","))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not a readable table ({' '.join(str(error).split())})") from error
    columns = {label: data["values"][:, index] for index, label in enumerate(labels[1:])}
    return data["stamp"], columns, notes


def _gather(
    path: Path, table: dict[str, NDArray[np.float64]], wanted: dict[str, list[str]], required: tuple[str, ...]
) -> dict[str, NDArray[Any]]:
    values: dict[str, NDArray[Any]] = {}
    for name, labels in wanted.items():
        missing = [label for label in labels if label not in table]
        if not missing:
            values[name] = np.stack([table[label] for label in labels], axis=1)
        elif name in required or len(missing) < len(labels):
            raise TraceError(f"{path}: columns {', '.join(missing)} are missing")
    return values
