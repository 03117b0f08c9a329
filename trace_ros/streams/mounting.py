"""Where the IMU sits: its readings, turned into the body frame and moved to where the model was trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.logs import LARGEST_READING
from trace_ros.robot import RobotDescription
from trace_ros.streams.readings import BadMessageError, ImuReading, shown

FloatArray = NDArray[np.float64]
MountingSource = Literal["robot", "urdf", "tf"]
Pose = tuple[FloatArray, FloatArray]
"""Rotation (3, 3) and position (3,) m of a frame in another."""

_CUTOFF_HZ = 20.0
"""Low-pass of the angular acceleration, which is differentiated from the gyro: above the gait, below the noise."""

_SAME_PLACE = 1e-4
"""m; places closer than this are one."""

_MOST_FRAMES = 10_000
"""Static transforms that are remembered; no robot has as many."""

_GAP_NS = 50_000_000
"""No angular acceleration is told over a longer interval."""


class TransformTree:
    """Static transforms by name of the frame, as they arrive on ``/tf_static``."""

    def __init__(self) -> None:
        self._parents: dict[str, tuple[str, Pose]] = {}
        self._refused: dict[str, None] = {}

    def add(self, transforms: Iterable[Any]) -> None:
        """Take in geometry_msgs/TransformStamped messages; those that are no transform are passed over."""
        for item in transforms:
            t, q = item.transform.translation, item.transform.rotation
            position, quaternion = np.array((t.x, t.y, t.z)), np.array((q.x, q.y, q.z, q.w))
            norm = float(np.linalg.norm(quaternion))
            child, parent = _bare(item.child_frame_id), _bare(item.header.frame_id)
            if child not in self._parents and len(self._parents) >= _MOST_FRAMES:
                continue
            if (np.abs(position) <= LARGEST_READING).all() and 1e-6 < norm < 1e6:
                self._parents[child] = parent, (Rotation.from_quat(quaternion).as_matrix(), position)
                self._refused.pop(child, None)
            elif len(self._refused) < _MOST_FRAMES:
                self._refused[child] = None

    def fault(self, base: str, frame: str) -> str:
        """Why static transforms do not connect two frames, as the end of a sentence; empty where nothing is known."""
        on_the_way = [*self._to_root(_bare(frame)), *self._to_root(_bare(base))]
        if refused := next((name for name in on_the_way if name in self._refused), None):
            return f"; the one to {shown(refused)!r} is none (NaN, infinity, or a rotation of length zero)"
        for ends in (self._to_root(_bare(frame)), self._to_root(_bare(base))):
            if (last := list(ends)[-1]) in self._parents:
                return f"; the ones above {shown(last)!r} run in a circle"
        return ""

    def pose(self, base: str, frame: str) -> Pose | None:
        """Pose of a frame in another, or None where no static transforms connect the two."""
        above_frame, above_base = self._to_root(_bare(frame)), self._to_root(_bare(base))
        common = next((name for name in above_frame if name in above_base), None)
        if common is None:
            return None
        rotation_frame, position_frame = above_frame[common]
        rotation_base, position_base = above_base[common]
        return rotation_base.T @ rotation_frame, rotation_base.T @ (position_frame - position_base)

    def _to_root(self, frame: str) -> dict[str, Pose]:
        """Pose of a frame in each frame above it, itself first."""
        poses: dict[str, Pose] = {frame: (np.eye(3), np.zeros(3))}
        while frame in self._parents:
            rotation, position = poses[frame]
            parent, (turn, shift) = self._parents[frame]
            if parent in poses:  # a circle
                break
            frame = parent
            poses[frame] = turn @ rotation, shift + turn @ position
        return poses


class Mounting:
    """Turns IMU readings into the body frame, and moves the specific force to where the robot file has the IMU.

    A model is trained with the IMU of the robot file. One that is mounted elsewhere reads the same angular velocity,
    and a specific force that differs by the lever arm: ``a' = a + dw/dt x r + w x (w x r)``.
    """

    def __init__(self, robot: RobotDescription, source: MountingSource = "robot", frame: str = "") -> None:
        """Of a robot.

        Args:
            robot: its file says where the model expects the IMU.
            source: where the mounting is read from: the robot file, the URDF, or static transforms.
            frame: link in the URDF, or frame in the transforms; empty: the frame of the messages.

        Raises:
            TraceError: from the URDF, and it has no such link.
        """
        self._robot, self._source, self._frame = robot, source, frame
        self.transforms = TransformTree()
        self._expected = np.array(robot.imu.position)
        self._known_frame: str | None = None
        self._place: Pose | None = None
        self._rotation: FloatArray | None = None
        self._lever: FloatArray | None = None
        self.text = ""
        """One line: where the IMU is, by what; empty before that is known."""
        self.forget()
        if source == "robot":
            self._set(robot.rotation_body_imu.as_matrix(), self._expected, "the robot file")
        elif source == "urdf" and frame:
            self._from_urdf(frame)

    def add_transforms(self, transforms: Iterable[Any]) -> None:
        """Take in static transforms; the place is looked up anew, since a publisher may correct what it said."""
        self.transforms.add(transforms)
        if self._source == "tf":
            self._known_frame = None

    def forget(self) -> None:
        """Forget the past readings, not the place."""
        self._last: tuple[int, FloatArray] | None = None
        self._acceleration = np.zeros(3)

    def to_body(self, stamp_ns: int, reading: ImuReading) -> tuple[FloatArray, FloatArray]:
        """Angular velocity (3,) rad/s and specific force (3,) m/s^2 in the body frame, at the expected place.

        Raises:
            BadMessageError: the mounting is not known yet.
        """
        if self._source != "robot" and self._known_frame != (self._frame or reading.frame):
            self._locate(self._frame or reading.frame)
        angular, linear = reading.angular_velocity, reading.linear_acceleration
        if self._rotation is not None:
            angular, linear = self._rotation @ angular, self._rotation @ linear
        if self._lever is not None:
            linear = linear + self._at_lever(stamp_ns, angular)
        return angular, linear

    def _at_lever(self, stamp_ns: int, angular: FloatArray) -> FloatArray:
        assert self._lever is not None
        if self._last is not None and 0 < (step := stamp_ns - self._last[0]) <= _GAP_NS:
            dt = step * 1e-9
            weight = 1.0 - np.exp(-2 * np.pi * _CUTOFF_HZ * dt)
            self._acceleration = self._acceleration + weight * ((angular - self._last[1]) / dt - self._acceleration)
        else:
            self._acceleration = np.zeros(3)
        self._last = stamp_ns, angular
        turning = _cross(self._acceleration, self._lever)
        return turning + _cross(angular, _cross(angular, self._lever))

    def _locate(self, frame: str) -> None:
        if self._source == "urdf":
            try:
                self._from_urdf(frame)
            except TraceError as error:
                raise BadMessageError("imu_no_transform", str(error)) from error
            return
        base = self._robot.base_link
        pose = self.transforms.pose(base, frame)
        if pose is None:
            why = self.transforms.fault(base, frame)
            raise BadMessageError(
                "imu_no_transform", f"no static transform from {base!r} to the IMU's frame {shown(frame)!r}{why}"
            )
        self._set(*pose, f"the transform to {frame!r}")
        self._known_frame = frame

    def _from_urdf(self, frame: str) -> None:
        model = self._robot.model
        if _bare(frame) not in model.links:
            near = ", ".join(name for name in model.links if "imu" in name.lower()) or "none with imu in its name"
            raise TraceError(f"{model.path}: no link {shown(frame)!r} for the IMU; it has {near}")
        self._set(*model.pose(self._robot.base_link, _bare(frame), {}), f"link {frame!r} of the URDF")
        self._known_frame = frame

    def _set(self, rotation: FloatArray, position: FloatArray, by: str) -> None:
        if self._place is not None and all(map(np.array_equal, self._place, (rotation, position))):
            return  # the same again: what is known of the turning goes on
        self.forget()
        self._place = rotation, position
        lever = self._expected - position
        self._rotation = None if np.abs(rotation - np.eye(3)).max() < 1e-12 else rotation
        self._lever = None if np.abs(lever).max() < _SAME_PLACE else lever
        x, y, z = position
        roll, pitch, yaw = Rotation.from_matrix(rotation).as_euler("xyz")
        self.text = f"IMU at [{x:.4f}, {y:.4f}, {z:.4f}] m, turned by [{roll:.4f}, {pitch:.4f}, {yaw:.4f}] rad, by {by}"
        if self._lever is not None:
            self.text += f"; its readings are moved by {np.linalg.norm(lever):.4f} m to where the model was trained"


def _cross(a: FloatArray, b: FloatArray) -> FloatArray:
    """Cross product of two (3,); numpy's own takes ten times as long."""
    ax, ay, az = a.tolist()
    bx, by, bz = b.tolist()
    return np.array((ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx))


def _bare(frame: str) -> str:
    return frame.lstrip("/")
