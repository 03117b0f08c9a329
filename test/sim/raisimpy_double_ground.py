"""The ground of the double of raisimpy, and how strictly it takes its arguments."""

from __future__ import annotations

import enum

import numpy as np
from scipy.spatial.transform import Rotation


def vector(value: object, size: int) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype != np.float64 or not value.flags.c_contiguous:
        raise TypeError(f"incompatible function arguments: {type(value).__name__}, expected a double array")
    if value.shape != (size,):
        raise ValueError(f"expected {size} elements, got {value.shape}")
    return value.copy()


def of_type(value: object, *kinds: type) -> object:
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        raise TypeError(f"incompatible function arguments: {value!r}, expected {kinds}")
    return value


def number(value: object) -> float:
    return float(of_type(value, float, int))


class BodyType(enum.Enum):
    STATIC = 0
    KINEMATIC = 1
    DYNAMIC = 2


class Ground:
    def __init__(self, height, material):
        self._height, self.material = height, material

    def surface(self, x, y):  # noqa: ARG002
        return self._height, np.array([0.0, 0.0, 1.0])

    static = True


class Box:
    def __init__(self, size, material):
        self.half, self.material, self.static = np.array(size) / 2, material, False
        self.centre, self.rotation = np.zeros(3), Rotation.identity()

    def setPosition(self, x, y, z):  # noqa: N802
        self.centre = np.array([number(x), number(y), number(z)])

    def setOrientation(self, w, x, y, z):  # noqa: N802
        self.rotation = Rotation.from_quat([number(x), number(y), number(z), number(w)])

    def setBodyType(self, kind):  # noqa: N802
        self.static = of_type(kind, BodyType) is BodyType.STATIC

    def surface(self, x, y):
        """Its top face only."""
        up = self.rotation.as_matrix()[:, 2]
        top = self.centre + up * self.half[2]
        z = top[2] - (up[0] * (x - top[0]) + up[1] * (y - top[1])) / up[2]
        local = self.rotation.inv().apply(np.array([x, y, z]) - self.centre)
        return (z, up) if (np.abs(local[:2]) <= self.half[:2]).all() else None


class HeightMap:
    static = True

    def __init__(self, heights, sizes, centre, material):
        self.heights, self.sizes, self.centre, self.material = heights, sizes, centre, material

    def getHeight(self, x, y):  # noqa: N802
        rows, columns = self.heights.shape
        u = (number(x) - self.centre[0] + self.sizes[0] / 2) / self.sizes[0] * (columns - 1)
        v = (number(y) - self.centre[1] + self.sizes[1] / 2) / self.sizes[1] * (rows - 1)
        column, row = min(max(int(u), 0), columns - 2), min(max(int(v), 0), rows - 2)
        a, b, z = u - column, v - row, self.heights[row : row + 2, column : column + 2]
        return float((1 - b) * ((1 - a) * z[0, 0] + a * z[0, 1]) + b * ((1 - a) * z[1, 0] + a * z[1, 1]))

    def surface(self, x, y):
        if abs(x - self.centre[0]) > self.sizes[0] / 2 or abs(y - self.centre[1]) > self.sizes[1] / 2:
            return None
        step = 1e-4
        slope = [(self.getHeight(x + a, y + b) - self.getHeight(x - a, y - b)) / (2 * step) for a, b in _around(step)]
        normal = np.array([-slope[0], -slope[1], 1.0])
        return self.getHeight(x, y), normal / np.linalg.norm(normal)


def _around(step):
    return (step, 0.0), (0.0, step)
