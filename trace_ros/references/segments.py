"""Pieces of a reference within which its relative motions can be trusted: gaps, jumps and stuck poses cut it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.logs import FloatArray, IntArray
from trace_ros.references.attitude import GyroAttitude
from trace_ros.references.settings import ReferenceSettings

_NEIGHBOURHOOD = 0.5
"""s to either side, over which a step of the position is compared with others."""
_MOST_NEIGHBOURS = 24
_CHUNK = 50_000
"""Steps that are looked at together, so that an hour of a fast reference fits in memory."""
_SIGMAS = 5.5
_STUCK_TURN = 0.03
"""rad; the gyro must have turned at least so much while the poses stood still."""


@dataclass(frozen=True)
class Cut:
    """Something that a reference was cut for.

    Attributes:
        kind: ``gap``: no poses; ``jump``: a step that no motion explains; ``stuck``: the same pose again and again
            while the robot turned; ``short``: a piece between cuts that is too short to keep.
        start, end: s, on the log's clock from its first sample.
        size: s without poses, stuck or dropped; of a jump, m.
        angle: rad, of a jump.
    """

    kind: Literal["gap", "jump", "stuck", "short"]
    start: float
    end: float
    size: float
    angle: float = 0.0


@dataclass(frozen=True)
class Segments:
    """Which piece each pose belongs to.

    Attributes:
        label: (M,) 0, 1, ... in order; -1 for poses in none.
        cuts: in order of time.
    """

    label: IntArray
    cuts: tuple[Cut, ...]

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return int(self.label.max(initial=-1)) + 1


def cut_reference(
    seconds: FloatArray,
    position: FloatArray,
    rotation: Rotation,
    attitude: GyroAttitude,
    settings: ReferenceSettings | None = None,
) -> Segments:
    """Cut a reference where its poses are missing, jump, or are stuck.

    Args:
        seconds: (M,) s, M at least 2, on the log's clock from `GyroAttitude.origin_ns`.
        position: (M, 3) m, any world.
        rotation: M, base to that world.
        attitude: of the log.
        settings: limits.
    """
    settings = settings or ReferenceSettings()
    interval = np.diff(seconds)
    step = np.diff(position, axis=0)
    off = np.linalg.norm(_unexpected_steps(seconds, step), axis=1)
    angle = _unexpected_turns(seconds, rotation, attitude)
    gap = interval > settings.max_gap
    spread = _SIGMAS * 1.4826 * float(np.median(off[~gap])) / 1.538 if (~gap).any() else 0.0  # median of chi, 3 dof
    angle_spread = _SIGMAS * 1.4826 * float(np.median(angle[~gap])) / 1.538 if (~gap).any() else 0.0
    jump = ~gap & ((off > max(settings.jump, spread)) | (angle > max(settings.jump_angle, angle_spread)))
    cuts = [Cut("gap", float(seconds[k]), float(seconds[k + 1]), float(interval[k])) for k in np.flatnonzero(gap)]
    cuts += [
        Cut("jump", float(seconds[k]), float(seconds[k + 1]), float(off[k]), float(angle[k]))
        for k in np.flatnonzero(jump)
    ]
    label = np.concatenate(([0], np.cumsum(gap | jump)))
    for first, last in _stuck(seconds, step, rotation, attitude, settings.stuck):
        cuts.append(Cut("stuck", float(seconds[first]), float(seconds[last]), float(seconds[last] - seconds[first])))
        label[last + 1 :] += 1
        label[first : last + 1] = -1
    final = np.full(label.size, -1, dtype=np.int64)
    number = 0
    for piece in np.unique(label[label >= 0]):
        members = np.flatnonzero(label == piece)
        start, end = float(seconds[members[0]]), float(seconds[members[-1]])
        if end - start < settings.min_segment:
            cuts.append(Cut("short", start, end, end - start))
            continue
        final[members] = number
        number += 1
    return Segments(final, tuple(sorted(cuts, key=lambda cut: (cut.start, cut.end))))


def _unexpected_steps(seconds: FloatArray, step: FloatArray) -> FloatArray:
    """Steps less what the median velocity of their neighbours makes expect, m. ``(M - 1, 3)``"""
    interval = np.diff(seconds)
    velocity = step / interval[:, None]
    reach = max(1, round(_NEIGHBOURHOOD / float(np.median(interval))))
    count = len(step)
    if count == 1:
        return np.zeros((1, 3))
    others = np.concatenate((np.arange(-reach, 0), np.arange(1, reach + 1)))
    if others.size > _MOST_NEIGHBOURS:  # a fast reference: some of them tell as much
        others = others[np.linspace(0, others.size - 1, _MOST_NEIGHBOURS).astype(int)]
    expected = np.empty_like(velocity)
    for first in range(0, count, _CHUNK):
        around = np.arange(first, min(first + _CHUNK, count))[:, None] + others
        outside = (around < 0) | (around >= count)
        neighbours = np.where(outside[..., None], np.nan, velocity[np.clip(around, 0, count - 1)])
        expected[first : first + _CHUNK] = np.nanmedian(neighbours, axis=1)
    return np.asarray(step - expected * interval[:, None])


def _unexpected_turns(seconds: FloatArray, rotation: Rotation, attitude: GyroAttitude) -> FloatArray:
    """Angles between the rotations of reference and gyro from pose to pose, rad; 0 where the gyro is not there."""
    known = attitude.knows(seconds[:-1], seconds[1:])
    turned = rotation[:-1].inv() * rotation[1:]
    by_gyro = attitude.at(seconds[:-1]).inv() * attitude.at(seconds[1:])
    return np.where(known, (turned.inv() * by_gyro).magnitude(), 0.0)


def _stuck(
    seconds: FloatArray, step: FloatArray, rotation: Rotation, attitude: GyroAttitude, least: float
) -> list[tuple[int, int]]:
    """First and last pose of each run of equal poses over which the gyro turned."""
    quaternion = rotation.as_quat()
    same: NDArray[np.bool_] = np.asarray(~(step.any(axis=1) | np.diff(quaternion, axis=0).any(axis=1)))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(int)))
    runs = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if seconds[last] - seconds[first] < least:
            continue
        inside = attitude.at(np.linspace(seconds[first], seconds[last], 20))
        if (inside[0].inv() * inside).magnitude().max() > _STUCK_TURN:
            runs.append((first, last))
    return runs
