"""``trace rollouts``: simulate training data once, for several trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_output, console, progress_bar, say
from trace_ros.cli.options import MAX_PROCESSES, MAX_SEED
from trace_ros.robot import RobotDescription


def rollouts(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder; what it holds already is kept.")],
    robot: Annotated[str, typer.Option(help="Name of a robot, or the path of its YAML file.")] = "go2",
    config: Annotated[str, typer.Option(help="Training config: a name in config/training, or a path.")] = "trace",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the config, as in --set replay.chunk=16."),
    ] = None,
    count: Annotated[int, typer.Option(help="Rollouts, rounded up to whole chunks.", min=1)] = 800,
    seed: Annotated[int, typer.Option(help="Of the simulation.", min=0, max=MAX_SEED)] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES, help="Processes that simulate.")] = 2,
) -> None:
    """Simulate rollouts into a folder. `trace train --rollouts FOLDER` then trains on them without a simulator, so that
    several recipes or methods see the very same data. Ctrl-C keeps what is done; the same command goes on."""
    check_output(output, folder=True)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for torch and the simulator.
    from trace_ros.sim.rollout import SimulationConfig
    from trace_ros.training.kept_rollouts import count_rollouts, keep_rollouts
    from trace_ros.training.methods import load_training
    from trace_ros.training.simulation import SimulationSource

    training = load_training(config, changes or [])
    source = SimulationSource(SimulationConfig.load(training.simulation))
    say(f"simulating {description.name} into {output}; processes: {jobs}")
    try:
        with progress_bar() as bar:
            task = bar.add_task("chunks", total=-(-count // training.replay.chunk) + 1)
            kept = keep_rollouts(
                output,
                description,
                source,
                source.describe(description),
                training,
                seed,
                count,
                jobs,
                lambda done: bar.update(task, completed=done),
            )
    except KeyboardInterrupt:
        say(f"stopped; what is in {output} is kept: the same command goes on")
        raise typer.Exit(130) from None
    training_on, held_out = count_rollouts(output)
    short = kept.chunk * kept.chunks + kept.validation - training_on - held_out
    fell = f"; {short} more fell within minimum_duration and are dropped" if short else ""
    console.print(f"{training_on} rollouts and {held_out} held-out ones in {output}{fell}")
