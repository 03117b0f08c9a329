"""Policy randomisation: many gaits from one pretrained policy (the paper, section "Policy Randomization").

The paper draws the action scale from ``0.1 x U(0.7, 1.2) rad``, a bias of the action mean from ``N(0, (0.006 rad)^2)``
and a low-pass coefficient from ``U(0, 0.6)``. Its 0.1 rad is its own policy's action scale; here the factor U(0.7, 1.2)
applies to the action scale of whatever policy is used, and the bias keeps its ratio to it: sigma = 0.06 of the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
        knee_bend: rad by which the knees bend more than in the policy's default posture (thighs half as much, so that
            the feet stay where they are): robots are walked crouched or stretched. The policy does not notice: its
            joint positions are told relative to the posture. [0, 0]: off.
        slow_probability: of a rollout whose policy acts at half its rate, which makes longer strides.
    """

    model_config = STRICT
    action_scale: Range = (0.7, 1.2)
    action_bias_ratio: Annotated[float, Field(ge=0)] = 0.06
    low_pass: Range = (0.0, 0.6)
    knee_bend: Range = (0.0, 0.0)
    slow_probability: Annotated[float, Field(ge=0, le=1)] = 0.0


@dataclass(frozen=True)
class PolicyVariation:
    """One rollout's variation.

    Attributes:
        scale: factor on the action scale.
        bias: (12,) rad, added to the joint targets.
        low_pass: coefficient of the previous target, in [0, 1).
        knee_bend: rad, beyond the policy's default posture.
        slow: whether the policy acts at half its rate.
    """

    scale: float
    bias: FloatArray
    low_pass: float
    knee_bend: float = 0.0
    slow: bool = False

    @property
    def posture(self) -> FloatArray:
        """(12,) rad, what the knee bend adds to the joint positions; feet of legs with equal links stay below."""
        return np.tile(self.knee_bend * np.array([0.0, 0.5, -1.0]), JOINTS // 3)


UNCHANGED = PolicyVariation(1.0, np.zeros(JOINTS), 0.0)
"""The policy as it was trained."""


def draw_variation(
    config: PolicyRandomizationConfig, policy: WalkingPolicy, rng: np.random.Generator
) -> PolicyVariation:
    """One rollout's variation."""
    scale = draw(rng, config.action_scale)
    bias = rng.normal(0.0, 1.0, JOINTS) * config.action_bias_ratio * policy.action_scale
    low_pass = draw(rng, config.low_pass)
    # Drawn only where wanted, so that without them a seed gives what it always gave.
    knee_bend = draw(rng, config.knee_bend) if any(config.knee_bend) else 0.0
    slow = config.slow_probability > 0 and bool(rng.random() < config.slow_probability)
    return PolicyVariation(scale, bias, low_pass, knee_bend, slow)


# A robot that is told to hold still keeps the mean of its joint positions and targets (hence torques, which carry its
# weight) over the last moments (s): trembling averages out while the posture stays fitted to the ground. It comes to
# that posture at the second time constant (s).
_POSTURE_MEMORY = 0.3
_POSTURE_APPROACH = 0.1


class RandomizedPolicy:
    """The policy with one variation for each of B robots, and a mode that holds still, as robots have it.

    Keeps the previous actions and targets.
    """

    def __init__(self, policy: WalkingPolicy, variations: list[PolicyVariation], control_period: float) -> None:
        """``control_period``: s between two calls of `act`."""
        self.policy = policy
        # A policy of a lower rate is asked at every so-many-th call only.
        every = max(round(1.0 / (policy.description.rate_hz * control_period)), 1)
        self._every = np.array([every * (2 if variation.slow else 1) for variation in variations])[:, None]
        self._calls = 0
        self._scale = np.array([variation.scale for variation in variations])[:, None]
        self._posture = np.stack([variation.posture for variation in variations])
        self._bias = np.stack([variation.bias for variation in variations]) + self._posture
        self._low_pass = np.array([variation.low_pass for variation in variations])[:, None]
        self._action = np.zeros((len(variations), JOINTS))
        self._target = np.tile(policy.default_joint_position, (len(variations), 1)) + self._bias
        self._mean_target = self._target.copy()
        self._mean_position = self._target.copy()
        self._held_target = self._target.copy()
        self._memory = math.exp(-control_period / _POSTURE_MEMORY)
        self._approach = math.exp(-control_period / _POSTURE_APPROACH)

    def act(self, observed: PolicyInput, hold: NDArray[np.bool_]) -> FloatArray:
        """Joint targets (B, 12) rad, package order; robots with ``hold`` (B,) keep still whatever the policy says."""
        policy = self.policy
        action, walking = self._action, self._target
        if (due := self._calls % self._every == 0).any():
            unbent = replace(observed, joint_position=observed.joint_position - self._posture)
            action = np.where(due, policy.act(unbent, self._action), action)
            wanted = policy.joint_target(self._scale * action) + self._bias
            walking = np.where(due, self._low_pass * self._target + (1 - self._low_pass) * wanted, walking)
        self._calls += 1
        self._held_target = self._mean_target + self._approach * (self._held_target - self._mean_target)
        # The joint controllers keep their gains; what holding needs beyond them goes through the targets.
        stiffness = (policy.hold_kp - policy.kp) * (self._mean_position - observed.joint_position)
        damping = (policy.hold_kd - policy.kd) * observed.joint_velocity
        still = self._held_target + (stiffness - damping) / policy.kp
        held = hold[:, None]
        self._target = np.where(held, still, walking)
        self._held_target = np.where(held, self._held_target, self._target)
        keep = np.where(held, 1.0, self._memory)
        self._mean_target = self._target + keep * (self._mean_target - self._target)
        self._mean_position = observed.joint_position + keep * (self._mean_position - observed.joint_position)
        # A policy that resumes finds the action that would have led to where the joints were held.
        equivalent = (self._target - self._bias - self.policy.default_joint_position) / (
            self._scale * self.policy.action_scale
        )
        self._action = np.where(held, equivalent, action)
        return self._target
