"""``trace calibrate``: fit the covariance's error model, and show on other walks that it is true."""

from __future__ import annotations

import shlex
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_ros.cli.calibrate_logs import UnitFits, judge_on_logs
from trace_ros.cli.calibration_tables import show_courses, show_judgement
from trace_ros.cli.common import check_output, check_picture, console, progress_bar, refuse_given, say, write_json
from trace_ros.cli.options import (
    EndOption,
    FrameOption,
    ImuOption,
    JointOption,
    JsonOption,
    ModelOption,
    MountingOption,
    ReferenceOption,
    RobotOption,
    StartOption,
    TorqueOption,
    chosen_topics,
    read_settings,
    seed_numbers,
)
from trace_ros.errors import TraceError
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription

if TYPE_CHECKING:
    from trace_ros.estimator.error_model import ErrorModel
    from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walk, Walker
    from trace_ros.evaluation.courses import CourseRun


_OF_WALKS = ("courses", "seeds", "held_out", "folds", "changes", "cache", "jobs")
_OF_READING = ("imu_topic", "joint_topic", "reference_topic", "imu_mounting", "imu_frame", "torque_source")
_OF_LOGS = (*_OF_READING, "start", "end", "joint_delay", "level")
"""Parameters that mean nothing without simulated walks, or without logs."""


