"""Walks that are the same on every processor.

Sines, exponentials and products of matrices differ in their last digits between processors, whose libraries pick other
instructions, and a walk is chaotic: within seconds it is another one, and another robot falls. So what goes into an
engine beside the four basic operations, which are exact everywhere, is rounded first. The engines themselves take sines
from the C library, which are the same wherever it is the same and the processor multiplies and adds in one (FMA: all
of the last ten years).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DECIMALS = 9
"""m, rad, N, N m: far below what a sensor tells, and far above the last digits."""


def rounded(values: ArrayLike) -> NDArray[np.float64]:
    """The values without the digits in which processors differ."""
    return np.round(np.asarray(values, dtype=float), _DECIMALS) + 0.0  # no negative zero
