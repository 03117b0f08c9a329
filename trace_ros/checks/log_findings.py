"""What the check of a whole log found, and the limits that it goes by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from trace_ros.checks.findings import CheckSettings

Positive = Annotated[float, Field(gt=0)]
Part = Annotated[float, Field(gt=0, lt=1)]
Fitness = Literal["fit", "fit with remarks", "not fit"]
Level = Literal["remark", "fault"]
FindingName = Literal[
    "messages_lost",
    "pause",
    "slow",
    "overlap",
    "topic_clocks",
    "no_stamps",
    "time_jumps",
    "gravity",
    "gyro_units",
    "gyro_sign",
    "imu_turned",
    "legs_swapped",
    "joint_sign",
    "joints",
    "joint_stuck",
    "joint_timing",
    "feet",
    "velocity_wrong",
    "velocity_zero",
    "velocity_missing",
    "velocity_spikes",
    "torque_missing",
    "torque_zero",
    "torque_sign",
    "torque_implausible",
    "torque_units",
    "little_motion",
    "little_turning",
    "short",
    "reference_clock",
    "reference_frame",
    "reference_tilted",
    "reference_gap",
    "reference_jump",
    "reference_stuck",
    "reference_coverage",
    "reference_twist",
    "reference_disagrees",
    "reference_unusable",
    "reference_short",
]
"""Kinds of findings beside those of messages (`trace_ros.streams.KINDS`); `docs/logs.md` tells what each is."""


@dataclass(frozen=True)
class LogFinding:
    """Something in a log that does not fit.

    Attributes:
        level: ``fault``: odometry or training from this log is nonsense; ``remark``: it will be worse, or it is to be
            looked at.
        name: a `FindingName`, or a kind of faulty message.
        subject: what was looked at, in a word or two.
        text: what is wrong, and the likely cause, in one line.
        remedy: what to do, in one line.
    """

    level: Level
    name: str
    subject: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Fact:
    """Something that was measured, whether it is well or not."""

    subject: str
    text: str


@dataclass
class LogReport:
    """A log looked at.

    Attributes:
        path, robot: what was looked at, and as whose.
        facts: what was measured, in the order of the page.
        findings: what does not fit.
        values: the measured numbers by name, for machines.
    """

    path: str
    robot: str
    facts: list[Fact] = field(default_factory=list)
    findings: list[LogFinding] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Fitness:
        """One of three."""
        if any(finding.level == "fault" for finding in self.findings):
            return "not fit"
        return "fit with remarks" if self.findings else "fit"

    def fact(self, subject: str, text: str) -> None:
        """Add a line to the page."""
        self.facts.append(Fact(subject, text))

    def find(self, level: Level, name: FindingName, subject: str, text: str, remedy: str = "") -> None:
        """Add a finding."""
        self.findings.append(LogFinding(level, name, subject, text, remedy))

    def is_fault(self, *names: FindingName) -> bool:
        """Whether any of these was found to be a fault: what follows from it is then not told a second time."""
        return any(finding.level == "fault" and finding.name in names for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "path": self.path,
            "robot": self.robot,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
            "facts": [asdict(fact) for fact in self.facts],
            "values": self.values,
        }


class LogCheckSettings(CheckSettings):
    """Limits of the check of a log; those of the start hold for the times in which the robot stands.

    Attributes:
        lost: part of a topic's messages that may be lost.
        lost_fault: part beyond which nothing is to be had from the log.
        longest_pause: s; an interval between messages that is worth a remark.
        overlap: part of the log that joint states and reference must span each.
        topic_clocks: s; difference of two topics in the time from stamp to recording.
        slowest: Hz; rate of IMU and joint states below which odometry is much worse.
        clock: s; offset of the reference's clock worth a remark.
        frame: rad; turn of the reference's body or world worth a remark.
        place: m; offset of the reference's body worth a remark.
        covered: part of the log for which there must be a reference.
        leg_evidence: standard errors by which another order, sign or mounting must fit the legs better to be a fault.
        joint_delay: s; by which joint readings may be older than the IMU's of the same stamp, or younger; training has
            as much.
        velocity_slope: how far from 1 the ratio of joint velocities and derivatives of positions may be.
        fastest_turn: rad/s; a gyro that often reads more is in degrees.
        fastest_joint: rad/s; no leg moves faster, a larger velocity is a wrong reading.
        weight: parts of the robot's weight that the torques must carry on average: smallest and largest.
        walking: s; a log with less walking shows too little.
        turning: rad; a log with less turning, all turns added up, shows too little.
    """

    lost: Part = 0.005
    lost_fault: Part = 0.3
    longest_pause: Positive = 0.1
    overlap: Part = 0.95
    topic_clocks: Positive = 0.02
    slowest: Positive = 90.0
    clock: Positive = 0.02
    frame: Positive = 0.035
    place: Positive = 0.05
    covered: Part = 0.9
    leg_evidence: Positive = 2.5
    joint_delay: Positive = 0.004
    velocity_slope: Part = 0.3
    fastest_turn: Positive = 20.0
    fastest_joint: Positive = 60.0
    weight: tuple[Positive, Positive] = (0.5, 1.6)
    walking: Positive = 5.0
    turning: Positive = 0.5
