"""A training of a policy in a folder: checkpoints, what is exported, and going on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trace_ros.errors import TraceError
from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.policy_training.learner import PolicyLearner, Progress
from trace_ros.policy_training.policy_file import describe_policy, write_policy_file
from trace_ros.robot import RobotDescription
from trace_ros.whole_files import whole_file

CHECKPOINT, STATE, WEIGHTS = "checkpoint.pt", "run.json", "policy.pt"
DEFAULT_HOURS, MAX_HOURS = 1.0, 1e5
_SAVE_INTERVAL_S = 60.0
_LATER_SETTINGS = ("robot_fingerprint", "nominal_joint_position", "control")
"""Settings that the runs of older versions did not keep."""


@dataclass(frozen=True)
class PolicyRun:
    """What a training left.

    Attributes:
        policy: the YAML file for the robot file's ``policy:``.
        update: updates done.
        hours: spent, earlier parts included.
        finished: whether the budget is used up.
    """

    policy: Path
    update: int
    hours: float
    finished: bool


def train_policy(
    folder: Path,
    robot: RobotDescription,
    config: PolicyTrainingConfig,
    seed: int,
    hours: float,
    resume: bool,
    stopped: Callable[[], bool],
    on_progress: Callable[[Progress, float], None],
    initial: Path | None = None,
) -> PolicyRun:
    """Train until the budget is used up or ``stopped`` says so; everything is kept in the folder.

    Args:
        folder: of the run.
        robot: whom to train; its own policy, if any, has no part in it.
        config: everything else.
        seed: of everything random. A resumed run draws other numbers than an unbroken one.
        hours: budget in wall-clock time, earlier parts included.
        resume: go on with what the folder holds.
        stopped: asked after each update.
        on_progress: given each update and the hours so far.
        initial: folder of another run, whose policy this one begins with: walking, it learns to climb where one that
            stands does not begin to walk. Its optimiser and the spread of its actions are taken too, and its updates
            and steps counted on. It may be of another robot. Only for a new run.

    Raises:
        TraceError: the folder holds another run or files of something else, or no run to resume; see `PolicyLearner`.
    """
    settings = {
        "robot": robot.name,
        "robot_fingerprint": robot.fingerprint,
        "nominal_joint_position": robot.nominal_joint_positions.tolist(),
        "control": robot.control.model_dump(mode="json"),
        "seed": seed,
        "config": config.model_dump(mode="json"),
    }
    policy = folder / f"{robot.name}_policy.yaml"
    before, begins = 0.0, None
    if resume:
        before = _hours_of(folder, settings)
        begins = _kept_state(folder).get("initial")
    elif (folder / STATE).exists():
        raise TraceError(f"{folder}: holds a run already: go on with --resume, or give another --output")
    elif there := [path.name for path in (folder / CHECKPOINT, folder / WEIGHTS, policy) if path.exists()]:
        raise TraceError(f"{folder}: holds {', '.join(there)}, but no {STATE} of a run: give another --output")
    if initial is not None and not resume:
        begins = _beginning(initial, config)
    learner = PolicyLearner(robot, config, seed if not before else seed + round(before * 3.6e6))
    if resume:
        learner.load(folder / CHECKPOINT)
    elif initial is not None:
        learner.load(initial / CHECKPOINT)
    begun = saved = time.monotonic()

    def spent() -> float:
        return before + (time.monotonic() - begun) / 3600

    def save() -> None:
        learner.save(folder / CHECKPOINT)
        learner.export(folder / WEIGHTS)
        comment = f"Walking policy of {robot.name}: trace policy train, {learner.steps} steps, seed {seed}."
        if begins is not None:
            comment += f" Begun with one of {begins['robot']}, seed {begins['seed']}."
        write_policy_file(policy, describe_policy(robot, config, WEIGHTS), comment)
        with whole_file(folder / STATE) as part:
            state = {**settings, "budget": hours, "hours": spent(), "update": learner.update, "initial": begins}
            part.write_text(json.dumps(state, indent=1))

    while spent() < hours and not stopped():
        progress = learner.learn()
        on_progress(progress, spent())
        if time.monotonic() - saved > _SAVE_INTERVAL_S:
            save()
            saved = time.monotonic()
    save()
    return PolicyRun(policy, learner.update, spent(), spent() >= hours)


def kept_budget(folder: Path) -> float:
    """Hours that the run in the folder was last given; the default for a run of an older version.

    Raises:
        TraceError: there is no run, or a damaged one.
    """
    return float(_kept_state(folder)["budget"])


def _beginning(initial: Path, config: PolicyTrainingConfig) -> dict[str, Any]:
    """Robot and seed of the run whose policy is to be begun with.

    Raises:
        TraceError: there is no run, or its actions mean something else.
    """
    try:
        kept = _kept_state(initial)
        there = PolicyTrainingConfig.model_validate(kept["config"])
        begins = {"robot": str(kept["robot"]), "seed": int(kept["seed"])}
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{initial / STATE}: damaged, no run to begin with") from error
    for key, theirs, ours in (
        ("learner.hidden", there.learner.hidden, config.learner.hidden),
        ("environment.rate_hz", there.environment.rate_hz, config.environment.rate_hz),
        ("environment.action_scale", there.environment.action_scale, config.environment.action_scale),
    ):
        if theirs != ours:
            raise TraceError(f"{initial}: its {key} is {theirs}, here {ours}: its policy would act otherwise here")
    return begins


def _hours_of(folder: Path, settings: dict[str, object]) -> float:
    """Hours of the run in the folder.

    Raises:
        TraceError: there is none, or one with other settings.
    """
    kept = _kept_state(folder)
    for key, value in settings.items():
        if key in _LATER_SETTINGS and key not in kept:
            continue
        there = _with_defaults(kept.get(key)) if key == "config" else kept.get(key)
        if there != json.loads(json.dumps(value)):
            raise TraceError(f"{folder}: was begun with another {key}: give the same, or another --output")
    return float(kept["hours"])


def _with_defaults(config: object) -> object:
    """What a run kept, with the keys that its version did not know; as it is where it is no config."""
    try:
        return PolicyTrainingConfig.model_validate(config).model_dump(mode="json")
    except ValidationError:
        return config


def _kept_state(folder: Path) -> dict[str, Any]:
    """What the folder's run.json holds, with sound ``hours`` and ``budget``.

    Raises:
        TraceError: there is none, or it is damaged.
    """
    path = folder / STATE
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        kept = {"budget": DEFAULT_HOURS, **kept}
        for key in ("hours", "budget"):
            kept[key] = float(kept[key])
            if not 0 <= kept[key] <= MAX_HOURS:  # neither is NaN
                raise ValueError(f"{key}: {kept[key]:g}")
    except FileNotFoundError:
        if (folder / CHECKPOINT).exists():
            raise TraceError(f"{path}: is missing beside {CHECKPOINT}: begin anew in another folder") from None
        raise TraceError(f"{folder}: holds no run (--resume goes on with one; leave it out to begin)") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: damaged ({error}): begin anew in another folder") from error
    return kept
