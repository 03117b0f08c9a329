"""Ground that nothing can be made of, or walk on, is refused when the config is read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trace_ros.sim.terrain_generation import TerrainConfig


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("flat", {"weight": 1e308}),
        ("slope", {"inclination": [0.0, 1.57]}),
        ("slope", {"inclination": [-3.0, 0.1]}),
        ("perlin", {"wavelength": [0.0, 0.0]}),
        ("perlin", {"wavelength": [1e-6, 1.0]}),
        ("perlin", {"amplitude": [-0.1, 0.1]}),
        ("perlin", {"cell": 1e-5}),
        ("perlin", {"cell": 1e6}),
        ("discrete", {"height": [0.0, 0.0]}),
        ("discrete", {"size": [0.0, 1.0]}),
        ("random_steps", {"size": [-1.0, -0.5]}),
        ("inclined_steps", {"inclination": [0.0, 2.0]}),
        ("stairs", {"tread": [-0.3, 0.3]}),
        ("stairs", {"rise": [-0.1, 0.1]}),
        ("stairs", {"landing": [0.0, 1.0]}),
    ],
)
def test_it_is_refused(kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=rf"{kind}\.{next(iter(settings))}"):
        TerrainConfig.model_validate({kind: settings})
