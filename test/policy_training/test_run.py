"""A training in a folder: what it leaves, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("rsl_rl", reason="needs rsl-rl-lib")

from rsl_rl.algorithms import PPO

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
    with pytest.raises(TraceError, match="holds no run"):
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


def test_files_of_something_else_are_left_alone(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    for name in ("checkpoint.pt", "policy.pt", f"{robot.name}_policy.yaml"):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(TraceError, match=rf"holds {name}, but no run\.json of a run: give another --output"):
            train(folder, robot, small, 1)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "mine"
    with pytest.raises(TraceError, match=r"run\.json: is missing beside checkpoint\.pt"):
        train(tmp_path / "checkpoint_pt", robot, small, 1, resume=True)


def test_a_run_begins_with_the_policy_of_another(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    train(tmp_path / "walk", robot, small, 2)

    def climb(folder: Path, initial: Path) -> None:  # stopped before its first update
        train_policy(folder, robot, small, 4, 1.0, False, lambda: True, lambda *_: None, initial)

    climb(tmp_path / "climb", tmp_path / "walk")
    before, after = (torch.load(tmp_path / name / "checkpoint.pt")["actor_state_dict"] for name in ("walk", "climb"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    text = (tmp_path / "climb" / "go2_policy.yaml").read_text()
    assert "32 steps, seed 4. Begun with one of go2, seed 3." in text
    assert json.loads((tmp_path / "climb" / "run.json").read_text())["initial"] == {"robot": "go2", "seed": 3}
    with pytest.raises(TraceError, match="none: holds no run"):
        climb(tmp_path / "other", tmp_path / "none")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text('{"hours": 0.1}')
    with pytest.raises(TraceError, match=r"damaged/run\.json: damaged"):
        climb(tmp_path / "other", tmp_path / "damaged")
    assert not (tmp_path / "other").exists()
    # Steps are counted, not reckoned from updates: a batch of another size follows.
    large = small.model_copy(update={"environment": small.environment.model_copy(update={"robots": 6})})
    seen: list[Progress] = []
    train_policy(
        tmp_path / "large", robot, large, 4, 1.0, False, lambda: bool(seen), lambda made, _: seen.append(made),
        tmp_path / "walk",
    )  # fmt: skip
    assert [(made.update, made.steps) for made in seen] == [(3, 32 + 24)]


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("learner", "hidden", (8,)), ("environment", "rate_hz", 25), ("environment", "action_scale", 0.5)],
)
def test_a_policy_that_would_act_otherwise_here_is_not_begun_with(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig, part: str, key: str, value: object
) -> None:
    train(tmp_path / "walk", robot, small, 0)
    other = small.model_copy(update={part: getattr(small, part).model_copy(update={key: value})})
    with pytest.raises(TraceError, match=rf"walk: its {part}\.{key} is .*, here .*: its policy would act otherwise"):
        train_policy(tmp_path / "b", robot, other, 4, 1.0, False, lambda: True, lambda *_: None, tmp_path / "walk")
    assert not (tmp_path / "b").exists()


def test_a_run_of_before_a_setting_was_there_goes_on(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    run = tmp_path / "run"
    train(run, robot, small, 1)
    kept = json.loads((run / "run.json").read_text())
    del kept["config"]["environment"]["ground"], kept["config"]["rewards"]["clearance"]
    (run / "run.json").write_text(json.dumps(kept))
    assert [progress.update for progress in train(run, robot, small, 1, resume=True)] == [2]


@pytest.mark.parametrize("damaged", ["walk", {"learner": {}}])
def test_a_run_whose_settings_are_damaged_does_not(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig, damaged: object
) -> None:
    run = tmp_path / "run"
    train(run, robot, small, 1)
    kept = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**kept, "config": damaged}))
    with pytest.raises(TraceError, match="was begun with another config"):
        train(run, robot, small, 1, resume=True)


def test_a_run_goes_on_with_its_robot_only(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    run = tmp_path / "run"
    train(run, robot, small, 1)
    changes = {
        "robot_fingerprint": "foot_radius: 0.03",
        "nominal_joint_position": "nominal_joint_position: [0.0, 0.9, -1.6]",
        "control": "control: {kp: 30.0, kd: 0.5, torque_limit: [23.7, 23.7, 45.43]}",
    }
    for key, change in changes.items():
        (tmp_path / "other.yaml").write_text(f"base: go2\n{change}\n")
        with pytest.raises(TraceError, match=f"was begun with another {key}"):
            train(run, RobotDescription.load(tmp_path / "other.yaml"), small, 1, resume=True)
    state = json.loads((run / "run.json").read_text())
    older = {key: value for key, value in state.items() if key not in changes and key != "budget"}
    (run / "run.json").write_text(json.dumps(older))
    assert [progress.update for progress in train(run, robot, small, 1, resume=True)] == [2]


def test_damaged_runs_are_refused_in_a_line(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    run = tmp_path / "run"
    train(run, robot, small, 1)
    checkpoint, state = run / "checkpoint.pt", json.loads((run / "run.json").read_text())
    good = torch.load(checkpoint, weights_only=True)
    broken = {name: torch.full_like(value, torch.nan) for name, value in good["actor_state_dict"].items()}
    checkpoint.write_bytes(b"")
    with pytest.raises(TraceError, match=r"checkpoint\.pt: no checkpoint of this training"):
        train(run, robot, small, 1, resume=True)
    for content in ([1, 2], {}, {**good, "update": None}, {**good, "actor_state_dict": broken}):
        torch.save(content, checkpoint)
        with pytest.raises(TraceError, match=r"checkpoint\.pt: no checkpoint of this training"):
            train(run, robot, small, 1, resume=True)
    for key, value in (("hours", float("nan")), ("hours", -1.0), ("hours", None), ("budget", float("inf"))):
        (run / "run.json").write_text(json.dumps({**state, key: value}))
        with pytest.raises(TraceError, match=r"run\.json: damaged"):
            train(run, robot, small, 1, resume=True)
    for content in ("[]", "3"):
        (run / "run.json").write_text(content)
        with pytest.raises(TraceError, match=r"run\.json: damaged"):
            train(run, robot, small, 1, resume=True)


def test_a_training_that_diverges_leaves_the_last_checkpoint(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, robot, small, 1)
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    update = PPO.update

    def diverge(self: PPO) -> dict[str, float]:
        for value in self.actor.parameters():
            value.data.fill_(torch.nan)
        return update(self)

    monkeypatch.setattr(PPO, "update", diverge)
    with pytest.raises(TraceError, match=r"the training diverged: lower learner\.learning_rate"):
        train(tmp_path, robot, small, 1, resume=True)
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept


def test_too_high_a_learning_rate_is_named(
    tmp_path: Path, robot: RobotDescription, small: PolicyTrainingConfig
) -> None:
    high = small.model_copy(update={"learner": small.learner.model_copy(update={"learning_rate": 1e30})})
    with pytest.raises(TraceError, match=r"the training diverged: lower learner\.learning_rate"):
        train(tmp_path, robot, high, 3)
    assert not list(tmp_path.iterdir())
