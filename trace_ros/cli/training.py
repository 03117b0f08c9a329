"""What ``trace train`` does: start or resume a run, train until its end or Ctrl-C, and tell what came of it."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
from pydantic import ValidationError
from rich.table import Table

from trace_ros.cli.common import console, say, write_json
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.training.config import TrainingConfig
from trace_ros.training.distributed import Ranks, joined
from trace_ros.training.monitor import ConsoleMonitor, SilentMonitor
from trace_ros.training.pretrain import Budget, Pretraining, RunDescription, measure_training_rate
from trace_ros.training.replay import simulate_chunk
from trace_ros.training.simulation import SimulationSource
from trace_ros.training.state import load_state

__all__ = ["benchmark", "joined", "resumed", "started", "train_to_the_end"]


def started(
    output: Path, robot: RobotDescription, config: str, hours: float | None, steps: int | None, seed: int, ranks: Ranks
) -> Pretraining:
    """A new run in a folder; an hour long unless told otherwise."""
    training = TrainingConfig.load(config)
    simulation = SimulationConfig.load(training.simulation)
    budget = _budget(hours if (hours, steps) != (None, None) else 1.0, steps)
    command = shlex.join(["trace", *sys.argv[1:]])
    plan = RunDescription(robot, training, simulation.model_dump(mode="json"), seed, budget, command)
    return Pretraining.start(plan, SimulationSource(simulation), output, ranks)


def train_to_the_end(run: Pretraining, output: Path, threads: int, json_file: Path | None) -> bool:
    """Train until the budget is used up or somebody stops it; returns whether it came to its end."""
    torch.set_num_threads(threads)
    stopped = _StopOnSignal()
    if not run.ranks.leads:
        with stopped:
            return run.run(SilentMonitor(), stopped)
    budget = run.description.budget
    length = f"{budget.hours:g} h" if budget.hours is not None else f"{budget.steps} steps"
    say(
        f"training {run.description.robot.name} in {output} for {length}, {run.progress:.0%} done"
        f"{'' if run.ranks.alone else f', {run.ranks.world} ranks'}; tensorboard --logdir {output}"
    )
    with stopped, ConsoleMonitor(output / "tensorboard") as monitor:
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
    training = TrainingConfig.parse(state["config"], str(path))
    try:
        simulation = SimulationConfig.model_validate(state["simulation"])
    except ValidationError as error:
        raise TraceError(f"{path}: simulation config of another version: {describe_validation_error(error)}") from error
    budget = Budget(**state["budget"]) if (hours, steps) == (None, None) else _budget(hours, steps)
    plan = RunDescription(robot, training, state["simulation"], int(state["seed"]), budget, state["command"])
    return Pretraining.resume(plan, SimulationSource(simulation), output, ranks)


def _budget(hours: float | None, steps: int | None) -> Budget:
    try:
        return Budget(hours=hours, steps=steps)
    except ValidationError as error:
        raise TraceError("trace train: give --hours or --steps, one of both and above zero") from error


class _StopOnSignal:
    """Ctrl-C and SIGTERM end the run after the step in progress; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self) -> bool:
        return self._told

    def __enter__(self) -> _StopOnSignal:
        self._previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._told:
            raise KeyboardInterrupt
        self._told = True


def _summarise(run: Pretraining, finished: bool, json_file: Path | None) -> None:
    table = Table(title=f"trace train: {run.description.robot.name}")
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
        model = Path("models") / run.description.robot.name / "trace.pt"
        console.print(f"export it:  trace export {run.checkpoint_path} --output {model}")
    if json_file is not None:
        figures = {"steps": run.step, "samples": run.samples, "elapsed_s": run.elapsed_s, "finished": finished}
        write_json(json_file, {**figures, "validation": run.validations, "checkpoint": str(run.checkpoint_path)})


def benchmark(robot: RobotDescription, config_name: str, threads: int, json_file: Path | None) -> None:
    """How fast this machine trains and simulates."""
    torch.set_num_threads(threads)
    config = TrainingConfig.load(config_name)
    say("measuring gradient steps for 10 s, then one chunk of simulation")
    samples_per_s = measure_training_rate(config)
    source = SimulationSource(SimulationConfig.load(config.simulation))
    begun = time.perf_counter()
    rollouts = simulate_chunk(source, robot, 0, 0, config.replay.chunk, config.rows)
    rollouts_per_minute = 60 * len(rollouts) / (time.perf_counter() - begun)
    table = Table(title=f"trace train --benchmark ({torch.get_num_threads()} thread(s))")
    table.add_column("what")
    table.add_column("rate", justify="right")
    table.add_row("training", f"{samples_per_s:,.0f} samples/s")
    table.add_row("simulation and packing", f"{rollouts_per_minute:,.0f} rollouts/min")
    console.print(table)
    if json_file is not None:
        write_json(
            json_file,
            {
                "training_samples_per_s": samples_per_s,
                "simulation_rollouts_per_minute": rollouts_per_minute,
                "threads": torch.get_num_threads(),
            },
        )
