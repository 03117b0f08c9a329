"""The report's pictures (matplotlib): for a README, a paper, a terminal without a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trace_ros.errors import TraceError
from trace_ros.estimator.network import TOKEN_NAMES
from trace_ros.evaluation.figures import (
    ESTIMATE_COLOUR,
    REFERENCE_COLOUR,
    TOKEN_COLOURS,
    ReportSettings,
    intervals,
    origin_ns,
    seconds,
    shown_reference,
    smoothed_attention,
    thinned,
)
from trace_ros.evaluation.metrics import Metrics, error_growth
from trace_ros.evaluation.runner import Evaluation
from trace_ros.robot import LEG_NAMES

_DPI = 150
_INK = "#333333"


def plot_trajectory(
    path: Path, evaluation: Evaluation, settings: ReportSettings | None = None, title: str = ""
) -> None:
    """Top view, height and error growth in one picture.

    Raises:
        TraceError: the file cannot be written.
    """
    settings = settings or ReportSettings()
    figure = new_figure(10.5, 5.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.45, 1.0))
    top, height, growth = (figure.add_subplot(cell) for cell in (grid[:, 0], grid[0, 1], grid[1, 1]))
    _top_view(top, evaluation, settings)
    _height(height, evaluation, settings)
    _growth(growth, evaluation, settings)
    if title:
        figure.suptitle(title, fontsize=13, color=_INK, fontweight="bold")
    if evaluation.metrics is not None:
        figure.supxlabel(_caption(evaluation.metrics), fontsize=10, color=_INK)
    save_figure(figure, path)


def plot_velocity(path: Path, evaluation: Evaluation, settings: ReportSettings | None = None) -> None:
    """Body velocity over time, estimate and reference.

    Raises:
        TraceError: the file cannot be written.
    """
    settings = settings or ReportSettings()
    figure = new_figure(10.5, 5.6)
    rows = figure.subplots(3, 1, sharex=True)
    origin, reference = origin_ns(evaluation), shown_reference(evaluation)
    for row, axis in enumerate(("x", "y", "z")):
        if reference is not None:
            time = seconds(reference.stamp_ns, origin)
            rows[row].plot(time, reference.velocity[:, row], color=REFERENCE_COLOUR, lw=1.4, label="reference")
        time = seconds(evaluation.trajectory.stamp_ns, origin)
        rows[row].plot(time, evaluation.trajectory.velocity[:, row], color=ESTIMATE_COLOUR, lw=0.8, label="estimate")
        dress_axes(rows[row], "", f"v{axis} (m/s)")
    rows[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    rows[2].set_xlabel("time (s)")
    save_figure(figure, path)


def plot_attention(path: Path, evaluation: Evaluation, settings: ReportSettings | None = None) -> None:
    """Attention over the six tokens, and the contacts below it where they are known.

    Raises:
        TraceError: the run has no attention, or the file cannot be written.
    """
    settings = settings or ReportSettings()
    if evaluation.attention is None:
        raise TraceError(f"{evaluation.name}: {evaluation.source} has no attention to draw")
    contact = None if evaluation.log is None else evaluation.log.contact
    figure = new_figure(10.5, 4.2 if contact is None else 5.2)
    rows = figure.subplots(
        1 if contact is None else 2,
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw=None if contact is None else {"height_ratios": (3, 1)},
    )[:, 0]
    origin = origin_ns(evaluation)
    time = seconds(evaluation.trajectory.stamp_ns, origin)
    values = smoothed_attention(evaluation, settings.attention_window_s)
    index = thinned(len(time), 4 * settings.max_points)
    rows[0].stackplot(time[index], values[index].T, labels=TOKEN_NAMES, colors=TOKEN_COLOURS, lw=0)
    rows[0].set(ylim=(0, 1), xlim=(time[0], time[-1]))
    rows[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False)
    dress_axes(rows[0], "", "attention")
    if contact is not None and evaluation.log is not None:
        log_time = seconds(evaluation.log.stamp_ns, origin)
        for leg in range(len(LEG_NAMES)):
            bars = [(begin, end - begin) for begin, end in intervals(contact[:, leg], log_time)]
            rows[1].broken_barh(bars, (leg - 0.35, 0.7), color=TOKEN_COLOURS[2 + leg], lw=0)
        rows[1].set_yticks(range(len(LEG_NAMES)), LEG_NAMES)
        rows[1].invert_yaxis()
        dress_axes(rows[1], "", "contact")
    rows[-1].set_xlabel("time (s)")
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot, whose global state has no place in a library."""
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, making its folder where needed.

    Raises:
        TraceError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from error


