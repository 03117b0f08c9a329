"""The ground as every engine understands it: planes, height fields and boxes, with their height as a function.

World frame, z up, metres. A `Terrain` is data only; backends turn it into their own geometry. The generators that
fill it are in `trace_ros.sim.terrain_generation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from trace_ros.sim.reproducible import rounded

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Surface:
    """What the ground is made of, where it differs from the feet's own friction and stiffness.

    Where anything differs, the ground decides all, from the start on: sudden slips of single feet do not show there.

    Attributes:
        friction: sliding friction coefficient of foot on ground, or None: the foot decides.
        time_constant: s, time constant of the soft contact (MuJoCo's ``solref``), or None: the foot decides.
        sinkage: m, depth over which the contact grows to its full stiffness (MuJoCo's ``solimp`` width), or None.
    """

    friction: float | None = None
    time_constant: float | None = None
    sinkage: float | None = None

    @property
    def overrides(self) -> bool:
        """Whether any property differs from the foot's."""
        return any(value is not None for value in (self.friction, self.time_constant, self.sinkage))


@dataclass(frozen=True)
class Plane:
    """Infinite plane through ``(0, 0, height)``, rising by ``tan(inclination)`` along +x."""

    inclination: float = 0.0
    height: float = 0.0
    surface: Surface = Surface()

    def height_at(self, xy: FloatArray) -> FloatArray:
        """``(N, 2) -> (N,)``."""
        return self.height + np.tan(self.inclination) * xy[:, 0]


@dataclass(frozen=True)
class HeightField:
    """Heights on a regular grid; rows run along y, columns along x.

    Attributes:
        centre: (x, y) of the grid's middle.
        cell: m, distance of neighbouring samples.
        heights: (rows, columns) m.
        surface: what it is made of.
    """

    centre: tuple[float, float]
    cell: float
    heights: FloatArray
    surface: Surface = Surface()

    def __post_init__(self) -> None:
        object.__setattr__(self, "heights", rounded(self.heights))

    @property
    def half_size(self) -> tuple[float, float]:
        """Half the extent along x and y (m)."""
        rows, columns = self.heights.shape
        return (columns - 1) * self.cell / 2, (rows - 1) * self.cell / 2

    def height_at(self, xy: FloatArray) -> FloatArray:
        """Bilinear; minus infinity outside. ``(N, 2) -> (N,)``."""
        rows, columns = self.heights.shape
        half_x, half_y = self.half_size
        u = (xy[:, 0] - self.centre[0] + half_x) / self.cell
        v = (xy[:, 1] - self.centre[1] + half_y) / self.cell
        inside = (u >= 0) & (u <= columns - 1) & (v >= 0) & (v <= rows - 1)
        column = np.clip(u.astype(int), 0, columns - 2)
        row = np.clip(v.astype(int), 0, rows - 2)
        a, b = u - column, v - row
        z = self.heights
        value = (z[row, column] * (1 - a) + z[row, column + 1] * a) * (1 - b) + (
            z[row + 1, column] * (1 - a) + z[row + 1, column + 1] * a
        ) * b
        return np.where(inside, value, -np.inf)


@dataclass(frozen=True)
class Box:
    """A box; ``roll`` and ``pitch`` (rad, fixed axes) lean it, so that its top is an inclined plane."""

    centre: tuple[float, float, float]
    half_size: tuple[float, float, float]
    surface: Surface = Surface()
    roll: float = 0.0
    pitch: float = 0.0

    def __post_init__(self) -> None:
        for name in ("centre", "half_size"):
            x, y, z = rounded(getattr(self, name)).tolist()
            object.__setattr__(self, name, (x, y, z))
        for name in ("roll", "pitch"):
            object.__setattr__(self, name, float(rounded(getattr(self, name))))

    @property
    def rotation(self) -> Rotation:
        """Box to world."""
        return Rotation.from_euler("xyz", (self.roll, self.pitch, 0.0))

    def height_at(self, xy: FloatArray) -> FloatArray:
        """Height of the highest point; minus infinity beside the box. ``(N, 2) -> (N,)``."""
        axes = self.rotation.as_matrix()
        half = np.asarray(self.half_size)
        # A vertical line through (x, y) is inside all three pairs of faces between the lowest exit and the last entry.
        start = np.column_stack((xy, np.zeros(len(xy)))) - np.asarray(self.centre)
        offset, slope = start @ axes, axes[2]
        top, bottom = np.full(len(xy), np.inf), np.full(len(xy), -np.inf)
        for axis in range(3):
            if abs(slope[axis]) < 1e-12:
                top = np.where(np.abs(offset[:, axis]) <= half[axis], top, -np.inf)
                continue
            middle, reach = -offset[:, axis] / slope[axis], half[axis] / abs(slope[axis])
            top, bottom = np.minimum(top, middle + reach), np.maximum(bottom, middle - reach)
        return np.where(top >= bottom, top, -np.inf)


@dataclass(frozen=True)
class Terrain:
    """A world's ground: the union of its parts.

    Attributes:
        kind: name for records.
        planes, height_fields, boxes: the parts.
        difficulty: what was drawn for it, for records.
        half_size: m, the ground reaches at least so far from the origin along x and y; infinite where it has no end.
    """

    kind: str
    planes: tuple[Plane, ...] = ()
    height_fields: tuple[HeightField, ...] = ()
    boxes: tuple[Box, ...] = ()
    difficulty: float = 0.0
    half_size: float = np.inf

    def height_at(self, xy: FloatArray) -> FloatArray:
        """Height of the highest part (m); minus infinity where there is no ground. ``(N, 2) -> (N,)``."""
        xy = np.atleast_2d(np.asarray(xy, dtype=float))
        height = np.full(len(xy), -np.inf)
        parts: tuple[Plane | HeightField | Box, ...] = (*self.planes, *self.height_fields, *self.boxes)
        for part in parts:
            height = np.maximum(height, part.height_at(xy))
        return height

    @property
    def structure(self) -> tuple[object, ...]:
        """What must be equal for terrains to be simulated in one batch."""
        return len(self.planes), tuple(field.heights.shape for field in self.height_fields), len(self.boxes)

    @property
    def smooth(self) -> bool:
        """Whether the ground is planes only: no facets and edges that a soft foot could sink between."""
        return not (self.height_fields or self.boxes)
