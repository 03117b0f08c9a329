"""Ranges that randomisation draws from, as they stand in YAML: ``[low, high]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trace_ros.errors import TraceError
from trace_ros.resources import read_yaml_on_base
from trace_ros.robot import describe_validation_error

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
"""Unknown keys are refused; configurations never change once read."""


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not (np.isfinite(value).all() and value[0] <= value[1]):
        raise ValueError(f"expected [low, high] with low <= high, got {list(value)}")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
"""Bounds of a uniform distribution; equal bounds give a constant."""


def _not_negative(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] < 0:
        raise ValueError(f"must not be negative, got {list(value)}")
    return value


def _positive(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] <= 0:
        raise ValueError(f"must be positive, got {list(value)}")
    return value


NotNegativeRange = Annotated[Range, AfterValidator(_not_negative)]
"""The same for what may be zero, but not less."""
PositiveRange = Annotated[Range, AfterValidator(_positive)]
"""The same for what must be above zero."""


def draw(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    """One number, uniform between the bounds."""
    return float(rng.uniform(*bounds))


Model = TypeVar("Model", bound=BaseModel)


def load_yaml_model(
    model: type[Model],
    path: Path,
    what: str,
    each: Callable[[Path, dict[str, Any]], dict[str, Any]] | None = None,
) -> Model:
    """Read a YAML file into a pydantic model; ``base`` may name another file that it stands on.

    ``each`` is that of `trace_ros.resources.read_yaml_on_base`.

    Raises:
        TraceError: the file is missing or unreadable, or a key is unknown or has a bad value (named in the message).
    """
    data = read_yaml_on_base(path, None, each)
    if not isinstance(data, dict):
        raise TraceError(f"{path}: {what} must hold keys and values, found {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise TraceError(f"{path}: {describe_validation_error(error)}") from error
