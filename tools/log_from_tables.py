#!/usr/bin/env python3
"""Make a log for `trace evaluate` and `trace finetune` of tables, one a sensor, as data sets often publish them.

    python tools/log_from_tables.py --robot a1 --gyro gyro.csv --accel accel.csv --joint-position q.csv \\
        --joint-velocity dq.csv --mocap-position p.csv --mocap-orientation rpy.csv --output walk.npz
    trace evaluate walk.npz --robot a1 --start 2.5 --end 45

Every table has the time in its first column (s), then its values, separated by commas; lines that are no numbers are
headings. All are brought to the times of the gyro, linearly: rad/s, m/s^2 (gravity included), rad, m, in the body frame
x forward, y left, z up. Motion capture gives orientations as roll, pitch, yaw (rad) or as quaternions x, y, z, w, told
apart by the number of columns; its velocity is the derivative of its position, over 0.1 s.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter
from scipy.spatial.transform import Rotation, Slerp

from trace_ros.cli.common import say
from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS, LEGS, SensorLog, Trajectory
from trace_ros.robot import LEG_NAMES, RobotDescription

FloatArray = NDArray[np.float64]

VELOCITY_WINDOW_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", default="go2", help="name of a robot, or the path of its YAML file [go2]")
    parser.add_argument("--gyro", type=Path, required=True, help="3 columns")
    parser.add_argument("--accel", type=Path, required=True, help="3 columns")
    parser.add_argument("--joint-position", type=Path, required=True, help="12 columns: hip, thigh, calf of each leg")
    parser.add_argument("--joint-velocity", type=Path, help="12 columns")
    parser.add_argument("--joint-torque", type=Path, help="12 columns")
    parser.add_argument("--contact", type=Path, help="4 columns, 0 or 1")
    parser.add_argument("--mocap-position", type=Path, help="3 columns")
    parser.add_argument("--mocap-orientation", type=Path, help="3 or 4 columns")
    parser.add_argument("--mocap-delay", type=float, default=0.0, help="s by which motion capture is late [0]")
    parser.add_argument("--legs", default=",".join(LEG_NAMES), help="order of the legs in the tables [FL,FR,RL,RR]")
    parser.add_argument("--output", type=Path, required=True, help=".npz file")
    arguments = parser.parse_args()
    try:
        log = log_from_tables(arguments)
        log.save(arguments.output)
    except TraceError as error:
        say(f"error: {error}")
        return 2
    reference = "" if log.reference is None else f", reference of {log.reference.path_length_m:.1f} m"
    say(f"wrote {arguments.output}: {log.duration_s:.1f} s at {log.rate_hz:.0f} Hz{reference}")
    return 0


def log_from_tables(arguments: argparse.Namespace) -> SensorLog:
    """The log that the options describe.

    Raises:
        TraceError: a file is missing, no table, or has another number of columns; legs are unknown.
    """
    robot = RobotDescription.load(arguments.robot)
    given = [leg.strip().upper() for leg in arguments.legs.split(",")]
    if sorted(given) != sorted(LEG_NAMES):
        raise TraceError(f"--legs {arguments.legs}: expected {', '.join(LEG_NAMES)}, each once, in the tables' order")
    legs = np.array([given.index(leg) for leg in LEG_NAMES])
    joints = (3 * legs[:, None] + np.arange(3)).reshape(JOINTS)
    time, gyro = read_table(arguments.gyro, (3,))

    def at(path: Path, columns: int) -> FloatArray:
        own, values = read_table(path, (columns,))
        return np.stack([np.interp(time, own, column) for column in values.T], axis=1)

    def of_joints(path: Path | None) -> FloatArray | None:
        return None if path is None else at(path, JOINTS)[:, joints]

    position, torque = of_joints(arguments.joint_position), of_joints(arguments.joint_torque)
    assert position is not None
    return SensorLog(
        stamps(time, time[0]),
        gyro,
        at(arguments.accel, 3),
        position,
        of_joints(arguments.joint_velocity),
        torque,
        "none" if torque is None else "measured_effort",
        robot.name,
        read_reference(arguments.mocap_position, arguments.mocap_orientation, time[0] + arguments.mocap_delay),
        None if arguments.contact is None else at(arguments.contact, LEGS)[:, legs] > 0.5,
    )


def read_reference(position: Path | None, orientation: Path | None, origin: float) -> Trajectory | None:
    """Motion capture; ``origin`` (s) is its time at the log's first sample. None without it.

    Raises:
        TraceError: one table without the other, or unreadable.
    """
    if position is None and orientation is None:
        return None
    if position is None or orientation is None:
        raise TraceError("a reference needs both: --mocap-position and --mocap-orientation")
    time, where = read_table(position, (3,))
    own, values = read_table(orientation, (3, 4))
    turned = Rotation.from_euler("xyz", values) if values.shape[1] == 3 else Rotation.from_quat(values)
    within = (time >= own[0]) & (time <= own[-1]) & (time >= origin)
    window = 2 * round(VELOCITY_WINDOW_S / float(np.median(np.diff(time))) / 2) + 1
    if window < 3 or within.sum() <= window:
        raise TraceError(f"{position}: too few poses, or too far apart, for velocities")
    moving = savgol_filter(where, window, 2, deriv=1, delta=float(np.median(np.diff(time))), axis=0)
    rotation = Slerp(own, turned)(time[within])
    return Trajectory(
        stamps(time[within], origin), where[within], rotation.as_quat(), rotation.inv().apply(moving[within])
    )


def read_table(path: Path, widths: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Times (N,) in s and values (N, one of ``widths``).

    Raises:
        TraceError: names the file and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        first = next((i for i, line in enumerate(lines) if not any(c.isalpha() for c in line.replace("e", ""))), 0)
        table = np.atleast_2d(np.loadtxt(lines[first:], delimiter=","))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise TraceError(f"{path}: not a table of numbers ({' '.join(str(error).split())})") from error
    if table.shape[1] - 1 not in widths:
        expected = " or ".join(map(str, widths))
        raise TraceError(f"{path}: {table.shape[1] - 1} columns after the time, expected {expected}")
    if len(table) < 2 or not (np.diff(table[:, 0]) > 0).all():
        raise TraceError(f"{path}: the first column must be times that increase")
    return table[:, 0], table[:, 1:]


def stamps(time: FloatArray, origin: float) -> NDArray[np.int64]:
    """ns since ``origin`` (s)."""
    return np.rint((time - origin) * 1e9).astype(np.int64)


if __name__ == "__main__":
    sys.exit(main())
