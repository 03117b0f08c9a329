"""``trace policy``: make a robot walk in simulation, which training of the estimator needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TextColumn

from trace_ros.cli.common import check_output, console, progress_bar, say
from trace_ros.cli.options import MAX_SEED
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.run_folder import sole_writer

app = typer.Typer(help="Walking policies of simulated robots (docs/robots.md).", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Walking policies of simulated robots (docs/robots.md)."""


@app.command(short_help="Train a walking policy by reinforcement learning.")
def train(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; the policy goes there too.")],
    robot: Annotated[str, typer.Option(help="Name of a robot, or the path of its YAML file.")] = "go2",
    config: Annotated[str, typer.Option(help="What to train on: a name in config/policy, or a path.")] = "walk",
    hours: Annotated[
        float | None,
        typer.Option(help="Budget in wall-clock time, resumptions included [1, or what a resumed run was given]."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.", min=0, max=MAX_SEED)] = 0,
    init: Annotated[
        Path | None, typer.Option(help="Begin with the policy of the run in this folder, as to climb after walking.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --output.")] = False,
    threads: Annotated[int, typer.Option(help="Threads for gradients.", min=1, max=256)] = 1,
) -> None:
    """Teach a robot to follow velocity commands on level ground (PPO in MuJoCo), or with `--config climb` on uneven
    ground and low stairs too. The robot file needs no policy yet: name the policy file that this writes in it, as
    `policy: FILE`, and try it with `trace robot check FILE --walk 64`. Ctrl-C saves; --resume goes on."""
    check_output(output, folder=True)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for torch and the simulator.
    import torch

    from trace_ros.cli.training import StopOnSignal
    from trace_ros.policy_training.config import PolicyTrainingConfig
    from trace_ros.policy_training.learner import Progress
    from trace_ros.policy_training.run import DEFAULT_HOURS, MAX_HOURS, kept_budget, train_policy

    if hours is not None and not 0 < hours <= MAX_HOURS:  # nor NaN
        raise TraceError(f"trace policy train: --hours must be above zero, and at most {MAX_HOURS:.0f}")
    if resume and init is not None:
        raise TraceError("trace policy train --resume goes on with what is in --output: leave --init out")
    settings = PolicyTrainingConfig.load(config)
    torch.set_num_threads(threads)
    with sole_writer(output):
        if hours is None:
            hours = kept_budget(output) if resume else DEFAULT_HOURS
        robots = settings.environment.robots
        say(f"training a policy for {description.name} in {output} for {hours:g} h; {robots} robots")
        told = TextColumn("{task.fields[told]}")
        learned = False
        with StopOnSignal() as stopped, progress_bar(told) as bar:
            task = bar.add_task("minutes", total=round(hours * 60, 1), told="")

            def show(progress: Progress, spent: float) -> None:
                nonlocal learned
                learned = True
                text = (
                    f"{progress.steps / 1e6:.2f} M steps, reward {progress.reward:.2f}/s, "
                    f"{progress.missed:.2f} m/s beside the command, episodes {progress.episode:.1f} s"
                )
                bar.update(task, completed=round(spent * 60, 1), told=text)
                if progress.update % 50 == 0:
                    bar.console.print(f"{spent * 60:.1f} min: {text}", highlight=False)

            run = train_policy(output, description, settings, seed, hours, resume, stopped, show, init)
    if run.finished and not learned:
        say(f"nothing was left to do: the budget of {hours:g} h is used up; give more with --hours")
    # Paths are not broken across lines, and hold wherever the robot's file lies.
    policy = run.policy.resolve()
    console.print(f"{run.update} updates in {run.hours:.2f} h; policy file: {policy}", soft_wrap=True)
    console.print(
        f"name it in the robot's file (policy: {policy}), then: trace robot check FILE --walk 64", soft_wrap=True
    )
    if not run.finished:
        say("stopped before the end; go on with --resume")
        raise typer.Exit(130)
