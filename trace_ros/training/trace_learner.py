"""TRACE in training: the paper's losses, our drift loss, feedback with noise or the network's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import Card, LoadedModel, ModelCard, export_model
from trace_ros.estimator.feet import foot_channels
from trace_ros.estimator.network import TraceNetwork
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import closed_loop, closed_loop_metrics
from trace_ros.training.config import TrainingConfig
from trace_ros.training.dataset import (
    FEEDBACK,
    PREFIX,
    Normalisation,
    Segment,
    make_segment,
    make_targets,
    measure_normalisation,
    told_at_feet,
)
from trace_ros.training.initialisation import adopt, check_start
from trace_ros.training.learner import Compute, LaneBatch, Learner, StartModel
from trace_ros.training.losses import LossTerms, total_loss
from trace_ros.training.own_feedback import OwnFeedback


class TraceLearner(Learner[TraceNetwork, TrainingConfig]):
    """See the module."""

    def __init__(self, config: TrainingConfig, robot: RobotDescription | None = None) -> None:
        super().__init__(config, robot)
        self._own = config.network.hidden
        # That of the model that training started from is carried along behind it.
        self.hidden = 2 * self._own if self.asks_start else self._own
        self._start: TraceNetwork | None = None
        self._feet = None if self.robot is None else foot_channels(config.network, self.robot)

    def make_network(self) -> TraceNetwork:
        """See `Learner`."""
        return TraceNetwork(self.config.network)

    def measure(self, rollouts: Tensor) -> tuple[Tensor, ...]:
        """See `Learner`."""
        correction = self.config.tilt_correction_rate * self.config.feedback.tilt_spread
        return measure_normalisation(self.prepare(rollouts), self.config.network, correction)

    def prepare(self, rows: Tensor) -> Tensor:
        """With the legs as the network is told of them."""
        if self._feet is None and self.config.network.joints == "feet":
            raise TypeError("network.joints: feet needs to know the robot whose rollouts these are")
        return told_at_feet(rows, self._feet)

    def segment(self, rows: Tensor, offsets: Tensor, generator: torch.Generator) -> Segment:
        """See `Learner`."""
        config = self.config
        return make_segment(rows, offsets, config.feedback, config.tilt_correction_rate, generator)

    def feeds_back(self, progress: float) -> bool:
        """See `Learner`."""
        return progress >= self.config.closed_loop.start

    def own_segment(
        self, network: TraceNetwork, rows: Tensor, offsets: Tensor, hidden: Tensor, feedback: OwnFeedback
    ) -> Segment:
        """See `Learner`."""
        config = self.config
        own = hidden[:, : self._own].contiguous()
        observations = feedback.roll_out(network, rows, config.closed_loop.offset_scale * offsets, own)
        off = (observations - rows[..., : obs.OBSERVATION_SIZE])[:, PREFIX:, FEEDBACK]
        return Segment(observations, make_targets(rows, off[..., :2], config.tilt_correction_rate))

    def loss(self, compute: Compute[TraceNetwork], batch: LaneBatch, _progress: float) -> tuple[LossTerms, Tensor]:
        """See `Learner`."""
        config = self.config
        observations, targets = batch.segment
        own, theirs = batch.hidden[:, : self._own].contiguous(), batch.hidden[:, self._own :].contiguous()
        output = compute(lambda network: network.sequence(observations, own, config.bfloat16))
        if self._start is None:
            return total_loss(output.motion, output.attention, targets, config.loss), output.hidden
        with torch.no_grad():
            start = self._start.to(observations.device).sequence(observations, theirs, config.bfloat16)
        terms = total_loss(output.motion, output.attention, targets, config.loss, start.motion)
        return terms, torch.cat((output.hidden, start.hidden), dim=1)

    def evaluate(self, network: TraceNetwork, rollouts: Tensor) -> dict[str, float]:
        """The losses with true feedback and noise, and the errors in closed loop."""
        config, generator, rollouts = self.config, torch.Generator().manual_seed(0), self.prepare(rollouts)
        with torch.no_grad():
            offsets = config.feedback.draw_offsets(len(rollouts), generator)
            inputs, targets = make_segment(rollouts, offsets, config.feedback, config.tilt_correction_rate, generator)
            output = network.sequence(inputs, network.initial_hidden(len(rollouts)))
            terms = total_loss(output.motion, output.attention, targets, config.loss)
            metrics = closed_loop_metrics(closed_loop(network, rollouts), rollouts)
        return {name: float(value) for name, value in terms._asdict().items()} | metrics._asdict()

    def card(self, fields: dict[str, Any]) -> Card:
        """See `Learner`."""
        config = self.config
        return ModelCard(network=config.network, height=config.height, input_limit=config.input_limit, **fields)

    def export(self, network: TraceNetwork, card: Card, path: Path) -> Path:
        """See `Learner`."""
        return export_model(network, cast(ModelCard, card), path)

    def check_start(self, model: StartModel) -> None:
        """See `Learner`."""
        check_start(cast(LoadedModel, model), self.config.network)

    def adopt(self, network: TraceNetwork, model: StartModel, measured: tuple[Tensor, ...]) -> None:
        """See `Learner`; the sampling interval is normalised anew, see `initialisation.adopt`."""
        adopt(network, cast(LoadedModel, model), Normalisation(*measured))
        if self.asks_start:
            self.start_from(model.weights)

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """See `Learner`."""
        self._start = self.make_network().requires_grad_(False)
        self._start.load_state_dict(weights)

    @property
    def asks_start(self) -> bool:
        """See `Learner`."""
        return self.config.loss.keep > 0

    @property
    def start_weights(self) -> dict[str, Tensor] | None:
        """See `Learner`."""
        return None if self._start is None else self._start.state_dict()
