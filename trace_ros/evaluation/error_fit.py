"""Fit the error model to walks: variances by the likelihood of a Student distribution, then scaled to the coverage.

The likelihood finds what the variance depends on, undisturbed by rare slips and pushes; the scale then makes the share
of errors within 1, 2 and 3 sigma as near to nominal as one number can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize

from trace_ros.errors import TraceError
from trace_ros.estimator.error_model import AngularVelocityError, ErrorModel, LinearVelocityError
from trace_ros.evaluation.calibration import SIGMAS, nominal
from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walk
from trace_ros.evaluation.predicted_errors import RelativePoses, linear_terms, predicted, relative_poses
from trace_ros.geometry import FloatArray

_SILENT = 1e-9
"""Instead of zero where a model wants a positive number."""
_SMALLEST, _GREATEST = -40.0, 10.0
"""Bounds of the logarithms of variances in the fit."""
_SCALES = np.geomspace(0.05, 20.0, 1200)
_ROUNDS = 4
"""The published variance is not quite proportional to that of the sources, so the scale is found in rounds."""
_DIGITS = 4


def fit_error_model(walks: Sequence[Walk], settings: CalibrationSettings | None = None) -> ErrorModel:
    """Fit all of the error model.

    Raises:
        TraceError: walks too short, or without motion.
    """
    settings = settings or CalibrationSettings()
    model = _fit_twist(ErrorModel(), walks, settings)
    model = model.model_copy(update={"yaw_rate_time": settings.yaw_rate_time_s, "tilt_time": settings.tilt_time_s})
    pieces = [relative_poses(walks, horizon, settings.fit_stride_s) for horizon in settings.fit_horizons_s]
    judged = relative_poses(walks, settings.horizon_s, settings.fit_stride_s)
    model = model.model_copy(update={"tilt": balanced(judged.error[:, 3:5])})
    model = _fit_yaw(model, pieces, judged, settings)
    position = _PositionSources(model, pieces, settings)
    fits = [position.fit(time) for time in settings.slow_times_s]
    model = min(fits, key=lambda fit: fit[1])[0]
    model = _scaled_position(model, judged)
    # Four digits say all there is; the card stays readable.
    rounded = _rounded(model.model_dump(mode="python"))
    return ErrorModel.model_validate(rounded)


def fit_in_turn(
    walks: Sequence[Walk],
    seeds: Sequence[int],
    folds: int,
    settings: CalibrationSettings | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[ErrorModel]:
    """For each walk a model that was fitted without any walk of its seed: cross-validation, by groups of seeds.

    Args:
        walks: of which each is judged.
        seeds: of the walks; at least two.
        folds: groups that the seeds are dealt into; no more than there are seeds.
        settings: of the fit.
        progress: hears how many fits are done.

    Raises:
        TraceError: as of `fit_error_model`.
    """
    distinct = sorted(set(seeds))
    folds = min(folds, len(distinct))
    group = {seed: index % folds for index, seed in enumerate(distinct)}
    models = []
    for fold in range(folds):
        kept = [walk for walk, seed in zip(walks, seeds, strict=True) if group[seed] != fold]
        models.append(fit_error_model(kept, settings))
        if progress is not None:
            progress(fold + 1)
    return [models[group[seed]] for seed in seeds]


def fit_variances(
    error: FloatArray, basis: FloatArray, freedom: float, known: FloatArray | float = 0.0
) -> tuple[FloatArray, float]:
    """Non-negative weights (K,) with which ``known + basis @ weights`` is the errors' variance, most probably.

    Args:
        error: (N,).
        basis: (N, K), not negative.
        freedom: degrees of freedom of the Student distribution.
        known: (N,) variance from elsewhere.

    Returns:
        The weights, and the mean of the negative logarithm of the likelihood.
    """
    squares = error**2
    mean = basis.mean(axis=0)
    used = mean > 0
    columns = basis[:, used]
    half = (freedom + 1) / 2

    def cost(logarithms: FloatArray) -> tuple[float, FloatArray]:
        weights = np.exp(logarithms)
        variance = known + columns @ weights
        ratio = squares / (freedom * variance)
        value = np.mean(0.5 * np.log(variance) + half * np.log1p(ratio))
        slope = (0.5 - half * ratio / (1 + ratio)) / variance
        return float(value), weights * (columns.T @ slope) / len(squares)

    first = np.log(np.maximum(squares.mean(), 1e-12) / used.sum() / mean[used])
    found = minimize(cost, first, jac=True, method="L-BFGS-B", bounds=[(_SMALLEST, _GREATEST)] * int(used.sum()))
    weights = np.zeros(len(mean))
    weights[used] = np.exp(found.x)
    return weights, float(found.fun)


def balanced(ratio: FloatArray) -> float:
    """Factor on the standard deviation that brings the coverage of 1, 2 and 3 sigma nearest to nominal.

    Args:
        ratio: errors over their standard deviations, any shape.
    """
    size = np.sort(np.abs(ratio), axis=None)
    if not size.size or size[-1] == 0:
        return 1.0
    # Relative to the middle, so that any unit will do.
    middle = float(np.quantile(size, nominal(1))) or float(size[-1])
    cost = np.zeros(len(_SCALES))
    for sigma in SIGMAS:
        cost += (np.searchsorted(size, sigma * middle * _SCALES, side="right") / size.size - nominal(sigma)) ** 2
    best = _SCALES[cost <= cost.min() + 1e-12]
    return middle * float(np.exp(np.log(best).mean()))


def _fit_twist(model: ErrorModel, walks: Sequence[Walk], settings: CalibrationSettings) -> ErrorModel:
    error = np.concatenate([walk.twist_error for walk in walks])
    conditions = np.concatenate([walk.twist_conditions for walk in walks])
    still = np.concatenate([walk.twist_still for walk in walks])
    if still.all():
        raise TraceError("the robot does not move in any walk: nothing to calibrate on")
    moving = conditions[~still]
    usual = {
        "usual_doubt": float(np.median(moving[:, 3])),
        "doubt_time": settings.doubt_time_s,
        "heave_per_shock": float(np.sqrt(np.quantile(moving[:, 4], settings.usual_heave))),
        "yield_time": settings.yield_time_s,
    }
    terms = linear_terms(LinearVelocityError.model_validate(usual), moving)
    acceleration = np.concatenate([walk.twist_acceleration for walk in walks])[~still]
    linear, angular = [], []
    for axis in range(3):
        linear.append(_scaled_weights(error[~still, axis], terms, settings.freedom))
        own = np.column_stack((terms[:, 0], acceleration[:, axis]))
        angular.append(_scaled_weights(error[~still, 3 + axis], own, settings.freedom))
    base, speed, rate, doubt, soft = np.sqrt(linear).T.tolist()
    angular_base, per_acceleration = np.sqrt(angular).T.tolist()
    depends = {"per_speed": speed, "per_rate": rate, "per_doubt": doubt, "per_yield": soft}
    update: dict[str, Any] = {
        "linear_velocity": LinearVelocityError.model_validate(usual | {"base": [max(v, 1e-4) for v in base]} | depends),
        "angular_velocity": AngularVelocityError.model_validate(
            {"base": [max(v, 1e-4) for v in angular_base], "per_acceleration": per_acceleration}
        ),
    }
    if still.any():
        standing = [max(balanced(error[still, axis]), 1e-4) for axis in range(6)]
        update |= {"standing_linear_velocity": tuple(standing[:3]), "standing_angular_velocity": tuple(standing[3:])}
    return model.model_copy(update=update)


def _scaled_weights(error: FloatArray, basis: FloatArray, freedom: float) -> FloatArray:
    weights, _ = fit_variances(error, basis, freedom)
    scale = balanced(error / np.sqrt(basis @ weights))
    return weights * scale**2


def _silent(model: ErrorModel, **loud: object) -> ErrorModel:
    """The model with all sources of the pose's error off but those given."""
    off = {
        "slow_share": (0.0, 0.0, 0.0),
        "fast_time": (_SILENT,) * 3,
        "yaw_per_sqrt_second": _SILENT,
        "yaw_rate": 0.0,
        "tilt": _SILENT,
    }
    return model.model_copy(update=off | loud)


