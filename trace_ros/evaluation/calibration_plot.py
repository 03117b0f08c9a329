"""The picture of the calibration: coverage against nominal, and how error and covariance grow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from scipy.special import erfinv

from trace_ros.evaluation.calibration import POSE_AXES, SIGMAS, TWIST_AXES, Judgement, nominal
from trace_ros.evaluation.figures import TOKEN_COLOURS
from trace_ros.evaluation.plots import dress_axes, new_figure, save_figure
from trace_ros.geometry import FloatArray

_TOLERANCE = 0.05
"""Drawn as a band: what the calibration is held to."""
_COLOURS = (*TOKEN_COLOURS[2:], TOKEN_COLOURS[1], "#b0569e")
_GROWTH = ("x", "y", "z", "yaw")


def plot_calibration(path: Path, judgement: Judgement, title: str = "") -> None:
    """Reliability of twist and relative pose, axis by axis, and the growth of the pose's error with time.

    Raises:
        TraceError: the file cannot be written.
    """
    figure = new_figure(13.0, 4.6)
    twist, pose, growth = figure.subplots(1, 3)
    if len(judgement.twist):
        _reliability(twist, judgement.twist, TWIST_AXES, "twist")
    else:
        twist.set_axis_off()
    _reliability(pose, judgement.pose, POSE_AXES, f"relative pose, {judgement.horizon_s:g} s")
    if judgement.growth:
        _growth(growth, judgement)
    else:
        growth.set_axis_off()
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def _reliability(axes: Axes, ratio: FloatArray, names: tuple[str, ...], what: str) -> None:
    probability = np.linspace(0.0, 0.999, 200)
    sigma = np.sqrt(2) * erfinv(probability)
    low, high = np.clip(probability - _TOLERANCE, 0, 1), np.clip(probability + _TOLERANCE, 0, 1)
    axes.fill_between(probability, low, high, color="#dddddd", lw=0, label="within 5 points")
    axes.plot(probability, probability, color="#999999", lw=1)
    for index, (name, colour) in enumerate(zip(names, _COLOURS, strict=True)):
        size = np.sort(np.abs(ratio[:, index]))
        share = np.searchsorted(size, sigma, side="right") / len(size)
        axes.plot(probability, share, color=colour, lw=1.3, label=name)
    for step in SIGMAS:
        axes.axvline(nominal(step), color="#bbbbbb", lw=0.7, ls=":")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    dress_axes(axes, f"nominal coverage ({what})", "errors within it")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _growth(axes: Axes, judgement: Judgement) -> None:
    horizons = list(judgement.growth)
    for name, colour in zip(_GROWTH, _COLOURS, strict=False):
        axis = POSE_AXES.index(name)
        measured, predicted = np.array([judgement.growth[horizon][:, axis] for horizon in horizons]).T
        unit = "rad" if name == "yaw" else "m"
        axes.plot(horizons, predicted, color=colour, lw=1.3, label=f"{name} ({unit})")
        axes.plot(horizons, measured, "o", color=colour, ms=4)
    axes.plot([], [], "o", color="#777777", ms=4, label="68.3 % of errors")
    axes.plot([], [], color="#777777", lw=1.3, label="predicted sigma")
    axes.set(xscale="log", yscale="log")
    dress_axes(axes, "time since the pose was known (s)", "error of the pose")
    axes.legend(frameon=False, fontsize=8)