def calibrate(
    context: typer.Context,
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Logs to judge on instead: rosbag2 directories, .mcap, .db3, .npz or .csv with a reference."
        ),
    ] = None,
    robot: RobotOption = "go2",
    model: ModelOption = None,
    courses: Annotated[
        str, typer.Option(help="Set of simulated courses (config/benchmark), its YAML file, or a folder of such logs.")
    ] = "validation",
    seeds: Annotated[str, typer.Option(help="Of the walks that are fitted.")] = "201,202,203,204,205,206",
    held_out: Annotated[
        str | None, typer.Option(help="Of the walks that judge the fit [the set's own; of a folder, all others].")
    ] = None,
    folds: Annotated[
        int,
        typer.Option(help="Groups of fitted seeds, each also judged by a fit to the others; 0: none.", min=0),
    ] = 3,
    config: Annotated[Path | None, typer.Option(help="YAML with other settings of the fit and the judgement.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Judge the model's own error model; fit nothing.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where simulated logs are kept [out/courses].")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 2,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="What the estimator adds to the network, otherwise than the model has it: height.time=1, height=null, "
            "input_limit=5, input_limit=null; may be repeated.",
        ),
    ] = None,
    joint_delay: Annotated[
        bool,
        typer.Option(
            "--joint-delay",
            help="With logs, which need no reference for it: also find how much older the joint readings are than the "
            "IMU's.",
        ),
    ] = False,
    level: Annotated[
        bool,
        typer.Option("--level", help="With logs: also fit how level the robot's feet are in its body, for its height."),
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Put what was fitted into the model and its card.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the picture of the reliability here (PNG).")] = None,
    json_file: JsonOption = None,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    start: StartOption = 0.0,
    end: EndOption = None,
) -> None:
    """Fit the pose and twist covariance to a model's errors on simulated walks, and judge it on others.

    With logs nothing is simulated: the model's own covariance of the pose is held against their reference, and nothing
    is fitted but, with --joint-delay, how late the joint readings are, and with --level, how level the feet are.
    """
    check_picture(plot, json_file)
    check_output(json_file)
    if logs:
        refuse_given(context, "is for simulated walks, and logs are given", _OF_WALKS)
        if write and not (level or joint_delay):
            raise TraceError(
                "--write: of logs nothing is fitted that could be written without --joint-delay or --level"
            )
        if write and model is None:
            raise TraceError(
                "--write: what is one unit's does not go into the model that ships: copy it, and give --model"
            )
        topics = chosen_topics(imu_topic, joint_topic, reference_topic, logs)
        reading = read_settings(imu_mounting, imu_frame, torque_source)
        fits = UnitFits(joint_delay, level, write)
        judge_on_logs(logs, robot, model, topics, reading, (start, end), config, plot, json_file, fits)
        return
    refuse_given(context, "is for logs, and none is given", _OF_LOGS)
    if keep and changes:
        raise TraceError("--keep judges the model as it is, and --set makes it another")
    if keep and write:
        raise TraceError("--keep fits nothing, so there is nothing to --write")
    fitted = seed_numbers("--seeds", seeds)
    judged = None if held_out is None else seed_numbers("--held-out", held_out)
    description = RobotDescription.load(robot)
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    from trace_ros.estimator.additions import changed_additions
    from trace_ros.estimator.checkpoint import load_model, write_card
    from trace_ros.evaluation.calibration import judge, together
    from trace_ros.evaluation.calibration_plot import plot_calibration
    from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walker
    from trace_ros.evaluation.courses import DEFAULT_CACHE

    settings = CalibrationSettings() if config is None else CalibrationSettings.load(config)
    path = model or models_directory() / description.name / "trace.pt"
    loaded = load_model(path)
    loaded.check_robot(description)
    changed = changed_additions(loaded.card, changes or ())
    levelled = changed.get("height", loaded.card.height)
    own_level = None if loaded.card.height is None else loaded.card.height.level
    if levelled is not None and any(levelled.level) and levelled.level != own_level:
        raise TraceError(
            "--set height.level: is that of one unit, which simulated walks know nothing of: "
            "trace calibrate LOG... --level fits it to logs of it"
        )
    straight = dict(changed)
    if levelled is not None and any(levelled.level):
        say(f"the level of one unit's feet, {levelled.level} rad, is left out here: simulated ones are straight")
        straight["height"] = levelled.model_copy(update={"level": (0.0, 0.0)})
    if loaded.card.joint_delay:
        say(
            f"joint readings late by {loaded.card.joint_delay} s are one unit's: left out here, where walks "
            "are simulated"
        )
        straight["joint_delay"] = 0.0
    for_fit, for_judging = _runs(courses, description, fitted, judged, cache or DEFAULT_CACHE, keep)
    runs = [*for_fit, *for_judging]
    missing = sum(not run.walked for run in runs)
    say(f"{len(for_fit)} walks to fit, {len(for_judging)} to judge, {missing} to be simulated; processes: {jobs}")
    try:
        walked = _walk(Walker(path, description, settings, straight), runs, jobs)
        fallen = _fallen(walked, runs)
        first = len(for_fit)
        to_fit, for_fit = _without_falls(walked[:first], for_fit, "fit")
        to_judge, for_judging = _without_falls(walked[first:], for_judging, "judge")
        runs, walks = [*for_fit, *for_judging], [*to_fit, *to_judge]
        fit = loaded.card.error_model
        of_fitted: list[ErrorModel] = []
        if for_fit:
            fit, of_fitted = _fit(to_fit, [run.seed for run in for_fit], folds, settings)
        say("judging")
        judgement = judge(fit, to_judge, settings)
        quick = settings.model_copy(update={"shown_horizons_s": ()})
        models = [*of_fitted, *[fit] * len(for_judging)]
        judged_runs, judged_walks = (runs, walks) if of_fitted else (for_judging, to_judge)
        one_by_one = [judge(model, [walk], quick) for model, walk in zip(models, judged_walks, strict=True)]
    except KeyboardInterrupt:
        say("stopped before the end; the logs that are simulated stay, nothing else was written")
        raise typer.Exit(130) from None
    everything = together(one_by_one)
    by_course = {
        course: together([one for one, run in zip(one_by_one, judged_runs, strict=True) if run.course == course])
        for course in dict.fromkeys(run.course for run in judged_runs)
    }
    result: dict[str, Any] = {
        "command": shlex.join(["trace", *sys.argv[1:]]),
        "courses": courses if not Path(courses).is_dir() else Path(courses).name,
        "seeds_fitted": sorted({run.seed for run in for_fit}),
        "seeds_held_out": sorted({run.seed for run in for_judging}),
        "walks_fitted": len(for_fit),
        "walks_held_out": len(for_judging),
        "walks_left_out": fallen,
        "coverage": judgement.rows(),
        "joint_position": judgement.joint(),
        "walks_in_turn": len(of_fitted),
        "coverage_with_those_in_turn": everything.rows(),
        "joint_position_with_those_in_turn": everything.joint(),
        "by_course": {course: own.rows() for course, own in by_course.items()},
        "growth": [
            {"horizon_s": horizon, "measured": values[0].tolist(), "predicted": values[1].tolist()}
            for horizon, values in judgement.growth.items()
        ],
    }
    title = f"{path} on {description.name}, {len(for_judging)} held-out walks"
    show_judgement(judgement, title)
    if of_fitted:
        show_judgement(everything, f"{len(runs)} walks: these, and those fitted, each judged by a fit without its seed")
    if len(by_course) > 1:
        show_courses(by_course)
    if write:
        card = loaded.card
        kept = {name: value for name, value in result.items() if name not in ("command", "growth", "by_course")}
        card = card.model_copy(update={**changed, "error_model": fit, "figures": card.figures | {"calibration": kept}})
        console.print(f"wrote {path} and {write_card(path, card)}", highlight=False, soft_wrap=True)
    if plot is not None:
        plot_calibration(plot, judgement, title)
        console.print(f"wrote {plot}", highlight=False, soft_wrap=True)
    if json_file is not None:
        more = {"robot": description.name, "model": str(path), "error_model": fit.model_dump(mode="json")}
        write_json(json_file, result | more | {"settings": settings.model_dump(mode="json")})
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)


