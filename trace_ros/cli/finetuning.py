"""What ``trace finetune`` does: read and split the logs, train, export the best model, and show before and after."""

from __future__ import annotations

import platform
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import TextColumn
from rich.table import Table

from trace_ros.bags import ReadSettings, Topics, read_log
from trace_ros.baselines.registry import TRACE, load_estimator
from trace_ros.cli.common import console, errors, progress_bar, say, write_json
from trace_ros.cli.levelling import fit_and_tell
from trace_ros.cli.timing import find_and_tell, tell_others
from trace_ros.cli.training import StopOnSignal
from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import Card, ModelCard, load_model
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.runner import Evaluation, evaluate_run, file_names
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.training.config import set_key
from trace_ros.training.finetuning import FineTuning, FineTuningPlan
from trace_ros.training.finetuning_config import FineTuningConfig
from trace_ros.training.finetuning_data import ReferencedLog, Track, with_reference
from trace_ros.training.finetuning_method import FineTunedMethod, fine_tuned
from trace_ros.training.finetuning_splits import NamedLog, Split, assign_splits, check_recordings, fingerprint
from trace_ros.training.finetuning_state import load_finetuning, weights_fingerprint

_DEFAULT_MODEL = "trace.pt"
REPORT_FILE = "report.json"
_LINE_INTERVAL_S = 30.0
_LATER = ("optimiser.epochs", "validation.patience", "level")
"""Keys of the config that a run may be resumed with: when it ends, and what is done then."""
_BEFORE = {"joint_delay": "false", "level": "false", "optimiser.average": "0"}
"""Keys that a run may lack which was started before there were such things, and what it did."""
_READING = {
    "imu": "--imu-topic",
    "joint_states": "--joint-topic",
    "reference": "--reference-topic",
    "imu_mounting": "--imu-mounting",
    "imu_frame": "--imu-frame",
    "effort": "--torque-source",
}
"""Options of what `Topics` and `ReadSettings` hold."""


@dataclass(frozen=True)
class Job:
    """A run that is ready to go.

    Attributes:
        run: to go on with.
        logs: of all splits, with references that fit them.
        trained_on: those of the training, with the pieces of their references.
        robot: that they are of.
        base: the model that it starts from.
    """

    run: FineTuning
    logs: list[NamedLog]
    trained_on: list[ReferencedLog]
    robot: RobotDescription
    base: FineTunedMethod[Any]

    @property
    def model_path(self) -> Path:
        """Where the new model goes."""
        return self.run.output / _model_file(self.base)


def planned(
    output: Path,
    logs: Sequence[Path],
    validation: Sequence[Path],
    test: Sequence[Path],
    robot: str,
    model: Path | None,
    config: str,
    changes: Sequence[str],
    topics: Topics,
    reading: ReadSettings | None = None,
) -> Job:
    """A new run in a folder.

    Raises:
        TraceError: whatever is wrong with config, robot, model or logs; in the order in which it is cheap to find.
    """
    settings = FineTuningConfig.load(config, changes)
    splits, note = assign_splits(logs, validation, test)
    description = RobotDescription.load(robot)
    if (output / "checkpoint.pt").exists():
        raise TraceError(f"{output}: already holds a fine-tuning run; --resume goes on, or change --output")
    base = _base(model or models_directory() / description.name / _DEFAULT_MODEL, description, output)
    if note is not None:
        say(note)
    named = _read(splits, description, topics, reading)
    chosen = _chosen(topics) | (_chosen(reading) if reading else {})
    rows = [
        {"path": str(log.path.resolve()), "split": log.split, "fingerprint": log.fingerprint, **chosen} for log in named
    ]
    given = str(Path(robot).resolve()) if Path(robot).suffix in (".yaml", ".yml") else robot
    delay, timing = base.card.joint_delay, None
    if settings.joint_delay:
        walks = [log for log in named if log.split == "training"]
        others = [log for log in named if log.split != "training"]
        delay, timing = find_and_tell([log.log for log in walks], [log.path.name for log in walks], description, delay)
        tell_others([log.log for log in others], [log.path.name for log in others], description, delay)
    command = _command(splits, robot, base, config, changes, chosen)
    plan = FineTuningPlan(given, settings, command, rows, delay, timing)
    return _job(plan, named, description, base, output)


