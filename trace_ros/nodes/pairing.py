"""IMU and joint messages, arriving in any order, become samples. No ROS in here: stamps and arrays only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from trace_ros.estimator.observation import WINDOW
from trace_ros.logs import Sample

FloatArray = NDArray[np.float64]
_ImuSample = tuple[int, FloatArray, FloatArray]
_Message = TypeVar("_Message")

_EVIDENCE = 5
"""Joint messages in a row that must say the same before the pairer changes its mind about whether the streams agree."""

_FAR_AHEAD_NS = 500_000_000
"""A stamp this far ahead, as one far behind, is believed once the next message of its stream goes on from there."""

_GOES_ON_NS = 10_000_000_000
"""Two messages no further apart than this make a time line."""

_HISTORY_NS = 1_000_000_000
"""Messages of one stream are kept this long, by stamp, for the other stream to catch up."""


class PairingSettings(BaseModel):
    """How joint states are put to IMU samples.

    Attributes:
        joint_timeout: s; a joint state older than this at an IMU stamp is not used.
        joint_wait: s; how long, by stamp, an IMU sample waits for the joint state of the same stamp.
        time_jump_limit: s; stamps further back than this, two in a row, are a new time line; a smaller one is disorder.
        reset_on_time_jump: whether a new time line is followed; else its messages are dropped until time catches up.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    joint_timeout: float = Field(default=0.02, ge=0)
    joint_wait: float = Field(default=0.01, ge=0)
    time_jump_limit: float = Field(default=0.5, gt=0)
    reset_on_time_jump: bool = True


@dataclass(frozen=True)
class JointSample:
    """The joints at one instant, in package order.

    Attributes:
        stamp_ns: ns.
        position: (12,) rad.
        velocity: (12,) rad/s, or None where not reported.
        torque: (12,) N m, or None where not reported.
    """

    stamp_ns: int
    position: FloatArray
    velocity: FloatArray | None
    torque: FloatArray | None


