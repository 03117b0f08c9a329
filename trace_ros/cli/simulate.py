"""``trace simulate``: a robot walks a course in simulation; its log with ground truth becomes a bag or a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np
import typer
from rich.table import Table

from trace_ros.bags import Storage, write_log
from trace_ros.cli.common import check_output, console, progress_bar, say, write_json
from trace_ros.cli.options import MAX_SEED, BackendOption
from trace_ros.errors import TraceError
from trace_ros.robot import LEG_NAMES, RobotDescription

if TYPE_CHECKING:
    from trace_ros.sim.rollout import Rollout


def simulate(
    course: Annotated[
        str, typer.Option(help="A course (config/benchmark), one of a set (validation/stairs), or a YAML file.")
    ] = "demo",
    robot: Annotated[str, typer.Option(help="Name of a robot, or the path of its YAML file.")] = "go2",
    seed: Annotated[
        int,
        typer.Option(help="Of the ground, the sensors' noise and what else the course varies.", min=0, max=MAX_SEED),
    ] = 0,
    stand: Annotated[
        float | None,
        typer.Option(help="Stand still for this long (s) instead, with the course's sensors.", min=0.1, max=3600),
    ] = None,
    bag: Annotated[Path | None, typer.Option(help="Write a rosbag2 into this new directory.")] = None,
    storage: Annotated[str, typer.Option(help=f"Of the bag: {', '.join(get_args(Storage))}.")] = "mcap",
    npz: Annotated[
        Path | None, typer.Option(help="Write a .npz; it keeps contacts and foot forces, a bag does not.")
    ] = None,
    backend: BackendOption = None,
    noise: Annotated[bool, typer.Option(help="Write what real sensors would say, or what perfect ones would.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the summary here.")] = None,
) -> None:
    """Simulate a robot on a course and write its sensor log with the true trajectory."""
    if bag is None and npz is None:
        raise TraceError("nothing to write: give --bag DIRECTORY, --npz FILE.npz, or both")
    if npz is not None and npz.suffix != ".npz":
        raise TraceError(f"--npz {npz}: the file's name must end in .npz")
    if bag is not None and bag.suffix in (".npz", ".csv"):
        raise TraceError(f"--bag {bag}: a bag is a directory; for a file use --npz")
    if storage not in get_args(Storage):
        raise TraceError(f"--storage {storage!r} is none of {', '.join(get_args(Storage))}")
    targets = [path for path in (bag, npz) if path is not None]
    for path in targets:
        if path.exists():  # known before a minute of simulation, not after
            raise TraceError(f"{path}: exists already; choose another name or delete it")
        check_output(path, folder=path == bag)
    check_output(json_file)
    description = RobotDescription.load(robot)
    # Imported here, so that the other commands do not need a simulator's packages.
    from trace_ros.sim.course import Course, simulate_course

    plan = Course.load(course)
    if stand is not None:
        plan = plan.standing(stand)
    if backend is not None:
        plan = plan.simulated_by(backend)
    physics = plan.physics
    say(
        f"simulating {description.name} on the course {plan.name!r}: {plan.duration:g} s at "
        f"{physics.sample_rate_hz} Hz ({physics.backend}, {physics.rate_hz} Hz), seed {seed}"
    )
    began = time.perf_counter()
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=100)
        rollout = simulate_course(
            plan, description, seed, progress=lambda part: progress.update(task, completed=round(100 * part))
        )
    summary = summarise(rollout) | {
        "robot": description.name,
        "course": plan.name,
        "backend": physics.backend,
        "seed": seed,
        "simulated_in_s": round(time.perf_counter() - began, 3),
    }
    console.print(_table(summary))
    log = rollout.measured if noise else rollout.clean
    for path in targets:
        write_log(path, log, description, storage)  # type: ignore[arg-type]
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, summary | {"written": [str(path) for path in targets]})
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)


def summarise(rollout: Rollout) -> dict[str, Any]:
    """What a simulated log holds, in numbers: times in s, lengths in m, speeds in m/s, forces in N."""
    log = rollout.clean
    reference, contact, force = log.reference, log.contact, log.foot_force
    assert reference is not None
    assert contact is not None
    assert force is not None
    speed = np.linalg.norm(reference.velocity, axis=1)
    lifts = np.diff(contact.astype(int), axis=0) < 0
    return {
        "samples": len(log),
        "duration_s": log.duration_s,
        "rate_hz": log.rate_hz,
        "path_length_m": reference.path_length_m,
        "height_range_m": float(np.ptp(reference.position[:, 2])),
        "mean_speed_m_s": float(speed.mean()),
        "largest_speed_m_s": float(speed.max()),
        "standing_s": float((speed < 0.01).mean() * log.duration_s),
        "steps": {leg: int(count) for leg, count in zip(LEG_NAMES, lifts.sum(axis=0), strict=True)},
        "largest_foot_force_n": float(np.linalg.norm(force, axis=-1).max()),
    }


def _table(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['robot']}, course {summary['course']}, seed {summary['seed']}")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in summary.items():
        if name in ("robot", "course", "backend", "seed"):
            continue
        text = (
            ", ".join(f"{leg} {count}" for leg, count in value.items()) if isinstance(value, dict) else f"{value:.6g}"
        )
        table.add_row(name, text)
    return table
