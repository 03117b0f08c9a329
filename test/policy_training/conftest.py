"""A training small enough for a test."""

from __future__ import annotations

import pytest

from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.robot import RobotDescription


@pytest.fixture(scope="session")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture
def small() -> PolicyTrainingConfig:
    config = PolicyTrainingConfig.load("walk")
    environment = config.environment.model_copy(update={"robots": 4, "push": 0.0})
    learner = config.learner.model_copy(update={"hidden": (16,), "steps": 4, "epochs": 2, "mini_batches": 2})
    return config.model_copy(update={"environment": environment, "learner": learner})


@pytest.fixture
def exact(small: PolicyTrainingConfig) -> PolicyTrainingConfig:
    """The same without anything random about the robots and what they see."""
    none = {
        "friction": (0.8, 0.8),
        "time_constant": (0.01, 0.01),
        "base_mass": (0.0, 0.0),
        "gain_scale": (1.0, 1.0),
        "actuator_delay": (0.0, 0.0),
        "start_joints": 0.0,
        "gyro_noise": 0.0,
        "gravity_noise": 0.0,
        "position_noise": 0.0,
        "velocity_noise": 0.0,
    }
    return small.model_copy(update={"randomisation": small.randomisation.model_copy(update=none)})
