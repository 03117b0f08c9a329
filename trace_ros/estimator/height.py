"""The height by the ground that the feet show (our extension; `trace_ros.estimator.checkpoint.ModelCard.height`).

What a network sees of a stride hardly tells a foot that sinks in from a body that rises: on ground that gives way its
vertical velocity is off by centimetres a second, for as long as the robot walks there. Where the feet *are* tells more:
those that stand lie on the ground, however deep they have sunk in, so the plane through them has the ground's slope,
and the way over the ground times its slope is the way up. To that comes how high the body is above the plane. That
height does not drift with time, but knows of nothing shorter than a stride; so the network's own is kept for the first
second, and the feet's thereafter: a complementary filter. The plane through stance feet is how legged robots have long
found the terrain under them (Gehring et al., "Dynamic Trotting on Slopes for Quadrupedal Robots", IROS 2015); here
every foot counts as much as the network attends to it, so no threshold says which of them stand.

`HeightByFeet` goes sample by sample, `climb_rates` does the same for a whole run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.spatial.transform import Rotation

from trace_ros.estimator.recurrence import recurrence
from trace_ros.logs import LEGS

FloatArray = NDArray[np.float64]
Flags = NDArray[np.bool_]
Quaternion = tuple[float, float, float, float]
Triple = tuple[float, float, float]

STEEPEST = 1.0
"""Slope of the steepest ground that is believed."""

UPRIGHT = 0.5
"""Cosine of the tilt beyond which a robot does not stand on its feet."""

_RIDGE = 1e-4
"""Of the feet's spread: a slope across which no two feet have been seen to stand is taken for level."""

_NOTHING = 1e-12
"""m^2 times attention squared; less is none."""


LARGEST_LEVEL = 0.2
"""rad; more is no fault of encoders, but a wrong URDF or mounting of the IMU."""

_Level = Annotated[float, Field(ge=-LARGEST_LEVEL, le=LARGEST_LEVEL)]


