"""The commands of ``trace``: one module a command; each parses, calls the package, prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

import typer

from trace_ros.cli import (
    attention,
    bag,
    benchmark,
    blend,
    calibrate,
    evaluate,
    export,
    finetune,
    latency,
    policy,
    report,
    robot,
    rollouts,
    simulate,
    soak,
    train,
)
from trace_ros.cli.common import errors
from trace_ros.errors import TraceError

app = typer.Typer(
    name="trace",
    help="Odometry for legged robots from IMU and joints alone: simulate, train, evaluate, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate", short_help="A simulated walk or stand, as a bag or .npz.")(simulate.simulate)
app.command("rollouts", short_help="Simulate training data once, for several trainings.")(rollouts.rollouts)
app.command("train", short_help="Train the estimator on simulated walks.")(train.train)
app.command("finetune", cls=finetune.SeveralValues, short_help="Fine-tune a model on the robot's own logs.")(
    finetune.finetune
)
app.command("export", short_help="Make a training checkpoint a model for the robot.")(export.export)
app.command("blend", short_help="Mix a model and what further training made of it.")(blend.blend)
app.command("evaluate", short_help="Run the estimator over logs; print its errors.")(evaluate.evaluate)
app.command("benchmark", short_help="Compare estimators on courses or bags.")(benchmark.benchmark)
app.command("calibrate", short_help="Fit the covariance, and compare it with errors.")(calibrate.calibrate)
app.command("report", short_help="Evaluate, as one HTML page and pictures.")(report.report)
app.command("attention", short_help="Compare attention on the feet with their contacts.")(attention.attention)
app.command("latency", short_help="How long one step takes, beside other networks.")(latency.latency)
app.command("soak", short_help="Run the ROS node for long: memory, step times, losses.")(soak.soak)
app.add_typer(bag.app, name="bag", short_help="Check bags, look into, rescue and convert them.")
app.add_typer(policy.app, name="policy", short_help="Teach a simulated robot to walk.")
app.add_typer(robot.app, name="robot", short_help="Look at robot descriptions and check them.")


def run() -> None:
    """Do what was typed. A fault of the user's or of the disk is one line and exit code 2; Ctrl-C is 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError, ValueError):  # a closed stream, or one that was swapped beneath us
                stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        _refuse_empty(sys.argv[1:])
        app()
    except TraceError as error:
        _fail(str(error))
    except OSError as error:  # what no command foresaw: a full disk, a name that is too long
        where = f"{error.filename}: " if error.filename is not None else ""
        _fail(f"{where}{error.strerror or error}")


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An empty path would be the current folder, an empty name that of nothing: no option or argument means it.

    Raises:
        TraceError: an argument, or the value after an option's ``=``, is empty.
    """
    before = ""
    for argument in arguments:
        if not argument:
            where = f" after {before!r}" if before else ""
            raise TraceError(f"an empty argument{where}: is a variable of the shell not set?")
        if argument.startswith("--") and argument.endswith("="):
            raise TraceError(f"{argument[:-1]} has no value: is a variable of the shell not set?")
        before = argument


def _fail(text: str) -> NoReturn:
    line = " ".join(text.splitlines())
    errors.print(f"error: {line}", highlight=False, soft_wrap=True)
    sys.exit(2)
