"""How level a robot's feet are in its body, fitted to logs and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_ros.cli.common import progress_bar, say
from trace_ros.estimator.checkpoint import LoadedModel, ModelCard
from trace_ros.estimator.height import LARGEST_LEVEL
from trace_ros.robot import RobotDescription
from trace_ros.training.finetuning_data import ReferencedLog
from trace_ros.training.level_fit import FEWEST, HORIZON_S, climb_error, fit_level, with_level


def fit_and_tell(
    model: LoadedModel, robot: RobotDescription, logs: Sequence[ReferencedLog], what: str, threads: int = 1
) -> tuple[ModelCard, dict[str, Any]] | None:
    """The model's card with the level that logs tell of, and what was found, for a report.

    Args:
        model: that runs over the logs.
        robot: that walked.
        logs: with references in a level world.
        what: they are, for the line that is printed.
        threads: for the estimator's runs.

    Returns:
        None, with a line that says why, where nothing can be told; None without one where the height is not the feet's.
    """
    card = model.card
    if card.height is None:
        return None
    with progress_bar() as progress:
        task = progress.add_task("level of the feet", total=3 * sum(len(log.log) for log in logs))
        fit = fit_level(model, robot, logs, threads, lambda done: progress.update(task, completed=done))
    if fit is None:
        say(
            f"the level of the feet is not fitted: the references of {what} cover fewer than {FEWEST} motions over "
            f"{HORIZON_S:g} s without a cut (two minutes of one log are enough)"
        )
        return None
    before = card.height.level
    errors_m = [fit.error_m, fit.error_m]
    if fit.level != before:
        errors_m[1] = climb_error(model, robot, logs, fit.level, threads)
    if fit.level == before:
        verdict = "nothing significant, left as it is"
    elif errors_m[1] >= errors_m[0]:
        verdict = f"left as it was, for {fit.level} rad makes no height of {what} better"
    else:
        card = with_level(card, fit.level)
        verdict = f"height over {HORIZON_S:g} s of {what} {errors_m[0]:.3f} m -> {errors_m[1]:.3f} m"
    assert card.height is not None
    roll, pitch = card.height.level
    if max(abs(roll), abs(pitch)) >= LARGEST_LEVEL:
        verdict += f"; {LARGEST_LEVEL:g} rad is the most: are the URDF and the IMU's mounting right?"
    say(
        f"level of the feet in the body: roll {roll:+.4f}, pitch {pitch:+.4f} rad "
        f"(sigma {fit.sigma[0]:.4f}, {fit.sigma[1]:.4f}, {fit.windows} windows): {verdict}"
    )
    return card, {
        "before": list(before),
        "level": [roll, pitch],
        "sigma": list(fit.sigma),
        "windows": fit.windows,
        "horizon_s": HORIZON_S,
        "height_error_m": errors_m,
    }
