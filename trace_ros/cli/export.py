"""``trace export``: a training checkpoint becomes the TorchScript model that the robot runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from trace_ros.cli.common import check_model_output, check_output, console, write_json
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription


def export(
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint.pt of a training run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="TorchScript file to write; its card goes beside it.")],
    robot: Annotated[str, typer.Option(help="Robot of the run: a name, or the path of its YAML file.")] = "go2",
    figures: Annotated[
        list[Path] | None,
        typer.Option(help="JSON of trace evaluate or others, to keep in the card under the file's name; repeatable."),
    ] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Store large matrices in half precision: a quarter of the size.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the model card here.")] = None,
) -> None:
    """Write a trained network as one TorchScript file, with its model card beside it."""
    check_model_output(output)
    check_output(json_file)
    # Imported here, so that --help and the other commands need not wait for torch.
    from trace_ros.baselines.registry import load_estimator
    from trace_ros.estimator.checkpoint import store_in_half_precision
    from trace_ros.training.export import card_from_state, learner_from_state, network_from_state
    from trace_ros.training.state import load_state

    description = RobotDescription.load(robot)
    state = load_state(checkpoint)
    if state["robot_fingerprint"] != description.fingerprint or state["robot"] != description.name:
        raise TraceError(
            f"{checkpoint}: trained for {state['robot']} ({state['robot_fingerprint']}), "
            f"not {description.name} ({description.fingerprint}): give its --robot"
        )
    card = card_from_state(state)
    measured = {path.stem: _read_figures(path) for path in figures or ()}
    card = card.model_copy(update={"figures": card.figures | measured})
    card_path = learner_from_state(state).export(network_from_state(state), card, output)
    if half:
        store_in_half_precision(output, card)
    load_estimator(card.name, description, output)  # what cannot be loaded must not be shipped
    table = Table(title=f"{card.name} for {card.robot}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("gradient steps", f"{card.steps}")
    table.add_row("samples seen", f"{card.samples:.3g}")
    table.add_row("training", f"{card.training_hours:.2f} h")
    for name, value in card.figures.get("held_out", {}).items():
        table.add_row(f"held out: {name}", f"{value:.4g}")
    console.print(table)
    console.print(f"model: {output}")
    console.print(f"card:  {card_path}")
    if json_file is not None:
        write_json(json_file, card.model_dump(mode="json"))


def _read_figures(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise TraceError(f"{path}: not JSON ({error})") from error