class HeightSettings(BaseModel):
    """When the feet's height takes the place of the network's own.

    Attributes:
        time: s; for as long the network's vertical motion counts.
        stride: s; time constant over which the plane through the feet is averaged.
        level: rad, roll and pitch by which the feet are turned about the body before they are believed: what zeros of
            the encoders and an IMU that is not quite straight make of level ground (`trace_ros.training.level_fit`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    time: Annotated[float, Field(gt=0)] = 1.0
    stride: Annotated[float, Field(gt=0)] = 0.5
    level: tuple[_Level, _Level] = (0.0, 0.0)

    def levelling(self) -> FloatArray | None:
        """(3, 3) from the feet as they are measured to the body; None where that is the same."""
        if not any(self.level):
            return None
        return np.asarray(Rotation.from_euler("xyz", (*self.level, 0.0)).as_matrix())


class HeightByFeet:
    """Tells how fast the height is to be corrected, sample by sample."""

    def __init__(self, settings: HeightSettings) -> None:
        self._time, self._stride = settings.time, settings.stride
        levelling = settings.levelling()
        self._levelling = None if levelling is None else tuple(levelling.ravel().tolist())
        self.reset()

    def reset(self) -> None:
        """The pose is another one: forget everything."""
        self._owed = 0.0
        """m, by which the height is still to be corrected."""
        self._ahead: Triple = (0.0, 0.0, 0.0)
        """m, by how much the network's position is ahead of its own average over a stride."""
        self.restart()

    def restart(self) -> None:
        """Samples are missing: forget where the feet were. The motion until then still counts, and what is owed."""
        self._xx = self._xy = self._yy = self._xz = self._yz = 0.0
        self._weight = self._x = self._y = self._z = 0.0
        self._below: float | None = None
        """m, from the body down to the plane, upward positive."""

    def climb_rate(
        self, feet: Sequence[float], attention: Sequence[float], orientation: Quaternion, moved: Triple, dt: float
    ) -> float:
        """Take in a step of a body that is not held still.

        Args:
            feet: (12,) m, in the body frame, legs FL, FR, RL, RR.
            attention: (4,) on these.
            orientation: quaternion x, y, z, w after the step, body to fixed frame.
            moved: (3,) m, the step by the network, fixed frame.
            dt: s.

        Returns:
            m/s, upward, to be added to the network's for the time of this step. Of a robot that has fallen over: 0.
        """
        if 1 - 2 * (orientation[0] ** 2 + orientation[1] ** 2) < UPRIGHT:
            self.restart()
            return 0.0
        self._see(feet, attention, orientation, dt)
        slope_x, slope_y = self._slope()
        weight = self._weight or 1.0
        below = (self._z - slope_x * self._x - slope_y * self._y) / weight
        lowered = 0.0 if self._below is None else below - self._below
        self._below = below
        # The plane is that of the last stride, so the motion by the network that it is held against is, too.
        new = dt / (dt + self._stride)
        (ax, ay, az), (mx, my, mz) = self._ahead, moved
        x, y, z = new * (ax + mx), new * (ay + my), new * (az + mz)
        self._ahead = ax + mx - x, ay + my - y, az + mz - z
        behind = self._owed + slope_x * x + slope_y * y - lowered - z
        self._owed = behind * self._time / (self._time + dt)
        return self._owed / self._time

    def _see(self, feet: Sequence[float], attention: Sequence[float], orientation: Quaternion, dt: float) -> None:
        """Average where the feet are about the body, along the fixed axes."""
        qx, qy, qz, qw = orientation
        xx, xy, xz = 1 - 2 * (qy * qy + qz * qz), 2 * (qx * qy - qz * qw), 2 * (qx * qz + qy * qw)
        yx, yy, yz = 2 * (qx * qy + qz * qw), 1 - 2 * (qx * qx + qz * qz), 2 * (qy * qz - qx * qw)
        zx, zy, zz = 2 * (qx * qz - qy * qw), 2 * (qy * qz + qx * qw), 1 - 2 * (qx * qx + qy * qy)
        if self._levelling is not None:
            a, b, c, d, e, f, g, h, i = self._levelling
            xx, xy, xz = xx * a + xy * d + xz * g, xx * b + xy * e + xz * h, xx * c + xy * f + xz * i
            yx, yy, yz = yx * a + yy * d + yz * g, yx * b + yy * e + yz * h, yx * c + yy * f + yz * i
            zx, zy, zz = zx * a + zy * d + zz * g, zx * b + zy * e + zz * h, zx * c + zy * f + zz * i
        total = sx = sy = sz = sxx = sxy = syy = sxz = syz = 0.0
        for leg in range(LEGS):
            fx, fy, fz = feet[3 * leg : 3 * leg + 3]
            weight = attention[leg]
            x, y, z = xx * fx + xy * fy + xz * fz, yx * fx + yy * fy + yz * fz, zx * fx + zy * fy + zz * fz
            wx, wy = weight * x, weight * y
            total += weight
            sx += wx
            sy += wy
            sz += weight * z
            sxx += wx * x
            sxy += wx * y
            syy += wy * y
            sxz += wx * z
            syz += wy * z
        new = dt / (dt + self._stride)
        # Only differences between feet that stand at the same time tell of the ground: the body heaves in between.
        self._xx += new * (total * sxx - sx * sx - self._xx)
        self._xy += new * (total * sxy - sx * sy - self._xy)
        self._yy += new * (total * syy - sy * sy - self._yy)
        self._xz += new * (total * sxz - sx * sz - self._xz)
        self._yz += new * (total * syz - sy * sz - self._yz)
        self._weight += new * (total - self._weight)
        self._x += new * (sx - self._x)
        self._y += new * (sy - self._y)
        self._z += new * (sz - self._z)

    def _slope(self) -> tuple[float, float]:
        """Of the plane along the fixed axes x and y."""
        ridge = _RIDGE * (self._xx + self._yy) + _NOTHING
        xx, xy, yy = self._xx + ridge, self._xy, self._yy + ridge
        determinant = xx * yy - xy * xy
        x = (yy * self._xz - xy * self._yz) / determinant
        y = (xx * self._yz - xy * self._xz) / determinant
        less = STEEPEST / max(STEEPEST, (x * x + y * y) ** 0.5)
        return less * x, less * y


