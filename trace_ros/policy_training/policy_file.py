"""What a trained policy is written as: the YAML file that a robot file names."""

from __future__ import annotations

from pathlib import Path

import yaml

from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.policy_training.environment import TERMS
from trace_ros.robot import RobotDescription
from trace_ros.sim.policy_description import PolicyDescription, PolicyGains
from trace_ros.whole_files import whole_file


def describe_policy(robot: RobotDescription, config: PolicyTrainingConfig, weights: str) -> PolicyDescription:
    """The description of a policy that was trained for a robot; ``weights`` is its file, relative to the YAML's."""
    environment = config.environment
    return PolicyDescription(
        weights=Path(weights),
        observation=TERMS,
        joint_order=robot.joint_names,
        default_joint_position=robot.nominal_joint_position,
        action_scale=(environment.action_scale,) * 3,
        action_clip=environment.action_clip,
        rate_hz=environment.rate_hz,
        gains=environment.gains or PolicyGains(kp=robot.control.kp, kd=robot.control.kd),
        hold_gains=environment.hold_gains,
        command_limits=environment.command_limits,
    )


def write_policy_file(path: Path, description: PolicyDescription, comment: str) -> None:
    """Write the YAML file, whole or not at all, with a comment as its first line."""
    data = description.model_dump(mode="json", exclude_none=True)
    with whole_file(path) as part:
        part.write_text(f"# {comment}\n{yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)}")
