"""Kinematics and inverse dynamics of the four legs, all legs and joints in one array operation.

One sample costs a small part of a millisecond. Leading axes are samples: a whole log goes through in one call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.geometry import skew
from trace_ros.logs import LEGS
from trace_ros.robot import RobotDescription
from trace_ros.urdf import Urdf, UrdfJoint

FloatArray = NDArray[np.float64]

_JOINTS = 3
"""Of a leg."""
_YZX, _ZXY = np.array([1, 2, 0]), np.array([2, 0, 1])


def cross(a: FloatArray, b: FloatArray) -> FloatArray:
    """Cross product over the last axis, broadcast. On few vectors several times as fast as numpy's own."""
    return np.asarray(a[..., _YZX] * b[..., _ZXY] - a[..., _ZXY] * b[..., _YZX])


class LegPosture(NamedTuple):
    """Where the legs are at given joint positions, in the body frame. Leading axes, if any, are samples.

    Attributes:
        foot: (4, 3) m, centres of the feet.
        jacobian: (4, 3, 3); its last axis runs over the leg's joints: ``v_foot = J dq`` relative to the body.
        origin: (4, 3, 3) m, origins of the joints: leg, joint, axis of space.
        axis: (4, 3, 3) unit vectors of the joints.
        rotation: (4, 3, 3, 3), from each segment's frame.
    """

    foot: FloatArray
    jacobian: FloatArray
    origin: FloatArray
    axis: FloatArray
    rotation: FloatArray

    def foot_velocity(self, joint_velocity: FloatArray) -> FloatArray:
        """(4, 3) m/s of the feet relative to the body, from (12,) rad/s."""
        return np.asarray((self.jacobian @ _by_leg(joint_velocity)[..., None])[..., 0])

    def shank_rate(self, joint_velocity: FloatArray) -> FloatArray:
        """(4, 3) rad/s of the links that end in the feet, relative to the body, from (12,) rad/s."""
        return np.asarray((self.axis * _by_leg(joint_velocity)[..., None]).sum(axis=-2))


