"""How far the network strays in closed loop on logs that it is not trained on: what chooses the best epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor, nn

from trace_ros.errors import TraceError
from trace_ros.estimator.network import DISPLACEMENT
from trace_ros.training.dataset import PREFIX
from trace_ros.training.finetuning_config import FineTuningConfig
from trace_ros.training.finetuning_data import Track, Window, WindowBatch, all_windows
from trace_ros.training.finetuning_loss import rotated
from trace_ros.training.finetuning_method import FineTunedMethod

_SEGMENT = 500
"""Samples from one look at the clock to the next."""


@torch.no_grad()
def closed_loop_error(
    method: FineTunedMethod[Any],
    network: nn.Module,
    tracks: Sequence[Track],
    config: FineTuningConfig,
    progress: Callable[[float], None] | None = None,
) -> dict[str, float]:
    """Mean relative errors over ``validation.horizon``, all windows of the tracks run in closed loop.

    Args:
        method: of the network.
        network: to judge.
        tracks: of the validation logs.
        config: window, horizon and spacing.
        progress: hears the share that is done.

    Returns:
        ``position_m`` and ``rotation_rad``: the end of the predicted motion seen from its start, with predicted
        rotations all the way, against the reference's.

    Raises:
        TraceError: the reference covers no such motion.
    """
    windows = all_windows(tracks)
    batch = WindowBatch(windows, 1)
    state = method.begin(network, batch)
    first = state.rotation
    motions, rotations = [], []
    for inputs, _ in batch.segments(_SEGMENT):
        made, state = method.roll_out(network, inputs, state)
        motions.append(made.motion[..., DISPLACEMENT])
        rotations.append(made.rotation)
        if progress is not None:
            progress(_SEGMENT * len(motions) / batch.outputs)
    rotation = torch.cat(rotations, dim=1)
    before = torch.cat((first.unsqueeze(1), rotation[:, :-1]), dim=1)
    position = rotated(before, torch.cat(motions, dim=1)).double().cumsum(dim=1)
    errors = [
        _errors(window, position[index, : window.outputs], rotation[index, : window.outputs], config)
        for index, window in enumerate(windows)
    ]
    together = np.concatenate(errors)
    if not len(together):
        raise TraceError(
            f"{', '.join(track.name for track in tracks)}: the reference covers no motion over "
            f"{config.validation.horizon:g} s to validate with: lower validation.horizon, or choose another log"
        )
    position_m, rotation_rad = together.mean(axis=0).tolist()
    return {"position_m": position_m, "rotation_rad": rotation_rad}


def _errors(window: Window, position: Tensor, rotation: Tensor, config: FineTuningConfig) -> np.ndarray:
    """Of one window: (P, 2) position in m and rotation in rad."""
    track, frames = window.track, slice(window.begin + PREFIX, window.end)
    time = (track.stamp_ns[frames] - track.stamp_ns[frames.start]) * 1e-9
    begins = np.arange(0.0, time[-1] - config.validation.horizon, config.validation.spacing)
    start = np.searchsorted(time, begins)
    end = np.minimum(np.searchsorted(time, begins + config.validation.horizon), len(time) - 1)
    known = track.known.numpy()[frames]
    start, end = (index[known[start] & known[end]] for index in (start, end))
    if not len(start):
        return np.empty((0, 2))
    truth, true_rotation = track.position[frames], Rotation.from_matrix(track.rotation[frames].numpy())
    own, own_rotation = position.numpy(), Rotation.from_matrix(rotation.numpy())
    moved = own_rotation[start].inv().apply(own[end] - own[start])
    expected = true_rotation[start].inv().apply(truth[end] - truth[start])
    turn = own_rotation[start].inv() * own_rotation[end]
    true_turn = true_rotation[start].inv() * true_rotation[end]
    return np.stack((np.linalg.norm(moved - expected, axis=1), (true_turn.inv() * turn).magnitude()), axis=1)
