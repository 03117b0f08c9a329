"""What a method brings to fine-tuning: its network, what of it is updated, and how it runs through windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import Card, LoadedModel, export_model
from trace_ros.estimator.folding import fold
from trace_ros.estimator.network import TraceNetwork
from trace_ros.robot import RobotDescription
from trace_ros.training.finetuning_config import FineTuningConfig, FineTuningLoss, FineTuningOptimiser, Mode
from trace_ros.training.finetuning_data import ReferencedLog, Track, WindowBatch, make_track, network_steps
from trace_ros.training.finetuning_rollout import (
    LoopInputs,
    LoopState,
    Objective,
    Rollout,
    backpropagate,
    backpropagate_open,
    begin,
    roll_out,
)
from trace_ros.training.learner import StartModel

Network = TypeVar("Network", bound=nn.Module)


class FineTunedMethod(ABC, Generic[Network]):
    """A model of some method, to be fine-tuned; it stays as it is."""

    updated: ClassVar[tuple[str, ...]]
    """Prefixes of the parameters that partial fine-tuning updates."""
    states_variances: ClassVar[bool] = False
    """Whether a rollout's motion has `VARIANCE`."""

    def __init__(self, model: StartModel) -> None:
        self.model = model

    @property
    def path(self) -> Path:
        """Of the model."""
        return self.model.path

    @property
    def card(self) -> Card:
        """Of the model."""
        return self.model.card

    @property
    def weights(self) -> dict[str, Tensor]:
        """Of the model."""
        return self.model.weights

    def check_mode(self, mode: Mode) -> None:
        """Refuse what this method is not fine-tuned by.

        Raises:
            TraceError: says what it can be.
        """

    def set_trainable(self, network: Network, mode: Mode) -> None:
        """Let gradients reach `updated` alone, or every weight that pretraining trains."""
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and (mode == "full" or name.startswith(self.updated)))

    def objective(self, loss: FineTuningLoss) -> FineTuningLoss:
        """Of the objective's parts those that this method has."""
        return loss

    @abstractmethod
    def network(self) -> Network:
        """With the model's weights."""

    @abstractmethod
    def track(self, name: str, referenced: ReferencedLog, robot: RobotDescription, config: FineTuningConfig) -> Track:
        """A log as the robot's estimator would give it to the network, cut to windows; see `make_track`."""

    @abstractmethod
    def begin(self, network: Network, batch: WindowBatch) -> Any:
        """The state before the first output of windows; it has ``rotation`` (B, 3, 3) and ``feedback`` (B, 4)."""

    @abstractmethod
    def roll_out(self, network: Network, inputs: LoopInputs, state: Any) -> tuple[Rollout, Any]:
        """Run through samples of windows, without gradients; what came out, and the state after it."""

    @abstractmethod
    def backpropagate(
        self, network: Network, inputs: LoopInputs, state: Any, objective: Objective, optimiser: FineTuningOptimiser
    ) -> tuple[Rollout, Any]:
        """The same, and add the objective's gradient to that of the trainable parameters."""

    @abstractmethod
    def export(self, network: Network, card: Any, path: Path) -> Path:
        """Write a model; returns the path of its card.

        Raises:
            TraceError: a file cannot be written.
        """


class TraceState(NamedTuple):
    """Where windows stand, and the last 29 observations, which training without gradients of the feedback needs."""

    loop: LoopState
    history: Tensor

    @property
    def rotation(self) -> Tensor:
        """(B, 3, 3)."""
        return self.loop.rotation

    @property
    def feedback(self) -> Tensor:
        """(B, 4)."""
        return self.loop.feedback


class FineTunedTrace(FineTunedMethod[TraceNetwork]):
    """TRACE: GRU and head, in closed loop."""

    updated = ("gru.", "head.")

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self._loaded = model

    def network(self) -> TraceNetwork:
        """See the base class."""
        return self._loaded.network()

    def track(self, name: str, referenced: ReferencedLog, robot: RobotDescription, config: FineTuningConfig) -> Track:
        """See the base class."""
        return make_track(name, referenced, network_steps(referenced.log, self._loaded, robot), config)

    def begin(self, network: TraceNetwork, batch: WindowBatch) -> Any:
        """See the base class."""
        history, feedback = batch.prefix()
        return TraceState(begin(fold(network), history, feedback), history)

    def roll_out(self, network: TraceNetwork, inputs: LoopInputs, state: Any) -> tuple[Rollout, Any]:
        """See the base class."""
        made, loop = roll_out(fold(network), inputs, state.loop)
        return made, TraceState(loop, state.history)

    def backpropagate(
        self,
        network: TraceNetwork,
        inputs: LoopInputs,
        state: Any,
        objective: Objective,
        optimiser: FineTuningOptimiser,
    ) -> tuple[Rollout, Any]:
        """See the base class."""
        if optimiser.through_feedback:
            made, loop = backpropagate(network, inputs, state.loop, objective, optimiser.piece)
            return made, TraceState(loop, state.history)
        made, loop, history = backpropagate_open(network, inputs, state.loop, state.history, objective)
        return made, TraceState(loop, history)

    def export(self, network: TraceNetwork, card: Any, path: Path) -> Path:
        """See the base class."""
        return export_model(network, card, path)


def fine_tuned(path: Path) -> FineTunedMethod[Any]:
    """The method of a model file.

    Raises:
        TraceError: the file cannot be read, or its method is not fine-tuned.
    """
    from trace_ros.baselines.learned import load_learned, method_of
    from trace_ros.estimator.checkpoint import load_model
    from trace_ros.training.finetuning_legolas import FineTunedLegolas, LegolasCard

    if not path.exists() or (method := method_of(path)) == "trace":
        return FineTunedTrace(load_model(path))
    if method == "legolas":
        return FineTunedLegolas(load_learned(path, LegolasCard))
    raise TraceError(f"{path}: a model of {method}; what can be fine-tuned is trace and legolas")
