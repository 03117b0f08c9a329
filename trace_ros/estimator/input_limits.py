"""Readings beyond anything that training showed (our extension; `trace_ros.estimator.checkpoint.ModelCard`).

A network makes of an input far outside of its training whatever its last linear pieces happen to be, and is fed that
back. A blow to the body or a leg that chatters gives such readings for a moment. Told of the nearest reading that it
knows, the network errs less, and finds back sooner. The gyroscope is told as it is: the rotation is made of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trace_ros.estimator import observation as obs
from trace_ros.estimator.network import NetworkConfig
from trace_ros.geometry import GRAVITY

LIMITED = slice(obs.ACCEL.start, obs.JOINTS.stop)
"""Specific force, and what is told of the legs."""


class InputLimits:
    """Bounds, from a network's normalisation."""

    def __init__(self, weights: dict[str, Tensor], network: NetworkConfig, deviations: float) -> None:
        """Bound inputs.

        Args:
            weights: of the network; they hold mean and standard deviation of its inputs in training.
            network: says in which form it takes the specific force.
            deviations: standard deviations from the mean that are told as they are.
        """
        mean = weights["observation_mean"].double().numpy().copy()
        if network.acceleration == "levelled":  # without gravity, which a body about upright has along z
            mean[obs.ACCEL] += (0.0, 0.0, GRAVITY)
        reach = deviations * weights["observation_scale"].double().numpy()
        self._lower = (mean - reach)[LIMITED].astype(np.float32)
        self._upper = (mean + reach)[LIMITED].astype(np.float32)

    def apply(self, observation: NDArray[np.float32]) -> None:
        """Bound observations (..., 47) where they are; what is NaN stays so."""
        inputs = observation[..., LIMITED]
        np.minimum(np.maximum(inputs, self._lower, out=inputs), self._upper, out=inputs)


def input_limits(weights: dict[str, Tensor], network: NetworkConfig, deviations: float | None) -> InputLimits | None:
    """The bounds, or None where there are none."""
    return None if deviations is None else InputLimits(weights, network, deviations)
