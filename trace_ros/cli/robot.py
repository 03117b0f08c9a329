"""``trace robot``: what the package knows of a robot, whether its files make sense, and whether it walks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from trace_ros.cli.common import check_output, console, progress_bar, say, working, write_json
from trace_ros.cli.options import MAX_SEED, JsonOption
from trace_ros.errors import TraceError
from trace_ros.resources import models_directory
from trace_ros.robot import LEG_NAMES, JointMessages, RobotDescription, available_robots
from trace_ros.robot_check import Verdict, check_robot

app = typer.Typer(help="Look at robot descriptions (config/robots/<name>.yaml and its URDF).", no_args_is_help=True)


@app.command("list")
def list_robots() -> None:
    """List the robots that ship with the package."""
    for name in available_robots():
        console.print(name)


@app.command(short_help="Check a robot's files, and with --walk N that it walks.")
def check(
    robot: Annotated[str, typer.Argument(help="Name of a shipped robot, or the path of a robot's YAML file.")],
    walk: Annotated[
        int | None,
        typer.Option(
            help="Also simulate: standing, seven commands, and so many rollouts of the training config.", min=1
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="What --walk simulates [config/training/simulation.yaml of the package].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the rollouts of --walk.", min=0, max=MAX_SEED)] = 0,
    json_file: JsonOption = None,
) -> None:
    """Print which joint fills which slot and where the feet stand; judge YAML, URDF, policy and model, a line each."""
    check_output(json_file)
    if config is not None and walk is None:
        raise TraceError("trace robot check: --config is what --walk N simulates; give both")
    description = RobotDescription.load(robot)
    feet = description.kinematics.forward(description.nominal_joint_positions)[0]
    console.print(_slots(description))
    for leg, foot in zip(LEG_NAMES, feet, strict=True):
        console.print(f"foot {leg}: {np.array2string(foot, precision=4)} m in {description.base_link} when standing")
    verdicts = check_robot(description)
    # Imported here, so that --help and the other commands need not wait for torch.
    from trace_ros.sim.trial import judge_policy

    with working("loading policy and model"):
        verdicts += [judge_policy(description), _judge_model(description)]
    trials: list[dict[str, Any]] = []
    if walk is not None and any(verdict.level == "fault" for verdict in verdicts):
        say("not simulated: mend the faults first")
    elif walk is not None and description.policy is None:
        text = "none that could walk: name one (policy: FILE.yaml), or leave --walk out"
        verdicts.append(Verdict("fault", "walking", text))
    elif walk is not None:
        trials = _try_out(description, config, seed, walk, verdicts)
    for verdict in verdicts:
        # One line each, however narrow the terminal, so that they can be searched.
        console.print(f"{verdict.level:<8} {verdict.subject:<14} {verdict.text}", highlight=False, soft_wrap=True)
    faults = [verdict for verdict in verdicts if verdict.level == "fault"]
    if json_file is not None:
        lower, upper = description.kinematics.lower_limit, description.kinematics.upper_limit
        nominal = description.nominal_joint_positions
        outside = (nominal < lower) | (nominal > upper)
        write_json(
            json_file,
            {
                "robot": description.name,
                "fingerprint": description.fingerprint,
                "joints": list(description.joint_names),
                "reported_joints": [description.reported_joint(slot) for slot in range(len(description.joint_names))],
                "mass_kg": description.mass,
                "standing_height_m": description.standing_height,
                "standing_feet_m": dict(zip(LEG_NAMES, feet.tolist(), strict=True)),
                "nominal_outside_limits": np.asarray(description.joint_names)[outside].tolist(),
                "verdicts": [asdict(verdict) for verdict in verdicts],
                "commands": trials,
            },
        )
    if faults:
        subjects = ", ".join(sorted({fault.subject for fault in faults}))
        raise TraceError(f"{robot}: {len(faults)} fault{'s' * (len(faults) > 1)} ({subjects})")


def _slots(robot: RobotDescription) -> Table:
    """The twelve joints in package order."""
    kinematics, nominal = robot.kinematics, robot.nominal_joint_positions
    table = Table(title=f"{robot.name} (fingerprint {robot.fingerprint})", box=box.SIMPLE, padding=0)
    differs = robot.joint_messages != JointMessages()
    columns = ["leg", "joint", "slot", "lower rad", "nominal rad", "upper rad", "torque limit N m"]
    for column in [*columns, *["from the joint states"] * differs]:
        # A joint's name is what one comes for: never shortened.
        names = column in ("joint", "from the joint states")
        table.add_column(column, justify="left" if names or column == "leg" else "right", no_wrap=names)
    for slot, joint in enumerate(robot.joint_names):
        table.add_row(
            LEG_NAMES[slot // 3] if slot % 3 == 0 else "",
            joint,
            str(slot),
            f"{kinematics.lower_limit[slot]:.3f}",
            f"{nominal[slot]:.3f}",
            f"{kinematics.upper_limit[slot]:.3f}",
            f"{robot.torque_limits[slot]:.1f}",
            *[robot.reported_joint(slot)] * differs,
            end_section=slot % 3 == 2,
        )
    return table


def _judge_model(robot: RobotDescription) -> Verdict:
    """Whether the package has a trained network for this robot."""
    from trace_ros.estimator.checkpoint import load_model

    path = models_directory() / robot.name / "trace.pt"
    if not path.is_file():
        return Verdict(
            "warning", "model", f"none at models/{robot.name}/trace.pt: train one, or give its path to --model"
        )
    try:
        loaded = load_model(path)
        loaded.check_robot(robot)
    except TraceError as error:
        return Verdict("fault", "model", str(error))
    return Verdict("ok", "model", f"models/{robot.name}/trace.pt, {loaded.card.steps} steps of training")


def _try_out(
    robot: RobotDescription, config: Path | None, seed: int, rollouts: int, verdicts: list[Verdict]
) -> list[dict[str, Any]]:
    """Simulate; adds its verdicts and returns what became of each command."""
    from trace_ros.sim.rollout import SimulationConfig
    from trace_ros.sim.trial import count_falls, judge_commands, judge_falls, try_commands

    simulation = SimulationConfig.load(config)
    physics = simulation.physics
    say(f"simulating {robot.name} with {physics.backend}: eight commands, then {rollouts} rollouts, seed {seed}")
    with working("eight commands"):
        trials = try_commands(robot, physics, simulation.falls)
    table = Table(title="told -> done (m/s, m/s, rad/s), mean of 2 s on level ground", box=None, padding=(0, 1))
    for column in ("vx", "vy", "wz", "", "vx", "vy", "wz", "height m"):
        table.add_column(column, justify="right")
    for trial in trials:
        told = [f"{value:.2f}" for value in trial.command]
        done = ["fell", "", "", ""] if trial.fell else [f"{v:.2f}" for v in (*trial.achieved, trial.height)]
        table.add_row(*told, "->", *done)
    console.print(table)
    verdicts += judge_commands(robot, trials)
    with progress_bar() as progress:
        task = progress.add_task("rollouts", total=rollouts)
        statistics = count_falls(robot, simulation, seed, rollouts, lambda done: progress.update(task, completed=done))
    verdicts.append(judge_falls(statistics))
    return [
        {
            "command": trial.command.tolist(),
            "achieved": None if trial.fell else trial.achieved.tolist(),
            "height_m": trial.height,
        }
        for trial in trials
    ]
