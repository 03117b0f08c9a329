"""Rotations beyond what ``scipy.spatial.transform.Rotation`` gives: batched maps for numpy and torch, and Euler angles.

Quaternions are ``x, y, z, w`` (Hamilton, as in ROS); ``rotation_world_body`` takes body vectors to the world.
Array arguments have any number of leading batch dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

if TYPE_CHECKING:  # torch takes a second to import, and what only reads bags or robots never needs it
    import torch

FloatArray = NDArray[np.float64]

GRAVITY = 9.81
"""Standard magnitude of gravity used in simulation and by the stationary test (m/s^2)."""

# Below this angle (rad) the closed forms lose digits to cancellation and the series is exact to double precision.
_SMALL_ANGLE = 1e-4


def skew(vector: FloatArray) -> FloatArray:
    """Cross-product matrix: ``skew(a) @ b == cross(a, b)``. ``(..., 3) -> (..., 3, 3)``."""
    vector = np.asarray(vector, dtype=float)
    matrix = np.zeros((*vector.shape[:-1], 3, 3))
    x, y, z = vector[..., 0], vector[..., 1], vector[..., 2]
    matrix[..., 0, 1], matrix[..., 0, 2], matrix[..., 1, 2] = -z, y, -x
    matrix[..., 1, 0], matrix[..., 2, 0], matrix[..., 2, 1] = z, -y, x
    return matrix


def so3_exp(rotation_vector: FloatArray) -> FloatArray:
    """Rotation matrix of a rotation vector (rad). ``(..., 3) -> (..., 3, 3)``."""
    flat = np.asarray(rotation_vector, dtype=float)
    return Rotation.from_rotvec(flat.reshape(-1, 3)).as_matrix().reshape(*flat.shape[:-1], 3, 3)


def so3_log(rotation: FloatArray) -> FloatArray:
    """Rotation vector (rad, norm at most pi) of a rotation matrix. ``(..., 3, 3) -> (..., 3)``."""
    matrix = np.asarray(rotation, dtype=float)
    return Rotation.from_matrix(matrix.reshape(-1, 3, 3)).as_rotvec().reshape(*matrix.shape[:-2], 3)


def so3_left_jacobian(rotation_vector: FloatArray) -> FloatArray:
    """Left Jacobian of SO(3), ``(..., 3) -> (..., 3, 3)``.

    ``Exp(phi + d) = Exp(J_l(phi) d) Exp(phi)`` to first order; ``J_l(phi) = integral_0^1 Exp(s phi) ds``
    (Barfoot, State Estimation for Robotics, section 7.1.5). The right Jacobian is ``J_l(-phi)``.
    """
    phi = np.asarray(rotation_vector, dtype=float)
    angle = np.linalg.norm(phi, axis=-1)[..., None, None]
    small = angle < _SMALL_ANGLE
    safe = np.where(small, 1.0, angle)
    first = np.where(small, 0.5 - angle**2 / 24, (1 - np.cos(safe)) / safe**2)
    second = np.where(small, 1 / 6 - angle**2 / 120, (safe - np.sin(safe)) / safe**3)
    hat = skew(phi)
    return np.eye(3) + first * hat + second * (hat @ hat)


def so3_exp_torch(rotation_vector: torch.Tensor) -> torch.Tensor:
    """Rotation matrix of a rotation vector, differentiable everywhere including zero. ``(..., 3) -> (..., 3, 3)``."""
    import torch

    x, y, z = rotation_vector.unbind(-1)
    zero = torch.zeros_like(x)
    hat = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), dim=-1).reshape(*rotation_vector.shape[:-1], 3, 3)
    squared = (rotation_vector * rotation_vector).sum(-1)[..., None, None]
    # The threshold is on the square; float32 needs a wider series region than float64 for the same relative error.
    small = squared < 1e-4
    safe = torch.where(small, torch.ones_like(squared), squared)
    angle = safe.sqrt()
    first = torch.where(small, 1 - squared / 6 + squared**2 / 120, torch.sin(angle) / angle)
    second = torch.where(small, 0.5 - squared / 24 + squared**2 / 720, (1 - torch.cos(angle)) / safe)
    identity = torch.eye(3, dtype=rotation_vector.dtype, device=rotation_vector.device)
    return identity + first * hat + second * (hat @ hat)


def roll_pitch_yaw(orientation: FloatArray) -> FloatArray:
    """Roll, pitch and yaw (rad; fixed axes X, Y, Z as in REP-103) of quaternions. ``(..., 4) -> (..., 3)``."""
    x, y, z, w = np.moveaxis(np.asarray(orientation, dtype=float), -1, 0)
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = np.arcsin(np.clip(2 * (w * y - z * x), -1.0, 1.0))
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return np.stack((roll, pitch, yaw), axis=-1)


def tilt_from_gravity(specific_force: FloatArray) -> FloatArray:
    """Roll and pitch (rad) of a body at rest from its specific force (+g on z when level). ``(..., 3) -> (..., 2)``."""
    x, y, z = np.moveaxis(np.asarray(specific_force, dtype=float), -1, 0)
    return np.stack((np.arctan2(y, z), np.arctan2(-x, np.hypot(y, z))), axis=-1)
