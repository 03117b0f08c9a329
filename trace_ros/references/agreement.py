"""Whether a reference can be believed: it turns as the gyro does, and is in one piece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trace_ros.logs import SensorLog
from trace_ros.references.attitude import GyroAttitude
from trace_ros.references.clean import CleanReference
from trace_ros.references.segments import cut_reference
from trace_ros.references.settings import ReferenceSettings

_SPAN, _SPACING = 1.0, 0.1
"""s over which rotations are compared, and from one start to the next."""
_LEAST, _PART = 0.08, 0.5
"""rad, and part of the gyro's rotation, by which they may differ: more than noise and biases make in a second."""


def disagrees(clean: CleanReference, log: SensorLog) -> NDArray[np.bool_]:
    """Where a cleaned reference turned otherwise than the gyro within a second. ``(N,)``, by the log's samples.

    A reference of another robot, with mirrored axes or of another time does so throughout; one that was lost for a
    while, for that while.
    """
    attitude = GyroAttitude(log.stamp_ns, log.angular_velocity)
    seconds, segment = attitude.seconds, clean.segment
    found = np.zeros(len(seconds), dtype=np.bool_)
    start = np.searchsorted(seconds, np.arange(0.0, seconds[-1] - _SPAN, _SPACING))
    end = np.searchsorted(seconds, seconds[start] + _SPAN)
    kept = end < len(seconds)
    start, end = start[kept], end[kept]
    kept = (segment[start] >= 0) & (segment[start] == segment[end]) & attitude.knows(seconds[start], seconds[end])
    start, end = start[kept], end[kept]
    if not len(start):
        return found
    by_gyro = attitude.rotation[start].inv() * attitude.rotation[end]
    orientation = clean.rotation
    turned = orientation[start].inv() * orientation[end]
    off = (turned.inv() * by_gyro).magnitude() > np.maximum(_LEAST, _PART * by_gyro.magnitude())
    for first, last in zip(start[off], end[off], strict=True):
        found[first : last + 1] = True
    return found


def torn(log: SensorLog, settings: ReferenceSettings | None = None) -> str | None:
    """What to tell of a log whose reference, as it is, jumps: absolute errors align the whole, across the jumps.

    None: it does not jump, or is too short to tell.
    """
    settings, reference = settings or ReferenceSettings(), log.reference
    if reference is None or len(reference) < 4 or len(log) < 2:
        return None
    attitude = GyroAttitude(log.stamp_ns, log.angular_velocity)
    seconds = np.asarray((reference.stamp_ns - attitude.origin_ns) * 1e-9, dtype=float)
    cuts = cut_reference(seconds, reference.position, reference.rotation_world_body, attitude, settings).cuts
    # By its own stamps, whose clock may be another: turns that differ from the gyro's tell nothing here.
    jumps = [cut for cut in cuts if cut.kind == "jump" and cut.size > settings.jump]
    if not jumps:
        return None
    worst = max(jumps, key=lambda cut: cut.size)
    times = "once" if len(jumps) == 1 else f"{len(jumps)} times"
    return (
        f"its reference jumps {times}, the furthest by {worst.size:.2f} m at {worst.start:.2f} s: errors across it are "
        "the reference's; judge its parts (--start, --end)"
    )
