"""``trace benchmark``: several estimators on the same walks, as one table, one page and one JSON."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from trace_ros.cli.common import check_output, console, progress_bar, say, write_json
from trace_ros.cli.options import (
    FrameOption,
    ImuOption,
    JointOption,
    JsonOption,
    MountingOption,
    ReferenceOption,
    RobotOption,
    TorqueOption,
    chosen_topics,
    comma_parts,
    read_settings,
    seed_numbers,
)
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.whole_files import whole_file

if TYPE_CHECKING:
    from trace_ros.evaluation.benchmark_methods import Method
    from trace_ros.evaluation.benchmark_results import Result, Row

_SHOWN_DIFFERENCES = 10


def benchmark(
    courses: Annotated[
        str | None, typer.Option(help="Set of courses (config/benchmark), or its YAML file [courses].")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Of the courses, these: flat,stairs.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Of the walks, instead of the set's: 401,402.")] = None,
    engines: Annotated[str | None, typer.Option(help="Physics [mujoco,bullet as far as installed].")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Every other course, with the first seed only.")] = False,
    bags: Annotated[
        Path | None, typer.Option(help="Instead of courses: a folder of logs with a reference, or one bag.")
    ] = None,
    robot: RobotOption = "go2",
    methods: Annotated[
        str | None,
        typer.Option(
            help="What to compare: trace,iekf_sr; with a model of its own: trace=my.pt; under another name: "
            "mine:trace=my.pt [trace,iekf_sr,legolas,nmn_iekf as far as there are models]."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 2,
    output: Annotated[Path, typer.Option(help="Folder for benchmark.json, benchmark.md and benchmark.html.")] = Path(
        "out/benchmark"
    ),
    cache: Annotated[Path, typer.Option(help="Where walks and results are kept.")] = Path("out/benchmark/kept"),
    compare: Annotated[
        Path | None, typer.Option(help="Hold the rows against those of this JSON; exit code 1 where they differ.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="For --compare: largest relative difference of a figure.", min=0.0, max=1.0)
    ] = 0.01,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    json_file: JsonOption = None,
) -> None:
    """Compare estimators on simulated courses, or on bags of yours, and write tables and a page.

    What was simulated and computed is kept: the same command goes on where it was ended.
    """
    for_courses = {"--courses": courses, "--only": only, "--seeds": seeds, "--engines": engines, "--quick": quick}
    for_bags = {"--imu-topic": imu_topic, "--joint-topic": joint_topic, "--reference-topic": reference_topic}
    for_bags |= {"--imu-mounting": imu_mounting, "--imu-frame": imu_frame, "--torque-source": torque_source}
    if bags is not None and (given := [name for name, value in for_courses.items() if value]):
        raise TraceError(f"--bags compares on recorded logs: {given[0]} does not go with it")
    if bags is None and (given := [name for name, value in for_bags.items() if value]):
        raise TraceError(f"{given[0]} is for recorded logs: give --bags too")
    reading = read_settings(imu_mounting, imu_frame, torque_source)
    check_output(output, folder=True)
    check_output(cache, folder=True)
    check_output(json_file)
    earlier = None if compare is None else _rows_of(compare)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for torch and the simulators' modules.
    from trace_ros.evaluation.benchmark import (
        benchmark_runs,
        benchmark_settings,
        quick_selection,
        run_benchmark,
        runs_to_do,
    )
    from trace_ros.evaluation.benchmark_methods import choose_methods, variants_of_trace
    from trace_ros.evaluation.benchmark_walks import choose_engines, recorded_walks, simulated_walks
    from trace_ros.sim.course_set import CourseSet

    notes: list[str] = []
    if bags is not None:
        walks = recorded_walks(bags, chosen_topics(imu_topic, joint_topic, reference_topic, [bags]), reading)
    else:
        chosen = CourseSet.load(courses or "courses")
        names = None if only is None else comma_parts("--only", only)
        numbers = None if seeds is None else seed_numbers("--seeds", seeds)
        chosen = quick_selection(chosen, names, numbers) if quick else chosen.select(names, numbers)
        physics, notes = choose_engines(None if engines is None else comma_parts("--engines", engines))
        walks = simulated_walks(chosen, description, physics, cache)
    compared, left_out = choose_methods(None if methods is None else comma_parts("--methods", methods), description)
    notes += left_out
    about = _about_units(compared, description, recorded=bags is not None)
    for note in (*notes, *about):
        say(f"note: {note}")
    runs = benchmark_runs(walks, compared, description, cache)
    todo = len(runs_to_do(runs))
    say(
        f"{len(walks)} walks of {description.name}, {sum(walk.missing for walk in walks)} of them to be simulated; "
        f"methods: {', '.join(method.label for method in compared)}; "
        f"{todo} of {len(runs)} runs to do; processes: {workers}"
    )
    try:
        with progress_bar() as progress:
            task = progress.add_task("benchmark", total=todo)
            results = run_benchmark(
                runs,
                description,
                workers=workers,
                progress=lambda part: progress.update(task, completed=int(part * todo)),
            )
    except KeyboardInterrupt:
        say(f"stopped; what is complete stays in {cache}, and the same command goes on from there")
        raise typer.Exit(130) from None
    if fallen := [walk for walk in walks if walk.fall is not None]:
        names_of_them = "; ".join(walk.name for walk in fallen)
        note = f"the robot fell on {len(fallen)} of {len(walks)} walks, which are left out: {names_of_them}"
        say(f"note: {note}")
        notes.append(note)
    settings = {"command": shlex.join(["trace", *sys.argv[1:]]), **benchmark_settings(walks, compared, description)}
    settings |= {"left_out": notes, "notes": about}
    title = f"Benchmark of {description.name}: {'recorded logs' if bags else 'simulated courses'}"
    variants = variants_of_trace(compared)
    _write(output, json_file, results, settings, title, variants)
    _show(results, variants)
    if earlier is not None and compare is not None:
        lost = {(walk.engine, walk.course, walk.seed) for walk in fallen}
        _hold_against(compare, [result.row for result in results], earlier, tolerance, lost)


def _about_units(methods: Sequence[Method], robot: RobotDescription, recorded: bool) -> list[str]:
    """Notes on models that are one unit's: on walks of others, or beside methods that know nothing of the unit."""
    from trace_ros.baselines.one_unit import joint_delay_of_model, of_one_unit

    if not recorded:
        told = [of_one_unit(method.estimator, method.model, robot) for method in methods]
        return list(dict.fromkeys(note for note in told if note is not None))
    late = {method.label: joint_delay_of_model(method.estimator, method.model, robot) for method in methods}
    if len(set(late.values())) < 2:
        return []
    each = ", ".join(f"{label} by {delay * 1e3:g} ms" for label, delay in late.items())
    return [
        f"joint readings are not put back alike: {each}; trace evaluate --joint-delay does the same for any estimator"
    ]


