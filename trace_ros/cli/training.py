"""What ``trace train`` does: start or resume a run, train until its end or Ctrl-C, and tell what came of it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from pydantic import ValidationError
from rich.table import Table

from trace_ros.baselines.cards import LegolasCard, NmnCard
from trace_ros.baselines.learned import load_learned
from trace_ros.baselines.mlp_network import MlpCard
from trace_ros.cli.common import console, say, working, write_json
from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import Card, ModelCard, load_model, read_archive
from trace_ros.robot import RobotDescription
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.sim.walkers import walked_by
from trace_ros.training.benchmark import Benchmark, Rate, run_benchmark
from trace_ros.training.config import CommonTraining, TrainingConfig
from trace_ros.training.distributed import Ranks, joined
from trace_ros.training.export import given_robot
from trace_ros.training.kept_rollouts import read_manifest
from trace_ros.training.learner import StartModel
from trace_ros.training.methods import METHODS, load_training, parse_training
from trace_ros.training.monitor import ConsoleMonitor, SilentMonitor
from trace_ros.training.pretrain import Budget, Pretraining, RunDescription
from trace_ros.training.simulation import SimulationSource
from trace_ros.training.state import load_state

__all__ = ["StopOnSignal", "benchmark", "joined", "load_config", "resumed", "started", "train_to_the_end"]


def started(
    output: Path,
    robot: RobotDescription,
    training: CommonTraining,
    hours: float | None,
    steps: int | None,
    seed: int,
    ranks: Ranks,
    initial: Path | None = None,
    rollouts: Path | None = None,
    changes: Sequence[str] = (),
    keep_to: Path | None = None,
) -> Pretraining:
    """A new run in a folder; an hour long unless told otherwise.

    Args:
        initial: an earlier model to start from. What its network is told of the legs stays as it is, unless ``changes``
            say otherwise.
        rollouts: kept rollouts to train on, instead of simulating.
        changes: ``key=value`` that the config was given.
        keep_to: a model whose outputs are kept to; None: those of the initial one.
    """
    model = None if initial is None else _start_model(initial)
    if model is not None and not any(change.partition("=")[0].strip() == "network.joints" for change in changes):
        training = _told_as_before(training, model, ranks)
    source = SimulationSource(SimulationConfig.load(training.simulation))
    described = source.describe(robot) if rollouts is None else read_manifest(rollouts).simulation
    budget = _budget(hours if (hours, steps) != (None, None) else 1.0, steps)
    command = shlex.join(["trace", *sys.argv[1:]])
    plan = RunDescription(robot, training, described, seed, budget, command, rollouts)
    return Pretraining.start(plan, source, output, ranks, model, None if keep_to is None else _start_model(keep_to))


def load_config(method: str | None, config: str | None, changes: Sequence[str]) -> CommonTraining:
    """The training config that the command line asks for: of the method, unless it names another file.

    Raises:
        TraceError: no such method or file, a bad key, or the config is another method's.
    """
    if method is not None and method not in METHODS:
        raise TraceError(f"trace train: --method {method}: expected one of {', '.join(METHODS)}")
    training = load_training(config or METHODS[method or "trace"], changes)
    if method is not None and METHODS[method] != training.method.removesuffix("_iekf"):
        raise TraceError(f"trace train: --config {config} is of the method {training.method}, not {method}")
    return training


def _start_model(path: Path) -> StartModel:
    """A model of any method to start from."""
    archive = read_archive(path)
    kinds: dict[str, type[Card]] = {"legolas": LegolasCard, "nmn_iekf": NmnCard, "mlp": MlpCard}
    return load_learned(path, kinds[archive.method]) if archive.method in kinds else load_model(path)


def _told_as_before(training: CommonTraining, model: StartModel, ranks: Ranks) -> CommonTraining:
    """The config, but that its network is told of the legs what the model that it starts from was told."""
    if not (isinstance(training, TrainingConfig) and isinstance(model.card, ModelCard)):
        return training
    joints, network = model.card.network.joints, training.network
    if joints == network.joints:
        return training
    if ranks.leads:
        say(f"note: {model.path} is told of its legs by network.joints {joints}, and so is what starts from it")
    return training.model_copy(update={"network": network.model_copy(update={"joints": joints})})


def train_to_the_end(run: Pretraining, output: Path, threads: int, json_file: Path | None) -> bool:
    """Train until the budget is used up or somebody stops it; returns whether it came to its end."""
    torch.set_num_threads(threads)
    stopped = StopOnSignal()
    if not run.ranks.leads:
        with stopped:
            return run.run(SilentMonitor(), stopped)
    budget = run.description.budget
    length = f"{budget.hours:g} h" if budget.hours is not None else f"{budget.steps} steps"
    say(
        f"training {_subject(run)} in {output} for {length}, {run.progress:.0%} done"
        f"{'' if run.ranks.alone else f', {run.ranks.world} ranks'}; tensorboard --logdir {output}"
    )
    with stopped, ConsoleMonitor(output / "tensorboard", run.step) as monitor:
        finished = run.run(monitor, stopped)
    _summarise(run, finished, json_file)
    if not finished:
        whole = run.checkpoint_path.exists()
        say(
            "stopped before the end; go on with --resume"
            if whole
            else "stopped before the first step: nothing to resume"
        )
    return finished


def resumed(
    output: Path,
    robot: RobotDescription,
    config: str | None,
    hours: float | None,
    steps: int | None,
    seed: int | None,
    ranks: Ranks,
) -> Pretraining:
    """The run in a folder (of rank 0), with its own settings but for a new budget."""
    if config is not None or seed is not None:
        raise TraceError("trace train --resume keeps the run's --config and --seed; leave them out")
    path = output / "checkpoint.pt"
    state = ranks.first(lambda: load_state(path))
    training = parse_training(state["config"], str(path))
    source = SimulationSource.of(state["simulation"], str(path))
    kept = state.get("rollouts")
    if kept is None and "walked_by" in state["simulation"] and source.describe(robot) != state["simulation"]:
        began, now = ", ".join(state["simulation"]["walked_by"]), ", ".join(walked_by(robot))
        raise TraceError(f"{path}: its rollouts were walked by {began}; now the robot file gives {now}")
    budget = Budget(**state["budget"]) if (hours, steps) == (None, None) else _budget(hours, steps)
    plan = RunDescription(
        robot,
        training,
        state["simulation"],
        int(state["seed"]),
        budget,
        state["command"],
        None if kept is None else Path(kept),
        state.get("initial"),
    )
    return Pretraining.resume(plan, source, output, ranks)


def _budget(hours: float | None, steps: int | None) -> Budget:
    try:
        return Budget(hours=hours, steps=steps)
    except ValidationError as error:
        raise TraceError("trace train: give --hours or --steps, one of both and above zero") from error


class StopOnSignal:
    """Ctrl-C and SIGTERM end the run after the step in progress; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self) -> bool:
        return self._told

    def __enter__(self) -> StopOnSignal:
        self._previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._told:
            raise KeyboardInterrupt
        self._told = True


