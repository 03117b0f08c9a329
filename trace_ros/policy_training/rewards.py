"""What a step of walking is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_ros.policy_training.config import RewardConfig

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Motion:
    """What B robots did in a step of the policy; vectors in the body frame.

    Attributes:
        command: (B, 3) m/s, m/s, rad/s.
        velocity, angular_velocity, gravity: (B, 3) m/s, rad/s, unit vector.
        height: (B,) m, above the ground, beyond the nominal.
        torque: (B, 12) in parts of the limits.
        joint_offset: (B, 12) rad, from the nominal position.
        joint_acceleration: (B, 12) rad/s^2.
        action_change: (B, 12).
        contact: (B, 4) whether a foot is on the ground; legs FL, FR, RL, RR.
        landed: (B, 4) whether it came down in this step.
        air_time: (B, 4) s, for which it had been in the air when it came down.
        foot_speed: (B, 4) m/s, along the ground.
        foot_lift: (B, 4) m, above the ground.
    """

    command: FloatArray
    velocity: FloatArray
    angular_velocity: FloatArray
    gravity: FloatArray
    height: FloatArray
    torque: FloatArray
    joint_offset: FloatArray
    joint_acceleration: FloatArray
    action_change: FloatArray
    contact: BoolArray
    landed: BoolArray
    air_time: FloatArray
    foot_speed: FloatArray
    foot_lift: FloatArray


def reward(motion: Motion, config: RewardConfig, duration: float) -> FloatArray:
    """(B,), of a step of so many seconds."""
    moving = motion.command.any(axis=1)
    missed = np.square(motion.command[:, :2] - motion.velocity[:, :2]).sum(axis=1)
    turned = np.square(motion.command[:, 2] - motion.angular_velocity[:, 2])
    asked = np.linalg.norm(motion.command[:, :2], axis=1)
    along = (motion.command[:, :2] * motion.velocity[:, :2]).sum(axis=1) / np.maximum(asked, 1e-6)
    front_left, front_right, rear_left, rear_right = motion.contact.T
    trots = (front_left == rear_right) & (front_right == rear_left) & (front_left != front_right)
    low = np.square(np.minimum(motion.foot_lift - config.clearance_height, 0.0))
    airborne = (motion.air_time - config.air_time_target) * motion.landed
    rate = (
        config.velocity * np.exp(-missed / config.velocity_width**2)
        + config.progress * np.clip(along, -asked, asked)
        + config.turning * np.exp(-turned / config.turning_width**2)
        + config.heave * motion.velocity[:, 2] ** 2
        + config.rolling * np.square(motion.angular_velocity[:, :2]).sum(axis=1)
        + config.tilt * np.square(motion.gravity[:, :2]).sum(axis=1)
        + config.height * motion.height**2
        + config.torque * np.square(motion.torque).sum(axis=1)
        + config.joint_acceleration * np.square(motion.joint_acceleration).sum(axis=1)
        + config.action_rate * np.square(motion.action_change).sum(axis=1)
        + config.hips * np.square(motion.joint_offset[:, ::3]).sum(axis=1)
        + config.posture * np.abs(motion.joint_offset).sum(axis=1) * ~moving
        + config.trot * trots * moving
        + config.slip * (motion.foot_speed * motion.contact).sum(axis=1)
        + config.clearance * (low * motion.foot_speed * ~motion.contact).sum(axis=1)
    )
    # A landing is an event, not a rate.
    total = rate * duration + config.air_time * airborne.sum(axis=1) * moving
    return np.maximum(total, 0.0)