def _write(
    output: Path,
    json_file: Path | None,
    results: Sequence[Result],
    settings: dict[str, Any],
    title: str,
    variants: tuple[list[str], list[str]],
) -> None:
    from trace_ros.evaluation.benchmark_page import benchmark_page
    from trace_ros.evaluation.benchmark_results import METRICS
    from trace_ros.evaluation.benchmark_tables import markdown, mean_rows, reductions
    from trace_ros.evaluation.report import alignment_text

    rows = [result.row for result in results]
    means = mean_rows(rows)
    reduced = reductions(means, *variants)
    data = {"rows": rows, "settings": settings, "means": means, "reductions": reduced}
    note = f"ATE: {alignment_text(METRICS)}. RE: over {METRICS.horizon_s:g} s from every pose."
    notes = [note, *(f"Note: {each}." for each in (*settings["left_out"], *settings["notes"]))]
    for target in (output / "benchmark.json", *([json_file] if json_file is not None else [])):
        write_json(target, data)
        console.print(f"wrote {target}", highlight=False, soft_wrap=True)
    texts = {
        output / "benchmark.md": markdown(rows, reduced, title, notes),
        output / "benchmark.html": benchmark_page(results, reduced, title, notes, settings, *variants[0][:1]),
    }
    for target, text in texts.items():
        try:
            with whole_file(target) as temporary:
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # paths need not be UTF-8
        except OSError as error:
            raise TraceError(f"{target}: cannot be written ({error.strerror})") from error
        console.print(f"wrote {target}", highlight=False, soft_wrap=True)


