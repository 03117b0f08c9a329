"""Contact labels from foot forces: hysteresis, and a minimum dwell in both states."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from trace_ros.sim.ranges import STRICT

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class ContactLabelConfig(BaseModel):
    """When a foot counts as being on the ground.

    Attributes:
        on_force: N; contact begins above this.
        off_force: N; contact ends below this.
        dwell: s; shorter gaps are closed, then shorter contacts dropped.
    """

    model_config = STRICT
    on_force: Annotated[float, Field(gt=0)] = 15.0
    off_force: Annotated[float, Field(gt=0)] = 5.0
    dwell: Annotated[float, Field(ge=0)] = 0.01

    @model_validator(mode="after")
    def _hysteresis(self) -> ContactLabelConfig:
        if self.off_force > self.on_force:
            raise ValueError(f"off_force {self.off_force} must not exceed on_force {self.on_force}")
        return self


def contact_labels(force: FloatArray, config: ContactLabelConfig, sample_period: float) -> BoolArray:
    """Contact of each foot from the magnitude of its force.

    Args:
        force: (N, L) N.
        config: thresholds and dwell.
        sample_period: s.

    Returns:
        (N, L) bool.
    """
    samples = round(config.dwell / sample_period)
    labels = np.empty(force.shape, dtype=np.bool_)
    for foot in range(force.shape[1]):
        column = _hysteresis(force[:, foot], config.on_force, config.off_force)
        column = _drop_short(column, False, samples)
        labels[:, foot] = _drop_short(column, True, samples)
    return labels


def contact_normals(normal: FloatArray, contact: BoolArray) -> FloatArray:
    """Normals made to fit the labels: held through moments without touch in a contact, zero outside.

    Args:
        normal: (N, L, 3) of the strongest touch, zero where there is none.
        contact: (N, L) labels.

    Returns:
        (N, L, 3) unit vectors, or zero without contact.
    """
    result = np.zeros_like(normal)
    length = np.linalg.norm(normal, axis=-1)
    index = np.arange(len(normal))
    for foot in range(normal.shape[1]):
        touched = length[:, foot] > 0.5
        if not touched.any():
            continue
        # The nearest touch before, or where there is none yet, the first one after.
        last = np.maximum.accumulate(np.where(touched, index, -1))
        source = np.where(last >= 0, last, int(np.argmax(touched)))
        unit = normal[source, foot] / length[source, foot][:, None]
        result[:, foot] = np.where(contact[:, foot, None], unit, 0.0)
    return result


def _hysteresis(force: FloatArray, on: float, off: float) -> BoolArray:
    decided = (force > on) | (force < off)
    last = np.maximum.accumulate(np.where(decided, np.arange(len(force)), -1))
    # Until the first decision, being above the lower threshold counts.
    return np.where(last >= 0, force[last] > on, force > off)


def _drop_short(labels: BoolArray, value: bool, samples: int) -> BoolArray:
    """Invert the runs of ``value`` that are shorter than ``samples``, except at the ends: their length is unknown."""
    if samples <= 1 or not len(labels):
        return labels
    edges = np.flatnonzero(np.diff(labels)) + 1
    starts, ends = np.concatenate(([0], edges)), np.concatenate((edges, [len(labels)]))
    labels = labels.copy()
    for start, end in zip(starts[1:-1], ends[1:-1], strict=True):
        if labels[start] == value and end - start < samples:
            labels[start:end] = not value
    return labels
