"""What a method brings to a training run: its network, what it learns from and how its loss is made.

`Pretraining`, `Lanes`, checkpoints and export know no more of a method than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import Card
from trace_ros.robot import RobotDescription
from trace_ros.training.config import CommonTraining
from trace_ros.training.dataset import PREFIX, Segment
from trace_ros.training.own_feedback import OwnFeedback

Network = TypeVar("Network", bound=nn.Module)
Config = TypeVar("Config", bound=CommonTraining)
Compute = Callable[[Callable[[Network], Any]], Any]
"""A way to compute with a network, see `trace_ros.training.distributed.Ranks.synchronised`."""


class LaneBatch(NamedTuple):
    """A segment of every lane.

    Attributes:
        segment: inputs and targets.
        hidden: (B, hidden) state of the recurrent part before it; zero where a rollout begins.
    """

    segment: Segment
    hidden: Tensor


class StartModel(Protocol):
    """A model whose weights a training may start from."""

    @property
    def card(self) -> Card:
        """What it is."""

    @property
    def path(self) -> Path:
        """Where it came from."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """State of its network."""


class Learner(ABC, Generic[Network, Config]):
    """A method in training.

    Attributes:
        history: rows before the first one of a segment that the network sees; at least the window's 29, since targets
            are made of these. Before a rollout's first row stands that row again.
        hidden: size of the state that lanes carry along.
    """

    history = PREFIX
    hidden = 0

    def __init__(self, config: Config, robot: RobotDescription | None = None) -> None:
        """Train with a config.

        Args:
            config: of the method.
            robot: whose rollouts; TRACE told of the feet prepares none without.
        """
        self.config = config
        self.robot = robot

    @abstractmethod
    def make_network(self) -> Network:
        """With weights drawn at random."""

    @abstractmethod
    def measure(self, rollouts: Tensor) -> tuple[Tensor, ...]:
        """Arguments for the network's ``set_normalisation`` from packed rollouts (n, rows, 72)."""

    def normalise(self, network: Network, measured: tuple[Tensor, ...]) -> None:
        """Tell a network what `measure` gave."""
        set_normalisation: Callable[..., None] = network.set_normalisation  # type: ignore[assignment]
        set_normalisation(*measured)

    def prepare(self, rows: Tensor) -> Tensor:
        """A packed rollout (rows, 72), or several, as lanes hold it; by default as it is."""
        return rows

    @abstractmethod
    def segment(self, rows: Tensor, offsets: Tensor, generator: torch.Generator) -> Segment:
        """From rows (B, T + history, 72) to inputs and targets.

        Args:
            rows: of `prepare`.
            offsets: (B, 4) of `FeedbackNoise.draw_offsets`; the same for all segments of a rollout.
            generator: for noise.
        """

    def feeds_back(self, _progress: float) -> bool:
        """Whether, with this share of the budget spent, the network's own output is fed back to it."""
        return False

    def own_segment(
        self, network: Network, rows: Tensor, offsets: Tensor, hidden: Tensor, feedback: OwnFeedback
    ) -> Segment:
        """As `segment`, with the network's own output fed back to it.

        Args:
            network: as it is now.
            rows: (B, T + history, 72).
            offsets: (B, 4) of `FeedbackNoise.draw_offsets`.
            hidden: (B, hidden) before the segment.
            feedback: of the lanes; moves on by the segment.
        """
        del network, rows, offsets, hidden, feedback
        raise TypeError(f"{type(self).__name__} feeds nothing back")

    @abstractmethod
    def loss(self, compute: Compute[Network], batch: LaneBatch, progress: float) -> tuple[Any, Tensor]:
        """The loss of a batch.

        Args:
            compute: with the network; one call a step.
            batch: on the network's device.
            progress: share of the budget that is spent.

        Returns:
            A NamedTuple of scalars, the first of which is the ``total``; and the state (B, hidden) after the segment.
        """

    @abstractmethod
    def evaluate(self, network: Network, rollouts: Tensor) -> dict[str, float]:
        """Figures of a network on held-out packed rollouts (n, rows, 72)."""

    @abstractmethod
    def card(self, fields: dict[str, Any]) -> Card:
        """The card of a model, from the fields that all cards share."""

    @abstractmethod
    def export(self, network: Network, card: Card, path: Path) -> Path:
        """Write the model; returns the path of its card.

        Raises:
            TraceError: a file cannot be written.
        """

    def finish(self, network: Network, figures: Mapping[str, float]) -> None:
        """Put what held-out figures tell into a network that is to be exported."""

    def check_start(self, model: StartModel) -> None:
        """Refuse a model whose weights the network cannot take.

        Raises:
            TraceError: it is another method's, or sizes differ.
        """
        network = self.make_network()
        try:
            network.load_state_dict(model.weights)
        except RuntimeError as error:
            raise TraceError(
                f"{model.path}: cannot start from it, its network is another: change the training config, or the model"
            ) from error

    @property
    def asks_start(self) -> bool:
        """Whether the model that training started from is asked all along, so that there must be one."""
        return False

    @property
    def start_weights(self) -> dict[str, Tensor] | None:
        """Weights of the model that training started from, where it is asked later on, for checkpoints."""
        return None

    def start_from(self, _weights: dict[str, Tensor]) -> None:
        """Take them from a checkpoint."""
        raise TypeError(f"{type(self).__name__} asks no model that it started from")

    def adopt(self, network: Network, model: StartModel, _measured: tuple[Tensor, ...]) -> None:
        """Give a network the weights of a model, and its normalisation, which they belong to."""
        network.load_state_dict(model.weights)