class HeightState(NamedTuple):
    """What a run hands on from window to window: `HeightByFeet` after `restart`.

    Attributes:
        owed: m.
        ahead: (3,) m.
    """

    owed: float
    ahead: FloatArray


NOTHING_OWED = HeightState(0.0, np.zeros(3))


class Walked(NamedTuple):
    """R steps of a body that is not held still.

    Attributes:
        feet: (R, 4, 3) m, body frame.
        attention: (R, 4) on them.
        rotation: (R, 3, 3) after each step, body to fixed frame.
        moved: (R, 3) m, by the network, fixed frame.
        dt: (R,) s.
    """

    feet: FloatArray
    attention: FloatArray
    rotation: FloatArray
    moved: FloatArray
    dt: FloatArray


def climb_rates(
    settings: HeightSettings, walked: Walked, before: HeightState = NOTHING_OWED
) -> tuple[FloatArray, HeightState]:
    """What `HeightByFeet.climb_rate` tells of all steps of a window.

    Args:
        settings: as there.
        walked: the steps.
        before: the window.

    Returns:
        (R,) m/s, and the state after the window.
    """
    rates = np.zeros(len(walked.dt))
    rows = np.flatnonzero(walked.rotation[:, 2, 2] >= UPRIGHT)
    if not rows.size:
        return rates, before
    anew = np.diff(rows, prepend=-2) > 1
    rates[rows], after = _upright_rates(settings, Walked(*(values[rows] for values in walked)), anew, before)
    return rates, after


def _upright_rates(
    settings: HeightSettings, walked: Walked, anew: Flags, before: HeightState
) -> tuple[FloatArray, HeightState]:
    """Of a robot that is upright; the plane is averaged ``anew`` (R,) from some steps on."""
    feet, attention, rotation, moved, dt = walked
    levelling = settings.levelling()
    turned = rotation if levelling is None else rotation @ levelling
    standing = np.einsum("nij,nkj->nki", turned, feet)
    first = np.einsum("nk,nki->ni", attention, standing)
    total = attention.sum(axis=1)
    second = np.einsum("nk,nki,nkj->nij", attention, standing, standing)
    spread = total[:, None, None] * second - first[:, :, None] * first[:, None, :]
    new = dt / (dt + settings.stride)
    keep = np.where(anew, 0.0, 1.0 - new)
    terms = (total, *first.T, spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1], spread[:, 0, 2], spread[:, 1, 2])
    weight, fx, fy, fz, xx, xy, yy, xz, yz = recurrence(keep, new[:, None] * np.column_stack(terms)).T
    ridge = _RIDGE * (xx + yy) + _NOTHING
    xx, yy = xx + ridge, yy + ridge
    slope = np.stack((yy * xz - xy * yz, xx * yz - xy * xz)) / (xx * yy - xy * xy)
    slope *= STEEPEST / np.maximum(STEEPEST, np.sqrt((slope**2).sum(axis=0)))
    below = (fz - slope[0] * fx - slope[1] * fy) / np.where(weight > 0, weight, 1.0)
    lowered = np.where(anew, 0.0, np.diff(below, prepend=below[0]))
    ahead = recurrence(1.0 - new, (1.0 - new)[:, None] * moved, before.ahead)
    x, y, z = (new[:, None] * (np.concatenate((before.ahead[None], ahead[:-1])) + moved)).T
    behind = slope[0] * x + slope[1] * y - lowered - z
    left = settings.time / (settings.time + dt)
    owed = recurrence(left, left * behind, before.owed)
    return owed / settings.time, HeightState(float(owed[-1]), ahead[-1])
