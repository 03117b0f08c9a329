"""``trace train``: pretraining in simulation."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_output
from trace_ros.cli.options import MAX_PROCESSES, MAX_SEED
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.run_folder import sole_writer

_DEFAULT_METHOD = "trace"


def train(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run: checkpoint, TensorBoard, replay.")
    ] = None,
    robot: Annotated[str, typer.Option(help="Name of a robot, or the path of its YAML file.")] = "go2",
    config: Annotated[
        str | None, typer.Option(help="Training config: a name in config/training, or a path [that of the method].")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help=f"What is trained: trace, legolas, nmn or mlp (docs/baselines.md) [{_DEFAULT_METHOD}]."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the config, as in --set loss.foot=0."),
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Budget: wall-clock hours, resumptions included [1].")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: gradient steps, instead of hours.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random [0].", min=0, max=MAX_SEED)] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="Start from the weights of this exported model (.pt): of a robot like yours, or to go on."),
    ] = None,
    keep_to: Annotated[
        Path | None,
        typer.Option(help="Model to whose outputs loss.keep holds those of the one in training [that of --init]."),
    ] = None,
    rollouts: Annotated[
        Path | None, typer.Option(help="Train on the rollouts of this folder (trace rollouts) instead of simulating.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --output.")] = False,
    threads: Annotated[
        int, typer.Option(min=1, max=MAX_PROCESSES, help="Threads for gradients; simulation has its own process.")
    ] = 1,
    device: Annotated[
        str, typer.Option(help="Where gradients are computed: cpu, or cuda (one GPU a process).")
    ] = "cpu",
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Only measure how fast this machine trains and simulates.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
) -> None:
    """Train the estimator, or a baseline, on simulated walks of a robot. Ctrl-C saves; --resume goes on.

    Over several processes or machines: torchrun --nproc-per-node N -m trace_ros.cli train ...
    """
    check_output(output, folder=True)
    check_output(json_file)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for torch and the simulator.
    from trace_ros.cli import training

    if benchmark:
        training.benchmark(description, training.load_config(method, config, changes or []), threads, json_file)
        return
    if output is None:
        raise TraceError("trace train: --output FOLDER is missing (where the run is kept)")
    if device not in ("cpu", "cuda"):
        raise TraceError(f"trace train: --device {device}: expected cpu or cuda")
    with (
        training.joined("cuda" if device == "cuda" else "cpu") as ranks,
        sole_writer(output) if ranks.leads else nullcontext(),
    ):
        if resume and (init is not None or keep_to is not None or rollouts is not None or changes or method):
            raise TraceError(
                "trace train --resume keeps the run's own: leave --method, --init, --keep-to, --rollouts and --set out"
            )
        if resume:
            run = training.resumed(output, description, config, hours, steps, seed, ranks)
        else:
            plan = training.load_config(method, config, changes or [])
            run = training.started(
                output, description, plan, hours, steps, seed or 0, ranks, init, rollouts, changes or [], keep_to
            )
        finished = training.train_to_the_end(run, output, threads, json_file)
    if not finished:
        raise typer.Exit(130)
