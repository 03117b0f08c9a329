"""``trace evaluate``: an estimator, or a recorded odometry, against the reference of logs or simulated courses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_output, console, write_json
from trace_ros.cli.options import (
    AlignmentOption,
    BackendOption,
    EndOption,
    EngineOption,
    EstimatorOption,
    FrameOption,
    HorizonOption,
    ImuOption,
    InitialOption,
    JointDelayOption,
    JointOption,
    JsonOption,
    MountingOption,
    OdometryOption,
    ReferenceOption,
    RobotOption,
    StartOption,
    TorqueOption,
    chosen_topics,
    joint_delay_seconds,
    metric_settings,
    read_settings,
)
from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription


def evaluate(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="Logs: rosbag2 directories, .mcap, .db3, .npz or .csv files.")
    ] = None,
    robot: RobotOption = "go2",
    model: Annotated[
        list[Path] | None,
        typer.Option(
            help="Model [models/<robot>/trace.pt]; of a filter, a YAML file with its numbers. With --courses possibly "
            "several, each after its --model."
        ),
    ] = None,
    estimator: EstimatorOption = "trace",
    engine: EngineOption = "torchscript",
    courses: Annotated[
        str | None,
        typer.Option(
            help="Instead of logs: a set of simulated courses (config/benchmark), its YAML file, or a folder "
            "of such logs."
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Of the courses, these: flat,stairs.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Of the walks, instead of the set's: 101,102.")] = None,
    backend: BackendOption = None,
    cache: Annotated[Path | None, typer.Option(help="Where simulated logs are kept [out/courses].")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes for courses, threads for several logs [2].", min=1, max=256)
    ] = None,
    alignment: AlignmentOption = "posyaw",
    horizon: HorizonOption = 10.0,
    initial: InitialOption = "gravity",
    start: StartOption = 0.0,
    end: EndOption = None,
    odometry_topic: OdometryOption = None,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    joint_delay: JointDelayOption = None,
    stepwise: Annotated[
        bool, typer.Option("--stepwise", help="Step sample by sample, as the node does, and take the time of a step.")
    ] = False,
    estimate: Annotated[
        Path | None, typer.Option(help="Write the trajectory: .npz or .tum; a folder when there are several logs.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write report.html and pictures into this folder.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Run the estimator over logs, with the poses it has on the robot, and print the errors against their reference.

    Several logs go through the network side by side, which is quicker than one after another.

    With --courses a simulated robot walks each course with each seed; its logs are kept, so that another model is
    judged on the same.
    """
    if courses is not None:
        others = {
            "LOG": logs,
            "--odometry-topic": odometry_topic,
            "--imu-topic": imu_topic,
            "--joint-topic": joint_topic,
            "--reference-topic": reference_topic,
            "--imu-mounting": imu_mounting,
            "--imu-frame": imu_frame,
            "--torque-source": torque_source,
            "--joint-delay": joint_delay,
            "--start": start,
            "--end": end is not None,
            "--stepwise": stepwise,
            "--estimate": estimate,
            "--report": report,
        }
        if given := [name for name, value in others.items() if value]:
            raise TraceError(f"--courses judges simulated walks: {given[0]} does not go with it")
        check_output(json_file)
        settings = metric_settings(alignment, horizon)
        from trace_ros.cli.courses import evaluate_on_courses
        from trace_ros.evaluation.courses import DEFAULT_CACHE

        judged = evaluate_on_courses(
            courses,
            robot,
            model or [],
            settings,
            initial,
            only,
            seeds,
            cache or DEFAULT_CACHE,
            jobs or 2,
            estimator,
            backend,
            engine,
        )
        if json_file is not None:
            write_json(json_file, judged)
            console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
        return
    for_courses = {"--only": only, "--seeds": seeds, "--backend": backend, "--cache": cache}
    if given := [name for name, value in for_courses.items() if value is not None]:
        raise TraceError(f"{given[0]} is for simulated courses: give --courses too")
    if not logs:
        raise TraceError("nothing to evaluate: give one or more logs, or --courses SET")
    if model is not None and len(model) > 1:
        raise TraceError("several models are for --courses; logs are judged with one at a time")
    if estimate is not None and len(logs) == 1 and estimate.suffix not in (".npz", ".tum", ".txt"):
        raise TraceError(f"--estimate {estimate}: for a single log give a file that ends in .npz or .tum")
    if estimate is not None and len(logs) > 1 and estimate.suffix:
        raise TraceError(f"--estimate {estimate}: for several logs give a folder")
    check_output(estimate, folder=len(logs) > 1)
    check_output(report, folder=True)
    check_output(json_file)
    settings = metric_settings(alignment, horizon)
    topics = chosen_topics(imu_topic, joint_topic, reference_topic, logs or [])
    reading = read_settings(imu_mounting, imu_frame, torque_source)
    delay = joint_delay_seconds(joint_delay)
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    from trace_ros.cli.evaluation import announce_report, evaluate_logs, result, show, subject
    from trace_ros.evaluation.runner import write_estimate

    loaded, evaluations = evaluate_logs(
        logs,
        robot,
        model[0] if model else None,
        settings,
        topics,
        initial,
        odometry_topic,
        estimator,
        engine,
        stepwise,
        jobs or 2,
        reading,
        start,
        end,
        delay,
    )
    show(evaluations, settings, subject(robot, loaded, odometry_topic))
    if estimate is not None:
        for evaluation in evaluations:
            target = estimate if len(logs) == 1 else estimate / f"{evaluation.name}.npz"
            write_estimate(target, evaluation)
            console.print(f"wrote {target}", highlight=False, soft_wrap=True)
    if report is not None:
        announce_report(report, evaluations, settings, loaded, RobotDescription.load(robot).name)
    if json_file is not None:
        write_json(json_file, result(evaluations, settings, robot, loaded))
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
