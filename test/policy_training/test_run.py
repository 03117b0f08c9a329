"""A training in a folder: what it leaves, and going on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("rsl_rl", reason="needs rsl-rl-lib")

from trace_ros.errors import TraceError
from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.policy_training.learner import PolicyLearner, Progress
from trace_ros.policy_training.run import train_policy
from trace_ros.robot import RobotDescription
from trace_ros.sim.policy import PolicyInput, WalkingPolicy


def train(
    folder: Path, robot: RobotDescription, config: PolicyTrainingConfig, updates: int, resume: bool = False
) -> list[Progress]:
    seen: list[Progress] = []
    train_policy(folder, robot, config, 3, 1.0, resume, lambda: len(seen) >= updates, lambda made, _: seen.append(made))
    return seen


def test_what_it_writes_is_a_policy_for_the_robot_file(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    seen = train(tmp_path / "run", robot, small, 2)
    assert [progress.update for progress in seen] == [1, 2]
    assert seen[-1].steps == 2 * 4 * 4
    assert all(np.isfinite([progress.reward, progress.missed, progress.rate]).all() for progress in seen)
    walker = robot.model_copy(update={"policy": tmp_path / "run" / f"{robot.name}_policy.yaml"})
    policy = WalkingPolicy.load(walker)
    none, joints = np.zeros((2, 3)), np.tile(robot.nominal_joint_positions, (2, 1))
    observed = PolicyInput(none, none, none, joints, np.zeros((2, 12)))
    network = torch.jit.load(str(tmp_path / "run" / "policy.pt"))
    with torch.inference_mode():
        expected = network(torch.zeros(2, 45)).numpy()
    np.testing.assert_allclose(policy.act(observed, np.zeros((2, 12))), expected, atol=1e-6)
    np.testing.assert_allclose(policy.joint_target(np.ones((1, 12)))[0], robot.nominal_joint_positions + 0.25)


def test_a_run_goes_on(tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig) -> None:
    train(tmp_path / "run", robot, small, 1)
    assert [progress.update for progress in train(tmp_path / "run", robot, small, 1, resume=True)] == [2]
    with pytest.raises(TraceError, match="holds a run already: go on with --resume"):
        train(tmp_path / "run", robot, small, 1)
    with pytest.raises(TraceError, match="no run to resume"):
        train(tmp_path / "other", robot, small, 1, resume=True)
    changed = small.model_copy(update={"learner": small.learner.model_copy(update={"gamma": 0.9})})
    with pytest.raises(TraceError, match="was begun with another config"):
        train(tmp_path / "run", robot, changed, 1, resume=True)
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(TraceError, match=r"run\.json: damaged"):
        train(tmp_path / "run", robot, small, 1, resume=True)


def test_a_checkpoint_holds_the_policy(tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig) -> None:
    learner = PolicyLearner(robot, small, 1)
    learner.learn()
    learner.save(tmp_path / "checkpoint.pt")
    other = PolicyLearner(robot, small, 2)
    other.load(tmp_path / "checkpoint.pt")
    assert other.update == 1
    for name, model in (("one.pt", learner), ("other.pt", other)):
        model.export(tmp_path / name)
    seen = torch.randn(3, 45)
    one, same = (torch.jit.load(str(tmp_path / name))(seen) for name in ("one.pt", "other.pt"))
    torch.testing.assert_close(one, same)
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(TraceError, match="no checkpoint of this training"):
        other.load(tmp_path / "checkpoint.pt")


def test_learning_raises_the_reward_of_a_simple_wish(robot: RobotDescription, small: PolicyTrainingConfig) -> None:
    """Told only to keep its hips out of the way they start in, a robot learns within some updates."""
    zero = {name: 0.0 for name in small.rewards.model_dump() if "width" not in name and name != "air_time_target"}
    wish = small.model_copy(
        update={
            "rewards": small.rewards.model_copy(update={**zero, "hips": 4.0}),
            "environment": small.environment.model_copy(update={"robots": 16, "episode": 0.5}),
            "learner": small.learner.model_copy(update={"steps": 24, "epochs": 5, "initial_spread": 0.5}),
        }
    )
    learner = PolicyLearner(robot, wish, 1)
    rewards = [learner.learn().reward for _ in range(25)]
    assert np.mean(rewards[-5:]) > 1.3 * np.mean(rewards[:5])
