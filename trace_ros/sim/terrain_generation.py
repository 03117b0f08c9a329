"""Random ground of seven kinds, each with its range of difficulty.

The kinds are those that the paper names after Lee et al., "Learning quadrupedal locomotion over challenging terrain",
Science Robotics 2020: flat and Perlin ground, discrete heights, random and inclined steps, stairs; and slopes.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field, model_validator
from scipy.spatial.transform import Rotation

from trace_ros.sim.ranges import STRICT, NotNegativeRange, PositiveRange, Range, draw
from trace_ros.sim.terrain import Box, HeightField, Plane, Surface, Terrain

FloatArray = NDArray[np.float64]

TerrainKind = Literal["flat", "slope", "perlin", "discrete", "random_steps", "inclined_steps", "stairs"]
TERRAIN_KINDS: tuple[TerrainKind, ...] = get_args(TerrainKind)
Weight = Annotated[float, Field(ge=0, le=1e6)]


def _walkable(value: tuple[float, float]) -> tuple[float, float]:
    if max(-value[0], value[1]) > _STEEPEST:
        raise ValueError(f"must be at most {_STEEPEST:g} rad, got {list(value)}")
    return value


def _not_too_fine(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] < _FINEST:
        raise ValueError(f"must be at least {_FINEST:g} m, got {list(value)}")
    return value


_STEEPEST, _FINEST = 1.0, 0.05
Inclination = Annotated[Range, AfterValidator(_walkable)]
Wavelength = Annotated[Range, AfterValidator(_not_too_fine)]


# Neighbouring blocks reach into each other by twice this (m).
_OVERLAP = 0.005


class FlatConfig(BaseModel):
    """Level ground."""

    model_config = STRICT
    weight: Weight = 1.0


class SlopeConfig(BaseModel):
    """A plane; ``inclination`` in rad."""

    model_config = STRICT
    weight: Weight = 1.0
    inclination: Inclination = (0.03, 0.21)


class PerlinConfig(BaseModel):
    """Smooth noise.

    Attributes:
        amplitude: m, difference of the highest and the lowest point.
        wavelength: m, of the coarser of its two octaves.
        cell: m, sampling of the height field. Engines treat it as facets; a foot feels the edges between them, so they
            should be few.
    """

    model_config = STRICT
    weight: Weight = 1.0
    amplitude: PositiveRange = (0.03, 0.18)
    wavelength: Wavelength = (0.9, 2.5)
    cell: Annotated[float, Field(ge=0.01, le=1.0)] = 0.12


class BlockConfig(BaseModel):
    """Blocks of differing heights: ``height`` (m) between the lowest and the highest, ``size`` (m) of a side, and the
    inclination (rad) of the tops (inclined steps only)."""

    model_config = STRICT
    weight: Weight = 1.0
    height: PositiveRange = (0.02, 0.12)
    size: PositiveRange = (0.4, 1.0)
    inclination: Inclination = (0.0, 0.0)


class StairsConfig(BaseModel):
    """Straight flights along x, up or down to either side of a landing: ``rise`` and ``tread`` of a step (m)."""

    model_config = STRICT
    weight: Weight = 1.0
    rise: NotNegativeRange = (0.04, 0.13)
    tread: PositiveRange = (0.28, 0.42)
    landing: PositiveRange = (1.0, 2.0)
    steps_per_flight: Annotated[int, Field(ge=1, le=50)] = 6


class TerrainConfig(BaseModel):
    """How often each kind comes (weights, relative to their sum) and how difficult it is.

    Attributes:
        blocks_per_side: blocks of the three kinds made of them fill a square of so many a side, around the way that the
            robot is told to walk; the ground beyond is level. Each costs time in every physics step.
    """

    model_config = STRICT
    flat: FlatConfig = FlatConfig()
    slope: SlopeConfig = SlopeConfig()
    perlin: PerlinConfig = PerlinConfig()
    discrete: BlockConfig = BlockConfig()
    random_steps: BlockConfig = BlockConfig()
    inclined_steps: BlockConfig = BlockConfig(inclination=(0.03, 0.17))
    stairs: StairsConfig = StairsConfig()
    blocks_per_side: Annotated[int, Field(ge=1, le=50)] = 10

    @model_validator(mode="after")
    def _some_terrain(self) -> TerrainConfig:
        if sum(self.weights.values()) <= 0:
            raise ValueError("all terrain weights are zero")
        return self

    @property
    def weights(self) -> dict[TerrainKind, float]:
        """Weight of each kind."""
        return {kind: float(getattr(self, kind).weight) for kind in TERRAIN_KINDS}

    def draw_kind(self, rng: np.random.Generator) -> TerrainKind:
        """One kind, by weight."""
        weights = np.array(list(self.weights.values()))
        return TERRAIN_KINDS[int(rng.choice(len(weights), p=weights / weights.sum()))]


def generate_terrain(
    kind: TerrainKind, config: TerrainConfig, half_size: float, rng: np.random.Generator, way: float = 0.0
) -> Terrain:
    """Ground of one kind around the origin.

    Args:
        kind: which.
        config: the distribution.
        half_size: m, it reaches at least so far to all sides.
        rng: of all draws.
        way: m, blocks reach at least so far, if need be by being larger (up to the largest ``size``).
    """
    if kind == "flat":
        return Terrain(kind, planes=(Plane(),))
    if kind == "slope":
        inclination = draw(rng, config.slope.inclination)
        return Terrain(kind, planes=(Plane(inclination),), difficulty=inclination)
    if kind == "stairs":
        rise = draw(rng, config.stairs.rise)
        boxes = _staircase(config.stairs, rise, half_size, rng)
        return Terrain(kind, boxes=boxes, difficulty=rise, half_size=half_size)
    if kind == "perlin":
        count = 2 * int(np.ceil(half_size / config.perlin.cell)) + 1
        amplitude, wavelength = draw(rng, config.perlin.amplitude), draw(rng, config.perlin.wavelength)
        heights = perlin_heights((count, count), config.perlin.cell, amplitude, wavelength, rng)
        field = HeightField((0.0, 0.0), config.perlin.cell, heights)
        return Terrain(kind, height_fields=(field,), difficulty=amplitude, half_size=min(field.half_size))
    per_side = config.blocks_per_side
    if kind == "discrete":
        height = draw(rng, config.discrete.height)
        extent = max(per_side * sum(config.discrete.size) / 4, way)
        boxes = discrete_boxes(height, config.discrete.size, per_side**2, (extent, extent), rng)
    else:
        blocks = config.random_steps if kind == "random_steps" else config.inclined_steps
        height = draw(rng, blocks.height)
        smallest, largest = blocks.size
        size = draw(rng, (min(max(smallest, 2 * way / per_side), largest), largest))
        boxes = block_boxes(height, size, draw(rng, blocks.inclination), (per_side, per_side), rng)
    # Beyond the blocks the ground is level.
    return Terrain(kind, planes=(Plane(),), boxes=boxes, difficulty=height)


def perlin_heights(
    shape: tuple[int, int], cell: float, amplitude: float, wavelength: float, rng: np.random.Generator
) -> FloatArray:
    """Gradient noise (Perlin 1985) of two octaves, from 0 to ``amplitude``. ``(rows, columns)`` m."""
    height = _gradient_noise(shape, cell / wavelength, rng) + 0.35 * _gradient_noise(
        shape, 2.7 * cell / wavelength, rng
    )
    height -= height.min()
    return amplitude * height / max(float(height.max()), 1e-9)


def discrete_boxes(
    height: float, size: tuple[float, float], count: int, half_extent: tuple[float, float], rng: np.random.Generator
) -> tuple[Box, ...]:
    """Boxes of random size (m), place and height (0 to ``height``), laid over each other around the origin."""
    boxes = []
    for _ in range(count):
        half_x, half_y = (draw(rng, size) / 2 for _ in range(2))
        x, y = rng.uniform(-1.0, 1.0, 2) * half_extent
        half_height = rng.uniform(0.1, 1.0) * height / 2
        boxes.append(Box((float(x), float(y), half_height), (half_x, half_y, half_height)))
    return tuple(boxes)


def block_boxes(
    height: float,
    size: float,
    inclination: float,
    shape: tuple[int, int],
    rng: np.random.Generator,
    depth: float = 0.3,
) -> tuple[Box, ...]:
    """A pavement of ``shape`` (along x, along y) blocks around the origin.

    Their tops lie between 0 and ``height`` (m) and lean by ``inclination`` (rad) in random directions.
    """
    boxes = []
    for place in np.ndindex(shape):
        x, y = ((index - (count - 1) / 2) * size for index, count in zip(place, shape, strict=True))
        direction = rng.uniform(0.0, 2 * np.pi)
        lean = Rotation.from_euler("xyz", (inclination * np.sin(direction), inclination * np.cos(direction), 0.0))
        roll, pitch, _ = lean.as_euler("xyz")
        # Blocks lean about the middle of their tops, and are larger by what leaning takes away: no gaps between them.
        middle = np.array([x, y, rng.uniform(0.0, height)]) - depth * lean.as_matrix()[:, 2]
        half = size / 2 / float(np.cos(inclination)) + _OVERLAP
        centre = (float(middle[0]), float(middle[1]), float(middle[2]))
        boxes.append(Box(centre, (half, half, depth), roll=float(roll), pitch=float(pitch)))
    return tuple(boxes)


def flight_boxes(
    profile: list[tuple[float, float]], x: float, y: float, half_width: float, depth: float, surface: Surface
) -> tuple[Box, ...]:
    """Boxes side by side along x from ``x`` on, centred on ``y``: one for each (length, height of the top) in metres.

    All reach down to ``-depth``, so that no foot can catch under a step.
    """
    boxes = []
    for length, top in profile:
        half_height = (top + depth) / 2
        boxes.append(Box((x + length / 2, y, top - half_height), (length / 2, half_width, half_height), surface))
        x += length
    return tuple(boxes)


def stair_profile(rise: float, tread: float, steps: int, landing: float) -> list[tuple[float, float]]:
    """Up ``steps`` steps, a landing, and down again: (length, height) of each tread."""
    up = [(tread, rise * (i + 1)) for i in range(steps - 1)]
    return [*up, (landing, rise * steps), *reversed(up)]


def _staircase(config: StairsConfig, rise: float, half_size: float, rng: np.random.Generator) -> tuple[Box, ...]:
    """A landing at the origin, and to either side a flight, a second landing and the flight back, then level ground."""
    first = draw(rng, config.landing)
    sides = []
    for _ in range(2):
        tread, landing = draw(rng, config.tread), draw(rng, config.landing)
        sign = rng.choice((-1.0, 1.0))
        side = stair_profile(sign * rise, tread, config.steps_per_flight, landing)
        reach = first / 2 + sum(length for length, _ in side)
        sides.append([*side, (max(half_size - reach, 1.0), 0.0)])
    profile = [*reversed(sides[0]), (first, 0.0), *sides[1]]
    start = -first / 2 - sum(length for length, _ in sides[0])
    depth = config.steps_per_flight * rise + 1.0
    return flight_boxes(profile, start, 0.0, half_size, depth, Surface())


def _gradient_noise(shape: tuple[int, int], frequency: float, rng: np.random.Generator) -> FloatArray:
    """Perlin's noise on a grid whose neighbouring samples are ``frequency`` lattice cells apart."""
    v, u = (np.arange(n) * frequency for n in shape)
    row, column = v.astype(int), u.astype(int)
    angle = rng.uniform(0.0, 2 * np.pi, (row[-1] + 2, column[-1] + 2))
    gradient_x, gradient_y = np.cos(angle), np.sin(angle)
    dv, du = (v - row)[:, None], (u - column)[None, :]

    def corner(down: int, right: int) -> FloatArray:
        at = np.ix_(row + down, column + right)
        return gradient_x[at] * (du - right) + gradient_y[at] * (dv - down)

    def fade(t: FloatArray) -> FloatArray:
        return t**3 * (t * (6 * t - 15) + 10)

    a, b = fade(du), fade(dv)
    top = corner(0, 0) * (1 - a) + corner(0, 1) * a
    bottom = corner(1, 0) * (1 - a) + corner(1, 1) * a
    return top * (1 - b) + bottom * b
