"""``trace latency``: how long one step takes, and what takes the time."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.table import Table

from trace_ros.cli.common import check_output, console, progress_bar, say, write_json
from trace_ros.cli.latency_node import latency_of_node
from trace_ros.cli.options import MAX_SEED, JsonOption, ModelOption, RobotOption
from trace_ros.errors import TraceError
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription


def latency(
    robot: RobotOption = "go2",
    model: ModelOption = None,
    steps: Annotated[int, typer.Option(help="Timed steps of each row.", min=100, max=10_000_000)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of inputs and of random weights.", min=0, max=MAX_SEED)] = 0,
    node: Annotated[bool, typer.Option("--node", help="Measure the ROS node instead, over DDS.")] = False,
    seconds: Annotated[float, typer.Option(help="With --node: how long to send, s.", min=1.0, max=1e5)] = 60.0,
    rate: Annotated[float, typer.Option(help="With --node: of both inputs, Hz.", min=1.0, max=2000.0)] = 500.0,
    estimator: Annotated[str, typer.Option(help="With --node: trace, iekf_sr, ... (docs/baselines.md).")] = "trace",
    engine: Annotated[str, typer.Option(help="With --node: torchscript or onnxruntime.")] = "torchscript",
    json_file: JsonOption = None,
) -> None:
    """Time single steps on one thread, batch 1: our network in several forms, the whole estimator, other networks.

    With --node: from IMU stamp to odometry, with sensors, estimator node and listener as processes of their own.
    """
    check_output(json_file)
    description = RobotDescription.load(robot)
    if node:
        chosen: dict[str, object] = {"estimator": estimator, "engine": engine, "model": model}
        latency_of_node(description, robot, chosen, seconds, rate, json_file)
        return
    if (estimator, engine) != ("trace", "torchscript"):
        raise TraceError("--estimator and --engine are for trace latency --node; without it all rows are timed")
    # Imported here, so that --help and the other commands need not wait for torch.
    import torch

    from trace_ros.estimator.checkpoint import load_model
    from trace_ros.estimator.engines import EngineName
    from trace_ros.evaluation.latency import COMPARED, ROWS, measure, ratios, steps_to_time

    loaded = load_model(model or models_directory() / description.name / "trace.pt")
    loaded.check_robot(description)
    engines: list[EngineName] = ["torchscript"]
    if find_spec("onnxruntime") is not None and find_spec("onnx") is not None:
        engines.append("onnxruntime")
    else:
        say("ONNX Runtime is not installed (pip install 'trace_ros[onnxruntime]'): its row is left out")
    say(f"timing {steps:,} steps of each row in turns, model {loaded.path}")
    to_time = steps_to_time(loaded, description, engines, seed)
    with progress_bar() as bar:
        task = bar.add_task("steps", total=steps)
        rows = measure(to_time, steps, progress=lambda done: bar.update(task, completed=done))
    compared = ratios(rows)

    table = Table(title=f"one step, ms ({steps:,} each, one thread, batch 1)")
    for column in ("", "mean", "std", "p50", "p99", "max", "of eager p50"):
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    for name, row in rows.items():
        relative = compared.get(f"{name}/eager_window", 1.0)
        numbers = (row.mean_ms, row.std_ms, row.p50_ms, row.p99_ms, row.max_ms)
        table.add_row(name, *(f"{number:.3f}" for number in numbers), f"{relative:.3f}")
    console.print(table)
    for name in rows:
        console.print(f"{name}: {ROWS[name]}", highlight=False, soft_wrap=True)
    for ours, other in COMPARED:
        if (ratio := compared.get(f"{ours}/{other}")) is not None:
            console.print(f"{ours} / {other}: {ratio:.2f}", highlight=False, soft_wrap=True)
    if json_file is not None:
        result = {
            "rows": {name: row.to_dict() for name, row in rows.items()},
            "ratios": compared,
            "steps": steps,
            "seed": seed,
            "model": str(loaded.path),
            "torch": torch.__version__,
            "processor": platform.processor() or platform.machine(),
        }
        write_json(json_file, result)
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
