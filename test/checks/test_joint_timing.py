"""How late joint readings are is found within a millisecond, without a reference; and nothing where nothing is late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trace_ros.bags import write_bag
from trace_ros.checks import joint_timing as joint_timing_module
from trace_ros.checks.joint_timing import joint_timing
from trace_ros.checks.log import check_log, check_log_file
from trace_ros.checks.log_findings import LogCheckSettings
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.streams.pairing import LARGEST_JOINT_DELAY


def findings(log: SensorLog, go2: RobotDescription, limits: LogCheckSettings | None = None) -> list:
    return [finding for finding in check_log(log, go2, limits=limits).findings if finding.name == "joint_timing"]


def by_samples(log: SensorLog, samples: int) -> SensorLog:
    """Its joints, so many samples later; the last ones come first."""
    assert log.joint_velocity is not None
    position, velocity = (np.roll(values, samples, axis=0) for values in (log.joint_position, log.joint_velocity))
    return replace(log, joint_position=position, joint_velocity=velocity)


@pytest.mark.parametrize("delay", [0.012, 0.06, -0.01, -0.09, 0.0065])
def test_lateness_is_found(walk: SensorLog, go2: RobotDescription, delay: float) -> None:
    own = joint_timing([walk], go2)
    assert own is not None and not own.significant and abs(own.delay_s) < 0.0015
    found = joint_timing([with_joints_at_their_time(walk, -delay)], go2)
    assert found is not None and found.significant
    assert found.delay_s == pytest.approx(delay, abs=0.0015)
    assert found.sigma_s < 0.001
    assert found.agreement[1] > found.agreement[0]


@pytest.mark.parametrize("delay", [0.098, -0.0985])
def test_what_is_found_at_the_very_end_fits_a_card(walk: SensorLog, go2: RobotDescription, delay: float) -> None:
    found = joint_timing([with_joints_at_their_time(walk, -delay)], go2)
    assert found is None or abs(found.delay_s) <= LARGEST_JOINT_DELAY


def test_a_peak_beyond_what_a_card_may_hold_is_held_to_it(
    walk: SensorLog, go2: RobotDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_timing_module, "_peak", lambda *_: 0.1019)
    found = joint_timing([walk], go2)
    assert found is not None and found.delay_s == LARGEST_JOINT_DELAY


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


@pytest.mark.parametrize("samples", [100, -100, 150, 400])
def test_clocks_that_differ_by_more_are_another_matter(walk: SensorLog, go2: RobotDescription, samples: int) -> None:
    """Some delay is always the best, and what stands out of nothing is nothing."""
    found = joint_timing([by_samples(walk, samples)], go2)
    assert found is None or not found.significant


def test_each_log_is_told_and_whether_all_tell_the_same(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.012)
    both = joint_timing([late, walk.select(slice(0, 300)), walk], go2)
    assert both is not None and not both.alike
    assert both.by_log[1] is None
    assert both.by_log[0] == pytest.approx(0.012, abs=0.002) and both.by_log[2] == pytest.approx(0.0, abs=0.002)
    alone = joint_timing([late], go2)
    assert alone is not None and alone.alike


@pytest.mark.parametrize("delay", [0.03, 0.05, -0.028])
def test_late_joints_are_not_taken_for_an_imu_that_is_turned(
    walk: SensorLog, go2: RobotDescription, delay: float
) -> None:
    late = with_joints_at_their_time(walk, -delay)
    assert [finding.name for finding in check_log(late, go2).findings] == ["joint_timing"]


def test_of_swapped_legs_that_are_late_besides_the_swap_is_told(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.012)
    legs = [*range(3, 6), *range(3), *range(6, 12)]
    assert late.joint_velocity is not None
    swapped = replace(late, joint_position=late.joint_position[:, legs], joint_velocity=late.joint_velocity[:, legs])
    assert "legs_swapped" in [finding.name for finding in check_log(swapped, go2).findings]


def test_a_row_that_is_missing_changes_little(walk: SensorLog, go2: RobotDescription) -> None:
    late = with_joints_at_their_time(walk, -0.012)
    assert late.joint_velocity is not None
    velocity = late.joint_velocity.copy()
    velocity[[2000, 3000]] = np.nan
    whole, torn = joint_timing([late], go2), joint_timing([replace(late, joint_velocity=velocity)], go2)
    assert whole is not None and torn is not None
    assert torn.delay_s == pytest.approx(whole.delay_s, abs=3e-4)


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