def _subject(run: Pretraining) -> str:
    """The robot; and the method, where it is not TRACE."""
    method = run.config.method
    return run.description.robot.name if method == "trace" else f"{method} for {run.description.robot.name}"


def _summarise(run: Pretraining, finished: bool, json_file: Path | None) -> None:
    table = Table(title=f"trace train: {_subject(run)}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("gradient steps", f"{run.step}")
    table.add_row("samples", f"{run.samples:.3g}")
    table.add_row("time", f"{run.elapsed_s / 3600:.2f} h")
    last = run.validations[-1] if run.validations else {}
    for name, value in last.items():
        if name not in ("step", "samples", "elapsed_s"):
            table.add_row(f"held out: {name}", f"{value:.4g}")
    console.print(table)
    if run.checkpoint_path.exists():
        console.print(f"checkpoint: {run.checkpoint_path}")
        name = run.description.robot.name
        method = run.config.method.removesuffix("_iekf")
        model, robot = Path("models") / name / f"{method}.pt", given_robot(run.description.command, name)
        command = shlex.join(["trace", "export", str(run.checkpoint_path), "--robot", robot, "--output", str(model)])
        console.print(f"export it:  {command}", highlight=False, soft_wrap=True)
    if json_file is not None:
        figures = {"steps": run.step, "samples": run.samples, "elapsed_s": run.elapsed_s, "finished": finished}
        write_json(json_file, {**figures, "validation": run.validations, "checkpoint": str(run.checkpoint_path)})


def benchmark(robot: RobotDescription, config: CommonTraining, threads: int, json_file: Path | None) -> None:
    """How fast this machine trains and simulates."""
    torch.set_num_threads(threads)
    say("measuring training and simulation, about two minutes; rates by CPU time count only what the process got")
    load = os.getloadavg()[0]
    with working("") as tell:
        measured = run_benchmark(config, robot, tell=tell)
    table = Table(title=f"trace train --benchmark ({threads} thread(s), load {load:.1f} before)")
    table.add_column("what")
    table.add_column("rate", justify="right")
    table.add_column("by CPU time", justify="right")
    table.add_column("unit")

    def add(what: str, rate: Rate, seconds: int, unit: str) -> None:
        table.add_row(what, f"{rate.per_s * seconds:,.0f}", f"{rate.per_cpu_s * seconds:,.0f}", unit)

    add("training alone", measured.training, 1, "samples/s")
    add("training beside simulation", measured.training_beside, 1, "samples/s")
    add("simulation alone", measured.simulation_alone, 60, "rollouts/min")
    add("simulation beside training", measured.simulation_beside, 60, "rollouts/min")
    for (terrain, physics_hz), rate in measured.simulation.items():
        add(f"simulation, {terrain}, {physics_hz} Hz", rate, 60, "rollouts/min")
    console.print(table)
    if json_file is not None:
        write_json(json_file, _benchmark_figures(measured, threads, load))


def _benchmark_figures(measured: Benchmark, threads: int, load: float) -> dict[str, Any]:
    """Plain data: training in samples/s, simulation in rollouts/min."""
    by_wall: dict[str, dict[str, float]] = {}
    by_processor: dict[str, dict[str, float]] = {}
    for (terrain, physics_hz), rate in measured.simulation.items():
        by_wall.setdefault(terrain, {})[f"{physics_hz}_hz"] = 60 * rate.per_s
        by_processor.setdefault(terrain, {})[f"{physics_hz}_hz"] = 60 * rate.per_cpu_s
    return {
        "threads": threads,
        "load_average": load,
        "training_samples_per_s": measured.training.per_s,
        "training_samples_per_cpu_s": measured.training.per_cpu_s,
        "simulation_rollouts_per_minute": by_wall,
        "simulation_rollouts_per_cpu_minute": by_processor,
        "side_by_side": {
            "training_samples_per_s": measured.training_beside.per_s,
            "training_samples_per_cpu_s": measured.training_beside.per_cpu_s,
            "simulation_rollouts_per_minute": 60 * measured.simulation_beside.per_s,
            "simulation_rollouts_per_cpu_minute": 60 * measured.simulation_beside.per_cpu_s,
            "simulation_alone_rollouts_per_minute": 60 * measured.simulation_alone.per_s,
            "simulation_alone_rollouts_per_cpu_minute": 60 * measured.simulation_alone.per_cpu_s,
        },
    }
