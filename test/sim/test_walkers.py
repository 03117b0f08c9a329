"""The walkers in config/walkers: robots of the shipped ones, walked by policies of other trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trace_ros.resources import config_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import PhysicsConfig
from trace_ros.sim.trial import judge_commands, judge_policy, try_commands

FAST = PhysicsConfig(rate_hz=1000)
FILES = sorted((config_directory() / "walkers").glob("*.yaml"))
WALKERS = [file for file in FILES if not file.stem.endswith("_policy")]


def test_every_policy_has_its_walker():
    policies = {file for file in FILES if file.stem.endswith("_policy")}
    assert policies
    assert policies == {RobotDescription.load(walker).policy for walker in WALKERS}


@pytest.mark.parametrize("file", WALKERS, ids=lambda file: file.stem)
def test_a_walker_is_the_shipped_robot_and_follows_commands(file: Path):
    walker, robot = RobotDescription.load(file), RobotDescription.load(file.stem.partition("_")[0])
    assert (walker.name, walker.fingerprint) == (robot.name, robot.fingerprint)
    assert walker.policy != robot.policy
    assert judge_policy(walker).level == "ok"
    trials = try_commands(walker, FAST)
    assert [verdict.level for verdict in judge_commands(walker, trials)] == ["ok", "ok"]
    for trial in trials[1:]:
        assert trial.achieved @ trial.command > 0.5 * trial.command @ trial.command
    assert np.linalg.norm(trials[0].achieved) < 0.05