def dress_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Labels, and the grid and frame that all pictures share."""
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")


def _caption(metrics: Metrics) -> str:
    """The errors that matter most, on one line."""
    share = f" ({100 * metrics.ate_position_m / metrics.path_length_m:.2f} %)" if metrics.path_length_m > 0 else ""
    text = (
        f"path {metrics.path_length_m:.1f} m in {metrics.duration_s:.0f} s,  ATE {metrics.ate_position_m:.3f} m{share}"
    )
    if metrics.re_position_m is not None:
        relative = metrics.re_position_m
        text += f",  RE over {metrics.horizon_s:g} s {relative.mean:.3f} m, P90 {relative.p90:.3f} m"
    return f"{text}  (alignment {metrics.alignment})"


def _top_view(axes: Axes, evaluation: Evaluation, settings: ReportSettings) -> None:
    reference = shown_reference(evaluation)
    if reference is not None:
        p = reference.position[thinned(len(reference), 4 * settings.max_points)]
        axes.plot(
            p[:, 0], p[:, 1], color=REFERENCE_COLOUR, lw=3.2, alpha=0.75, label="reference", solid_capstyle="round"
        )
    p = evaluation.aligned.position[thinned(len(evaluation.trajectory), 4 * settings.max_points)]
    axes.plot(p[:, 0], p[:, 1], color=ESTIMATE_COLOUR, lw=1.5, label=f"estimate ({evaluation.source})")
    axes.plot(*p[0, :2], "o", color=ESTIMATE_COLOUR, ms=8, label="start")
    axes.plot(*p[-1, :2], "s", color=ESTIMATE_COLOUR, ms=7, label="end")
    axes.set_aspect("equal", adjustable="datalim")
    dress_axes(axes, "x (m)", "y (m)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)


def _height(axes: Axes, evaluation: Evaluation, settings: ReportSettings) -> None:
    origin = origin_ns(evaluation)
    reference = shown_reference(evaluation)
    if reference is not None:
        index = thinned(len(reference), 4 * settings.max_points)
        time = seconds(reference.stamp_ns[index], origin)
        axes.plot(time, reference.position[index, 2], color=REFERENCE_COLOUR, lw=2.4, alpha=0.75, label="reference")
    trajectory = evaluation.aligned
    index = thinned(len(trajectory), 4 * settings.max_points)
    time = seconds(trajectory.stamp_ns, origin)
    axes.plot(time[index], trajectory.position[index, 2], color=ESTIMATE_COLOUR, lw=1.2, label="estimate")
    if evaluation.stationary is not None:
        label: str | None = "pose held"
        for begin, end in intervals(evaluation.stationary, time):
            if end - begin > 0.2:
                axes.axvspan(begin, end, color="#888888", alpha=0.18, lw=0, label=label)
                label = None
    # Ground that is flat to the millimetre must not look like mountains.
    low, high = axes.get_ylim()
    if high - low < 0.1:
        axes.set_ylim((low + high) / 2 - 0.05, (low + high) / 2 + 0.05)
    dress_axes(axes, "time (s)", "height (m)")
    if axes.patches:
        axes.legend(handles=axes.patches[:1], loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _growth(axes: Axes, evaluation: Evaluation, settings: ReportSettings) -> None:
    growth = {} if evaluation.comparison is None else error_growth(evaluation.comparison, settings.horizons_s)
    if not growth:
        trajectory = evaluation.trajectory
        speed = np.linalg.norm(trajectory.velocity[:, :2], axis=1)
        index = thinned(len(trajectory), 4 * settings.max_points)
        axes.plot(seconds(trajectory.stamp_ns[index], origin_ns(evaluation)), speed[index], color=ESTIMATE_COLOUR, lw=1)
        dress_axes(axes, "time (s)", "speed (m/s)")
        return
    horizons = list(growth)
    mean = [errors.position.mean() for errors in growth.values()]
    quantiles = np.array([np.percentile(errors.position, (10, 90)) for errors in growth.values()])
    axes.fill_between(
        horizons, quantiles[:, 0], quantiles[:, 1], color=ESTIMATE_COLOUR, alpha=0.15, lw=0, label="P10 to P90"
    )
    axes.plot(horizons, mean, "o-", color=ESTIMATE_COLOUR, lw=1.6, ms=4, label="mean")
    axes.set(xlim=(0, None), ylim=(0, None))
    dress_axes(axes, "horizon (s)", "relative position error (m)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
