"""The checks of a start: samples go in, findings come out until the robot has stood still once and all was well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trace_ros.checks.findings import CheckSettings, Finding
from trace_ros.checks.setup import check_feet, check_gravity, check_joint_ranges
from trace_ros.logs import Sample
from trace_ros.robot import RobotDescription

FloatArray = NDArray[np.float64]

_LONGEST_INTERVAL_NS = 200_000_000
"""After a longer pause a window begins anew."""

_MOST_SAMPLES = 5000
"""Of a window: half a second at 10 kHz."""


class StartupCheck:
    """Looks at the samples of a start.

    Joint ranges are judged in any motion; gravity and feet need a robot that stands still for ``settings.window``. A
    robot that never stands is never judged by them: that is no fault.
    """

    def __init__(self, robot: RobotDescription, settings: CheckSettings | None = None) -> None:
        self._robot = robot
        self._settings = settings or CheckSettings()
        self._window_ns = round(self._settings.window * 1e9)
        self.findings: tuple[Finding, ...] = ()
        """Of the last window."""
        self.finished = False
        """Whether the robot has stood still and no fault was found; nothing more is looked at then."""
        self._samples: list[Sample] = []

    @property
    def faults(self) -> list[str]:
        """Texts of the findings that make odometry nonsense."""
        return [str(finding) for finding in self.findings if finding.level == "fault"]

    @property
    def warnings(self) -> list[str]:
        """Texts of the other findings."""
        return [str(finding) for finding in self.findings if finding.level == "warning"]

    def add(self, sample: Sample) -> bool:
        """Take in a sample; whether a window is complete and `findings` are of it."""
        if self.finished:
            return False
        samples = self._samples
        if samples and not 0 < sample.stamp_ns - samples[-1].stamp_ns < _LONGEST_INTERVAL_NS:
            samples.clear()
        samples.append(sample)
        # So many are enough to judge by, whatever their stamps say (those of a broken clock may hardly move on).
        if sample.stamp_ns - samples[0].stamp_ns < self._window_ns and len(samples) < _MOST_SAMPLES:
            return False
        self._samples = []
        self._judge(samples)
        return True

    def _judge(self, samples: Sequence[Sample]) -> None:
        position = np.array([sample.joint_position for sample in samples])
        force = np.array([sample.linear_acceleration for sample in samples])
        gyro = np.array([sample.angular_velocity for sample in samples])
        middle = np.median(position, axis=0)
        findings = list(check_joint_ranges(self._robot, middle, self._settings))
        if stands_still(self._robot, position, force, gyro, self._settings):
            mean = force.mean(axis=0)
            findings += check_gravity(self._robot, mean, middle, self._settings)
            # Joints that cannot be true would only be blamed a second time for where they put the feet.
            if not findings:
                findings += check_feet(self._robot, mean, middle, self._settings)
            self.finished = all(finding.level == "warning" for finding in findings)
        elif self.findings and any(finding.subject != "joints" for finding in self.findings):
            # What was found in standing stays true until the robot stands again.
            findings += [finding for finding in self.findings if finding.subject != "joints"]
        self.findings = tuple(findings)


def stands_still(
    robot: RobotDescription,
    joint_position: FloatArray,
    specific_force: FloatArray,
    angular_velocity: FloatArray,
    settings: CheckSettings,
) -> bool:
    """Whether a robot stood still throughout a window of n samples.

    Args:
        robot: its thresholds.
        joint_position: (n, 12) rad.
        specific_force: (n, 3), in whatever unit.
        angular_velocity: (n, 3) rad/s.
        settings: limits.
    """
    magnitude = max(float(np.linalg.norm(specific_force.mean(axis=0))), 1.0)
    fastest = robot.stationary.angular_velocity
    return bool(
        np.linalg.norm(angular_velocity.mean(axis=0)) < fastest
        and angular_velocity.std(axis=0).max() < fastest
        and np.ptp(joint_position, axis=0).max() < settings.joint_motion
        and specific_force.std(axis=0).max() < settings.steady * magnitude
    )
