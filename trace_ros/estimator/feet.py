"""The joints' 36 channels told at the feet (our extension; `NetworkConfig.joints`).

The paper's network is given joint positions, velocities and torques, and has to learn the legs' kinematics along with
all else, for the postures of the gaits that it saw. Told at the feet, the same numbers say directly what odometry asks:
where each is, how the body would move if it rested on the ground, and how hard it pushes. What a network makes of these
holds for other postures, and so for other gaits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.network import NetworkConfig
from trace_ros.leg_model import LegModel, cross
from trace_ros.logs import JOINTS, LEGS
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

FOOT_POSITION = slice(0, JOINTS)
"""Of the channels: where the feet are."""

DAMPING = 0.02
"""m; bounds forces where a leg is nearly straight: a torque of 1 N m then tells at most 25 N."""


class FootChannels:
    """From joint position, velocity and torque to foot position, body velocity by each foot, and foot force."""

    def __init__(self, robot: RobotDescription) -> None:
        self._radius = robot.foot_radius
        self._legs = LegModel(robot)
        self._plain = _plain_legs(self._legs)

    def at(self, joints: FloatArray, gyro: FloatArray) -> FloatArray:
        """Channels of samples.

        Args:
            joints: (..., 36) rad, rad/s and N m; torque NaN where it is absent.
            gyro: (..., 3) rad/s, body frame.

        Returns:
            (..., 36), body frame, legs FL, FR, RL, RR: position of the foot's centre (m); velocity of the body if that
            foot rolls without slipping on ground across the body's z axis (m/s); the force whose torques the given ones
            are (N), so without the leg's own weight, NaN where torque is absent. That is damped where a leg is nearly
            straight: ``(J J' + damping^2)^-1 J torque``.
        """
        joints, gyro = np.asarray(joints, dtype=float), np.asarray(gyro, dtype=float)
        if self._plain is None:
            return self._by_model(joints, gyro)
        if joints.ndim == 1:
            return _one_sample(self._plain, self._radius, joints, gyro)
        by_leg = np.moveaxis(joints.reshape(*joints.shape[:-1], 3, LEGS, 3), (-3, -1), (0, 1))
        position, velocity, torque = np.ascontiguousarray(by_leg)
        turning = [np.ascontiguousarray(gyro[..., axis, None]) for axis in range(3)]
        legs = _PlainLeg(*np.array(self._plain).T)
        made = _plain(legs, self._radius, position, velocity, torque, turning, np.sin, np.cos)
        channels = np.stack(made).reshape(3, 3, *joints.shape[:-1], LEGS)
        return np.ascontiguousarray(np.moveaxis(channels, (0, 1), (-3, -1))).reshape(joints.shape)

    def _by_model(self, joints: FloatArray, gyro: FloatArray) -> FloatArray:
        """For legs of any kind."""
        position, velocity, torque = np.split(joints, 3, axis=-1)
        posture = self._legs.at(position)
        # The ground is taken to lie across the body's z axis: the point below the foot's centre is the one that rests.
        lowest = posture.foot - (0.0, 0.0, self._radius)
        turning = posture.shank_rate(velocity)
        moving = posture.foot_velocity(velocity)
        moving[..., 0] -= self._radius * turning[..., 1]
        moving[..., 1] += self._radius * turning[..., 0]
        body = -moving - cross(gyro[..., None, :], lowest)
        leg_torque = torque.reshape(*torque.shape[:-1], LEGS, 3)
        square = posture.jacobian @ posture.jacobian.swapaxes(-1, -2) + DAMPING**2 * np.eye(3)
        force = np.linalg.solve(square, posture.jacobian @ leg_torque[..., None])[..., 0]
        shape = (*position.shape[:-1], JOINTS)
        return np.concatenate([part.reshape(shape) for part in (posture.foot, body, force)], axis=-1)


def foot_channels(network: NetworkConfig, robot: RobotDescription) -> FootChannels | None:
    """What a network is told of the legs by; None where it is told of the joints as they are."""
    return FootChannels(robot) if network.joints == "feet" else None


class _PlainLeg(NamedTuple):
    """A leg that turns about x, y and y, all frames parallel at zero: nearly every quadruped's. Numbers, or (4,) each.

    Attributes:
        hip_x, hip_y, hip_z: m, of the hip joint in the body.
        thigh_...: of the thigh joint in the hip's frame; calf_..., foot_...: likewise.
    """

    hip_x: Any
    hip_y: Any
    hip_z: Any
    thigh_x: Any
    thigh_y: Any
    thigh_z: Any
    calf_x: Any
    calf_y: Any
    calf_z: Any
    foot_x: Any
    foot_y: Any
    foot_z: Any


def _plain_legs(legs: LegModel) -> list[_PlainLeg] | None:
    """The four legs, or None where they are of another kind."""
    if not (np.allclose(legs.fixed, np.eye(3), atol=1e-9) and np.allclose(legs.axis, np.eye(3)[[0, 1, 1]], atol=1e-9)):
        return None
    return [_PlainLeg(*legs.translation[leg].ravel().tolist(), *legs.foot[leg].tolist()) for leg in range(LEGS)]


def _plain(leg: _PlainLeg, radius: float, q: Any, dq: Any, torque: Any, gyro: Any, sin: Any, cos: Any) -> list[Any]:
    """The nine channels of a leg: position, velocity and force. Of numbers, or of arrays whose last axis is the leg.

    All is worked out in the hip's frame, whose x axis is the body's, and turned at the end.
    """
    sa, ca, sb, cb = sin(q[0]), cos(q[0]), sin(q[1]), cos(q[1])
    both = q[1] + q[2]
    sk, ck = sin(both), cos(both)
    # From the calf joint, from the thigh joint, and from the hip joint to the foot.
    ux, uz = ck * leg.foot_x + sk * leg.foot_z, ck * leg.foot_z - sk * leg.foot_x
    gx, gz = ux + cb * leg.calf_x + sb * leg.calf_z, uz + cb * leg.calf_z - sb * leg.calf_x
    dx, dz = gx + leg.thigh_x, gz + leg.thigh_z
    dy = leg.thigh_y + leg.calf_y + leg.foot_y
    # The Jacobian's rows: (0, gz, uz), (-dz, 0, 0), (dy, -gx, -ux).
    pitching = dq[1] + dq[2]
    mx = gz * dq[1] + uz * dq[2]
    my = -dz * dq[0]
    mz = dy * dq[0] - gx * dq[1] - ux * dq[2]
    px = leg.hip_x + dx
    py, pz = leg.hip_y + ca * dy - sa * dz, leg.hip_z + sa * dy + ca * dz
    # The shank turns about (dq0, pitching, 0); the ground lies across the body's z axis, below the foot's centre.
    low = pz - radius
    wx, wy, wz = gyro
    vx = radius * ca * pitching - mx - (wy * low - wz * py)
    vy = -radius * dq[0] - (ca * my - sa * mz) - (wz * px - wx * low)
    vz = -(sa * my + ca * mz) - (wx * py - wy * px)
    # J torque, and the inverse of J J' + damping^2 by its cofactors.
    tx = gz * torque[1] + uz * torque[2]
    ty = -dz * torque[0]
    tz = dy * torque[0] - gx * torque[1] - ux * torque[2]
    square = DAMPING * DAMPING
    xx, yy, zz = gz * gz + uz * uz + square, dz * dz + square, dy * dy + gx * gx + ux * ux + square
    yz, xz = -dz * dy, -(gz * gx + uz * ux)
    a, b, c = yy * zz - yz * yz, xz * yz, -yy * xz
    d, e, f = xx * zz - xz * xz, -xx * yz, xx * yy
    share = 1.0 / (xx * a + xz * c)
    fx, fy, fz = (
        share * (a * tx + b * ty + c * tz),
        share * (b * tx + d * ty + e * tz),
        share * (c * tx + e * ty + f * tz),
    )
    return [px, py, pz, vx, vy, vz, fx, ca * fy - sa * fz, sa * fy + ca * fz]


def _one_sample(legs: list[_PlainLeg], radius: float, joints: FloatArray, gyro: FloatArray) -> FloatArray:
    """On vectors of three, numbers are several times as fast as arrays."""
    given, turning = joints.tolist(), gyro.tolist()
    channels = [0.0] * len(given)
    for leg, plain in enumerate(legs):
        at = 3 * leg
        parts = [given[start : start + 3] for start in (at, at + JOINTS, at + 2 * JOINTS)]
        made = _plain(plain, radius, parts[0], parts[1], parts[2], turning, math.sin, math.cos)
        for part in range(3):
            start = at + part * JOINTS
            channels[start : start + 3] = made[3 * part : 3 * part + 3]
    return np.array(channels)
