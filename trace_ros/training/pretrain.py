"""Pretraining in simulation, of any method: TBPTT, Adam, and a run that survives being killed."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.robot import RobotDescription
from trace_ros.training.config import CommonTraining
from trace_ros.training.dataset import ROW_SIZE, measure_intervals
from trace_ros.training.distributed import ALONE, Ranks
from trace_ros.training.initialisation import describe_start
from trace_ros.training.kept_rollouts import VALIDATION_FILE, NoSimulation, check_rollouts
from trace_ros.training.lanes import Lanes
from trace_ros.training.learner import LaneBatch, Learner, StartModel
from trace_ros.training.methods import learner_for
from trace_ros.training.monitor import Monitor
from trace_ros.training.replay import VALIDATION_CHUNK, Replay, RolloutSource, SimulationWorker, simulate_chunk
from trace_ros.training.state import load_state, save_state

_POLL_S = 0.1


class Budget(BaseModel):
    """How long a run lasts, all its parts together: either hours of wall clock or gradient steps."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    hours: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> Budget:
        if (self.hours is None) == (self.steps is None):
            raise ValueError("give either hours or steps")
        return self

    def progress(self, step: int, elapsed_s: float) -> float:
        """The share of the budget that is spent, at most 1."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.hours is not None
        return min(1.0, elapsed_s / (3600 * self.hours))


@dataclass(frozen=True)
class RunDescription:
    """What a run is, for its checkpoint and later the model card.

    Attributes:
        robot: whose rollouts.
        config: of the training.
        simulation: of the rollouts, as plain data.
        seed: of everything random.
        budget: when it ends.
        command: that started it.
        rollouts: folder of kept rollouts to train on (`kept_rollouts`), None to simulate.
        initial: what its first weights had seen (`initialisation.describe_start`); None where they are random.
    """

    robot: RobotDescription
    config: CommonTraining
    simulation: dict[str, Any]
    seed: int
    budget: Budget
    command: str
    rollouts: Path | None = None
    initial: dict[str, Any] | None = None


class Pretraining:
    """A training run in a folder: ``checkpoint.pt``, ``validation.npy``, ``replay/``.

    Make one with `start` or `resume`, then call `run`. With several ranks all of them do so; each has a replay and
    lanes of its own.
    """

    def __init__(self, description: RunDescription, source: RolloutSource, output: Path, ranks: Ranks = ALONE) -> None:
        config = description.config
        torch.manual_seed(description.seed)
        self.description = description
        self.output = output
        self.ranks = ranks
        self.step = 0
        self.samples = 0
        self.elapsed_s = 0.0
        self.rate_hz = 0.0
        self.interval_s: tuple[float, float] | None = None
        self.validations: list[dict[str, float]] = []
        self.learner: Learner[Any, Any] = learner_for(config, description.robot)
        self.network: nn.Module = self.learner.make_network().to(ranks.device)
        self._kept = description.rollouts
        if self._kept is None:
            self.replay = Replay(ranks.folder(output) / "replay", config.replay)
        else:
            kept = check_rollouts(self._kept, description.robot, config)
            self.replay = Replay(self._kept, kept.replay_config())
        self.lanes = Lanes(self.learner, self.replay, ranks.seed(description.seed))
        self._source = source
        self._averaged: AveragedModel | None = None
        self._parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.Adam(self._parameters, lr=config.optimiser.learning_rate, fused=True)
        self._normalised = False
        self._initial: StartModel | None = None
        self._kept_to: StartModel | None = None
        self._with_network = ALONE.synchronised(self.network)
        ranks.agree(
            {
                "robot": description.robot.fingerprint,
                "config": config.model_dump(mode="json", exclude={"simulation"}),
                "simulation": description.simulation,
                "seed": description.seed,
                "budget": description.budget.model_dump(),
            }
        )

    @property
    def checkpoint_path(self) -> Path:
        """Where the run is saved."""
        return self.output / "checkpoint.pt"

    @classmethod
    def start(
        cls,
        description: RunDescription,
        source: RolloutSource,
        output: Path,
        ranks: Ranks = ALONE,
        initial: StartModel | None = None,
        keep_to: StartModel | None = None,
    ) -> Pretraining:
        """A new run in an empty or new folder, from weights drawn at random or those of an earlier model.

        Args:
            description: of the run.
            source: of its rollouts.
            output: the folder.
            ranks: that train together.
            initial: the earlier model.
            keep_to: the model that ``loss.keep`` holds outputs to; None: the initial one.

        Raises:
            TraceError: the folder already holds a run, a model's network is another, or ranks were started with
                different settings; or there is nothing to keep to, or nothing that asks for it.
        """
        if initial is not None:
            learner_for(description.config).check_start(initial)
            description = replace(description, initial=describe_start(initial))
        run = cls(description, source, output, ranks)
        if initial is None and keep_to is None and run.learner.asks_start:
            raise TraceError("loss.keep holds a network to a model: give one with --init or --keep-to")
        if keep_to is not None:
            if not run.learner.asks_start:
                raise TraceError(f"--keep-to {keep_to.path}: nothing is kept to it where loss.keep is 0")
            run.learner.check_start(keep_to)
        run._initial, run._kept_to = initial, keep_to
        if ranks.first(run.checkpoint_path.exists):
            raise TraceError(f"{output}: already holds a training run; add --resume to go on, or change --output")
        # Data of a run that was killed before its first checkpoint may come from other settings.
        run._forget_rollouts()
        if ranks.leads:
            (output / VALIDATION_FILE).unlink(missing_ok=True)
        return run

    @classmethod
    def resume(
        cls, description: RunDescription, source: RolloutSource, output: Path, ranks: Ranks = ALONE
    ) -> Pretraining:
        """Go on with the run in a folder, which only rank 0 needs to have. A rank that it knows nothing of starts anew.

        Raises:
            TraceError: there is none, it was another robot's, or ranks were started with different settings.
        """
        run = cls(description, source, output, ranks)
        state = ranks.first(lambda: load_state(run.checkpoint_path))
        if state["robot_fingerprint"] != description.robot.fingerprint:
            raise TraceError(
                f"{run.checkpoint_path}: trains {state['robot']} ({state['robot_fingerprint']}), "
                f"not {description.robot.name} ({description.robot.fingerprint})"
            )
        run._restore(state)
        return run

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        return self.description.budget.progress(self.step, self.elapsed_s)

    def evaluated_network(self) -> nn.Module:
        """The network that counts: the moving average where there is one."""
        averaged = self._averaged
        module = self.network if averaged is None else averaged.module
        assert isinstance(module, nn.Module)
        return module

    def run(self, monitor: Monitor, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train until the budget is spent or ``stop`` says so; saves at the end in either case.

        Returns:
            Whether the budget is spent.

        Raises:
            TraceError: simulation failed, training diverged, or a file cannot be written.
        """
        config, description, ranks = self.config, self.description, self.ranks
        begun = ranks.clock() - self.elapsed_s
        seed = ranks.seed(description.seed)
        with self._simulation(seed) as worker:
            worker.want(max(self.replay.minimum_chunks - 1, self.replay.wanted(self.lanes.rollouts_drawn)) + 1)
            held_out = self._held_out_rollouts(monitor) if ranks.leads else torch.empty(0)
            if not self._wait_for_rollouts(worker, monitor, stop):
                return False
            if not self._normalised:
                self._normalise()
            self._with_network = ranks.synchronised(self.network)
            saved = validated = ranks.clock()
            self.elapsed_s = saved - begun
            while self.progress < 1 and not ranks.any(stop()):
                wanted = self.replay.wanted(self.lanes.rollouts_drawn)
                worker.want(wanted + 1)
                newest = self._newest_chunk(worker, wanted)
                own = self.network if self.learner.feeds_back(self.progress) else None
                terms = self._gradient_step(self.lanes.next(newest, own))
                now = ranks.clock()
                self.elapsed_s = now - begun
                monitor.step(self.step, self.samples, self.progress, terms)
                if now - validated >= config.validation.interval:
                    self._validate(held_out, monitor)
                    validated = ranks.clock()
                if now - saved >= config.checkpoint_interval:
                    worker.check()
                    self.save()
                    saved = ranks.clock()
            if self.step and self.progress >= 1:
                self._validate(held_out, monitor)
            self.save()
        return self.progress >= 1

    @property
    def config(self) -> CommonTraining:
        """Of the training."""
        return self.description.config

    def _simulation(self, seed: int) -> SimulationWorker | NoSimulation:
        if self._kept is not None:
            return NoSimulation()
        config = self.config
        return SimulationWorker(
            self._source, self.description.robot, seed, self.replay, config.replay.chunk, config.rows
        )

    def _held_out_rollouts(self, monitor: Monitor) -> Tensor:
        """(n, rows, 72) of another seed than training; simulated once a run."""
        path = (self._kept or self.output) / VALIDATION_FILE
        if not path.exists():
            monitor.note(f"simulating {self.config.validation.rollouts} held-out rollouts")
            description = self.description
            rollouts = simulate_chunk(
                self._source,
                description.robot,
                description.seed,
                VALIDATION_CHUNK,
                self.config.validation.rollouts,
                self.config.rows,
            )
            temporary = path.with_suffix(".partial")
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                np.save(file, rollouts)
            temporary.replace(path)
        rollouts = np.load(path, allow_pickle=False)
        if rollouts.ndim != 3 or rollouts.shape[2] != ROW_SIZE:
            raise TraceError(
                f"{path}: holds {rollouts.shape}, expected rows of {ROW_SIZE}, so another version made it: delete it"
            )
        return torch.from_numpy(rollouts)

    def _wait_for_rollouts(
        self, worker: SimulationWorker | NoSimulation, monitor: Monitor, stop: Callable[[], bool]
    ) -> bool:
        """Wait until there is enough to start with. False when told to stop before."""
        need, chunk = self.replay.minimum_chunks, self.config.replay.chunk
        while self.ranks.any((have := self.replay.newest() + 1) < need):
            worker.check()
            monitor.waiting(have * chunk, need * chunk)
            time.sleep(_POLL_S)
            if self.ranks.any(stop()):
                return False
        return True

    def _newest_chunk(self, worker: SimulationWorker | NoSimulation, wanted: int) -> int:
        """The chunk up to which a step may draw: what there is, or what there should be when synchronous."""
        if self._kept is not None or not self.config.replay.synchronous:
            return self.replay.newest()
        while self.replay.newest() < wanted:
            worker.check()
            time.sleep(_POLL_S)
        return wanted

    def _normalise(self) -> None:
        normalisation, self.rate_hz, self.interval_s = self.ranks.first(self._measure)
        if self._initial is None:
            self.learner.normalise(self.network, normalisation)
        else:
            measured = tuple(part.to(self.ranks.device) for part in normalisation)
            self.learner.adopt(self.network, self._initial, measured)
        if self._kept_to is not None:
            self.learner.start_from(self._kept_to.weights)
        self._start_average()
        self._normalised = True

    def _measure(self) -> tuple[tuple[Tensor, ...], float, tuple[float, float]]:
        """Normalisation, sampling rate (Hz) and range of intervals (s) of the rollouts that there are."""
        chunks = [torch.from_numpy(self.replay.chunk(k).copy()) for k in range(self.replay.minimum_chunks)]
        rollouts = torch.cat(chunks)
        dt = rollouts[..., obs.DT]
        rate_hz = float(1 / dt[dt > 0].median())
        return self.learner.measure(rollouts), rate_hz, measure_intervals(rollouts)

    def _start_average(self) -> None:
        """The average starts from the weights and the normalisation as they are, hence only once both are known."""
        if self.config.optimiser.ema_decay > 0:
            averaging = _moving_average(self.config.optimiser.ema_decay)
            self._averaged = AveragedModel(self.network, multi_avg_fn=averaging)

    def learning_rate(self) -> float:
        """For the step that comes next."""
        config = self.config.optimiser
        warm = min(1.0, (self.step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        if config.schedule == "constant":
            return config.learning_rate * warm
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress))
        return config.learning_rate * warm * (config.final_fraction + (1 - config.final_fraction) * cosine)

    def _gradient_step(self, batch: LaneBatch) -> dict[str, float]:
        config, ranks = self.config, self.ranks
        batch = ranks.to_device(batch)
        rate = self.learning_rate()
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad(set_to_none=True)
        terms, hidden = self.learner.loss(self._with_network, batch, self.progress)
        share = ranks.share(int(batch.segment.targets.valid.sum()))
        ranks.backward(terms.total, share)
        largest = config.optimiser.gradient_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, largest, foreach=True)
        values = ranks.mean(torch.stack([*(term.detach() for term in terms), norm]), share).tolist()
        if not all(map(math.isfinite, values)):
            raise TraceError(
                f"training diverged at step {self.step} (loss {values[0]}): lower learning_rate, then --resume "
                f"from the last checkpoint in {self.output}"
            )
        self._optimiser.step()
        if self._averaged is not None:
            self._averaged.update_parameters(self.network)
        self.lanes.advance(hidden)
        self.step += 1
        self.samples += share.total
        named = dict(zip((*terms._fields, "gradient_norm"), values, strict=True))
        return {**named, "learning_rate": rate}

    def _validate(self, rollouts: Tensor, monitor: Monitor) -> None:
        if not self.ranks.leads:
            return
        network = self.evaluated_network()
        if self.ranks.device.type != "cpu":
            network = copy.deepcopy(network).cpu()
        figures = self.learner.evaluate(network, rollouts)
        self.validations.append({"step": self.step, "samples": self.samples, "elapsed_s": self.elapsed_s, **figures})
        monitor.validated(self.step, figures)

    def save(self) -> None:
        """Write the checkpoint: one file of rank 0 that also holds where the other ranks' lanes are."""
        if not self._normalised:
            return
        lanes = self.ranks.gather(self.lanes.state())
        if not self.ranks.leads:
            return
        description = self.description
        averaged = self._averaged
        save_state(
            self.checkpoint_path,
            {
                "robot": description.robot.name,
                "robot_fingerprint": description.robot.fingerprint,
                "rate_hz": self.rate_hz,
                "interval_s": self.interval_s,
                "seed": description.seed,
                "config": description.config.model_dump(mode="json", exclude={"simulation"}),
                "simulation": description.simulation,
                "budget": description.budget.model_dump(),
                "command": description.command,
                "initial": description.initial,
                "rollouts": None if self._kept is None else str(self._kept.resolve()),
                "network": self.network.state_dict(),
                "start": self.learner.start_weights,
                "averaged": None if averaged is None else averaged.state_dict(),
                "optimiser": self._optimiser.state_dict(),
                "lanes": lanes[0],
                "lanes_of_other_ranks": lanes[1:],
                "torch_generator": torch.get_rng_state(),
                "step": self.step,
                "samples": self.samples,
                "elapsed_s": self.elapsed_s,
                "validation": self.validations,
            },
        )

    def _restore(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        if (start := state.get("start")) is not None:
            self.learner.start_from(start)
        self._start_average()
        if self._averaged is not None and state["averaged"] is not None:
            self._averaged.load_state_dict(state["averaged"])
        try:
            self._optimiser.load_state_dict(state["optimiser"])
        except ValueError as error:
            raise TraceError(
                f"{self.checkpoint_path}: its optimiser has other parameters than this version's network: it can be "
                "exported, but not resumed"
            ) from error
        lanes = [state["lanes"], *state.get("lanes_of_other_ranks", [])]
        if self.ranks.rank < len(lanes):
            self.lanes.restore(lanes[self.ranks.rank])
        else:
            self._forget_rollouts()
        torch.set_rng_state(state["torch_generator"])
        self.step, self.samples = int(state["step"]), int(state["samples"])
        self.elapsed_s, self.rate_hz = float(state["elapsed_s"]), float(state["rate_hz"])
        self.interval_s = state.get("interval_s")  # a run from before it was measured has none
        self.validations = list(state["validation"])
        self._normalised = True

    def _forget_rollouts(self) -> None:
        if self._kept is not None:
            return
        for stale in self.replay.directory.glob("chunk_*"):
            stale.unlink(missing_ok=True)


def _moving_average(decay: float) -> Callable[[tuple[Tensor, ...] | list[Tensor], Any, Tensor | int], None]:
    """Exponential moving average whose memory grows with the run, so that it soon forgets the starting weights."""

    def update(averaged: Any, current: Any, count: Tensor | int) -> None:
        n = float(count)
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + n) / (10 + n)))

    return update
