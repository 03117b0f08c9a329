"""Which robots may learn from mirrored samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trace_ros.errors import TraceError
from trace_ros.policy_training.mirror import check_mirrored
from trace_ros.robot import RobotDescription


@pytest.mark.parametrize("name", ["go2", "a1"])
def test_robots_alike_on_both_sides_are_mirrored(name: str) -> None:
    check_mirrored(RobotDescription.load(name))


def test_joints_that_turn_otherwise_on_one_side_are_refused(tmp_path: Path, robot: RobotDescription) -> None:
    text = robot.urdf.read_text()
    changed = re.sub(r'(<joint name="FR_thigh_joint".*?<axis xyz=")0 1 0(")', r"\g<1>0 -1 0\2", text, flags=re.DOTALL)
    assert changed != text
    (tmp_path / "other.urdf").write_text(changed)
    nominal = "{FL: [0, 0.8, -1.5], FR: [0, -0.8, -1.5], RL: [0, 0.8, -1.5], RR: [0, 0.8, -1.5]}"
    path = tmp_path / "other.yaml"
    path.write_text(f"base: go2\nname: other\nurdf: other.urdf\nnominal_joint_position: {nominal}\n")
    with pytest.raises(TraceError, match=r"other: left and right legs .* set learner\.mirrored: false"):
        check_mirrored(RobotDescription.load(path))
