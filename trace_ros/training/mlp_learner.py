"""The ablation "without foot-aware attention" in training: TRACE's own, but for the network and the foot loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from pydantic import model_validator

from trace_ros.baselines.mlp_network import MlpCard, MlpConfig, MlpNetwork, StreamingMlp
from trace_ros.estimator.checkpoint import Card, export_script
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.network import TraceNetwork
from trace_ros.training.config import TrainingConfig
from trace_ros.training.learner import Learner, StartModel
from trace_ros.training.losses import LossConfig
from trace_ros.training.trace_learner import TraceLearner


class MlpTraining(TrainingConfig):
    """A training run of the ablation. The foot loss weighs foot velocities by attention: without that there is none.

    Attributes:
        network: sizes and parametrisation.
        loss: weights; ``foot``, ``swing``, ``spread`` and ``contact`` must be 0.
        height: must be None.
    """

    method: Literal["mlp"] = "mlp"  # type: ignore[assignment]
    network: MlpConfig = MlpConfig()
    loss: LossConfig = LossConfig(foot=0.0)
    height: HeightSettings | None = None

    @model_validator(mode="after")
    def _nothing_by_attention(self) -> MlpTraining:
        if given := [name for name in ("foot", "swing", "spread", "contact") if getattr(self.loss, name)]:
            raise ValueError(f"loss.{given[0]}: there is no such loss without attention, it must be 0")
        if self.height is not None:
            raise ValueError("height: without attention nothing tells which feet stand, it must be null")
        return self


class MlpLearner(TraceLearner):
    """See the module."""

    config: MlpTraining

    def make_network(self) -> MlpNetwork:
        """See `Learner`."""
        return MlpNetwork(self.config.network)

    def card(self, fields: dict[str, Any]) -> Card:
        """See `Learner`."""
        return MlpCard(network=self.config.network, input_limit=self.config.input_limit, **fields)

    def export(self, network: TraceNetwork, card: Card, path: Path) -> Path:
        """See `Learner`."""
        return export_script(StreamingMlp(cast(MlpNetwork, network)), network.state_dict(), card, path)

    def check_start(self, model: StartModel) -> None:
        """See `Learner`."""
        Learner.check_start(self, model)

    def adopt(self, network: TraceNetwork, model: StartModel, measured: Any) -> None:
        """See `Learner`."""
        Learner.adopt(self, network, model, measured)
