"""Pieces of ground that a course is put together from: each covers a rectangle of an otherwise level plane.

All rise from the plane's height (zero) and come back to it at their borders or lie on it as steps.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from trace_ros.sim.ranges import STRICT, Range
from trace_ros.sim.terrain import Box, HeightField, Surface
from trace_ros.sim.terrain_generation import (
    block_boxes,
    discrete_boxes,
    flight_boxes,
    perlin_heights,
    stair_profile,
)

FloatArray = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

# Thickness of a level patch that only changes the surface (m): too thin to be felt, thick enough to cover the plane.
_SHEET = 0.004


class _Patch(BaseModel):
    """A rectangle of ground.

    Attributes:
        x, y: m, extent in the world, [low, high].
        friction: sliding friction coefficient on it, or None: the feet's.
        time_constant: s, softness of the contact, or None: the feet's.
        sinkage: m, depth over which soft ground comes to its full stiffness, or None.
    """

    model_config = STRICT
    x: Range
    y: Range
    friction: Positive | None = None
    time_constant: Positive | None = None
    sinkage: Positive | None = None

    @property
    def surface(self) -> Surface:
        """What it is made of."""
        return Surface(self.friction, self.time_constant, self.sinkage)

    @property
    def centre(self) -> tuple[float, float]:
        """m."""
        return sum(self.x) / 2, sum(self.y) / 2

    @property
    def size(self) -> tuple[float, float]:
        """m, along x and y."""
        return self.x[1] - self.x[0], self.y[1] - self.y[0]


class FlatPatch(_Patch):
    """Level ground of another surface: slippery, soft."""

    kind: Literal["flat"]

    def build(self, rng: np.random.Generator) -> tuple[HeightField | Box, ...]:  # noqa: ARG002
        """One thin sheet."""
        (x, y), (length, width) = self.centre, self.size
        return (Box((x, y, _SHEET / 2), (length / 2, width / 2, _SHEET / 2), self.surface),)


class PerlinPatch(_Patch):
    """Smooth hills: ``amplitude`` (m, lowest to highest), ``wavelength`` (m); faded out over ``border`` (m)."""

    kind: Literal["perlin"]
    amplitude: Positive
    wavelength: Positive = 1.2
    border: Positive = 0.6
    cell: Positive = 0.1

    def build(self, rng: np.random.Generator) -> tuple[HeightField | Box, ...]:
        """One height field."""
        columns, rows = (round(length / self.cell) + 1 for length in self.size)
        heights = perlin_heights((rows, columns), self.cell, self.amplitude, self.wavelength, rng)
        fade = np.minimum.outer(_distance_to_border(rows, self.cell), _distance_to_border(columns, self.cell))
        fade = np.clip(fade / self.border, 0.0, 1.0)
        heights *= fade * fade * (3 - 2 * fade)
        return (HeightField(self.centre, self.cell, heights, self.surface),)


class BlocksPatch(_Patch):
    """Blocks of ``block`` (m) a side whose heights lie between 0 and ``height`` (m); ``inclination`` (rad) of inclined
    steps; ``count`` of discrete heights that lie over each other."""

    kind: Literal["discrete", "random_steps", "inclined_steps"]
    height: Positive
    block: Positive = 0.6
    inclination: NotNegative = 0.1
    count: Annotated[int, Field(ge=1, le=400)] = 40

    def build(self, rng: np.random.Generator) -> tuple[HeightField | Box, ...]:
        """Many boxes."""
        (x, y), (length, width) = self.centre, self.size
        if self.kind == "discrete":
            sizes = (0.6 * self.block, 1.4 * self.block)
            boxes = discrete_boxes(self.height, sizes, self.count, (length / 2, width / 2), rng)
        else:
            lean = self.inclination if self.kind == "inclined_steps" else 0.0
            shape = (max(int(length / self.block), 1), max(int(width / self.block), 1))
            boxes = block_boxes(self.height, self.block, lean, shape, rng)
        return tuple(
            Box((b.centre[0] + x, b.centre[1] + y, b.centre[2]), b.half_size, self.surface, b.roll, b.pitch)
            for b in boxes
        )


class StairsPatch(_Patch):
    """Stairs up, a landing and stairs down along x: ``rise`` and ``tread`` (m), ``steps`` up. The landing takes what
    length the treads leave."""

    kind: Literal["stairs"]
    rise: Positive
    tread: Positive = 0.3
    steps: Annotated[int, Field(ge=1, le=50)] = 4

    def build(self, rng: np.random.Generator) -> tuple[HeightField | Box, ...]:  # noqa: ARG002
        """One box a tread."""
        landing = max(self.size[0] - 2 * (self.steps - 1) * self.tread, self.tread)
        profile = stair_profile(self.rise, self.tread, self.steps, landing)
        return flight_boxes(profile, self.x[0], self.centre[1], self.size[1] / 2, 0.5, self.surface)


class RampPatch(_Patch):
    """A ramp up, a level top and a ramp down along x: ``height`` (m) of the top, ``inclination`` (rad) of the ramps."""

    kind: Literal["ramp"]
    height: Positive
    inclination: Positive
    cell: Positive = 0.1

    def build(self, rng: np.random.Generator) -> tuple[HeightField | Box, ...]:  # noqa: ARG002
        """One height field."""
        columns, rows = (round(length / self.cell) + 1 for length in self.size)
        along = np.minimum(np.tan(self.inclination) * _distance_to_border(columns, self.cell), self.height)
        return (HeightField(self.centre, self.cell, np.tile(along, (rows, 1)), self.surface),)


Patch = Annotated[FlatPatch | PerlinPatch | BlocksPatch | StairsPatch | RampPatch, Field(discriminator="kind")]
"""Any piece of ground, told apart by its ``kind``."""


def _distance_to_border(samples: int, cell: float) -> FloatArray:
    index = np.arange(samples)
    return cell * np.minimum(index, samples - 1 - index).astype(float)
