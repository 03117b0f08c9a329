"""From a training checkpoint to what ships: the network that counts, and its card."""

from __future__ import annotations

import itertools
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import Card
from trace_ros.training.learner import Learner
from trace_ros.training.methods import learner_for, parse_training

_AVERAGED_PREFIX = "module."


def learner_from_state(state: dict[str, Any]) -> Learner[Any, Any]:
    """The method of a checkpoint of `load_state`.

    Raises:
        TraceError: its config is of another version.
    """
    return learner_for(parse_training(state["config"], "training checkpoint"))


def network_from_state(state: dict[str, Any]) -> nn.Module:
    """The network of a checkpoint of `load_state`: the moving average of the weights where the run keeps one.

    Raises:
        TraceError: the weights do not fit the checkpoint's own config.
    """
    learner = learner_from_state(state)
    network: nn.Module = learner.make_network()
    weights = state["network"]
    if state["averaged"] is not None:
        weights = {
            name.removeprefix(_AVERAGED_PREFIX): value
            for name, value in state["averaged"].items()
            if name.startswith(_AVERAGED_PREFIX)
        }
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"training checkpoint: its weights do not fit its config ({reason})") from error
    if state["validation"]:
        learner.finish(network, state["validation"][-1])
    return network


def card_from_state(state: dict[str, Any]) -> Card:
    """The model card of a checkpoint of `load_state`."""
    counters = ("step", "samples", "elapsed_s")
    last = state["validation"][-1] if state["validation"] else {}
    figures: dict[str, Any] = {}
    if last:
        figures["held_out_rollouts"] = state["config"]["validation"]["rollouts"]
        figures["held_out"] = {name: value for name, value in last.items() if name not in counters}
        figures["held_out_at_step"] = last["step"]
    fields = dict(
        robot=state["robot"],
        robot_fingerprint=state["robot_fingerprint"],
        rate_hz=round(state["rate_hz"], 3),
        interval_s=_rounded_interval(state),
        training=state["config"],
        simulation=state["simulation"],
        seeds={"training": state["seed"]},
        command=_command(state),
        initial=state.get("initial"),
        steps=state["step"],
        samples=state["samples"],
        training_hours=round(state["elapsed_s"] / 3600, 3),
        figures=figures,
        versions={
            "trace_ros": _own_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    )
    return learner_from_state(state).card(fields)


def _rounded_interval(state: dict[str, Any]) -> tuple[float, float] | None:
    """To a microsecond, s; None of runs from before it was measured."""
    interval = state.get("interval_s")
    return None if interval is None else (round(interval[0], 6), round(interval[1], 6))


def given_robot(command: str, name: str) -> str:
    """The robot as the command that started a run named it (a path, for a user's own file), else its name."""
    given = shlex.split(command)
    return given[given.index("--robot") + 1] if "--robot" in given[:-1] else name


def _command(state: dict[str, Any]) -> str:
    """What repeats the run anywhere: its command, without the folders of the machine that it ran on."""
    given = shlex.split(state["command"])
    command = ["trace", "train", "--robot", Path(given_robot(state["command"], state["robot"])).name]
    if "--method" in given[:-1]:
        command += ["--method", given[given.index("--method") + 1]]
    if "--config" in given[:-1]:
        command += ["--config", Path(given[given.index("--config") + 1]).name]
    for option, value in itertools.pairwise(given):
        if option == "--set":
            command += [option, value]
    for option in ("--init", "--keep-to", "--rollouts"):
        if option in given[:-1]:
            command += [option, Path(given[given.index(option) + 1]).name]
    for unit, amount in state["budget"].items():
        if amount is not None:
            command += [f"--{unit}", f"{amount:g}" if unit == "hours" else str(amount)]
    return shlex.join([*command, "--seed", str(state["seed"]), "--output", f"runs/{state['robot']}"])


def _own_version() -> str:
    try:
        return version("trace_ros")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "unknown"
