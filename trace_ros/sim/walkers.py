"""The policies that walk a robot's rollouts, each its share of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trace_ros.robot import RobotDescription
from trace_ros.sim.policy import WalkingPolicy, policy_of
from trace_ros.sim.policy_description import policy_content


def shares_of(robot: RobotDescription) -> dict[Path, float]:
    """Share of the rollouts by policy file: ``policy`` first, which walks what ``other_policies`` leave.

    Raises:
        TraceError: the robot file names no policy.
    """
    return {policy_of(robot): 1.0 - sum(robot.other_policies.values()), **robot.other_policies}


def walked_by(robot: RobotDescription) -> dict[str, float]:
    """Share of the rollouts by policy: the stem of its file, and digits that change with what it is.

    Raises:
        TraceError: no policy, or a file cannot be read.
    """
    whole: dict[str, float] = {}
    for path, share in shares_of(robot).items():
        name = f"{path.stem} {hashlib.sha256(b''.join(policy_content(path))).hexdigest()[:8]}"
        whole[name] = whole.get(name, 0.0) + share  # copies of a file are one policy
    return {name: round(share, 6) for name, share in whole.items()}


class Walkers:
    """The policies that walk a robot's rollouts, each its share of them."""

    def __init__(self, policies: Sequence[WalkingPolicy], shares: Sequence[float]) -> None:
        self._policies = policies
        self._shares = shares

    @classmethod
    def load(cls, robot: RobotDescription) -> Walkers:
        """``policy`` and ``other_policies`` of the robot file.

        Raises:
            TraceError: see `WalkingPolicy.load`.
        """
        shares = shares_of(robot)
        return cls([WalkingPolicy.load(robot, path) for path in shares], list(shares.values()))

    def draw(self, rng: np.random.Generator) -> WalkingPolicy:
        """One of them."""
        return self._policies[int(rng.choice(len(self._policies), p=self._shares))]
