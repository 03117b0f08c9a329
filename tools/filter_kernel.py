"""The filters over whole logs in compiled code, for `tune_filters.py`: what depends on no number that is searched is
computed once for a log, the rest runs in ``filter_kernel.c``."""

from __future__ import annotations

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.baselines.config import BaselineConfig
from trace_ros.baselines.contact import ground_force
from trace_ros.errors import TraceError
from trace_ros.estimator.estimator import initial_tilt
from trace_ros.estimator.observation import MAX_GAP_S, WINDOW
from trace_ros.geometry import GRAVITY
from trace_ros.leg_model import LegModel
from trace_ros.logs import LEGS, SensorLog, Trajectory
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

SOURCE = Path(__file__).with_name("filter_kernel.c")
EVERY = 10
"""Of the samples, one is judged: 50 poses a second."""
_ROW = 15
_CHUNK = 5000


@dataclass(frozen=True)
class PreparedLog:
    """A log as the kernel takes it.

    Attributes:
        name: of the log.
        samples: (N, 91): interval, gyro, accel, feet, Jacobians, shank rates, feet's velocities, ground forces.
        start: (3, 3) rotation of the first estimate.
        stamp_ns: (N,).
        reference: the truth.
    """

    name: str
    samples: FloatArray
    start: FloatArray
    stamp_ns: NDArray[np.int64]
    reference: Trajectory


def prepare(name: str, log: SensorLog, robot: RobotDescription, rotor_inertia: float) -> PreparedLog:
    """Kinematics, inverse dynamics and ground reaction forces of a log.

    Raises:
        TraceError: the log lacks joint velocities, torques or a reference, or has gaps.
    """
    if log.joint_velocity is None or log.joint_torque is None or log.reference is None:
        raise TraceError(f"{name}: the search needs joint velocities, joint torques and a reference")
    dt = np.concatenate(([0.002], np.diff(log.stamp_ns) * 1e-9))
    if dt.max() > MAX_GAP_S:
        raise TraceError(f"{name}: has a gap of {dt.max():.3f} s; the search needs whole logs")
    legs, imu = LegModel(robot), np.asarray(robot.imu.position)
    velocity = log.joint_velocity
    acceleration = np.diff(velocity, axis=0, prepend=velocity[:1]) / dt[:, None]
    parts = []
    for begin in range(0, len(log), _CHUNK):
        at = slice(begin, begin + _CHUNK)
        gyro, accel = log.angular_velocity[at], log.linear_acceleration[at]
        posture = legs.at(log.joint_position[at])
        count = len(gyro)
        own = legs.torque(posture, velocity[at], acceleration[at], gyro, accel, imu)
        own += rotor_inertia * acceleration[at].reshape(count, LEGS, 3)
        force = ground_force(posture, log.joint_torque[at].reshape(count, LEGS, 3) - own)
        rates = posture.shank_rate(velocity[at]), posture.foot_velocity(velocity[at])
        columns = dt[at], gyro, accel, posture.foot, posture.jacobian, *rates, force
        parts.append(np.concatenate([column.reshape(count, -1) for column in columns], axis=1))
    roll, pitch = initial_tilt(log.linear_acceleration[:WINDOW]).tolist()
    start = Rotation.from_euler("xyz", (roll, pitch, 0.0)).as_matrix()
    return PreparedLog(name, np.concatenate(parts), start, log.stamp_ns, log.reference)


class FilterKernel:
    """`Iekf` and `IekfSlipRejection` on prepared logs."""

    def __init__(self, robot: RobotDescription, folder: Path) -> None:
        """Compile.

        Args:
            robot: whose logs.
            folder: where the compiled code goes.

        Raises:
            TraceError: no C compiler, or it fails.
        """
        self._robot = robot
        library = folder / f"filter_kernel.{os.getpid()}.so"
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            os.environ.get("CC", "cc"),
            "-O3",
            "-march=native",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(SOURCE),
            "-lm",
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            self._library = ctypes.CDLL(str(library))
        except FileNotFoundError as error:
            raise TraceError(f"{command[0]}: no such compiler; install one, or name it in CC") from error
        except subprocess.CalledProcessError as error:
            raise TraceError(f"{SOURCE}: does not compile: {error.stderr.strip().splitlines()[0]}") from error
        finally:
            library.unlink(missing_ok=True)
        self._library.run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
        ]

    def run(self, log: PreparedLog, config: BaselineConfig, rejects_slip: bool = True) -> Trajectory | None:
        """The estimate, of one sample in `EVERY`; None where numbers overflow.

        Args:
            log: of this robot.
            config: of the filter; ``contact.rotor_inertia`` must be what the log was prepared with.
            rejects_slip: whether as ``iekf_sr``.
        """
        numbers = self._numbers(config, rejects_slip)
        samples, first = np.ascontiguousarray(log.samples), WINDOW - 1
        assert len(numbers) == self._library.numbers()
        assert samples.shape[1] == self._library.columns()
        out = np.empty((len(samples) // EVERY + 2, _ROW))
        start = np.ascontiguousarray(log.start)
        rows = self._library.run(
            samples.ctypes.data, len(samples), numbers.ctypes.data, start.ctypes.data, first, EVERY, out.ctypes.data
        )
        out = out[:rows]
        if not np.isfinite(out).all():
            return None
        stamps = log.stamp_ns[first::EVERY][:rows]
        return Trajectory(
            stamps, out[:, :3], Rotation.from_matrix(out[:, 3:12].reshape(-1, 3, 3)).as_quat(), out[:, 12:]
        )

    def _numbers(self, config: BaselineConfig, rejects_slip: bool) -> FloatArray:
        """In the order of the structure in ``filter_kernel.c``."""
        robot, contact, noise, prior = self._robot, config.contact, config.noise, config.prior
        return np.array(
            [
                GRAVITY,
                robot.mass * GRAVITY,
                robot.foot_radius if config.rolling_feet else 0.0,
                *robot.imu.position,
                contact.enter,
                contact.leave,
                contact.touchdown_dwell,
                contact.liftoff_dwell,
                contact.rest,
                contact.rest_dwell,
                contact.smoothing,
                noise.gyro,
                noise.accel,
                noise.contact,
                noise.contact_vertical,
                noise.slip,
                noise.sinking,
                noise.encoder,
                noise.gyro_bias,
                noise.accel_bias,
                prior.tilt,
                prior.yaw,
                prior.velocity,
                prior.position,
                prior.gyro_bias,
                prior.accel_bias,
                config.slip_speed,
                config.slip_patience,
                float(config.slip_direction == "any"),
                float(rejects_slip),
            ]
        )
