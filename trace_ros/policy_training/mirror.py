"""The robot with left and right exchanged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription

# Legs FL, FR, RL, RR.
_LEGS = (1, 0, 3, 2)
_JOINTS = np.concatenate([np.arange(3) + 3 * leg for leg in _LEGS])
# Hips turn about x, thighs and calves about y.
_JOINT_SIGNS = np.tile([-1.0, 1.0, 1.0], 4)
_VECTOR, _AXIAL = np.array([1.0, -1.0, 1.0]), np.array([-1.0, 1.0, -1.0])
_TOLERANCE_M = 0.01


def check_mirrored(robot: RobotDescription) -> None:
    """Refuse a robot whose joints, mirrored as here, do not give mirrored feet.

    Raises:
        TraceError: its left and right joints turn otherwise, or its legs or nominal positions differ.
    """
    order, signs = mirrored_actions()
    moved = np.random.default_rng(0).uniform(-0.5, 0.5, (64, len(order)))
    nominal, kinematics = robot.nominal_joint_positions, robot.kinematics
    feet = kinematics.forward(nominal + moved)[:, _LEGS] * _VECTOR
    mirrored = kinematics.forward(nominal + signs * moved[:, order])
    apart = float(np.linalg.norm(feet - mirrored, axis=-1).max())
    if apart > _TOLERANCE_M:
        raise TraceError(
            f"{robot.name}: left and right legs are no mirror images, by up to {apart:.3f} m at the feet "
            "(signs of joints, nominal positions or lengths): set learner.mirrored: false"
        )


def mirrored_actions() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Order and signs (12,): ``mirrored = signs * action[..., order]``."""
    return _JOINTS.astype(np.int64), _JOINT_SIGNS.copy()


def mirrored_observation() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The same for the policy's observation, (45,): rates, gravity, command, joints, joint velocities, last action."""
    order = (np.arange(9), 9 + _JOINTS, 21 + _JOINTS, 33 + _JOINTS)
    command = np.array([1.0, -1.0, -1.0])  # vx, vy, wz
    signs = (_AXIAL, _VECTOR, command, _JOINT_SIGNS, _JOINT_SIGNS, _JOINT_SIGNS)
    return np.concatenate(order).astype(np.int64), np.concatenate(signs)


def mirrored_privileged() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The same for what the value network sees, (54,): the observation, velocity, height, contacts, friction."""
    order, signs = mirrored_observation()
    first = len(order)
    rest = first + np.concatenate((np.arange(4), 4 + np.array(_LEGS), np.array([8])))
    return np.concatenate((order, rest)).astype(np.int64), np.concatenate((signs, _VECTOR, np.ones(6)))
