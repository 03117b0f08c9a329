"""Fine-tuning on a robot's own logs: epochs over windows in closed loop, and the best of them by other logs.

The paper's section "Real-World Fine-Tuning". Only the GRU and the head are updated, unless told otherwise; of Legolas,
the pose and variance heads. A window is
run through in segments with an update after each, from the state that the one before left: gradients are exact within a
segment, through the fed-back output too, and truncated at its beginning. A segment is longer than the horizon of the
objective, so little is cut off, and a constant rate of 1e-5 needs more updates than there are windows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import Card
from trace_ros.training.finetuning_config import FineTuningConfig
from trace_ros.training.finetuning_data import Track, WindowBatch, all_windows
from trace_ros.training.finetuning_loss import FineTuningTerms, Past, distance_from_start, finetuning_terms
from trace_ros.training.finetuning_method import FineTunedMethod
from trace_ros.training.finetuning_rollout import LoopInputs, Rollout
from trace_ros.training.finetuning_state import load_finetuning, save_finetuning, weights_fingerprint
from trace_ros.training.finetuning_validation import closed_loop_error
from trace_ros.training.initialisation import describe_start

_OF_PAIRS = ("position", "rotation", "likelihood", "position_m", "rotation_rad")
"""Means over pairs; the others are over frames."""


class FineTuningMonitor(Protocol):
    """Listens to a run."""

    def working(self, epoch: int, share: float, text: str) -> None:
        """In an epoch (from 1; 0 is the base model's validation), of which a share is done."""

    def epoch(self, row: Mapping[str, float]) -> None:
        """An epoch is done and validated; `FineTuning.history` has the same row."""


@dataclass(frozen=True)
class FineTuningPlan:
    """What a run is, for its checkpoint and the model card.

    Attributes:
        robot: as given on the command line.
        config: of the run.
        command: that started it.
        logs: path, split and fingerprint of each log, as plain data.
        joint_delay: s; by how much the joint readings of the tracks were put back (`trace_ros.estimator.joint_delay`).
        joint_timing: how that was found, as plain data; None where it was not looked for, or not told.
    """

    robot: str
    config: FineTuningConfig
    command: str
    logs: list[dict[str, str]]
    joint_delay: float = 0.0
    joint_timing: dict[str, Any] | None = None


class FineTuning:
    """A run in a folder: ``checkpoint.pt``. Make one with `start` or `resume`, then call `run`."""

    def __init__(
        self,
        plan: FineTuningPlan,
        method: FineTunedMethod[Any],
        training: Sequence[Track],
        validation: Sequence[Track],
        output: Path,
    ) -> None:
        """Raises:
        TraceError: no log has a window, or the method is not fine-tuned in this mode.
        """
        method.check_mode(plan.config.mode)
        self.plan = plan
        self.base = method
        self.output = output
        self.epoch = 0
        """Epochs that are done."""
        self.updates = 0
        self.samples = 0
        self.elapsed_s = 0.0
        self.history: list[dict[str, float]] = []
        """A row an epoch, the base model's first: losses on the training windows, errors on the validation logs."""
        self.network = method.network()
        method.set_trainable(self.network, plan.config.mode)
        self._start = {name: value.detach().clone() for name, value in self.network.named_parameters()}
        self._trained = [value for value in self.network.parameters() if value.requires_grad]
        self._optimiser = torch.optim.Adam(self._trained, lr=plan.config.optimiser.learning_rate)
        self._average: dict[str, Tensor] = self._weights()
        self._best: dict[str, Tensor] = self._weights()
        self._batch = 0
        self._sums: dict[str, float] = {}
        self._validation = list(validation)
        self._windows = all_windows(training)
        self._lookback = max((track.lookback for track in training), default=1)
        for name, tracks in (("training", training), ("validation", validation)):
            if not all_windows(tracks):
                names = ", ".join(track.name for track in tracks)
                raise TraceError(f"{names}: no {name} window that the reference covers (reference.minimum_share)")

    @property
    def config(self) -> FineTuningConfig:
        """Of the run."""
        return self.plan.config

    @property
    def checkpoint_path(self) -> Path:
        """Where the run is saved."""
        return self.output / "checkpoint.pt"

    @property
    def windows(self) -> int:
        """Training windows."""
        return len(self._windows)

    @property
    def best_epoch(self) -> int:
        """With the smallest closed-loop error on the validation logs; 0 is the base model."""
        return min(range(len(self.history)), key=lambda epoch: self.history[epoch]["validation_position_m"])

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or there was no better one for long."""
        patience = self.config.validation.patience
        waited = self.epoch - self.best_epoch if self.history else 0
        return self.epoch >= self.config.optimiser.epochs or (patience > 0 and waited >= patience)

    def start(self) -> FineTuning:
        """A new run.

        Raises:
            TraceError: the folder already holds one.
        """
        if self.checkpoint_path.exists():
            raise TraceError(f"{self.output}: already holds a fine-tuning run; --resume goes on, or change --output")
        return self

    def resume(self) -> FineTuning:
        """Go on where the run in the folder was saved.

        Raises:
            TraceError: there is none, or it started from another model.
        """
        state = load_finetuning(self.checkpoint_path)
        if state["base"] != weights_fingerprint(self.base.weights):
            raise TraceError(f"{self.base.path}: not the model that {self.checkpoint_path} started from: give --model")
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._average, self._best = state.get("average", self._weights()), state["best"]
        self.epoch, self._batch = int(state["epoch"]), int(state["batch"])
        self._sums, self.history = dict(state["sums"]), list(state["history"])
        self.updates = int(state["updates"])
        self.samples, self.elapsed_s = int(state["samples"]), float(state["elapsed_s"])
        return self

    def run(self, monitor: FineTuningMonitor, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until ``stop`` says so. Saved after every batch of windows.

        What was done of a batch is done again after a stop: a resumed run is equal to one that was never stopped.

        Returns:
            Whether it came to its end.

        Raises:
            TraceError: training diverged, or the checkpoint cannot be written.
        """
        begun = time.monotonic() - self.elapsed_s

        def save() -> None:
            self.elapsed_s = time.monotonic() - begun
            self._save()

        if not self.history:
            self._validate(monitor)
            save()
        while not self.finished:
            batches = self._batches()
            while self._batch < len(batches):
                if not self._train(batches[self._batch], self._batch, len(batches), monitor, stop):
                    return False
                self._batch += 1
                save()
            self.epoch += 1
            self._batch = 0
            self._validate(monitor)
            save()
        return True

    def _batches(self) -> list[list[int]]:
        """Of window numbers, in this epoch's order; as even as can be."""
        order = torch.randperm(
            len(self._windows), generator=torch.Generator().manual_seed(1000 * self.config.seed + self.epoch)
        ).tolist()
        count = math.ceil(len(order) / self.config.optimiser.batch)
        return [order[number::count] for number in range(count)]

    def _train(
        self, numbers: list[int], done: int, count: int, monitor: FineTuningMonitor, stop: Callable[[], bool]
    ) -> bool:
        """Once through a batch of windows; False when told to stop."""
        batch = WindowBatch([self._windows[number] for number in numbers], self._lookback)
        with torch.no_grad():
            state = self.base.begin(self.network, batch)
        past = Past.none(state.rotation, state.feedback, self._lookback, self.base.states_variances)
        loss = self.base.objective(self.config.loss)
        length = self.config.optimiser.segment
        for number, (inputs, frames) in enumerate(batch.segments(length)):
            if stop():
                return False
            held: list[FineTuningTerms] = []

            def objective(
                rollout: Rollout,
                past: Past = past,
                frames: Any = frames,
                held: list[FineTuningTerms] = held,
            ) -> Tensor:
                held.append(finetuning_terms(rollout, past, frames, loss))
                return held[0].total

            made, state = self._update(inputs, state, objective, held)
            past = past.then(made, frames)
            self.samples += int(frames.inside.sum())
            share = (done + min(1.0, (number + 1) * length / batch.outputs)) / count
            monitor.working(self.epoch + 1, share, f"1 s error {self._mean('position_m'):.4f} m")
        return True

    def _update(
        self, inputs: LoopInputs, state: Any, objective: Callable[[Rollout], Tensor], held: list[FineTuningTerms]
    ) -> tuple[Rollout, Any]:
        """One step of Adam on a segment; the state after it is that of the weights before the step."""
        config = self.config
        self._optimiser.zero_grad(set_to_none=True)
        made, state = self.base.backpropagate(self.network, inputs, state, objective, config.optimiser)
        distance = distance_from_start(self.network, self._start)
        (config.loss.start * distance).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._trained, config.optimiser.gradient_clip or math.inf)
        terms = held[0]
        values = {name: float(value.detach()) for name, value in terms._asdict().items()}
        values |= {"start": float(distance.detach()), "gradient_norm": float(norm)}
        if not all(map(math.isfinite, values.values())):
            raise TraceError(
                f"fine-tuning diverged in epoch {self.epoch + 1} (loss {values['total']}): lower "
                "optimiser.learning_rate and start again"
            )
        self._optimiser.step()
        self.updates += 1
        self._follow()
        pairs = values.pop("pairs")
        for name, value in values.items():
            weight = pairs if name in _OF_PAIRS else 1.0
            self._sums[name] = self._sums.get(name, 0.0) + weight * value
        self._sums["pairs"] = self._sums.get("pairs", 0.0) + pairs
        self._sums["updates"] = self._sums.get("updates", 0.0) + 1.0
        return made, state

    @torch.no_grad()
    def _follow(self) -> None:
        """Take this update's weights into the average: a plain mean of the first ``optimiser.average`` updates, and an
        exponential one from there on."""
        share = 1.0 / max(1, min(self.updates, self.config.optimiser.average))
        for name, value in self.network.named_parameters():
            self._average[name].lerp_(value, share)

    def _mean(self, name: str) -> float:
        """Of this epoch so far."""
        weight = "pairs" if name in _OF_PAIRS else "updates"
        return self._sums.get(name, 0.0) / max(1.0, self._sums.get(weight, 0.0))

    def _validate(self, monitor: FineTuningMonitor) -> None:
        """Close an epoch: its row in the history, and whether it is the best."""

        def progress(share: float) -> None:
            monitor.working(self.epoch, min(1.0, share), "validation")

        errors = closed_loop_error(self.base, self._with(self._average), self._validation, self.config, progress)
        row = {"epoch": float(self.epoch)}
        row |= {name: self._mean(name) for name in self._sums if name not in ("pairs", "updates")}
        row |= {f"validation_{name}": value for name, value in errors.items()}
        self._sums = {}
        self.history.append(row)
        if self.best_epoch == self.epoch:
            self._best = {name: value.clone() for name, value in self._average.items()}
        monitor.epoch(row)

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def _save(self) -> None:
        plan = self.plan
        save_finetuning(
            self.checkpoint_path,
            {
                "robot": plan.robot,
                "config": plan.config.model_dump(mode="json"),
                "command": plan.command,
                "logs": plan.logs,
                "joint_delay": plan.joint_delay,
                "joint_timing": plan.joint_timing,
                "model": str(self.base.path.resolve()),
                "base": weights_fingerprint(self.base.weights),
                "network": self.network.state_dict(),
                "average": self._average,
                "best": self._best,
                "optimiser": self._optimiser.state_dict(),
                "epoch": self.epoch,
                "batch": self._batch,
                "sums": self._sums,
                "history": self.history,
                "updates": self.updates,
                "samples": self.samples,
                "elapsed_s": self.elapsed_s,
            },
        )

    def best_network(self) -> nn.Module:
        """Of the best epoch."""
        return self._with(self._best)

    def _with(self, weights: Mapping[str, Tensor]) -> nn.Module:
        network: nn.Module = self.base.network()
        network.load_state_dict(weights)
        return network

    def card(self, versions: Mapping[str, str]) -> Card:
        """Of the best epoch's model: the base's, with where it came from and what was measured of the run.

        Args:
            versions: of the packages.
        """
        best = self.best_epoch
        figures = {
            "base": {"model": self.base.path.name, "weights": weights_fingerprint(self.base.weights)},
            "logs": [{**log, "path": Path(log["path"]).name} for log in self.plan.logs],
            "mode": self.config.mode,
            "windows": self.windows,
            "epochs": self.epoch,
            "best_epoch": best,
            "base_validation": self._errors(0),
            "best_validation": self._errors(best),
        }
        return self.base.card.model_copy(
            update={
                "joint_delay": self.plan.joint_delay,
                "training": {**self.base.card.training, "finetuning": self.config.model_dump(mode="json")},
                "seeds": {**self.base.card.seeds, "finetuning": self.config.seed},
                "command": self.plan.command,
                "initial": describe_start(self.base.model),
                "steps": self.updates,
                "samples": self.samples,
                "training_hours": round(self.elapsed_s / 3600, 3),
                "figures": {"finetuning": figures},
                "versions": dict(versions),
            }
        )

    def _errors(self, epoch: int) -> dict[str, float]:
        row = self.history[epoch]
        return {name.removeprefix("validation_"): v for name, v in row.items() if name.startswith("validation_")}

    def export(self, card: Card, path: Path) -> Path:
        """Write the best epoch's model; returns the path of its card.

        Raises:
            TraceError: it would overwrite the base model, or cannot be written.
        """
        if path.exists() and path.samefile(self.base.path):
            raise TraceError(f"{path}: is the base model, which stays as it is: choose another --output")
        return self.base.export(self.best_network(), card, path)
