"""``trace attention``: what the attention on a leg tells of its contact, beside the paper's figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from trace_ros.cli.common import check_output, console, progress_bar, say, write_json
from trace_ros.cli.options import MAX_SEED, JsonOption, ModelOption, RobotOption
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription

if TYPE_CHECKING:
    from trace_ros.evaluation.attention import AttentionFigures, SpeedBin

_ROWS = {
    "samples": "per-foot samples",
    "contact_samples": "  in contact",
    "swing_samples": "  in swing",
    "mean_contact": "mean attention, contact",
    "mean_swing": "mean attention, swing",
    "median_contact": "median attention, contact",
    "median_swing": "median attention, swing",
    "top1_contact": "top 1 is in contact",
    "top1_chance": "  for a foot at random",
    "flight_instants": "  instants left out (no contact)",
    "auc": "AUC (contact, attention)",
    "total_leg": "attention on all legs",
}


def attention(
    robot: RobotOption = "go2",
    model: ModelOption = None,
    samples: Annotated[
        int | None, typer.Option(help="Per-foot samples to take at least, four an instant [2000000].", min=1)
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Of the rollouts; never those that training saw, whatever its seed.", min=0, max=MAX_SEED),
    ] = 0,
    config: Annotated[
        Path | None, typer.Option(help="What to simulate [config/training/simulation.yaml of the package].")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write attention_analysis.png and .json into this folder.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Simulate held-out walks, run a model over them, and compare the attention on each foot with its contact."""
    check_output(output, folder=True)
    check_output(json_file)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    import torch

    from trace_ros.estimator.checkpoint import load_model
    from trace_ros.evaluation.attention import (
        PAPER,
        AttentionSettings,
        attention_figures,
        collect_attention,
        figures_by_terrain,
        speed_bins,
    )
    from trace_ros.evaluation.attention_plot import plot_attention_analysis
    from trace_ros.sim.rollout import SimulationConfig
    from trace_ros.training.simulation import SimulationSource

    loaded = load_model(model or models_directory() / description.name / "trace.pt")
    loaded.check_robot(description)
    simulation = SimulationConfig.load(config)
    source = SimulationSource(simulation)
    settings = AttentionSettings() if samples is None else AttentionSettings(samples=samples)
    # One step is a handful of small products: threads cost more than they bring.
    torch.set_num_threads(1)
    say(f"simulating {description.name} and running {loaded.path} over it, seed {seed}; written only at the end")
    try:
        with progress_bar() as progress:
            task = progress.add_task("per-foot samples", total=settings.samples)
            collected = collect_attention(
                loaded.network(),
                source,
                description,
                seed,
                round(simulation.duration * simulation.physics.sample_rate_hz),
                settings,
                lambda done: progress.update(task, completed=min(done, settings.samples)),
            )
    except KeyboardInterrupt:
        say("stopped before the end; nothing was written")
        raise typer.Exit(130) from None
    figures = attention_figures(collected.attention, collected.contact)
    bins = speed_bins(collected.attention, collected.contact, collected.speed, settings.speed_edges)
    by_terrain = figures_by_terrain(collected)
    title = f"{loaded.path} on {description.name}, {collected.rollouts} rollouts, seed {seed}"
    _show(figures, PAPER, bins, by_terrain, title)
    result: dict[str, Any] = figures.to_dict() | {
        "bins": [entry.to_dict() for entry in bins],
        "by_terrain": {name: entry.to_dict() for name, entry in by_terrain.items()},
        "paper": PAPER.to_dict(),
        "robot": description.name,
        "model": str(loaded.path),
        "model_steps": loaded.card.steps,
        "seed": seed,
        "rollouts": collected.rollouts,
        "rollouts_simulated": collected.simulated,
        "simulation": source.describe(description),
    }
    if output is not None:
        picture = output / "attention_analysis.png"
        plot_attention_analysis(picture, collected, bins, title)
        console.print(f"wrote {picture}", highlight=False, soft_wrap=True)
    for path in (None if output is None else output / "attention_analysis.json", json_file):
        if path is not None:
            write_json(path, result)
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _show(
    figures: AttentionFigures,
    published: AttentionFigures,
    bins: list[SpeedBin],
    by_terrain: dict[str, AttentionFigures],
    title: str,
) -> None:
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("here", justify="right")
    table.add_column("paper", justify="right")
    for name, text in _ROWS.items():
        paper = "-" if name == "flight_instants" else _text(getattr(published, name))
        table.add_row(text, _text(getattr(figures, name)), paper)
    console.print(table)

    table = Table(title="by ground", box=None, padding=(0, 1))
    for column in ("ground", "samples", "contact", "swing", "top 1", "AUC", "legs"):
        table.add_column(column, justify="left" if column == "ground" else "right")
    for name, entry in by_terrain.items():
        values = (entry.mean_contact, entry.mean_swing, entry.top1_contact, entry.auc, entry.total_leg)
        table.add_row(name, _text(entry.samples), *map(_text, values))
    console.print(table)

    table = Table(title="feet in contact", box=None, padding=(0, 1))
    for column in ("contact-point speed (m/s)", "samples", "mean attention", "of a fair share"):
        table.add_column(column, justify="right")
    for part in bins:
        high = "and more" if part.high_mps is None else f"to {part.high_mps:g}"
        table.add_row(
            f"{part.low_mps:g} {high}", _text(part.count), _text(part.mean_attention), _text(part.mean_relative)
        )
    console.print(table)


def _text(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if math.isnan(value) else f"{value:.4f}"
