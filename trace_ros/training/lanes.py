"""Truncated backpropagation through time over many rollouts side by side.

Each lane walks through one rollout, segment by segment, and carries the GRU's state along; at the end it takes another
rollout. Lanes start at different segments, so that every gradient step sees beginnings, middles and ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trace_ros.estimator import observation as obs
from trace_ros.training.dataset import PREFIX, ROW_SIZE
from trace_ros.training.learner import LaneBatch, Learner
from trace_ros.training.own_feedback import OwnFeedback
from trace_ros.training.replay import Replay


class Lanes:
    """The lanes and where each of them stands. All randomness comes from one generator, which `state` includes."""

    def __init__(self, learner: Learner[Any, Any], replay: Replay, seed: int) -> None:
        self._learner = learner
        self._config = config = learner.config
        self._replay = replay
        self._generator = torch.Generator().manual_seed(seed)
        lanes, segments = config.batch, (config.rows - PREFIX) // config.segment
        self._rows = torch.zeros(lanes, config.rows, ROW_SIZE)
        self._length = torch.zeros(lanes, dtype=torch.int64)
        self._segment = torch.zeros(lanes, dtype=torch.int64)
        self._first_segment = [lane * segments // lanes for lane in range(lanes)]
        self._source: list[tuple[int, int] | None] = [None] * lanes
        self._offsets = torch.zeros(lanes, 4)
        self._hidden = torch.zeros(lanes, learner.hidden)
        self._own = OwnFeedback(lanes)
        self.rollouts_drawn = 0
        """Rollouts that lanes have taken so far."""

    def next(self, newest: int, network: nn.Module | None = None) -> LaneBatch:
        """The next segment of every lane; lanes at their end take a rollout from the chunks up to ``newest``.

        With a network, the fed-back inputs are its own, else the truth with noise.
        """
        for lane, source in enumerate(self._source):
            if source is None or self._begin(lane) + PREFIX >= int(self._length[lane]):
                self._refill(lane, newest, 0 if source is not None else self._first_segment[lane])
        size = self._config.segment + PREFIX
        # A network that looks further back sees the first row again where there is none.
        reach = torch.arange(PREFIX - self._learner.history, size)
        rows = torch.stack(
            [
                self._rows[lane, self._begin(lane) : self._begin(lane) + size]
                if self._learner.history == PREFIX
                else self._rows[lane, (self._begin(lane) + reach).clamp(min=0)]
                for lane in range(self._config.batch)
            ]
        )
        if network is None:
            segment = self._learner.segment(rows, self._offsets, self._generator)
        else:
            segment = self._learner.own_segment(network, rows, self._offsets, self._hidden, self._own)
        return LaneBatch(segment, self._hidden.clone())

    def advance(self, hidden: Tensor) -> None:
        """Move on by one segment with the GRU's state (B, hidden) after it."""
        self._hidden.copy_(hidden.detach())
        self._segment += 1

    def _begin(self, lane: int) -> int:
        return int(self._segment[lane]) * self._config.segment

    def _refill(self, lane: int, newest: int, segment: int) -> None:
        source = self._replay.draw(newest, self._generator)
        self._load(lane, source)
        # A short rollout may not reach the segment that the lane should start at.
        last = max(0, (int(self._length[lane]) - PREFIX - 1) // self._config.segment)
        self._segment[lane] = min(segment, last)
        self._offsets[lane] = self._config.feedback.draw_offsets(1, self._generator)[0]
        self._hidden[lane] = 0.0
        self._own.stop(lane)
        self.rollouts_drawn += 1

    def _load(self, lane: int, source: tuple[int, int]) -> None:
        self._source[lane] = source
        self._rows[lane] = self._learner.prepare(self._replay.rollout(*source))
        self._length[lane] = int((self._rows[lane, :, obs.DT] > 0).sum())

    def state(self) -> dict[str, Any]:
        """What `restore` needs: tensors and plain values."""
        sources = [(-1, -1) if source is None else source for source in self._source]
        return {
            "generator": self._generator.get_state(),
            "segment": self._segment.clone(),
            "source": torch.tensor(sources),
            "offsets": self._offsets.clone(),
            "hidden": self._hidden.clone(),
            "own_feedback": self._own.state(),
            "rollouts_drawn": self.rollouts_drawn,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. A lane whose rollout is no longer on disk takes a new one."""
        self._generator.set_state(state["generator"])
        self._segment.copy_(state["segment"])
        self._offsets.copy_(state["offsets"])
        self._hidden.copy_(state["hidden"])
        self._own.restore(state["own_feedback"])
        self.rollouts_drawn = int(state["rollouts_drawn"])
        for lane, (chunk, index) in enumerate(state["source"].tolist()):
            if chunk >= 0 and self._replay.path(chunk).exists():
                self._load(lane, (chunk, index))
            else:
                self._source[lane] = None
