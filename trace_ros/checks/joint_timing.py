"""How much older joint readings are than the IMU's of the same stamp, by what standing feet tell.

A foot that stands gives the body's velocity by joints and gyro together, v = -(J dq + w x p). If one of the two is late
the feet disagree on it, most where a step turns or tilts the body. So the share of feet and times that agree on one
velocity (`trace_ros.checks.log_legs.agreement`) is highest with the readings put back by as much as they are late. No
reference, contact sensor or torque is needed, and nothing is known of the ground.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trace_ros.checks.log_findings import FindingName, LogCheckSettings, LogReport
from trace_ros.checks.log_legs import FEWEST_SAMPLES, FEWEST_WINDOWS, Strides, agreement, arrangements
from trace_ros.logs import FloatArray, SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.streams.pairing import LARGEST_JOINT_DELAY

SIGNIFICANT = 4.0
"""Standard deviations, by which a lateness is one, and the feet agree better."""

LEAST_S = 0.002
"""A lateness of less makes no difference: training draws the like anew for each rollout."""

CONTRAST = 1.5
"""How much oftener feet must agree at the peak than usually: of clocks that are further apart, some delay is the best
too, and beats the median of all by less."""

ALIKE_S = 0.005
"""Logs of one unit in one state differ by less."""

_COARSE_S, _FINE_S = 0.006, 0.003
"""Between two that are tried, and near the best; the peak is ten milliseconds wide or more, its top a parabola."""

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
        contrast: how many times oftener they agree with ``delay_s`` than with most.
        windows: pieces of the walk that were looked at.
        by_log: ``delay_s`` of each log alone; None where it tells nothing.
    """

    delay_s: float
    sigma_s: float
    believed_s: float
    agreement: tuple[float, float]
    evidence: float
    contrast: float
    windows: int
    by_log: tuple[float | None, ...]

    @property
    def significant(self) -> bool:
        """Whether the readings are later or earlier than was believed, beyond doubt, by so much that it matters."""
        off = abs(self.delay_s - self.believed_s)
        sure = self.evidence >= SIGNIFICANT and self.contrast >= CONTRAST
        return sure and off >= max(SIGNIFICANT * self.sigma_s, LEAST_S)

    @property
    def alike(self) -> bool:
        """Whether all logs tell the same."""
        told = [delay for delay in self.by_log if delay is not None]
        return not told or max(told) - min(told) < ALIKE_S

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
        is looked at (`LARGEST_JOINT_DELAY`), so that the stamps are of two clocks.
    """
    reach = round(LARGEST_JOINT_DELAY / _COARSE_S) * _COARSE_S
    coarse = np.linspace(-reach, reach, round(2 * reach / _COARSE_S) + 1)
    taken = next(arrangements(robot))
    heard: list[int] = []
    shares: list[FloatArray] = []

    def agreements(log: SensorLog, delays: FloatArray) -> FloatArray | None:
        rows: list[FloatArray] = []
        for strides in Strides.at(log, delays.tolist()):
            if len(strides) < FEWEST_WINDOWS or strides.position.shape[1] < FEWEST_SAMPLES:
                return None
            rows.append(agreement(robot.kinematics, strides, taken)[0])
        return np.array(rows)

    for number, log in enumerate(logs):
        if len(log) > 1 and (share := agreements(log, coarse)) is not None:
            heard.append(number)
            shares.append(share)
        if progress is not None:
            progress((number + 1) / len(logs))
    if not shares:
        return None
    usual = np.concatenate(shares, axis=1).mean(axis=1)
    best = int(usual.argmax())
    if best in (0, len(coarse) - 1):
        return None
    near = coarse[best] + _FINE_S * np.arange(-2, 3)
    fine = [agreements(logs[number], np.append(near, believed_s)) for number in heard]
    known = [share for share in fine if share is not None]
    share = np.concatenate(known, axis=1)
    windows = share.shape[1]
    rng = np.random.default_rng(0)
    drawn = np.array([_peak(near, share[:-1, rng.integers(0, windows, windows)].mean(axis=1)) for _ in range(_DRAWS)])
    top = int(share[:-1].mean(axis=1).argmax())
    gain = share[top] - share[-1]
    error = float(gain.std(ddof=1)) / windows**0.5
    alone = [_alone(coarse, own) for own in shares]
    by_log: list[float | None] = [None] * len(logs)
    for number, delay in zip(heard, alone, strict=True):
        by_log[number] = delay
    told = [delay for delay in alone if delay is not None]
    between = float(np.std(told, ddof=1)) / len(told) ** 0.5 if len(told) > 1 else 0.0
    return JointTiming(
        # What no card may hold must not be written into one.
        float(np.clip(_peak(near, share[:-1].mean(axis=1)), -LARGEST_JOINT_DELAY, LARGEST_JOINT_DELAY)),
        max(float(drawn.std(ddof=1)), between),
        believed_s,
        (float(share[-1].mean()), float(share[top].mean())),
        float(gain.mean()) / error if error > 0 else 0.0,
        float(usual[best] / np.median(usual)),
        windows,
        tuple(by_log),
    )


def _alone(delays: FloatArray, share: FloatArray) -> float | None:
    """The lateness by one log; None where it does not stand out."""
    usual = share.mean(axis=1)
    best = int(usual.argmax())
    if best in (0, len(delays) - 1) or usual[best] < CONTRAST * np.median(usual):
        return None
    return _peak(delays, usual)


def _peak(delays: FloatArray, share: FloatArray) -> float:
    """Where a parabola through the best and its neighbours has its top; at an end, that."""
    best = int(share.argmax())
    if best in (0, len(delays) - 1):
        return float(delays[best])
    before, top, after = share[best - 1 : best + 2]
    curve = before - 2 * top + after
    return float(delays[best] + (0.5 * (before - after) / curve if curve < 0 else 0.0) * (delays[1] - delays[0]))


def check_joint_timing(log: SensorLog, robot: RobotDescription, report: LogReport) -> JointTiming | None:
    """Find joint readings that are older than the IMU's of the same stamp, or the other way round.

    Returns:
        What was found; what is told of it, `tell_joint_timing` adds to the report when order and signs are known.
    """
    return None if report.is_fault(*_BEFORE) else joint_timing([log], robot)


def tell_joint_timing(found: JointTiming | None, report: LogReport, limits: LogCheckSettings) -> None:
    """Add what was found to the report."""
    if report.is_fault(*_BEFORE):
        report.fact("timing", "how late the joint readings are is not judged before order, signs and units are mended")
        return
    if found is None:
        report.fact("timing", "how late the joint readings are cannot be told: too little walking, or two clocks")
        return
    report.values["joint_timing"] = found._asdict()
    report.fact("timing", found.text + ("" if found.significant else ": nothing significant"))
    if found.significant and abs(found.delay_s) > limits.joint_delay:
        report.find(
            "remark",
            "joint_timing",
            "timing",
            f"{found.text}: with that put right the feet agree on a velocity for {found.agreement[1]:.2f} of the time "
            f"instead of {found.agreement[0]:.2f}",
            "trace finetune sees to it; or trace calibrate LOG --model MODEL --joint-delay --write, or the node's "
            f"joint_delay: {found.delay_s:.4f}; offline for any estimator trace evaluate LOG --joint-delay auto",
        )