class SamplePairer:
    """Puts to each IMU sample the joint state of the same stamp, else the newest one before it.

    The IMU drives: one sample per IMU message, in order of stamps. While the two streams bear equal stamps, an IMU
    sample waits for its joint state, whichever of the two arrives first, so that the result does not depend on the
    order of arrival. When they do not, waiting would buy nothing, and the newest joint state is held.
    """

    def __init__(self, settings: PairingSettings, on_time_jump: Callable[[float], None] | None = None) -> None:
        """Start empty.

        Args:
            settings: limits.
            on_time_jump: called with the size of the step (s, negative) when a new time line begins.
        """
        self._timeout_ns = round(settings.joint_timeout * 1e9)
        self._wait_ns = round(settings.joint_wait * 1e9)
        self._jump_ns = round(settings.time_jump_limit * 1e9)
        self._follow_jumps = settings.reset_on_time_jump
        self._on_time_jump = on_time_jump
        self.drops: Counter[str] = Counter()
        """Messages that gave no sample, by kind."""
        self.exact = 0
        """Samples whose joint state bears the IMU's own stamp."""
        self.held = 0
        """Samples whose joint state is an older one."""
        self.clear()

    def clear(self) -> None:
        """Forget all messages and stamps; the counts stay."""
        self._suspects: dict[str, tuple[int, Any]] = {}
        """By stream: a message whose stamp lies far from all before, until the next tells whether it is believed."""
        self._waiting: deque[_ImuSample] = deque()
        self._joints: deque[JointSample] = deque()
        self._last_imu_ns: int | None = None
        self._recent_imu_ns: deque[int] = deque(maxlen=2 * WINDOW)
        self._unjudged: deque[int] = deque(maxlen=2 * WINDOW)
        self._synchronous = True
        self._against = 0

    def add_imu(self, stamp_ns: int, angular_velocity: FloatArray, linear_acceleration: FloatArray) -> list[Sample]:
        """Take in one IMU message: (3,) rad/s and (3,) m/s^2 in the body frame.

        Returns:
            The samples that this completes, oldest first.
        """
        samples = []
        message = stamp_ns, angular_velocity, linear_acceleration
        for item in self._admit("imu", stamp_ns, self._last_imu_ns, message):
            self._last_imu_ns = item[0]
            self._recent_imu_ns.append(item[0])
            self._waiting.append(item)
            samples += self._release()
        return samples

    def add_joints(self, joints: JointSample) -> list[Sample]:
        """Take in one joint state.

        Returns:
            The samples that this completes, oldest first.
        """
        samples = []
        last_ns = self._joints[-1].stamp_ns if self._joints else None
        for item in self._admit("joints", joints.stamp_ns, last_ns, joints):
            self._joints.append(item)
            self._unjudged.append(item.stamp_ns)
            samples += self._release()
        return samples

    def _admit(self, what: str, stamp_ns: int, last_ns: int | None, message: _Message) -> list[_Message]:
        """The messages of one stream to take in now, in order.

        One wild stamp (zero, a clock that jumped and came back) must not cost the estimator its pose: a message far
        from the time line waits for the next one, and only if that goes on from there do both count.
        """
        suspect = self._suspects.pop(what, None)
        step = 1 if last_ns is None else stamp_ns - last_ns
        follows = suspect is not None and 0 < stamp_ns - suspect[0] <= _GOES_ON_NS
        if last_ns is None and suspect is not None and follows:
            return [suspect[1], message]
        if 0 < step <= _FAR_AHEAD_NS:
            if suspect is not None:
                self.drops[f"{what}_stray"] += 1
            return [message]
        if -self._jump_ns <= step <= 0 or (step < 0 and not self._follow_jumps):
            if suspect is not None:
                self._suspects[what] = suspect
            self.drops[f"{what}_{'repeated' if step == 0 else 'disordered'}"] += 1
            return []
        if suspect is None or not follows:
            if suspect is not None:
                self.drops[f"{what}_stray"] += 1
            self._suspects[what] = stamp_ns, message
            return []
        if step < 0:
            assert last_ns is not None
            others = self._suspects
            self.clear()
            self._suspects = others  # the other stream's first message of the new time line
            if self._on_time_jump is not None:
                self._on_time_jump((suspect[0] - last_ns) * 1e-9)
        return [suspect[1], message]

    def _judge(self) -> None:
        """Learn from the joint stamps that the IMU has passed whether the streams bear equal stamps."""
        while self._unjudged and self._last_imu_ns is not None and self._unjudged[0] <= self._last_imu_ns:
            agrees = self._unjudged.popleft() in self._recent_imu_ns
            self._against = 0 if agrees == self._synchronous else self._against + 1
            if self._against >= _EVIDENCE:
                self._synchronous, self._against = agrees, 0

    def _release(self) -> list[Sample]:
        self._judge()
        samples = []
        while self._waiting and self._joints:
            stamp_ns, angular_velocity, linear_acceleration = self._waiting[0]
            settled = self._joints[-1].stamp_ns >= stamp_ns
            newest_imu_ns = self._waiting[-1][0]
            if not settled and self._synchronous and newest_imu_ns - stamp_ns < self._wait_ns:
                break
            self._waiting.popleft()
            joints = self._at_or_before(stamp_ns)
            if joints is None:
                self.drops["imu_without_joints"] += 1
                continue
            if joints.stamp_ns == stamp_ns:
                self.exact += 1
            else:
                self.held += 1
            samples.append(
                Sample(stamp_ns, angular_velocity, linear_acceleration, joints.position, joints.velocity, joints.torque)
            )
        self._forget()
        return samples

    def _at_or_before(self, stamp_ns: int) -> JointSample | None:
        """The newest joint state not newer than the stamp and within the timeout; drops the older ones."""
        while len(self._joints) > 1 and self._joints[1].stamp_ns <= stamp_ns:
            self._joints.popleft()
        age = stamp_ns - self._joints[0].stamp_ns
        return self._joints[0] if 0 <= age <= self._timeout_ns else None

    def _forget(self) -> None:
        """Bound both queues."""
        while self._waiting and self._waiting[-1][0] - self._waiting[0][0] > _HISTORY_NS:
            self._waiting.popleft()
            self.drops["imu_without_joints"] += 1
        while len(self._joints) > 1 and self._joints[-1].stamp_ns - self._joints[0].stamp_ns > _HISTORY_NS:
            self._joints.popleft()
