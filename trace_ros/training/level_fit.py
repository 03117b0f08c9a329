"""How level the feet of one robot are in its body, from logs with a reference (`HeightSettings.level`).

The height by the feet takes the slope of the ground from where the encoders say the feet are, and the tilt of the body
from the IMU. Encoders whose zeros are off otherwise in front than behind, or an IMU that is not quite straight, tilt
every ground alike in the body, and the height is off by that tilt times the way walked: at 0.01 rad by a metre in a
hundred. Two angles tell that, and over seconds of walking any reference of the position tells them, however noisy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import LoadedModel, ModelCard
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.height import LARGEST_LEVEL
from trace_ros.robot import RobotDescription
from trace_ros.training.finetuning_data import ReferencedLog

FloatArray = NDArray[np.float64]
Levels = tuple[float, float]

HORIZON_S = 30.0
"""s over which heights are compared: the way must be long enough for its tilt to stand out from a reference's noise."""

FEWEST = 6
"""Motions; fewer agree by chance. Of one log that takes 105 s of reference without a cut."""

SIGNIFICANT = 4.0
"""Standard deviations; an angle of less is left as it is: a robot that only walks ahead tells nothing of its roll."""

_SPREAD = 0.1
"""rad, standard deviation of what is expected; it matters only for what the logs tell nothing of."""

_STEP = 0.01
"""rad, of the derivatives; the climb is all but linear in the angles."""

_LEAST_SCALE_M = 0.03
"""Of what a height over the horizon is off by; few windows agree better than they know."""

_ROUNDS = 10
_HUBER = 1.5


class LevelFit(NamedTuple):
    """What the logs tell.

    Attributes:
        level: roll and pitch for `HeightSettings.level`, rad; those that are not significant are as they were.
        sigma: standard deviations of both, rad.
        windows: motions that were compared.
        error_m: mean error of the height over them with the level that the model has, m.
    """

    level: Levels
    sigma: Levels
    windows: int
    error_m: float


@dataclass(frozen=True)
class _Climbs:
    """W motions over the horizon: how much the reference climbs more (W,), and what each angle adds (W, 2); m."""

    missing: FloatArray
    by_angle: FloatArray

    def error(self) -> float:
        """Mean size of what is missing, m; NaN of none."""
        return float(np.abs(self.missing).mean()) if len(self.missing) else math.nan


