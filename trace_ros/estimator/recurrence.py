"""First-order recurrences over whole logs."""

from __future__ import annotations

import numpy as np

from trace_ros.logs import FloatArray


def recurrence(keep: FloatArray, add: FloatArray, start: FloatArray | float = 0.0) -> FloatArray:
    """All ``x_k = keep_k x_(k-1) + add_k`` from ``x_(-1) = start``.

    Blocks are run through side by side from zero, and what the block before left over is added.

    Args:
        keep: (M,).
        add: (M,) or (M, n).
        start: a number or (n,).
    """
    rows = len(keep)
    if not rows:
        return add
    length = max(1, round(rows**0.5))
    blocks = -(-rows // length)
    shape = (blocks, length, *add.shape[1:])
    padded_keep, padded_add = np.ones(blocks * length), np.zeros((blocks * length, *add.shape[1:]))
    padded_keep[:rows], padded_add[:rows] = keep, add
    keeps, x = padded_keep.reshape(blocks, length), padded_add.reshape(shape)
    wide = (blocks, *(1,) * (add.ndim - 1))
    for column in range(1, length):
        x[:, column] += keeps[:, column].reshape(wide) * x[:, column - 1]
    left = np.cumprod(keeps, axis=1)
    carried = np.broadcast_to(np.asarray(start, dtype=float), add.shape[1:])
    for block in range(blocks):
        x[block] += left[block].reshape(length, *(1,) * (add.ndim - 1)) * carried
        carried = x[block, -1]
    return x.reshape(blocks * length, *add.shape[1:])[:rows]
