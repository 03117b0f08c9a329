"""Policy randomisation: many gaits from one pretrained policy (the paper, section "Policy Randomization").

The paper draws the action scale from ``0.1 x U(0.7, 1.2) rad``, a bias of the action mean from ``N(0, (0.006 rad)^2)``
and a low-pass coefficient from ``U(0, 0.6)``. Its 0.1 rad is its own policy's action scale; here the factor U(0.7, 1.2)
applies to the action scale of whatever policy is used, and the bias keeps its ratio to it: sigma = 0.06 of the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from trace_ros.logs import JOINTS
from trace_ros.sim.policy import PolicyInput, WalkingPolicy
from trace_ros.sim.ranges import STRICT, Range, draw

FloatArray = NDArray[np.float64]


class PolicyRandomizationConfig(BaseModel):
    """What is drawn for each rollout.

    Attributes:
        action_scale: factor on the policy's action scale.
        action_bias_ratio: standard deviation of the constant bias of each joint's target, as part of the action scale.
        low_pass: coefficient a of ``target = a * previous + (1 - a) * new`` at the policy's rate.
    """

    model_config = STRICT
    action_scale: Range = (0.7, 1.2)
    action_bias_ratio: Annotated[float, Field(ge=0)] = 0.06
    low_pass: Range = (0.0, 0.6)


@dataclass(frozen=True)
class PolicyVariation:
    """One rollout's variation.

    Attributes:
        scale: factor on the action scale.
        bias: (12,) rad, added to the joint targets.
        low_pass: coefficient of the previous target, in [0, 1).
    """

    scale: float
    bias: FloatArray
    low_pass: float


UNCHANGED = PolicyVariation(1.0, np.zeros(JOINTS), 0.0)
"""The policy as it was trained."""


def draw_variation(
    config: PolicyRandomizationConfig, policy: WalkingPolicy, rng: np.random.Generator
) -> PolicyVariation:
    """One rollout's variation."""
    scale = draw(rng, config.action_scale)
    bias = rng.normal(0.0, 1.0, JOINTS) * config.action_bias_ratio * policy.action_scale
    return PolicyVariation(scale, bias, draw(rng, config.low_pass))


class RandomizedPolicy:
    """The policy with one variation for each of B robots; keeps the previous actions and targets."""

    def __init__(self, policy: WalkingPolicy, variations: list[PolicyVariation]) -> None:
        self.policy = policy
        self._scale = np.array([variation.scale for variation in variations])[:, None]
        self._bias = np.stack([variation.bias for variation in variations])
        self._low_pass = np.array([variation.low_pass for variation in variations])[:, None]
        self._action = np.zeros((len(variations), JOINTS))
        self._target = np.tile(policy.default_joint_position, (len(variations), 1)) + self._bias

    def act(self, observed: PolicyInput) -> FloatArray:
        """Joint targets (B, 12) rad, package order."""
        self._action = self.policy.act(observed, self._action)
        wanted = self.policy.joint_target(self._scale * self._action) + self._bias
        self._target = self._low_pass * self._target + (1 - self._low_pass) * wanted
        return self._target