def fit_level(
    model: LoadedModel,
    robot: RobotDescription,
    logs: Sequence[ReferencedLog],
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> LevelFit | None:
    """Fit the level of a robot's feet to logs with a reference.

    Args:
        model: whose height is the feet's, with the level that it has.
        robot: that walked.
        logs: with references in a level world; heights are compared within their pieces.
        threads: for the estimator's runs, of which there are three a log.
        progress: called now and then with the number of samples done, of three times those of the logs.

    Returns:
        None where the height is not the feet's, or the references cover fewer than `FEWEST` motions over the horizon.
    """
    settings = model.card.height
    if settings is None:
        return None
    roll, pitch = settings.level
    # Derivatives on that side on which the angle has room.
    steps = tuple(-_STEP if angle > 0 else _STEP for angle in (roll, pitch))
    levels = [(roll, pitch), (roll + steps[0], pitch), (roll, pitch + steps[1])]
    done = 0
    heights = []
    for level in levels:
        heights.append(_climbed(model, robot, logs, level, threads, progress and _after(progress, done)))
        done += sum(len(log.log) for log in logs)
    climbs = _compare(logs, heights, steps)
    if len(climbs.missing) < FEWEST:
        return None
    found, covariance = _solve(climbs, np.ones(2, dtype=bool))
    sigma = np.sqrt(np.diag(covariance))
    found, _ = _solve(climbs, np.abs(found) >= SIGNIFICANT * sigma)
    bounded = np.clip(found + (roll, pitch), -LARGEST_LEVEL, LARGEST_LEVEL)
    return LevelFit(
        (float(bounded[0]), float(bounded[1])), (float(sigma[0]), float(sigma[1])), len(climbs.missing), climbs.error()
    )


def climb_error(
    model: LoadedModel, robot: RobotDescription, logs: Sequence[ReferencedLog], level: Levels, threads: int = 1
) -> float:
    """Mean error of the height over the horizon with some level, m; NaN where no log covers it."""
    climbs = _compare(logs, [_climbed(model, robot, logs, level, threads)], ())
    return climbs.error()


def with_level(card: ModelCard, level: Levels) -> ModelCard:
    """The card of a model whose height is the feet's, with their level to a ten-thousandth of a radian."""
    assert card.height is not None
    rounded = {"level": (round(level[0], 4), round(level[1], 4))}
    return card.model_copy(update={"height": card.height.model_copy(update=rounded)})


def _after(progress: Callable[[int], None], done: int) -> Callable[[int], None]:
    return lambda count: progress(done + count)


def _climbed(
    model: LoadedModel,
    robot: RobotDescription,
    logs: Sequence[ReferencedLog],
    level: Levels,
    threads: int,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[FloatArray, FloatArray]]:
    """Stamps (s, from the log's first on) and heights (m) of the estimator's poses, for each log."""
    levelled = replace(model, card=with_level(model.card, level))
    sensors = [log.log for log in logs]
    runs = run_logs(TraceEstimator(levelled, robot), sensors, progress=progress, threads=threads)
    return [
        ((run.trajectory.stamp_ns - log.stamp_ns[0]) * 1e-9, run.trajectory.position[:, 2])
        for run, log in zip(runs, sensors, strict=True)
    ]


def _compare(
    logs: Sequence[ReferencedLog], heights: Sequence[Sequence[tuple[FloatArray, FloatArray]]], steps: Sequence[float]
) -> _Climbs:
    missing, by_angle = [], []
    for index, (log, piece, _, _) in enumerate(logs):
        assert log.reference is not None
        time = (log.reference.stamp_ns - log.stamp_ns[0]) * 1e-9
        first, last = heights[0][index][0][[0, -1]]
        begins = np.arange(max(first, time[0]), min(last, time[-1]) - HORIZON_S, HORIZON_S / 2)
        start, end = np.searchsorted(time, begins), np.searchsorted(time, begins + HORIZON_S)
        # Nothing is compared across a cut; and where the reference is sparse, the next pose is another time's.
        whole = (piece[start] == piece[end]) & (np.abs(time[end] - time[start] - HORIZON_S) < 0.1 * HORIZON_S)
        start, end = start[whole], end[whole]
        if not len(start):
            continue
        climbed = [np.interp(time[end], *run[index]) - np.interp(time[start], *run[index]) for run in heights]
        height = log.reference.position[:, 2]
        missing.append(height[end] - height[start] - climbed[0])
        by_angle.append([(other - climbed[0]) / step for other, step in zip(climbed[1:], steps, strict=True)])
    if not missing:
        return _Climbs(np.empty(0), np.empty((0, len(steps))))
    return _Climbs(np.concatenate(missing), np.concatenate([np.transpose(part) for part in by_angle]))


def _solve(climbs: _Climbs, free: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Angles, those that are not ``free`` zero, and their covariance: least squares with Huber's weights, since a robot
    also stumbles and sinks in."""
    covariance: FloatArray = np.zeros((2, 2))
    by_angle, count = climbs.by_angle * free, len(climbs.missing)
    # From the plain fit on: of a large tilt, all errors are large before it is known.
    angles: FloatArray = np.asarray(np.linalg.lstsq(by_angle, climbs.missing, rcond=1e-6)[0])
    spare = (count / (count - int(np.count_nonzero(free)))) ** 0.5
    for _ in range(_ROUNDS):
        error = climbs.missing - by_angle @ angles
        scale = max(1.4826 * spare * float(np.median(np.abs(error))), _LEAST_SCALE_M)
        weight = 1.0 / np.maximum(1.0, np.abs(error) / (_HUBER * scale)) / scale**2
        # Windows overlap by half: each tells as much as half a window of its own.
        weighted = 0.5 * by_angle * weight[:, None]
        covariance = np.asarray(np.linalg.inv(weighted.T @ by_angle + np.eye(2) / _SPREAD**2))
        angles = np.asarray(covariance @ (weighted.T @ climbs.missing))
    return angles, covariance
