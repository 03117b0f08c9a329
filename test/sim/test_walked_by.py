"""Whose policies walk a robot's rollouts, as cards and checkpoints tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.sim.walkers import shares_of, walked_by


def test_copies_of_a_policy_are_one(go2: RobotDescription, tmp_path: Path) -> None:
    assert go2.policy is not None
    (copy := tmp_path / go2.policy.name).write_bytes(go2.policy.read_bytes())
    ((name, share),) = walked_by(go2.model_copy(update={"other_policies": {copy: 0.3}})).items()
    assert name.startswith("go2_policy ")
    assert share == 1.0


def test_the_robots_own_walks_what_others_leave(go2: RobotDescription, tmp_path: Path) -> None:
    assert go2.policy is not None
    other = tmp_path / "slow.yaml"
    other.write_text(go2.policy.read_text().replace("rate_hz: 100", "rate_hz: 50"))
    robot = go2.model_copy(update={"other_policies": {other: 0.3}})
    assert shares_of(robot) == pytest.approx({go2.policy: 0.7, other: 0.3})
    assert [name.split()[0] for name in walked_by(robot)] == ["go2_policy", "slow"]
    with pytest.raises(TraceError, match="names no walking policy"):
        shares_of(go2.model_copy(update={"policy": None}))