def _walk(walker: Walker, runs: list[CourseRun], jobs: int) -> list[Walk | None]:
    """The walks in the order of the runs, None where the robot fell; with progress."""
    from trace_ros.evaluation.courses import MOST_WALKS, in_parts
    from trace_ros.evaluation.processes import spread

    parts = in_parts(len(runs), jobs, MOST_WALKS)
    with progress_bar() as progress:
        task = progress.add_task("walks", total=len(parts))
        walked = spread(
            walker,
            [tuple(runs[index] for index in part) for part in parts],
            jobs,
            lambda done: progress.update(task, completed=done),
        )
    found = dict(zip(chain.from_iterable(parts), chain.from_iterable(walked), strict=True))
    return [found[index] for index in range(len(runs))]


def _fallen(walks: list[Walk | None], runs: list[CourseRun]) -> list[str]:
    """Names of the walks in which the robot fell; they are told."""
    names = [f"{run.course}_{run.seed}" for walk, run in zip(walks, runs, strict=True) if walk is None]
    if names:
        say(f"left out, for the robot fell: {', '.join(names)}")
    return names


def _without_falls(walks: list[Walk | None], runs: list[CourseRun], what: str) -> tuple[list[Walk], list[CourseRun]]:
    """Walks and their runs, but for those in which the robot fell."""
    left = [(walk, run) for walk, run in zip(walks, runs, strict=True) if walk is not None]
    if runs and not left:
        raise TraceError(f"the robot fell in every walk to {what}: give other seeds")
    return [walk for walk, _ in left], [run for _, run in left]


def _fit(
    walks: list[Walk], seeds: list[int], folds: int, settings: CalibrationSettings
) -> tuple[ErrorModel, list[ErrorModel]]:
    """The fit to all walks, and for each of them one that has not seen its seed, or none; with progress."""
    from trace_ros.evaluation.error_fit import fit_error_model, fit_in_turn

    turns = min(folds, len(set(seeds)))
    with progress_bar() as progress:
        task = progress.add_task("fits", total=1 + turns if turns > 1 else 1)
        fit = fit_error_model(walks, settings)
        progress.update(task, completed=1)
        if turns < 2:
            return fit, []
        return fit, fit_in_turn(walks, seeds, turns, settings, lambda done: progress.update(task, completed=1 + done))


def _runs(
    courses: str, robot: RobotDescription, fitted: list[int], judged: list[int] | None, cache: Path, keep: bool
) -> tuple[list[CourseRun], list[CourseRun]]:
    """Walks to fit, none with ``keep``, and to judge: of a folder all seeds but those of fits."""
    from trace_ros.evaluation.courses import course_runs

    for_fit = [] if keep else course_runs(courses, robot, None, fitted, cache)
    for_judging = course_runs(courses, robot, None, judged, cache)
    if judged is None and Path(courses).is_dir():
        for_judging = [run for run in for_judging if run.seed not in fitted]
        if not for_judging:
            raise TraceError(f"{courses}: holds no walks but those that are fitted; give other --seeds")
    if both := sorted({run.seed for run in for_judging} & set(fitted)):
        raise TraceError(f"seed {both[0]} is both fitted and judged: --seeds and --held-out must differ")
    return for_fit, for_judging