class LegModel:
    """Four legs of three segments each, as the URDF has them.

    A segment is all that moves with one joint: the links that hang on it by fixed joints count to it.
    """

    def __init__(self, robot: RobotDescription) -> None:
        urdf = robot.model
        chains = [_segments(urdf, robot.base_link, foot) for foot in robot.foot_links]
        self.translation = np.array([[offset for _, offset, _ in chain[:-1]] for chain in chains])
        """(4, 3, 3) m: leg, joint, axis; from the frame before, the body's first."""
        self.fixed = fixed = np.array([[rotation for _, _, rotation in chain[:-1]] for chain in chains])
        """(4, 3, 3, 3): leg, joint, rotation from the joint's frame at zero to the one before."""
        self.foot = np.array([chain[-1][1] for chain in chains])
        """(4, 3) m: of the feet in the last segments' frames."""
        joints = [[joint for joint, _, _ in chain[:-1] if joint is not None] for chain in chains]
        self.axis = np.array([[joint.axis for joint in leg] for leg in joints])
        """(4, 3, 3): leg, joint, unit vector in the joint's frame."""
        hat = skew(self.axis)
        # fixed @ Exp(axis q), with what does not depend on q multiplied out.
        self._constant, self._sine, self._versine = fixed, fixed @ hat, fixed @ hat @ hat
        bodies = [[_segment_inertia(urdf, joint.child) for joint in leg] for leg in joints]
        self._mass = np.array([[mass for mass, _, _ in leg] for leg in bodies])
        self._centre = np.array([[centre for _, centre, _ in leg] for leg in bodies])
        self._inertia = np.array([[inertia for _, _, inertia in leg] for leg in bodies])

    def at(self, joint_position: FloatArray) -> LegPosture:
        """The legs at (..., 12) rad."""
        q = _by_leg(joint_position)[..., None, None]
        local = self._constant + np.sin(q) * self._sine + (1.0 - np.cos(q)) * self._versine
        rotation = np.empty(local.shape)
        origin = np.empty(local.shape[:-1])
        rotation[..., 0, :, :] = local[..., 0, :, :]
        origin[..., 0, :] = self.translation[:, 0]
        for joint in range(1, _JOINTS):
            above = rotation[..., joint - 1, :, :]
            moved = (above @ self.translation[:, joint, :, None])[..., 0]
            origin[..., joint, :] = origin[..., joint - 1, :] + moved
            rotation[..., joint, :, :] = above @ local[..., joint, :, :]
        foot = origin[..., -1, :] + (rotation[..., -1, :, :] @ self.foot[..., None])[..., 0]
        axis = (rotation @ self.axis[..., None])[..., 0]
        arm = cross(axis, foot[..., None, :] - origin)
        return LegPosture(foot, arm.swapaxes(-1, -2), origin, axis, rotation)

    def torque(
        self,
        posture: LegPosture,
        joint_velocity: FloatArray,
        joint_acceleration: FloatArray,
        angular_velocity: FloatArray,
        specific_force: FloatArray,
        at: FloatArray,
    ) -> FloatArray:
        """Joint torque that moves the legs' own masses, with the feet free (recursive Newton-Euler).

        Gravity and the body's acceleration come in together, as the specific force; the body's angular acceleration is
        left out.

        Args:
            posture: of `at`.
            joint_velocity, joint_acceleration: (..., 12) rad/s, rad/s^2.
            angular_velocity: (..., 3) rad/s, of the body.
            specific_force: (..., 3) m/s^2, body frame, +g on z at rest.
            at: (3,) m, where in the body that is felt.

        Returns:
            (..., 4, 3) N m, leg by leg.
        """
        body_rate = angular_velocity[..., None, :]
        turning = posture.axis * _by_leg(joint_velocity)[..., None]
        rate = body_rate[..., None, :] + turning.cumsum(axis=-2)
        # Rate of the segment above each joint: the joint's axis turns with it.
        above = rate - turning
        change = posture.axis * _by_leg(joint_acceleration)[..., None] + cross(above, turning)
        angular = change.cumsum(axis=-2)
        centre_arm = (posture.rotation @ self._centre[..., None])[..., 0]
        # Every point's acceleration is that of the point before it and what turning about that adds.
        shape = (*rate.shape[:-1], 2, 3)
        arm = np.empty(shape)
        arm[..., 1, :] = centre_arm
        arm[..., 0, 0, :] = posture.origin[..., 0, :] - at
        arm[..., 1:, 0, :] = posture.origin[..., 1:, :] - posture.origin[..., :-1, :]
        turn_rate = np.empty(shape)
        turn_rate[..., 1, :] = rate
        turn_rate[..., 0, 0, :] = body_rate
        turn_rate[..., 1:, 0, :] = rate[..., :-1, :]
        turn_change = np.zeros(shape)
        turn_change[..., 1, :] = angular
        turn_change[..., 1:, 0, :] = angular[..., :-1, :]
        added = cross(turn_change, arm) + cross(turn_rate, cross(turn_rate, arm))
        acceleration = specific_force[..., None, None, :] + added[..., 0, :].cumsum(axis=-2) + added[..., 1, :]
        force = self._mass[..., None] * acceleration
        inertia = posture.rotation @ self._inertia @ posture.rotation.swapaxes(-1, -2)
        spin = (inertia @ rate[..., None])[..., 0]
        moment = (inertia @ angular[..., None])[..., 0] + cross(rate, spin)
        moment += cross(posture.origin + centre_arm, force)
        # What a joint bears is the sum over the segments from it on outwards, about its own origin.
        force = force[..., ::-1, :].cumsum(axis=-2)[..., ::-1, :]
        moment = moment[..., ::-1, :].cumsum(axis=-2)[..., ::-1, :] - cross(posture.origin, force)
        return np.asarray((posture.axis * moment).sum(axis=-1))


def _by_leg(joints: FloatArray) -> FloatArray:
    """(..., 4, 3) of (..., 12)."""
    return joints.reshape(*joints.shape[:-1], LEGS, _JOINTS)


def _segments(urdf: Urdf, base: str, foot: str) -> list[tuple[UrdfJoint | None, FloatArray, FloatArray]]:
    """The moving joints from the body to a foot, each with its frame's place and rotation in the segment before it at
    position zero; and at last the foot, with None."""
    segments: list[tuple[UrdfJoint | None, FloatArray, FloatArray]] = []
    rotation, offset = np.eye(3), np.zeros(3)
    for joint in urdf.chain(base, foot):
        offset = offset + rotation @ joint.translation
        rotation = rotation @ joint.rotation
        if joint.kind != "fixed":
            segments.append((joint, offset, rotation))
            rotation, offset = np.eye(3), np.zeros(3)
    return [*segments, (None, offset, rotation)]


def _segment_inertia(urdf: Urdf, link: str) -> tuple[float, FloatArray, FloatArray]:
    """Mass (kg), centre of mass (3,) m and inertia about it (3, 3) kg m^2 of a link and all that is fixed to it, in the
    link's frame."""
    parts = [(urdf.links[name], *urdf.pose(link, name, {})) for name in urdf.below(link)]
    mass = sum(part.mass for part, _, _ in parts)
    if mass == 0:
        return 0.0, np.zeros(3), np.zeros((3, 3))
    centres = [position + rotation @ part.centre_of_mass for part, rotation, position in parts]
    centre = sum((part.mass * at for (part, _, _), at in zip(parts, centres, strict=True)), np.zeros(3)) / mass
    inertia = np.zeros((3, 3))
    for (part, rotation, _), at in zip(parts, centres, strict=True):
        hat = skew(at - centre)
        inertia += rotation @ part.inertia @ rotation.T - part.mass * hat @ hat
    return mass, centre, inertia