def _show(results: Sequence[Result], variants: tuple[list[str], list[str]]) -> None:
    from trace_ros.evaluation.benchmark_tables import figure_of, mean_rows, percent, reductions

    means = mean_rows([result.row for result in results])
    first = (variants[0][:1], [*variants[0][1:], *variants[1]])  # a line has room for one
    reduced = {(row["engine"], row["course"]): row for row in reductions(means, *first)}
    methods = list(dict.fromkeys(mean["method"] for mean in means))
    table = Table(title="ATE / RE over 10 s of the position, m; means over the seeds", box=None, padding=(0, 1))
    for column in ("engine", "course"):
        table.add_column(column, overflow="fold")
    for column in (*methods, *(["TRACE against the best"] if reduced else [])):
        table.add_column(column, justify="right", overflow="fold")
    for engine, course in dict.fromkeys((mean["engine"], mean["course"]) for mean in means):
        of_method = {m["method"]: m for m in means if (m["engine"], m["course"]) == (engine, course)}
        cells = []
        for method in methods:
            ate, relative = (figure_of(of_method[method], key) for key in ("ate_position_m", "re10_position_m"))
            cells.append(f"{ate:.3f} / {'-' if relative is None else f'{relative:.3f}'}")
        if reduced:
            row = reduced.get((engine, course), {})
            pair = (row.get(key) for key in ("ate_position_m", "re10_position_m"))
            cells.append(" / ".join(percent(None if each is None else each["reduction"]) for each in pair))
        table.add_row(engine, course, *cells)
    console.print(table)


def _rows_of(path: Path) -> list[Row]:
    """The rows of an earlier benchmark, before minutes of work."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except OSError as error:
        raise TraceError(f"--compare {path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"--compare {path}: not a benchmark.json (no rows)") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError(f"--compare {path}: not a benchmark.json (no rows)")
    return rows


def _hold_against(
    path: Path,
    rows: Sequence[Row],
    earlier: Sequence[Row],
    tolerance: float,
    fallen: Collection[tuple[str, str, int]],
) -> None:
    """Tell what differs; ``fallen`` are walks, by engine, course and seed, that gave no rows this time.

    Raises:
        TraceError: nothing is common.
        typer.Exit: 1, something differs.
    """
    from trace_ros.evaluation.benchmark_tables import compare_rows

    differences = compare_rows(rows, earlier)
    lost = sum((row["engine"], row["course"], row["seed"]) in fallen for row in earlier)
    if lost:
        say(f"{lost} rows of {path} have no counterpart: the robot fell")
    if not differences:
        raise TraceError(f"--compare {path}: has no row in common with this benchmark")
    outside = [difference for difference in differences if not difference.within(tolerance)]
    say(
        f"{len(differences)} figures in common with {path}: {len(outside)} differ by more than {100 * tolerance:g} %, "
        f"the largest difference is {100 * differences[0].relative:.3g} %"
    )
    for each in outside[:_SHOWN_DIFFERENCES]:
        say(f"  {each.where}: {each.figure} {each.now:.4f}, before {each.before:.4f}")
    if outside or lost:
        raise typer.Exit(1)
