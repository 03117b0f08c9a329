"""Are the joint readings of the IMU's time? Watched sample by sample while the robot walks, by what standing feet tell.

Joints that come a hundredth of a second late cost odometry more than most else that is wrong with a unit, and nothing
in it shows. `trace_ros.checks.joint_timing` finds out to a millisecond how late they are, from a log, in seconds of a
core. Here three times are compared, a few milliseconds each and one a sample, now and then: as paired, and a little to
either side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from trace_ros.checks.log_legs import FEWEST_SAMPLES, WINDOW, Strides, agreement, arrangements
from trace_ros.checks.log_rest import windows
from trace_ros.errors import TraceError
from trace_ros.logs import FloatArray, Sample, SensorLog
from trace_ros.robot import RobotDescription

ASIDE_S = 0.012
"""To either side. Feet agree better there than as paired when readings are off by more than half of it, and by less
than some four hundredths of a second: further away they agree no more often than by chance."""

LOOK_S = 0.6
"""Of samples without a pause, for one look; a time that is tried lies within them."""

EVERY_S, LATER_S, STANDING_S = 2.0, 5.0, 1.0
"""From one look to the next, at first, and once there are `SETTLED_LOOKS`; and after one that saw no walking."""

FEWEST_LOOKS, SETTLED_LOOKS, COUNTED_LOOKS = 8, 20, 12
"""Before anything is told; before they become rarer; and those that count, the last ones: what a driver's restart or a
clock that drifts changes must not be outvoted by all that was before."""

SIGNIFICANT = 6.0
"""Standard errors, by which the feet must agree better. A watch judges again and again, so it must be surer than a
check of one log."""

BETTER, NO_BETTER = 0.1, 0.03
"""And by which share; what was told holds until it is less than the second."""

LEAST_SHARE = 0.2
"""Of legs and gyro that are not what they are taken for, feet agree by chance, whatever the time."""

_GAP_S = 0.1
"""No look spans a longer pause."""

_MOST_SAMPLES = 2000
"""In a look."""


class TimingWatch:
    """Watches the samples that an estimator is given. A call takes microseconds, four in each look a few milliseconds.

    Attributes:
        late: whether joint readings are older than the IMU's of the same sample.
        early: whether it is the other way round.
        text: what is wrong, in words; empty while nothing is.
        shares: (3,) share of feet and times that agree on one velocity, of the last looks: as paired, and with joints
            that are later and earlier by `ASIDE_S`; None before there are enough.
    """

    def __init__(self, robot: RobotDescription) -> None:
        self._kinematics, self._taken = robot.kinematics, next(arrangements(robot))
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.late = self.early = False
        self.text = ""
        self.shares: FloatArray | None = None
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._looks: deque[FloatArray] = deque(maxlen=COUNTED_LOOKS)
        self._count, self._pause_s = 0, EVERY_S
        self._looked_ns: int | None = None
        self._pending: list[Callable[[], None]] = []
        self._share: list[float] = []

    def update(self, sample: Sample) -> None:
        """Take in a sample."""
        if self._pending:
            self._pending.pop(0)()
        if self._samples and not 0 < sample.stamp_ns - self._samples[-1].stamp_ns < _GAP_S * 1e9:
            self._samples.clear()
        self._samples.append(sample)
        while sample.stamp_ns - self._samples[0].stamp_ns > LOOK_S * 1e9:
            self._samples.popleft()
        if self._looked_ns is None or sample.stamp_ns < self._looked_ns:
            self._looked_ns = sample.stamp_ns
        # A look that a pause spoils is due as soon as there are samples without one.
        whole = sample.stamp_ns - self._samples[0].stamp_ns > 0.95e9 * LOOK_S
        if whole and sample.stamp_ns - self._looked_ns >= self._pause_s * 1e9 and not self._pending:
            self._looked_ns = sample.stamp_ns
            self._pending.append(self._look)

    def _look(self) -> None:
        """Cut the last samples to strides; each time that is tried is compared with a sample of its own."""
        samples = list(self._samples)
        if len(samples) < 2:
            return
        velocities = [sample.joint_velocity for sample in samples]
        try:
            log = SensorLog(
                np.array([sample.stamp_ns for sample in samples]),
                np.array([sample.angular_velocity for sample in samples]),
                np.zeros((len(samples), 3)),
                np.array([sample.joint_position for sample in samples]),
                np.array(velocities) if all(row is not None and np.isfinite(row).all() for row in velocities) else None,
            )
        except TraceError:  # readings that are none, about which others complain
            return
        self._share, whole = [], max(1, len(windows(log, WINDOW)))
        for strides in Strides.at(log, [0.0, ASIDE_S, -ASIDE_S]):
            # Feet of a robot that begins or ends to walk agree at any time.
            if len(strides) >= whole and strides.position.shape[1] >= FEWEST_SAMPLES:
                self._pending.append(partial(self._compare, strides))
        self._pause_s = STANDING_S if not self._pending else EVERY_S if self._count < SETTLED_LOOKS else LATER_S

    def _compare(self, strides: Strides) -> None:
        self._share.append(float(agreement(self._kinematics, strides, self._taken)[0].mean()))
        if len(self._share) == 3:
            self._looks.append(np.array(self._share))
            self._count += 1
            if len(self._looks) >= FEWEST_LOOKS:
                self._judge()

    def _judge(self) -> None:
        looks = np.array(self._looks)
        shares = self.shares = np.asarray(looks.mean(axis=0))
        gain = looks[:, 1:] - looks[:, :1]
        error = gain.std(axis=0, ddof=1) / len(gain) ** 0.5
        told = np.array((self.late, self.early))
        enough = np.where(told, NO_BETTER * shares[0], np.maximum(SIGNIFICANT * error, BETTER * shares[0]))
        self.late, self.early = ((gain.mean(axis=0) > enough) & (shares[1:] >= LEAST_SHARE)).tolist()
        self.text = ""
        if self.late or self.early:
            older, other, way, better = (
                ("joint", "IMU's", "later", shares[1]) if self.late else ("IMU", "joints'", "earlier", shares[2])
            )
            self.text = (
                f"{older} readings seem to be more than {ASIDE_S / 2 * 1e3:g} ms older than the {other} that they are "
                f"paired with: with joints {ASIDE_S * 1e3:g} ms {way} the feet agree on a velocity for {better:.2f} of "
                f"the time instead of {shares[0]:.2f}"
            )