def resumed(output: Path, model: Path | None, changes: Sequence[str] = ()) -> Job:
    """The run in a folder, with its own settings and logs.

    Args:
        output: the folder.
        model: that it started from, where that has been moved.
        changes: ``key=value`` of when it ends (`_LATER`); the rest stays as the run was started.

    Raises:
        TraceError: there is none, or a log or the base model is no longer what it was, or another key is to change.
    """
    for change in changes:
        if (key := change.partition("=")[0].strip()) not in _LATER:
            raise TraceError(
                f"trace finetune --resume keeps the run's own {key}; --set changes {', '.join(_LATER)} alone"
            )
    state = load_finetuning(output / "checkpoint.pt")
    description = RobotDescription.load(state["robot"])
    base = _base(model or Path(state["model"]), description, output)
    rows = state["logs"]
    named = []
    for row in rows:
        topics = Topics(**{name: row[name] for name in Topics.model_fields if name in row})
        how = {name: row[name] for name in ReadSettings.model_fields if name in row}
        reading = ReadSettings.model_validate(how) if how else None
        (log,) = _read([(Path(row["path"]), row["split"])], description, topics, reading)
        if log.fingerprint != row["fingerprint"]:
            raise TraceError(f"{log.path}: is no longer the log that the run in {output} was started with")
        named.append(log)
    for change in (*(f"{key}={was}" for key, was in _BEFORE.items() if not _has(state["config"], key)), *changes):
        set_key(state["config"], change)
    config = FineTuningConfig.parse(state["config"], " ".join((str(output / "checkpoint.pt"), *changes)))
    timing = state.get("joint_delay", 0.0), state.get("joint_timing")
    plan = FineTuningPlan(state["robot"], config, state["command"], rows, *timing)
    job = _job(plan, named, description, base, output)
    job.run.resume()
    return job


def _has(config: Mapping[str, Any], key: str) -> bool:
    """Whether a config has a key, whose parts a dot joins."""
    first, _, rest = key.partition(".")
    return first in config and (not rest or _has(config[first], rest))


def _chosen(given: Topics | ReadSettings) -> dict[str, str]:
    """What was said of the reading, which --resume needs again."""
    return {name: value for name in sorted(given.model_fields_set) if (value := getattr(given, name)) is not None}


def _model_file(base: FineTunedMethod[Any]) -> str:
    return f"{base.card.name}.pt"


def _base(path: Path, robot: RobotDescription, output: Path) -> FineTunedMethod[Any]:
    base = fine_tuned(path)
    base.card.check_robot(robot, path)
    target = output / _model_file(base)
    if target.exists() and target.samefile(path):
        raise TraceError(f"{target}: is the base model, which stays as it is: choose another --output")
    return base


def _read(
    splits: Sequence[tuple[Path, Split]], robot: RobotDescription, topics: Topics, reading: ReadSettings | None
) -> list[NamedLog]:
    for path, _ in splits:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
    named: list[NamedLog] = []
    for path, split in splits:
        say(f"reading {path}")
        log, report = read_log(path, robot, topics, reading)
        for note in report.notes if report else ():
            say(f"note: {path.name}: {note}")
        named.append(NamedLog(path, split, log, fingerprint(log)))
    check_recordings(named)
    return named


def _job(
    plan: FineTuningPlan, logs: list[NamedLog], robot: RobotDescription, base: FineTunedMethod[Any], output: Path
) -> Job:
    tracks: dict[Split, list[Track]] = {"training": [], "validation": [], "test": []}
    fitting, trained_on = [], []
    for log in logs:
        referenced = with_reference(str(log.path), log.log, robot, plan.config.reference)
        for note in referenced.notes:
            say(f"note: {log.path.name}: {note}")
        judged, torn = (referenced.log, ()) if log.split == "training" else referenced.in_one_world()
        if log.split == "training":
            trained_on.append(referenced)
        for note in torn:
            say(f"note: {log.path.name}: {note}")
        fitting.append(replace(log, log=judged, notes=(*referenced.notes, *torn)))
        if log.split == "test":
            continue
        in_time = referenced._replace(log=with_joints_at_their_time(referenced.log, plan.joint_delay))
        track = base.track(str(log.path), in_time, robot, plan.config)
        if track.left_out:
            say(f"note: {log.path}: {track.left_out} windows are left out, the reference covers too little of them")
        tracks[log.split].append(track)
    run = FineTuning(plan, base, tracks["training"], tracks["validation"], output)
    return Job(run, fitting, trained_on, robot, base)


