"""The ground that each robot of a policy's training walks on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from trace_ros.sim.ranges import STRICT
from trace_ros.sim.scaling import RobotSize
from trace_ros.sim.terrain import Plane, Terrain
from trace_ros.sim.terrain_generation import TERRAIN_KINDS, TerrainConfig, generate_terrain

FloatArray = NDArray[np.float64]

_CELL = 0.05
"""m, of the maps in which heights are looked up: far quicker than asking each part of each ground."""
_BEYOND = 1.0
"""m, by which ground and map reach beyond where a robot may get: its feet, and where a step of it ends."""


class GroundConfig(BaseModel):
    """Uneven ground, another one for each robot.

    Attributes:
        sized_for: the robot that heights, and the rewards' ``clearance_height``, were chosen for, see
            `trace_ros.sim.scaling`.
        start: m, robots start anywhere in a square of this half size around the middle of their ground.
        leave: m, half size of the square in which they stay; who leaves it starts anew, as after an episode.
        terrain: kinds of ground, each drawn from its range of difficulty; robots are shared out by their weights.
    """

    model_config = STRICT
    sized_for: RobotSize | None = None
    start: Annotated[float, Field(ge=0, le=10)]
    leave: Annotated[float, Field(gt=0, le=10)]
    terrain: TerrainConfig

    @model_validator(mode="after")
    def _they_start_within(self) -> GroundConfig:
        if not self.start < self.leave:
            raise ValueError(f"start: {self.start:g} m must be less than leave ({self.leave:g} m)")
        return self


class Grounds:
    """Of B robots, sorted such that those whose worlds are simulated in one batch are neighbours."""

    def __init__(self, config: GroundConfig | None, robots: int, rng: np.random.Generator) -> None:
        """Draw them; level ground without end for all where ``config`` is None, which takes no random number.

        Args:
            config: fitted to the robot.
            robots: B.
            rng: of all draws.
        """
        self._maps: FloatArray | None = None
        self._start, self._leave = 0.0, np.inf
        if config is None:
            self.terrains: tuple[Terrain, ...] = (Terrain("flat", planes=(Plane(),)),) * robots
            return
        self._start, self._leave = config.start, config.leave
        half_size = config.leave + _BEYOND
        kinds = shares(list(config.terrain.weights.values()), robots)
        drawn = [generate_terrain(TERRAIN_KINDS[kind], config.terrain, half_size, rng, config.start) for kind in kinds]
        self.terrains = tuple(sorted(drawn, key=lambda terrain: repr(terrain.structure)))
        # Not to the very edge, where there may be no ground any more.
        cells = int(half_size / _CELL) - 1
        side = np.arange(-cells, cells + 1, dtype=np.float64) * _CELL
        self._origin = float(side[0])
        self._maps = np.stack([_height_map(terrain, side) for terrain in self.terrains])

    @property
    def groups(self) -> list[slice]:
        """Neighbours whose worlds fit into one batch."""
        structures = [terrain.structure for terrain in self.terrains]
        ends = [at for at in range(1, len(structures)) if structures[at] != structures[at - 1]]
        return [slice(first, end) for first, end in zip([0, *ends], [*ends, len(structures)], strict=True)]

    def draw_starts(self, rows: NDArray[np.int64], rng: np.random.Generator) -> FloatArray:
        """Where robots start: (N, 2) m."""
        if self._maps is None:
            return np.zeros((len(rows), 2))
        return rng.uniform(-self._start, self._start, (len(rows), 2))

    def height_at(self, rows: NDArray[np.int64], xy: FloatArray) -> FloatArray:
        """Of the ground of robots ``rows`` (N,) at (N, ..., 2) m: (N, ...) m, to the nearest 5 cm. A state that is not
        finite gets the height of some place."""
        if self._maps is None:
            return np.zeros(xy.shape[:-1])
        last = self._maps.shape[1] - 1
        index = np.rint((np.nan_to_num(xy) - self._origin) / _CELL).clip(0, last).astype(np.int64)
        owner = rows.reshape(-1, *(1,) * (xy.ndim - 2))
        heights: FloatArray = self._maps[owner, index[..., 0], index[..., 1]]
        return heights

    def left(self, xy: FloatArray) -> NDArray[np.bool_]:
        """Which of all robots have left their ground: (B, 2) m -> (B,)."""
        away: NDArray[np.bool_] = np.abs(xy).max(axis=1) > self._leave
        return away


def _height_map(terrain: Terrain, side: FloatArray) -> FloatArray:
    """(N, N) m: the ground's heights at x and y of ``side`` (N,) m."""
    points = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    beneath = replace(terrain, boxes=())
    heights = beneath.height_at(points.reshape(-1, 2)).reshape(len(side), -1)
    for box in terrain.boxes:  # each of a hundred covers a hundredth of the map
        reach = float(np.linalg.norm(box.half_size))
        x, y = (slice(*np.searchsorted(side, (middle - reach, middle + reach))) for middle in box.centre[:2])
        part = points[x, y]
        heights[x, y] = np.maximum(heights[x, y], box.height_at(part.reshape(-1, 2)).reshape(part.shape[:2]))
    return heights


def shares(weights: Sequence[float], count: int) -> NDArray[np.int64]:
    """(count,) indices of the weights, sorted, each as often as its weight says (the largest remainders rounded up)."""
    exact = np.array(weights) / sum(weights) * count
    number = np.floor(exact).astype(np.int64)
    number[np.argsort(number - exact, kind="stable")[: count - int(number.sum())]] += 1
    return np.repeat(np.arange(len(exact)), number)
