"""Is the covariance true? How often errors of the twist and of the relative pose lie within 1, 2 and 3 sigma."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf
from scipy.stats import chi2

from trace_ros.estimator.error_model import ErrorModel
from trace_ros.evaluation.calibration_walks import CalibrationSettings, Walk
from trace_ros.evaluation.predicted_errors import predicted, relative_poses, twist_variances
from trace_ros.geometry import FloatArray

SIGMAS = (1, 2, 3)
TWIST_AXES = ("vx", "vy", "vz", "wx", "wy", "wz")
POSE_AXES = ("x", "y", "z", "roll", "pitch", "yaw")


def nominal(sigma: float) -> float:
    """Probability that a normal error lies within so many standard deviations."""
    return float(erf(sigma / math.sqrt(2)))


def coverage(ratio: FloatArray) -> tuple[float, ...]:
    """Shares of errors, given over their standard deviation, within 1, 2 and 3 of it."""
    return tuple(float(np.mean(np.abs(ratio) <= sigma)) for sigma in SIGMAS)


@dataclass(frozen=True)
class Judgement:
    """Errors over their predicted standard deviations, on walks.

    Attributes:
        twist: (K, 6) axes of `TWIST_AXES`; K = 0 where poses alone were judged.
        pose: (W, 6) relative poses over the horizon, axes of `POSE_AXES`.
        horizon_s: s.
        growth: for each shown horizon (s), (2, 6): the errors' 68.3 % quantile and the predicted standard deviation
            (root of the mean variance), by axis; m, rad.
    """

    twist: FloatArray
    pose: FloatArray
    horizon_s: float
    growth: dict[float, FloatArray]

    def rows(self) -> list[dict[str, Any]]:
        """Coverage of each axis, then of several together: ``of``, ``axis``, ``coverage`` (three shares).

        The twist's are left out where it was not judged.

        Where X and Y of the odometry frame point is chance, so x and y, and roll and pitch, stand together too.
        """
        rows = []
        pose = f"pose over {self.horizon_s:g} s"
        level: dict[str, list[int]] = {"x, y": [0, 1], "roll, pitch": [3, 4]}
        for kind, axes, ratio, groups in (("twist", TWIST_AXES, self.twist, {}), (pose, POSE_AXES, self.pose, level)):
            if not len(ratio):
                continue
            chosen = {axis: [index] for index, axis in enumerate(axes)} | groups | {"all": list(range(len(axes)))}
            rows += [{"of": kind, "axis": axis, "coverage": coverage(ratio[:, of])} for axis, of in chosen.items()]
        return rows

    def joint(self) -> tuple[float, ...]:
        """Shares of the relative positions (three axes at once) within the ellipsoids that should hold as many."""
        square = (self.pose[:, :3] ** 2).sum(axis=1)
        return tuple(float(np.mean(square <= chi2.ppf(nominal(sigma), 3))) for sigma in SIGMAS)

    def scales(self) -> dict[str, float]:
        """Factors on the deviations of the relative pose by which 1 sigma would hold its nominal share."""
        chosen = {"x, y": [0, 1], "z": [2], "roll, pitch": [3, 4], "yaw": [5]}
        return {axis: float(np.quantile(np.abs(self.pose[:, of]), nominal(1))) for axis, of in chosen.items()}

    def worst(self) -> tuple[dict[str, Any], int, float]:
        """The row, the sigma and the deviation (a share) that are farthest from nominal."""
        found = [
            (row, sigma, share - nominal(sigma))
            for row in self.rows()
            for sigma, share in zip(SIGMAS, row["coverage"], strict=True)
        ]
        return max(found, key=lambda entry: abs(entry[2]))


def judge(model: ErrorModel, walks: Sequence[Walk], settings: CalibrationSettings | None = None) -> Judgement:
    """Compare the errors on walks with what a model predicts.

    Raises:
        TraceError: no walk is as long as the horizon.
    """
    settings = settings or CalibrationSettings()
    twist = np.concatenate([walk.twist_error / np.sqrt(twist_variances(model, walk)) for walk in walks])
    pieces = relative_poses(walks, settings.horizon_s, settings.stride_s)
    growth = {}
    longest = max(walk.time[-1] - walk.time[0] for walk in walks)
    for horizon in settings.shown_horizons_s:
        if horizon < longest:
            shown = relative_poses(walks, horizon, settings.stride_s)
            measured = np.quantile(np.abs(shown.error), nominal(1), axis=0)
            growth[horizon] = np.stack((measured, np.sqrt(predicted(model, shown).mean(axis=0))))
    return Judgement(twist, pieces.error / np.sqrt(predicted(model, pieces)), settings.horizon_s, growth)


def together(judgements: Sequence[Judgement]) -> Judgement:
    """Several judgements over the same horizon as one, without the growth."""
    twist, pose = (np.concatenate([getattr(one, name) for one in judgements]) for name in ("twist", "pose"))
    return Judgement(twist, pose, judgements[0].horizon_s, {})
