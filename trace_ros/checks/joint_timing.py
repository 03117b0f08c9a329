"""How much older joint readings are than the IMU's of the same stamp, by what standing feet tell.

A foot that stands gives the body's velocity by joints and gyro together, v = -(J dq + w x p). If one of the two is late
the feet disagree on it, most where a step turns or tilts the body. So the share of feet and times that agree on one
velocity (`trace_ros.checks.log_legs.agreement`) is highest with the readings put back by as much as they are late. No
reference, contact sensor or torque is needed, and nothing is known of the ground.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trace_ros.checks.log_findings import FindingName, LogCheckSettings, LogReport
from trace_ros.checks.log_legs import FEWEST_SAMPLES, FEWEST_WINDOWS, Strides, agreement, arrangements
from trace_ros.logs import FloatArray, SensorLog
from trace_ros.robot import RobotDescription

EARLIEST_S, LATEST_S = -0.03, 0.06
"""Between which lateness is looked for."""

SIGNIFICANT = 4.0
"""Standard deviations, by which a lateness is one, and the feet agree better."""

LEAST_S = 0.002
"""A lateness of less makes no difference: training draws the like anew for each rollout."""

_STEP_S = 0.003
"""Between two that are tried; the peak is some ten milliseconds wide, and as good as a parabola so near its top."""

_BEFORE: tuple[FindingName, ...] = (
    "legs_swapped",
    "joint_sign",
    "imu_turned",
    "gyro_sign",
    "gyro_units",
    "gravity",
    "velocity_wrong",
    "velocity_zero",
)
"""Faults with which nothing can be told of the timing."""

_DRAWS = 200
"""Of windows, for the standard deviation."""


class JointTiming(NamedTuple):
    """What the feet tell.

    Attributes:
        delay_s: how much older joint readings are than the IMU's of the same stamp, s; negative: the IMU's are older.
        sigma_s: its standard deviation, s.
        believed_s: what was taken for true before, s.
        agreement: share of feet and times that agree on a velocity, with that, and with ``delay_s``.
        evidence: standard errors by which they agree better.
        windows: pieces of the walk that were looked at.
    """

    delay_s: float
    sigma_s: float
    believed_s: float
    agreement: tuple[float, float]
    evidence: float
    windows: int

    @property
    def significant(self) -> bool:
        """Whether the readings are later or earlier than was believed, beyond doubt, by so much that it matters."""
        off = abs(self.delay_s - self.believed_s)
        return self.evidence >= SIGNIFICANT and off >= max(SIGNIFICANT * self.sigma_s, LEAST_S)

    @property
    def text(self) -> str:
        """In words."""
        size = f"{abs(self.delay_s) * 1e3:.1f} +- {self.sigma_s * 1e3:.1f} ms"
        if self.delay_s < 0:
            return f"IMU readings are {size} older than the joints of the same stamp"
        return f"joint readings are {size} older than the IMU's of the same stamp"


def joint_timing(
    logs: Sequence[SensorLog],
    robot: RobotDescription,
    believed_s: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> JointTiming | None:
    """Find out how late the joint readings of one robot are.

    Args:
        logs: of the robot walking, whose joints and IMU are what they are taken for (`trace_ros.checks.log_legs`).
        robot: whose legs.
        believed_s: what is taken for true so far, s.
        progress: called with the share that is done.

    Returns:
        None where there is too little walking, samples come too seldom, or the feet agree best at the very end of what
        is looked at, so that the stamps are of two clocks.
    """
    delays = np.arange(EARLIEST_S, LATEST_S + _STEP_S / 2, _STEP_S)
    shares: list[FloatArray] = []
    taken = next(arrangements(robot))
    for done, log in enumerate(logs):
        by_delay: list[FloatArray] = []
        for strides in Strides.at(log, delays.tolist()):
            if len(strides) < FEWEST_WINDOWS or strides.position.shape[1] < FEWEST_SAMPLES:
                break
            by_delay.append(agreement(robot.kinematics, strides, taken)[0])
            if progress is not None:
                progress((done + len(by_delay) / len(delays)) / len(logs))
        else:
            shares.append(np.array(by_delay))
    if not shares:
        return None
    share = np.concatenate(shares, axis=1)
    peak = _peak(delays, share.mean(axis=1))
    if peak is None:
        return None
    windows = share.shape[1]
    rng = np.random.default_rng(0)
    drawn = (_peak(delays, share[:, rng.integers(0, windows, windows)].mean(axis=1)) for _ in range(_DRAWS))
    others = np.array([other for other in drawn if other is not None])
    there = int(share.mean(axis=1).argmax())
    # What is believed may lie between two that were tried, and near the top that counts.
    weight = np.clip((believed_s - delays[0]) / _STEP_S, 0, len(delays) - 1)
    here = min(int(weight), len(delays) - 2)
    before = share[here] + (weight - here) * (share[here + 1] - share[here])
    gain = share[there] - before
    error = float(gain.std(ddof=1)) / windows**0.5
    return JointTiming(
        float(peak),
        max(float(others.std(ddof=1)) if len(others) > 1 else math.inf, _between(delays, shares)),
        believed_s,
        (float(before.mean()), float(share[there].mean())),
        float(gain.mean()) / error if error > 0 else 0.0,
        windows,
    )


def _between(delays: FloatArray, shares: Sequence[FloatArray]) -> float:
    """The standard deviation of the mean of several logs by how they differ, s; what a walk is like moves the peak."""
    peaks = [peak for share in shares if (peak := _peak(delays, share.mean(axis=1))) is not None]
    return float(np.std(peaks, ddof=1)) / len(peaks) ** 0.5 if len(peaks) > 1 else 0.0


def _peak(delays: FloatArray, share: FloatArray) -> float | None:
    """Where a parabola through the best and its neighbours has its top; None at the ends."""
    best = int(share.argmax())
    if best in (0, len(delays) - 1):
        return None
    before, top, after = share[best - 1 : best + 2]
    curve = before - 2 * top + after
    return float(delays[best] + (0.5 * (before - after) / curve if curve < 0 else 0.0) * (delays[1] - delays[0]))


def check_joint_timing(log: SensorLog, robot: RobotDescription, report: LogReport, limits: LogCheckSettings) -> None:
    """Find joint readings that are older than the IMU's of the same stamp, or the other way round."""
    if report.is_fault(*_BEFORE):
        report.fact("timing", "how late the joint readings are is not judged before order, signs and units are mended")
        return
    found = joint_timing([log], robot)
    if found is None:
        return
    report.values["joint_timing"] = {
        "delay_s": found.delay_s,
        "sigma_s": found.sigma_s,
        "agreement": list(found.agreement),
        "evidence": found.evidence,
        "windows": found.windows,
    }
    report.fact("timing", found.text + ("" if found.significant else ": nothing significant"))
    if found.significant and abs(found.delay_s) > limits.joint_delay:
        report.find(
            "remark",
            "joint_timing",
            "timing",
            f"{found.text}: with that put right the feet agree on a velocity for {found.agreement[1]:.2f} of the time "
            f"instead of {found.agreement[0]:.2f}",
            "trace finetune sees to it; or trace calibrate LOG --model MODEL --joint-delay --write, or the node's "
            f"joint_delay: {found.delay_s:.4f}",
        )
