"""How late joint readings are is found within a millisecond, without a reference; and nothing where nothing is late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trace_ros.bags import write_bag
from trace_ros.checks.joint_timing import LATEST_S, joint_timing
from trace_ros.checks.log import check_log, check_log_file
from trace_ros.checks.log_findings import LogCheckSettings
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription


def findings(log: SensorLog, go2: RobotDescription, limits: LogCheckSettings | None = None) -> list:
    return [finding for finding in check_log(log, go2, limits=limits).findings if finding.name == "joint_timing"]


@pytest.mark.parametrize("delay", [0.012, 0.03, -0.01, 0.0065])
def test_lateness_is_found(walk: SensorLog, go2: RobotDescription, delay: float) -> None:
    own = joint_timing([walk], go2)
    assert own is not None and not own.significant and abs(own.delay_s) < 0.0015
    found = joint_timing([with_joints_at_their_time(walk, -delay)], go2)
    assert found is not None and found.significant
    assert found.delay_s == pytest.approx(delay, abs=0.0015)
    assert found.sigma_s < 0.001
    assert found.agreement[1] > found.agreement[0]


def test_several_logs_tell_together(walk: SensorLog, go2: RobotDescription) -> None:
    logs = [with_joints_at_their_time(walk, -0.008)] * 2
    shares: list[float] = []
    one, both = joint_timing(logs[:1], go2), joint_timing(logs, go2, progress=shares.append)
    assert one is not None and both is not None
    assert both.windows == 2 * one.windows
    assert both.delay_s == pytest.approx(one.delay_s)
    assert both.sigma_s < one.sigma_s
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_what_is_known_already_is_not_found_again(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.012)
    told = joint_timing([late], go2, believed_s=0.012)
    assert told is not None and not told.significant
    # And a belief that is wrong is.
    wrong = joint_timing([walk], go2, believed_s=0.012)
    assert wrong is not None and wrong.significant
    assert wrong.delay_s == pytest.approx(0.0, abs=0.0015)


def test_without_walking_nothing_is_told(walk: SensorLog, go2: RobotDescription) -> None:
    assert joint_timing([walk.select(slice(0, 600))], go2) is None
    assert joint_timing([], go2) is None
    # The same with readings too seldom for a hundredth of a second.
    assert joint_timing([walk.select(slice(None, None, 25))], go2) is None


def test_clocks_that_differ_by_more_are_another_matter(walk: SensorLog, go2: RobotDescription) -> None:
    later = with_joints_at_their_time(walk, -0.1)
    found = joint_timing([later], go2)
    assert found is None or not found.significant or abs(found.delay_s) <= LATEST_S


def test_velocities_that_are_not_reported_are_not_needed(walk: SensorLog, go2: RobotDescription) -> None:
    found = joint_timing([replace(with_joints_at_their_time(walk, -0.012), joint_velocity=None)], go2)
    assert found is not None and found.significant
    assert found.delay_s == pytest.approx(0.012, abs=0.003)  # reported ones are filtered, and later by that


def test_a_check_of_a_log_says_so_and_what_to_do(walk: SensorLog, go2: RobotDescription) -> None:
    assert not findings(walk, go2)
    (finding,) = findings(with_joints_at_their_time(walk, -0.012), go2)
    assert finding.level == "remark"
    assert "joint readings are 1" in finding.text and "ms older than the IMU's of the same stamp" in finding.text
    assert "joint_delay: 0.01" in finding.remedy and "--joint-delay --write" in finding.remedy
    (finding,) = findings(with_joints_at_their_time(walk, 0.012), go2)
    assert finding.text.startswith("IMU readings are 1")
    # What training draws anew for each rollout hurts nobody.
    assert not findings(with_joints_at_their_time(walk, -0.003), go2)
    assert not findings(with_joints_at_their_time(walk, -0.012), go2, LogCheckSettings(joint_delay=0.02))


def test_nothing_is_said_of_the_timing_of_swapped_legs(walk: SensorLog, go2: RobotDescription) -> None:
    position = walk.joint_position[:, [3, 4, 5, 0, 1, 2, *range(6, 12)]]
    report = check_log(replace(walk, joint_position=position), go2)
    assert report.verdict == "not fit"
    assert "joint_timing" not in report.values
    assert not [finding for finding in report.findings if finding.name == "joint_timing"]


def test_a_bag_with_late_stamps(walk: SensorLog, go2: RobotDescription, tmp_path: Path) -> None:
    path = tmp_path / "late"
    write_bag(path, with_joints_at_their_time(walk, -0.01), go2)
    report = check_log_file(path, go2)
    assert [finding.name for finding in report.findings] == ["joint_timing"]
    assert report.verdict == "fit with remarks"
    assert report.to_dict()["values"]["joint_timing"]["delay_s"] == pytest.approx(0.01, abs=0.0015)
    assert np.isfinite(report.values["joint_timing"]["sigma_s"])
