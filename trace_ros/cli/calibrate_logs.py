"""``trace calibrate LOG...``: a model's own covariance held against logs with a reference."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_ros.bags import ReadSettings, Topics, read_log
from trace_ros.cli.calibration_tables import show_courses, show_judgement
from trace_ros.cli.common import check_output, console, progress_bar, say, write_json
from trace_ros.errors import TraceError
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription


def judge_on_logs(
    paths: Sequence[Path],
    robot: str,
    model: Path | None,
    topics: Topics,
    reading: ReadSettings | None,
    config: Path | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Print how many errors of the relative pose lie within 1, 2 and 3 sigma, on all logs and on each.

    Clock, mounting, tilt, gaps and jumps of the references are seen to as for ``trace finetune``. The twist is not
    judged: references of real robots tell it poorly, if at all.

    Raises:
        TraceError: whatever is wrong with the model, a log or its reference; in the order in which it is cheap to find.
    """
    check_output(plot)
    check_output(json_file)
    description = RobotDescription.load(robot)
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    from trace_ros.estimator.checkpoint import load_model
    from trace_ros.evaluation.calibration import judge, together
    from trace_ros.evaluation.calibration_plot import plot_calibration
    from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walker
    from trace_ros.evaluation.runner import file_names
    from trace_ros.training.finetuning_config import ReferenceConfig
    from trace_ros.training.finetuning_data import with_reference

    settings = CalibrationSettings() if config is None else CalibrationSettings.load(config)
    file = model or models_directory() / description.name / "trace.pt"
    loaded = load_model(file)
    loaded.check_robot(description)
    logs = []
    for path in paths:
        say(f"reading {path}")
        log, report = read_log(path, description, topics, reading)
        for note in report.notes if report else ():
            say(f"note: {path.name}: {note}")
        referenced = with_reference(str(path), log, description, ReferenceConfig())
        judged, torn = referenced.in_one_world()
        for note in (*referenced.notes, *torn):
            say(f"note: {path.name}: {note}")
        logs.append(judged)
    names = file_names([path.resolve().stem for path in paths])
    with progress_bar() as progress:
        task = progress.add_task("estimating", total=1.0)
        walks = Walker(file, description, settings).over(
            logs, names, lambda done: progress.update(task, completed=done), poses_alone=True
        )
    # One by one: logs of different rates cannot be cut to pieces together.
    own = {name: judge(loaded.card.error_model, [walk], settings) for name, walk in zip(names, walks, strict=True)}
    judgement = together(list(own.values())) if len(own) > 1 else own[names[0]]
    title = f"{file} on {len(own)} log{'s' if len(own) > 1 else ''} of {description.name}"
    show_judgement(judgement, title)
    if len(own) > 1:
        show_courses(own)
    scales = ", ".join(f"{axis} {scale:.2g}" for axis, scale in judgement.scales().items())
    console.print(f"1 sigma would hold its nominal share if it were larger by the factors: {scales}", highlight=False)
    if plot is not None:
        plot_calibration(plot, judgement, title)
        console.print(f"wrote {plot}", highlight=False, soft_wrap=True)
    if json_file is not None:
        result: dict[str, Any] = {
            "command": shlex.join(["trace", *sys.argv[1:]]),
            "robot": description.name,
            "model": str(file),
            "logs": [str(path) for path in paths],
            "coverage": judgement.rows(),
            "joint_position": judgement.joint(),
            "scales": judgement.scales(),
            "by_log": {name: each.rows() for name, each in own.items()},
            "error_model": loaded.card.error_model.model_dump(mode="json"),
            "settings": settings.model_dump(mode="json"),
        }
        write_json(json_file, result)
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