def _fit_yaw(
    model: ErrorModel, pieces: Sequence[RelativePoses], judged: RelativePoses, settings: CalibrationSettings
) -> ErrorModel:
    known = _silent(model)
    sources = (_silent(model, yaw_per_sqrt_second=1.0), _silent(model, yaw_rate=1.0))
    rest = np.concatenate([predicted(known, part)[:, 5] for part in pieces])
    basis = [np.concatenate([predicted(source, part)[:, 5] for part in pieces]) - rest for source in sources]
    error = np.concatenate([part.error[:, 5] for part in pieces])
    walk, rate = np.sqrt(fit_variances(error, np.column_stack(basis), settings.freedom, rest)[0]).tolist()
    for _ in range(_ROUNDS):
        model = model.model_copy(update={"yaw_per_sqrt_second": max(walk, 1e-5), "yaw_rate": rate})
        scale = balanced(judged.error[:, 5] / np.sqrt(predicted(model, judged)[:, 5]))
        walk, rate = walk * scale, rate * scale
    return model


class _PositionSources:
    """What each part of the velocity's error adds to the variances of the position.

    The level axes do not see what goes up, nor the other way round, so that one pass over the poses tells of both.
    """

    def __init__(self, model: ErrorModel, pieces: Sequence[RelativePoses], settings: CalibrationSettings) -> None:
        self._model, self._pieces, self._settings = model, pieces, settings
        heading_and_tilt = {name: getattr(model, name) for name in ("yaw_per_sqrt_second", "yaw_rate", "tilt")}
        self._known = self._positions(_silent(model, **heading_and_tilt))
        self._rest = self._positions(_silent(model))
        self._error = np.concatenate([part.error[:, :3] for part in pieces])
        self._fast = [
            self._positions(_silent(model, fast_time=time)) - self._rest
            for time in ((1 + _SILENT, _SILENT, 1 + _SILENT), (_SILENT, 1 + _SILENT, _SILENT))
        ]

    def fit(self, slow_time: float) -> tuple[ErrorModel, float]:
        """Shares and times for one slow time; and how improbable the errors are with them."""
        model = self._model.model_copy(update={"slow_time": slow_time})
        slow = [
            self._positions(_silent(model, slow_share=share)) - self._rest
            for share in ((1.0, 0.0, 1.0), (0.0, 1.0, 0.0))
        ]
        level, level_cost = self._fit_axes(slice(0, 2), (*slow, *self._fast))
        upright, upright_cost = self._fit_axes(slice(2, 3), (slow[0], self._fast[0]))
        update = {
            "slow_share": (float(np.sqrt(level[0])), float(np.sqrt(level[1])), float(np.sqrt(upright[0]))),
            "fast_time": tuple(max(float(value), 1e-3) for value in (level[2], level[3], upright[1])),
        }
        return model.model_copy(update=update), level_cost + 0.5 * upright_cost

    def _fit_axes(self, axes: slice, sources: Sequence[FloatArray]) -> tuple[FloatArray, float]:
        basis = np.stack([source[:, axes].ravel() for source in sources], axis=1)
        error, known = self._error[:, axes].ravel(), self._known[:, axes].ravel()
        return fit_variances(error, basis, self._settings.freedom, known)

    def _positions(self, model: ErrorModel) -> FloatArray:
        return np.concatenate([predicted(model, part, exact=True)[:, :3] for part in self._pieces])


def _scaled_position(model: ErrorModel, judged: RelativePoses) -> ErrorModel:
    for _ in range(_ROUNDS):
        ratio = judged.error[:, :3] / np.sqrt(predicted(model, judged)[:, :3])
        level, upright = balanced(ratio[:, :2]), balanced(ratio[:, 2])
        scale = np.array((level, level, upright))
        model = model.model_copy(
            update={
                "slow_share": tuple((scale * model.slow_share).tolist()),
                "fast_time": tuple(np.maximum(scale**2 * model.fast_time, 1e-3).tolist()),
            }
        )
    return model


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_rounded(part) for part in value)
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
