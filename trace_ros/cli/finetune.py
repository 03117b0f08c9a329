"""``trace finetune``: a model made better on a robot's own logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trace_ros.cli.common import check_output
from trace_ros.cli.options import (
    MAX_PROCESSES,
    AlignmentOption,
    FrameOption,
    HorizonOption,
    ImuOption,
    JointOption,
    JsonOption,
    MountingOption,
    ReferenceOption,
    TorqueOption,
    chosen_topics,
    metric_settings,
    read_settings,
)
from trace_ros.errors import TraceError
from trace_ros.run_folder import sole_writer

_DEFAULT_CONFIG = "paper"
_MODES = ("partial", "full")
_SEVERAL = ("--logs", "--validation", "--test")


class SeveralValues(TyperCommand):
    """Lets ``--logs A B C`` stand for ``--logs A --logs B --logs C``, so that shells can fill in ``--logs bags/*``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Arguments as typer wants them."""
        spread: list[str] = []
        option: str | None = None
        for word in args:
            if word.startswith("-"):
                option = word if word in _SEVERAL else None
                if option is None:
                    spread.append(word)
            elif option is not None:
                spread += [option, word]
            else:
                spread.append(word)
        parsed: list[str] = super().parse_args(ctx, spread)
        return parsed


def finetune(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; its trace.pt is the new model.")],
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--logs", metavar="LOG...", help="To train on: bags, .mcap, .db3, .npz or .csv, with a reference."
        ),
    ] = None,
    validation: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LOG...", help="To choose the best epoch by [the last of --logs, which is then held back]."
        ),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(metavar="LOG...", help="To judge the model before and after; never seen by the training."),
    ] = None,
    robot: Annotated[str | None, typer.Option(help="Name of a robot, or the path of its YAML file [go2].")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Model to start from [models/<robot>/trace.pt]; it stays as it is.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="partial: GRU and head alone, as the paper does; full: every weight [partial].")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help=f"A name in config/finetuning, or a path [{_DEFAULT_CONFIG}].")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a value of the config: --set optimiser.epochs=5 (that, with --resume too).",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --output.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=MAX_PROCESSES, help="Threads for gradients.")] = 1,
    imu_topic: ImuOption = None,
    joint_topic: JointOption = None,
    reference_topic: ReferenceOption = None,
    imu_mounting: MountingOption = None,
    imu_frame: FrameOption = None,
    torque_source: TorqueOption = None,
    alignment: AlignmentOption = "posyaw",
    horizon: HorizonOption = 10.0,
    json_file: JsonOption = None,
) -> None:
    """Fine-tune a model on logs of the robot that have a reference. Ctrl-C saves; --resume goes on."""
    check_output(output, folder=True)
    check_output(json_file)
    settings = metric_settings(alignment, horizon)
    if mode is not None and mode not in _MODES:
        raise TraceError(f"--mode {mode!r} is none of {', '.join(_MODES)}")
    topics = chosen_topics(imu_topic, joint_topic, reference_topic, [*(logs or []), *(validation or []), *(test or [])])
    reading = read_settings(imu_mounting, imu_frame, torque_source)
    # Imported here, so that --help and the other commands need not wait for torch.
    from trace_ros.cli import finetuning

    if resume:
        kept = {
            "--logs": logs, "--validation": validation, "--test": test, "--robot": robot, "--mode": mode,
            "--config": config, "--imu-topic": imu_topic, "--joint-topic": joint_topic,
            "--reference-topic": reference_topic, "--imu-mounting": imu_mounting, "--imu-frame": imu_frame,
            "--torque-source": torque_source,
        }  # fmt: skip
        if given := [option for option, value in kept.items() if value]:
            raise TraceError(f"trace finetune --resume keeps the run's own: leave {', '.join(given)} out")
    with sole_writer(output):
        if resume:
            job = finetuning.resumed(output, model, changes or [])
        else:
            overrides = [*(changes or []), *([] if mode is None else [f"mode={mode}"])]
            job = finetuning.planned(
                output, logs or [], validation or [], test or [], robot or "go2", model, config or _DEFAULT_CONFIG,
                overrides, topics, reading,
            )  # fmt: skip
        finished = finetuning.run(job, settings, threads, json_file)
    if not finished:
        raise typer.Exit(130)
