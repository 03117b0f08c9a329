"""Joint readings that are older than the IMU's of the same stamp (our extension; `Card.joint_delay`).

Encoders are read, filtered and sent by other ways than an IMU, and their stamps seldom tell how long that took. Ten
milliseconds are a twentieth of a step: the legs of then are held against the motion of now. No training mends that as
well as putting the readings where they belong does. On the robot `trace_ros.streams` pairs each IMU reading with the
joints that were stamped so much later; of a log that is paired already, `with_joints_at_their_time` does the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from trace_ros.logs import FloatArray, SensorLog
from trace_ros.streams.pairing import LARGEST_JOINT_DELAY, PairingSettings

JointDelay = Annotated[float, Field(ge=-LARGEST_JOINT_DELAY, le=LARGEST_JOINT_DELAY, allow_inf_nan=False)]
"""s; negative where the IMU's readings are the older ones."""


@runtime_checkable
class JointsDelayed(Protocol):
    """An estimator that knows how late the joint readings of its robot are."""

    @property
    def joint_delay_s(self) -> float:
        """How much older they are than IMU readings of the same stamp, s."""


def joint_delay_of(estimator: object) -> float:
    """How late the joint readings are that an estimator expects, s."""
    return estimator.joint_delay_s if isinstance(estimator, JointsDelayed) else 0.0


def with_joints_at_their_time(log: SensorLog, delay: float, settings: PairingSettings | None = None) -> SensorLog:
    """A log whose joint readings are ``delay`` older than their stamps tell, each IMU reading with those of its time.

    Args:
        log: N samples, its joints as they are stamped.
        delay: s; negative where the IMU's readings are the older ones.
        settings: how joint readings are put to IMU readings, as in the streams.

    Returns:
        The samples for which there are joint readings: those of the last ``delay`` seconds are none. What a simulator
        knows of the feet stays at the IMU's stamps. Without delay, the log itself.
    """
    if not delay or not len(log):
        return log
    settings = settings or PairingSettings()
    stamps = log.stamp_ns
    wanted = stamps + round(delay * 1e9)
    before = np.searchsorted(stamps, wanted, side="right") - 1
    known = before >= 0
    before = np.maximum(before, 0)
    after = np.minimum(before + 1, len(log) - 1)
    age, span = wanted - stamps[before], stamps[after] - stamps[before]
    between = (settings.joints == "interpolate") & (span > 0) & (span <= round(settings.joint_interval * 1e9))
    # As in the streams: what is too far apart to be interpolated is held for a while. A log's last reading is its end.
    held = (age == 0) | ((after > before) & (age <= round(settings.joint_timeout * 1e9)))
    kept = known & (between | held)
    weight = np.where(between & (span > 0), age / np.maximum(span, 1), 0.0)[kept, None]
    first, second = before[kept], after[kept]

    def moved(values: FloatArray | None) -> FloatArray | None:
        if values is None:
            return None
        earlier, later = values[first], values[second]
        # Of a reading that only one of the two reports, that one; of one of the very stamp, itself.
        later = np.where(np.isnan(later) | (weight == 0), earlier, later)
        earlier = np.where(np.isnan(earlier), later, earlier)
        return np.asarray(earlier + weight * (later - earlier))

    position = moved(log.joint_position)
    assert position is not None
    return replace(
        log.select(kept),
        joint_position=position,
        joint_velocity=moved(log.joint_velocity),
        joint_torque=moved(log.joint_torque),
    )
