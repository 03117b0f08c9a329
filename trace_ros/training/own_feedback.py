"""The network's own roll, pitch, vx and vy as inputs of its training; lanes carry them from segment to segment.

A segment is first run through sample by sample without gradients, which gives what would be fed back; then all its
samples are trained on at once with these inputs. So gradients do not flow through the feedback, which leaves the loss
of each sample as it is with the noisy truth, and costs about a third more time instead of several times as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trace_ros.estimator import observation as obs
from trace_ros.estimator.network import TraceNetwork
from trace_ros.training.closed_loop import attitude, run_loop, stepper
from trace_ros.training.dataset import FEEDBACK, PREFIX


class OwnFeedback:
    """Where each lane's estimate stands: attitude (heading zero at its start), the next feedback, and the last 29."""

    def __init__(self, lanes: int) -> None:
        self._running = torch.zeros(lanes, dtype=torch.bool)
        self._attitude = torch.eye(3).repeat(lanes, 1, 1)
        self._next = torch.zeros(lanes, 4)
        self._history = torch.zeros(lanes, PREFIX, 4)

    def stop(self, lane: int) -> None:
        """The lane leaves its rollout: its estimate begins anew with the next segment."""
        self._running[lane] = False

    def roll_out(self, network: TraceNetwork, rows: Tensor, offsets: Tensor, hidden: Tensor) -> Tensor:
        """Run each lane through its next segment in closed loop.

        Args:
            network: as it is now.
            rows: (B, T + 29, 72) packed; the fed-back channels hold the truth.
            offsets: (B, 4) by how much roll, pitch, vx and vy are off where a lane begins.
            hidden: (B, hidden) the GRU's state before the segment.

        Returns:
            Observations (B, T + 29, 47) whose fed-back channels are the network's own.
        """
        observations = rows[..., : obs.OBSERVATION_SIZE].clone()
        self._begin(observations, offsets)
        observations[:, :PREFIX, FEEDBACK] = self._history
        device = network.observation_mean.device
        inputs = observations.to(device)
        with torch.no_grad():
            running = stepper(network)
            state = running.prime(inputs[:, :PREFIX], hidden.to(device))
            loop = list(run_loop(running, inputs[:, PREFIX:], state, self._attitude.to(device), self._next.to(device)))
        observations[:, PREFIX:, FEEDBACK] = torch.stack([after.fed for after in loop], dim=1).to(observations.device)
        self._attitude.copy_(loop[-1].rotation)
        self._next.copy_(loop[-1].feedback)
        self._history.copy_(observations[:, -PREFIX:, FEEDBACK])
        return observations

    def _begin(self, observations: Tensor, offsets: Tensor) -> None:
        """Lanes that are new start from the truth and their offsets."""
        new = ~self._running
        if new.any():
            start = observations[new, : PREFIX + 1, FEEDBACK] + offsets[new, None]
            self._history[new] = start[:, :PREFIX]
            self._next[new] = start[:, PREFIX]
            self._attitude[new] = attitude(start[:, PREFIX, :2])
            self._running[new] = True

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {
            "running": self._running.clone(),
            "attitude": self._attitude.clone(),
            "next": self._next.clone(),
            "history": self._history.clone(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._running.copy_(state["running"])
        self._attitude.copy_(state["attitude"])
        self._next.copy_(state["next"])
        self._history.copy_(state["history"])
