"""The ``trace`` command: one module a command; each parses, calls the package, prints."""

from __future__ import annotations

import sys

import typer

from trace_ros.cli import bag, evaluate, export, report, robot, simulate, train
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
app.command("simulate")(simulate.simulate)
app.command("train")(train.train)
app.command("export")(export.export)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(report.report)
app.add_typer(bag.app, name="bag")
app.add_typer(robot.app, name="robot")


def main() -> None:
    """Entry point: a fault of the user's is one line and exit code 2; only success is 0."""
    try:
        app()
    except TraceError as error:
        errors.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