def _command(
    splits: Sequence[tuple[Path, Split]],
    robot: str,
    base: FineTunedMethod[Any],
    config: str,
    changes: Sequence[str],
    chosen: Mapping[str, str],
) -> str:
    """What repeats the run anywhere: without the folders of the machine that it ran on."""
    command = ["trace", "finetune", "--robot", Path(robot).name, "--model", base.path.name]
    for option, split in (("--logs", "training"), ("--validation", "validation"), ("--test", "test")):
        names = [path.name for path, own in splits if own == split]
        command += [option, *names] if names else []
    if config != "paper":
        command += ["--config", Path(config).name]
    for change in changes:
        command += ["--set", change]
    for name, value in chosen.items():
        command += [_READING[name], value]
    return shlex.join([*command, "--output", "runs/finetuned"])


class _Progress:
    """Bar, or lines where there is no terminal; a line for each epoch in any case."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._bar = progress_bar(TextColumn("{task.fields[text]}"))
        self._task = self._bar.add_task("base model", total=1.0, text="")
        self._line_at = time.monotonic()

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def working(self, epoch: int, share: float, text: str) -> None:
        """See `FineTuningMonitor`."""
        name = f"epoch {epoch} of {self._epochs}" if epoch else "base model"
        self._bar.update(self._task, description=name, completed=share, text=text)
        now = time.monotonic()
        if not errors.is_terminal and now - self._line_at > _LINE_INTERVAL_S:
            self._line_at = now
            say(f"{time.strftime('%H:%M:%S')} {name} {share:.0%} {text}")

    def epoch(self, row: Mapping[str, float]) -> None:
        """See `FineTuningMonitor`."""
        epoch = int(row["epoch"])
        trained = f"training {row['position_m']:.4f} m over 1 s, " if "position_m" in row else ""
        say(
            f"{time.strftime('%H:%M:%S')} {f'epoch {epoch}' if epoch else 'base model'}: {trained}"
            f"validation {row['validation_position_m']:.4f} m, {row['validation_rotation_rad']:.4f} rad"
        )


def run(job: Job, settings: MetricSettings, threads: int, json_file: Path | None) -> bool:
    """Train to the end, export the best model and report; False when somebody stopped it.

    Raises:
        TraceError: training diverged, or a file cannot be written.
    """
    torch.set_num_threads(threads)
    training = job.run
    config = training.config
    say(
        f"fine-tuning {job.base.path} for {job.robot.name} in {training.output}: {training.windows} windows of "
        f"{config.window:g} s, mode {config.mode}, up to {config.optimiser.epochs} epochs, {training.epoch} done"
    )
    if training.plan.joint_delay != job.base.card.joint_delay:
        say(
            f"joints are taken to be {training.plan.joint_delay * 1e3:g} ms late from here on; the table's figures "
            f"before are of the base model, which takes them to be {job.base.card.joint_delay * 1e3:g} ms late"
        )
    with StopOnSignal() as stopped:
        with _Progress(config.optimiser.epochs) as progress:
            finished = training.run(progress, stopped)
        if not finished:
            say(
                f"stopped in epoch {training.epoch + 1}; go on with trace finetune --resume "
                f"--output {shlex.quote(str(training.output))}"
            )
            return False
    try:
        _finish(job, settings, threads, json_file)
    except KeyboardInterrupt:
        say(
            "stopped: training is done, but the new model was not levelled and compared with the base one to the end; "
            f"go on with trace finetune --resume --output {shlex.quote(str(training.output))}"
        )
        return False
    return True


def _finish(job: Job, settings: MetricSettings, threads: int, json_file: Path | None) -> None:
    """Export, level, judge, and tell."""
    training = job.run
    card = training.card(_versions())
    card, level = _level(job, card, threads)
    training.export(card, job.model_path)
    judged = _judge(job, settings)
    # Figures of logs that were not trained on belong to the model.
    finetuning = {**card.figures["finetuning"], "level": level, "judged": judged}
    card = card.model_copy(update={"figures": {"finetuning": finetuning}})
    card_path = training.export(card, job.model_path)
    result = {
        "robot": job.robot.name,
        "command": training.plan.command,
        "base": {"model": str(job.base.path), "weights": weights_fingerprint(job.base.weights)},
        "model": str(job.model_path),
        "config": training.config.model_dump(mode="json"),
        "settings": settings.model_dump(mode="json"),
        "logs": [
            {"path": str(log.path), "split": log.split, "fingerprint": log.fingerprint, "notes": list(log.notes)}
            for log in job.logs
        ],
        "windows": training.windows,
        "updates": training.updates,
        "training_hours": training.elapsed_s / 3600,
        "best_epoch": training.best_epoch,
        "joint_delay_s": training.plan.joint_delay,
        "joint_timing": training.plan.joint_timing,
        "level": level,
        "history": training.history,
        "judged": judged,
    }
    report = training.output / REPORT_FILE
    write_json(report, result)
    _show(job, judged, settings)
    for path in (job.model_path, card_path, report):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, result)
        console.print(f"wrote {json_file}", highlight=False, soft_wrap=True)


def _level(job: Job, card: Card, threads: int) -> tuple[Card, dict[str, Any] | None]:
    """The card with the level that the training logs tell of, and what was found; None where nothing is levelled."""
    if not job.run.config.level or not isinstance(card, ModelCard):
        return card, None
    # Beside the run's model, which is there whole or not at all, and may be that of a run that is gone on with.
    with tempfile.TemporaryDirectory(prefix=".levelling-", dir=job.run.output) as folder:
        unlevelled = Path(folder) / job.model_path.name
        job.run.export(card, unlevelled)
        return fit_and_tell(load_model(unlevelled), job.robot, job.trained_on, "the training logs", threads) or (
            card,
            None,
        )


def _judge(job: Job, settings: MetricSettings) -> list[dict[str, Any]]:
    """Base and new model on the logs that were not trained on, each run as on the robot."""
    logs = [log for log in job.logs if log.split != "training"]
    judged = []
    for log, name in zip(logs, file_names([log.name for log in logs]), strict=True):
        row: dict[str, Any] = {"log": name, "split": log.split, "fingerprint": log.fingerprint}
        for when, model in (("before", job.base.path), ("after", job.model_path)):
            with progress_bar() as progress:
                task = progress.add_task(f"{name} {when}", total=len(log.log))

                def advance(done: int, task: Any = task, progress: Any = progress) -> None:
                    progress.update(task, completed=done)

                estimator = load_estimator(TRACE, job.robot, model)
                evaluation = evaluate_run(name, log.log, estimator, settings, progress=advance)
            row[when] = _metrics(evaluation)
        judged.append(row)
    return judged


def _metrics(evaluation: Evaluation) -> dict[str, Any]:
    assert evaluation.metrics is not None  # every log has a reference
    return evaluation.metrics.to_dict()


def _show(job: Job, judged: Sequence[Mapping[str, Any]], settings: MetricSettings) -> None:
    training = job.run
    best = training.best_epoch
    base, chosen = training.history[0], training.history[best]
    if best == 0:
        say(
            f"no epoch was better than the base model on the validation logs: {job.model_path.name} holds its weights. "
            "More or other logs may help, or another optimiser.learning_rate"
        )
    title = (
        f"trace finetune: {job.robot.name}, best epoch {best} of {training.epoch}\n"
        f"{settings.alignment} over all poses; RE over {settings.horizon_s:g} s; m, rad; before -> after"
    )
    table = Table(title=title, box=None, padding=(0, 1))
    table.add_column("log", overflow="fold")
    table.add_column("split")
    for column in ("ATE", "ATE ori", "RE", "RE ori"):
        table.add_column(column, justify="right")
    prefix = f"re{settings.horizon_s:g}_"
    for row in judged:
        cells = [_change(row, key) for key in ("ate_position_m", "ate_orientation_rad")]
        cells += [_change(row, prefix + key, "mean") for key in ("position_m", "orientation_rad")]
        table.add_row(str(row["log"]), str(row["split"]), *cells)
    console.print(table)
    console.print(
        f"closed loop on the validation windows, {training.config.validation.horizon:g} s: "
        f"{base['validation_position_m']:.4f} m -> {chosen['validation_position_m']:.4f} m",
        highlight=False,
        soft_wrap=True,
    )
    if not any(row["split"] == "test" for row in judged):
        say("no --test log: the validation log chose the epoch, so its figures flatter the new model")


def _change(row: Mapping[str, Any], key: str, part: str | None = None) -> str:
    values = []
    for when in ("before", "after"):
        value = row[when][key]
        if value is None:
            return "-"
        values.append(value if part is None else value[part])
    return f"{values[0]:.3f}->{values[1]:.3f}"


def _versions() -> dict[str, str]:
    try:
        own = version("trace_ros")
    except PackageNotFoundError:  # run from a checkout that was not installed
        own = "unknown"
    return {
        "trace_ros": own,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
