"""``trace calibrate LOG...``: a model's own covariance held against logs with a reference."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trace_ros.bags import ReadSettings, Topics, read_log
from trace_ros.cli.calibration_tables import show_courses, show_judgement
from trace_ros.cli.common import console, progress_bar, say, write_json
from trace_ros.errors import TraceError
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription

if TYPE_CHECKING:
    from trace_ros.estimator.checkpoint import ModelCard
    from trace_ros.logs import SensorLog
    from trace_ros.training.finetuning_data import ReferencedLog

_FEW = 5.0
"""Pieces that do not overlap; fewer tell little."""


class UnitFits(NamedTuple):
    """What is to be fitted to one unit.

    Attributes:
        joint_delay: how late its joint readings are.
        level: how level its feet are in its body.
        write: whether that goes into the model.
    """

    joint_delay: bool = False
    level: bool = False
    write: bool = False


def judge_on_logs(
    paths: Sequence[Path],
    robot: str,
    model: Path | None,
    topics: Topics,
    reading: ReadSettings | None,
    span: tuple[float, float | None],
    config: Path | None,
    plot: Path | None,
    json_file: Path | None,
    fits: UnitFits,
) -> None:
    """Print how many errors of the relative pose lie within 1, 2 and 3 sigma, on all logs and on each.

    Clock, mounting, tilt, gaps and jumps of the references are seen to as for ``trace finetune``. The twist is not
    judged: references of real robots tell it poorly, if at all. What is to be fitted to the unit is fitted first; where
    that is the timing of the joints alone and no log has a reference, nothing is judged.

    Raises:
        TraceError: whatever is wrong with the model, a log or its reference; in the order in which it is cheap to find.
    """
    description = RobotDescription.load(robot)
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
    # Imported here, so that --help and the other commands need not wait for torch and the plotting libraries.
    from trace_ros.cli.evaluation import check_span, cut_recorded
    from trace_ros.cli.levelling import fit_and_tell
    from trace_ros.cli.timing import find_and_tell
    from trace_ros.estimator.checkpoint import load_model
    from trace_ros.evaluation.calibration import judge, together
    from trace_ros.evaluation.calibration_plot import plot_calibration
    from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walker
    from trace_ros.evaluation.runner import file_names
    from trace_ros.training.finetuning_config import ReferenceConfig
    from trace_ros.training.finetuning_data import with_reference
    from trace_ros.training.finetuning_splits import NamedLog, check_recordings, fingerprint

    check_span(*span)
    settings = CalibrationSettings() if config is None else CalibrationSettings.load(config)
    file = model or models_directory() / description.name / "trace.pt"
    loaded = load_model(file)
    loaded.check_robot(description)
    own_card = loaded.card
    if fits.level and loaded.card.height is None:
        raise TraceError(f"--level: {file} takes its height from its network, not from the feet (docs/training.md)")
    parts: list[SensorLog] = []
    logs: list[SensorLog] = []
    referenced_logs: list[ReferencedLog] = []
    named: list[NamedLog] = []
    for path in paths:
        say(f"reading {path}")
        log, report = read_log(path, description, topics, reading)
        for note in report.notes if report else ():
            say(f"note: {path}: {note}")
        parts.append(cut_recorded(log, path, *span))
        named.append(NamedLog(path, "test", log, fingerprint(log)))
    check_recordings(named)
    changed: dict[str, Any] = {}
    timing: dict[str, Any] | None = None
    level: dict[str, Any] | None = None
    if fits.joint_delay:
        named_so = [path.name for path in paths]
        changed["joint_delay"], timing = find_and_tell(parts, named_so, description, loaded.card.joint_delay)
        loaded = replace(loaded, card=loaded.card.model_copy(update=changed))
    # What needs no reference is not lost for want of one.
    optional = fits.joint_delay and not fits.level
    if optional:
        _keep(file, own_card, loaded.card, fits.write)
    judged: list[Path] = []
    for path, part in zip(paths, parts, strict=True):
        try:
            referenced = with_reference(str(path), part, description, ReferenceConfig())
            longest = _longest_part(path, referenced, settings.horizon_s + settings.warm_up_s)
        except TraceError as error:
            if not optional:
                raise
            say(f"note: its covariance is not judged: {error}")
            continue
        for note in referenced.notes:
            say(f"note: {path}: {note}")
        referenced_logs.append(referenced)
        logs.append(longest)
        judged.append(path)
    if fits.level and (told := fit_and_tell(loaded, description, referenced_logs, "these logs")) is not None:
        card, level = told
        changed["height"] = card.height
        loaded = replace(loaded, card=card)
    if fits.level:
        _keep(file, own_card, loaded.card, fits.write)
    found = {"joint_timing": timing, "level": level}
    about: dict[str, Any] = {
        "command": shlex.join(["trace", *sys.argv[1:]]),
        "robot": description.name,
        "model": str(file),
        "logs": dict(zip(file_names([path.resolve().stem for path in paths]), map(str, paths), strict=True)),
        **found,
    }
    if not judged:
        if json_file is not None:
            write_json(json_file, about)
            console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)
        return
    names = file_names([path.resolve().stem for path in judged])
    with progress_bar() as progress:
        task = progress.add_task("estimating", total=1.0)
        walks = Walker(file, description, settings, changed).over(
            logs, names, lambda done: progress.update(task, completed=done), poses_alone=True
        )
    # One by one: logs of different rates cannot be cut to pieces together.
    own = {name: judge(loaded.card.error_model, [walk], settings) for name, walk in zip(names, walks, strict=True)}
    judgement = together(list(own.values())) if len(own) > 1 else own[names[0]]
    lasting = {name: float(walk.time[-1] - walk.time[0]) for name, walk in zip(names, walks, strict=True)}
    whole = sum(lasting.values())
    if whole < _FEW * settings.horizon_s:
        say(f"note: {whole:.0f} s are few pieces of {settings.horizon_s:g} s: the shares are uncertain")
    title = f"{file} on {len(own)} log{'s' if len(own) > 1 else ''} of {description.name}, {whole:.0f} s"
    show_judgement(judgement, title)
    if len(own) > 1:
        show_courses(own, "log")
    scales = ", ".join(f"{axis} {scale:.2g}" for axis, scale in judgement.scales().items())
    console.print(f"1 sigma would hold its nominal share if it were larger by the factors: {scales}", highlight=False)
    if plot is not None:
        plot_calibration(plot, judgement, title)
        console.print(f"wrote {plot}", highlight=False, soft_wrap=True)
    if json_file is not None:
        result: dict[str, Any] = {
            **about,
            "seconds_judged": lasting,
            "horizon_s": settings.horizon_s,
            "coverage": judgement.rows(),
            "joint_position": judgement.joint(),
            "scales": judgement.scales(),
            "by_log": {name: each.rows() for name, each in own.items()},
            "error_model": loaded.card.error_model.model_dump(mode="json"),
            "settings": settings.model_dump(mode="json"),
        }
        write_json(json_file, result)
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)


def _keep(file: Path, before: ModelCard, card: ModelCard, write: bool) -> None:
    """Write a card that is another one, or say that it was not."""
    from trace_ros.estimator.checkpoint import write_card

    if card == before:
        say(f"nothing to write: {file} says the same")
    elif write:
        console.print(f"wrote {file} and {write_card(file, card)}", highlight=False, soft_wrap=True)
    else:
        say(f"{file} is as it was: --write puts this into it")


def _longest_part(path: Path, referenced: ReferencedLog, needed_s: float) -> SensorLog:
    """The log with that of its reference which is longest without a gap or a jump; a note where it is not all.

    Raises:
        TraceError: it is shorter than what is needed.
    """
    from trace_ros.evaluation.calibration_walks import longest_run

    log, world = referenced.log, referenced.world
    assert log.reference is not None
    stamps = log.stamp_ns
    parts = []
    for number in np.unique(world) if world is not None else (None,):
        reference = log.reference if number is None else log.reference.select(world == number)
        _, known = reference.resample(stamps)
        begin, end = longest_run(known)
        parts.append((float(stamps[end - 1] - stamps[begin]) * 1e-9 if end > begin else 0.0, reference))
    lasting, reference = max(parts, key=lambda part: part[0])
    if lasting < needed_s:
        raise TraceError(
            f"{path}: its reference covers {lasting:.1f} s without a gap or a jump: {needed_s:g} s are needed"
        )
    if lasting < 0.98 * log.duration_s:
        say(f"note: {path}: judged on the longest part with a reference alone, {lasting:.1f} of {log.duration_s:.1f} s")
    return replace(log, reference=reference)
