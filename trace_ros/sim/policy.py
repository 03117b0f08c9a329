"""Walking policies that others trained.

A policy maps an observation of the robot (terms and scales in its file) to 12 actions; the joint targets are
``default + scale * action``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription, every_joint
from trace_ros.sim.policy_description import PolicyDescription, PolicyGains
from trace_ros.sim.policy_network import load_network

FloatArray = NDArray[np.float64]

_ACTION_DECIMALS = 6
"""Products of matrices come out otherwise on another processor, in the last digits, and a walk is chaotic: after a few
seconds it is another one. So a policy is computed in double precision, and those digits are cut off its actions."""


@dataclass(frozen=True)
class PolicyInput:
    """What a policy may observe of B robots: see `ObservationTerm` for frames and units.

    Attributes:
        angular_velocity, projected_gravity, command: (B, 3).
        joint_position, joint_velocity: (B, 12), package order.
    """

    angular_velocity: FloatArray
    projected_gravity: FloatArray
    command: FloatArray
    joint_position: FloatArray
    joint_velocity: FloatArray


class WalkingPolicy:
    """A loaded policy: observations in, actions out, for a batch of robots, all in package joint order."""

    def __init__(
        self, description: PolicyDescription, network: torch.nn.Module, robot: RobotDescription, name: str = ""
    ) -> None:
        self.name = name
        """Stem of its file."""
        self.description = description
        self._network = network
        # Position in the policy's order of each joint of the package, and back.
        order = list(description.joint_order)
        self._from_package = np.array([robot.joint_names.index(name) for name in order])
        self._to_package = np.argsort(self._from_package)
        self.default_joint_position = every_joint(description.default_joint_position)
        """(12,) rad, package order."""
        self.action_scale = every_joint(description.action_scale)
        """(12,) rad, package order."""
        gains = description.gains or PolicyGains(kp=robot.control.kp, kd=robot.control.kd)
        self.kp, self.kd = gains.kp, gains.kd
        hold = description.hold_gains or gains
        self.hold_kp, self.hold_kd = hold.kp, hold.kd

    @property
    def command_limits(self) -> FloatArray:
        """(3,) largest vx, vy (m/s) and wz (rad/s)."""
        return self.description.command_limits.array

    @classmethod
    def load(cls, robot: RobotDescription, path: Path | None = None) -> WalkingPolicy:
        """The policy of a file, or None: the one that the robot file names as its ``policy``.

        Raises:
            TraceError: none named, or its file, weights, joints or sizes do not fit.
        """
        path = path or policy_of(robot)
        description = PolicyDescription.load(path)
        if sorted(description.joint_order) != sorted(robot.joint_names):
            odd = sorted(set(description.joint_order) ^ set(robot.joint_names))
            raise TraceError(
                f"{path}: joint_order does not name the robot's 12 joints once each (see {', '.join(odd)})"
            )
        network = load_network(description.weights_file(path), description.inputs)
        return cls(description, network, robot, path.stem)

    def act(self, observed: PolicyInput, last_action: FloatArray) -> FloatArray:
        """Actions (B, 12), package order, from what is observed and the previous actions (B, 12).

        Raises:
            TraceError: the policy gives no numbers.
        """
        parts = []
        for term in self.description.observation:
            if term.name == "last_action":
                value = last_action[:, self._from_package]
            elif term.name == "joint_position":
                value = (observed.joint_position - self.default_joint_position)[:, self._from_package]
            elif term.name == "joint_velocity":
                value = observed.joint_velocity[:, self._from_package]
            else:
                value = getattr(observed, term.name)
            parts.append(value * np.resize(np.asarray(term.scale), value.shape[-1]))
        with torch.inference_mode():
            output = self._network(torch.from_numpy(np.concatenate(parts, axis=1, dtype=float)))
        if not torch.isfinite(output).all():
            raise TraceError(f"policy {self.name}: gives actions that are no numbers; its weights are damaged")
        clip = self.description.action_clip
        actions = np.round(np.clip(output.numpy(), -clip, clip), _ACTION_DECIMALS)
        return actions[:, self._to_package]

    def joint_target(self, action: FloatArray) -> FloatArray:
        """Joint targets (rad) of actions, (B, 12) each, package order."""
        return self.default_joint_position + self.action_scale * action


def policy_of(robot: RobotDescription) -> Path:
    """The file that the robot file names as its ``policy``.

    Raises:
        TraceError: it names none.
    """
    if robot.policy is None:
        raise TraceError(f"robot {robot.name!r} names no walking policy: add 'policy: FILE.yaml' to its robot file")
    return robot.policy
