"""The report's interactive figures (plotly). Colours are told apart by colour-blind eyes, on light and dark ground."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from pydantic import BaseModel, ConfigDict, Field

from trace_ros.estimator.network import TOKEN_NAMES
from trace_ros.evaluation.metrics import error_growth
from trace_ros.evaluation.runner import Evaluation
from trace_ros.geometry import FloatArray
from trace_ros.logs import IntArray, Trajectory
from trace_ros.robot import LEG_NAMES

ESTIMATE_COLOUR = "#1f77d0"
REFERENCE_COLOUR = "#e08a00"
P90_COLOUR = "#b0569e"
TOKEN_COLOURS = ("#9a9a9a", "#5b5b5b", "#1f77d0", "#2ca7a0", "#e08a00", "#c8553d")
"""Accel and gyro in greys, the legs in colours."""


class ReportSettings(BaseModel):
    """What goes into a report.

    Attributes:
        horizons_s: s; times over which the growth of the error is shown.
        max_points: points per curve; longer ones are thinned out for drawing only.
        attention_window_s: s; attention is averaged over this before it is drawn, as it swings with every stride.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    horizons_s: tuple[float, ...] = (0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60)
    max_points: int = Field(default=2000, ge=10)
    attention_window_s: float = Field(default=0.1, gt=0)


def thinned(count: int, limit: int) -> NDArray[np.int_]:
    """At most ``limit`` indices of ``count``, evenly spread, the last always among them."""
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(int)) if count else np.empty(0, dtype=int)


def origin_ns(evaluation: Evaluation) -> int:
    """Time zero of the figures: the first sample of the log, else the first pose."""
    stamps = evaluation.trajectory.stamp_ns if evaluation.log is None else evaluation.log.stamp_ns
    return int(stamps[0])


def seconds(stamps: IntArray, origin: int) -> FloatArray:
    """Stamps as seconds from the origin."""
    return np.asarray((stamps - origin) * 1e-9)


def shown_reference(evaluation: Evaluation) -> Trajectory | None:
    """The reference over the time of the estimate."""
    reference = evaluation.reference
    if reference is None:
        return None
    stamps = evaluation.trajectory.stamp_ns
    return reference.select((reference.stamp_ns >= stamps[0]) & (reference.stamp_ns <= stamps[-1]))


def smoothed_attention(evaluation: Evaluation, window_s: float) -> FloatArray:
    """(M, 6) moving average of the attention."""
    attention = evaluation.attention
    assert attention is not None
    stamps = evaluation.trajectory.stamp_ns
    interval = float(np.median(np.diff(stamps))) * 1e-9 if len(stamps) > 1 else window_s
    width = max(1, min(round(window_s / interval), len(attention)))
    total = np.vstack((np.zeros(attention.shape[1]), np.cumsum(attention, axis=0)))
    right = np.minimum(np.arange(len(attention)) + (width + 1) // 2, len(attention))
    left = np.maximum(np.arange(len(attention)) - width // 2, 0)
    return np.asarray((total[right] - total[left]) / (right - left)[:, None])


def intervals(flags: NDArray[np.bool_], time: FloatArray) -> list[tuple[float, float]]:
    """Stretches of time over which a flag holds."""
    padded = np.concatenate(([0], flags.astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(padded))
    return [(float(time[a]), float(time[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def report_figures(evaluation: Evaluation, settings: ReportSettings) -> Mapping[str, go.Figure]:
    """Figures by title, in the order of the report; those without data are left out."""
    figures = {"Top view": _top_view(evaluation, settings), "Height": _height(evaluation, settings)}
    figures["Velocity in the body frame"] = _velocity(evaluation, settings)
    if evaluation.attention is not None:
        figures["Attention over time"] = _attention(evaluation, settings)
    if evaluation.comparison is not None:
        figures["Error over time"] = _error(evaluation, settings)
        growth = _growth(evaluation, settings)
        if growth is not None:
            figures["Error growth"] = growth
    return figures


def _figure(height: int, figure: go.Figure | None = None) -> go.Figure:
    """Plain ground, so that the page's colours show through; the page sets text and grid colours."""
    figure = figure or go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": 56, "r": 12, "t": 40, "b": 44},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        hovermode="x unified",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#999999", "activecolor": ESTIMATE_COLOUR},
    )
    return figure


def _line(x: FloatArray, y: FloatArray, name: str, colour: str, **more: object) -> go.Scatter:
    line = {"color": colour, "width": 1.8} | more.pop("line", {})  # type: ignore[operator]
    return go.Scatter(x=x, y=y, name=name, mode="lines", line=line, **more)


def _top_view(evaluation: Evaluation, settings: ReportSettings) -> go.Figure:
    figure = _figure(460)
    reference, aligned = shown_reference(evaluation), evaluation.aligned
    if reference is not None:
        p = reference.position[thinned(len(reference), settings.max_points)].round(4)
        figure.add_trace(_line(p[:, 0], p[:, 1], "reference", REFERENCE_COLOUR, line={"width": 3}))
    p = aligned.position[thinned(len(aligned), settings.max_points)].round(4)
    figure.add_trace(_line(p[:, 0], p[:, 1], "estimate", ESTIMATE_COLOUR))
    for index, name, symbol in ((0, "start", "circle"), (-1, "end", "x")):
        marker = {"color": ESTIMATE_COLOUR, "size": 10, "symbol": symbol}
        point = go.Scatter(x=[p[index, 0]], y=[p[index, 1]], text=[name], name=name, mode="markers+text", marker=marker)
        figure.add_trace(point.update(textposition="top center", showlegend=False))
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title_text="x (m)")
    figure.update_yaxes(title_text="y (m)", scaleanchor="x", scaleratio=1)
    return figure


def _height(evaluation: Evaluation, settings: ReportSettings) -> go.Figure:
    figure = _figure(300)
    origin = origin_ns(evaluation)
    curves = [(evaluation.aligned, "estimate", ESTIMATE_COLOUR)]
    if (reference := shown_reference(evaluation)) is not None:
        curves.insert(0, (reference, "reference", REFERENCE_COLOUR))
    for trajectory, name, colour in curves:
        index = thinned(len(trajectory), settings.max_points)
        x, y = seconds(trajectory.stamp_ns[index], origin).round(3), trajectory.position[index, 2].round(4)
        figure.add_trace(_line(x, y, name, colour))
    _mark_standing(figure, evaluation)
    figure.update_xaxes(title_text="time (s)")
    figure.update_yaxes(title_text="z (m)")
    return figure


def _velocity(evaluation: Evaluation, settings: ReportSettings) -> go.Figure:
    figure = _figure(480, make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.04))
    origin = origin_ns(evaluation)
    curves = [(evaluation.trajectory, "estimate", ESTIMATE_COLOUR)]
    if (reference := shown_reference(evaluation)) is not None:
        curves.insert(0, (reference, "reference", REFERENCE_COLOUR))
    for trajectory, name, colour in curves:
        index = thinned(len(trajectory), settings.max_points)
        x = seconds(trajectory.stamp_ns[index], origin).round(3)
        for row in range(3):
            y = trajectory.velocity[index, row].round(4)
            curve = _line(x, y, name, colour, legendgroup=name, showlegend=row == 0, line={"width": 1.3})
            figure.add_trace(curve, row=row + 1, col=1)
    for row, axis in enumerate(("x", "y", "z"), start=1):
        figure.update_yaxes(title_text=f"v{axis} (m/s)", row=row, col=1)
    figure.update_xaxes(title_text="time (s)", row=3, col=1)
    return figure


def _attention(evaluation: Evaluation, settings: ReportSettings) -> go.Figure:
    contact = None if evaluation.log is None else evaluation.log.contact
    rows = 1 if contact is None else 2
    heights = [1.0] if contact is None else [0.72, 0.28]
    base = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.04, row_heights=heights)
    figure = _figure(360 if contact is None else 460, base)
    trajectory, origin = evaluation.trajectory, origin_ns(evaluation)
    index = thinned(len(trajectory), settings.max_points)
    x = seconds(trajectory.stamp_ns[index], origin).round(3)
    values = smoothed_attention(evaluation, settings.attention_window_s)[index].round(4)
    for token, name in enumerate(TOKEN_NAMES):
        curve = _line(x, values[:, token], name, TOKEN_COLOURS[token], stackgroup="attention", line={"width": 0})
        curve.fillcolor = TOKEN_COLOURS[token]
        figure.add_trace(curve, row=1, col=1)
    if contact is not None and evaluation.log is not None:
        time = seconds(evaluation.log.stamp_ns, origin)
        for leg, name in enumerate(LEG_NAMES):
            # One line with breaks a leg: as light as a picture, and it stays sharp.
            x_contact: list[float | None] = []
            for begin, end in intervals(contact[:, leg], time):
                x_contact += [round(begin, 3), round(end, 3), None]
            line = {"color": TOKEN_COLOURS[2 + leg], "width": 9}
            strip = go.Scatter(
                x=x_contact, y=[name] * len(x_contact), name=name, mode="lines", line=line, showlegend=False
            )
            strip.update(hoverinfo="skip")
            figure.add_trace(strip, row=2, col=1)
        figure.update_yaxes(title_text="contact", autorange="reversed", row=2, col=1)
    figure.update_yaxes(title_text="attention", range=[0, 1], row=1, col=1)
    figure.update_xaxes(title_text="time (s)", row=rows, col=1)
    return figure


def _error(evaluation: Evaluation, settings: ReportSettings) -> go.Figure:
    comparison = evaluation.comparison
    assert comparison is not None
    figure = _figure(300)
    error = comparison.aligned.position - comparison.reference.position
    index = thinned(len(error), settings.max_points)
    x = seconds(comparison.reference.stamp_ns[index], origin_ns(evaluation)).round(3)
    horizontal = np.linalg.norm(error[index, :2], axis=1).round(4)
    figure.add_trace(_line(x, horizontal, "horizontal", ESTIMATE_COLOUR))
    figure.add_trace(_line(x, error[index, 2].round(4), "vertical", P90_COLOUR))
    _mark_standing(figure, evaluation)
    figure.update_xaxes(title_text="time (s)")
    figure.update_yaxes(title_text="position error (m)")
    return figure


def _growth(evaluation: Evaluation, settings: ReportSettings) -> go.Figure | None:
    assert evaluation.comparison is not None
    growth = error_growth(evaluation.comparison, settings.horizons_s)
    if not growth:
        return None
    figure = _figure(340)
    x = np.array(list(growth))
    mean = np.array([errors.position.mean() for errors in growth.values()])
    p90 = np.array([np.percentile(errors.position, 90) for errors in growth.values()])
    figure.add_trace(_line(x, mean.round(4), "mean", ESTIMATE_COLOUR))
    figure.add_trace(_line(x, p90.round(4), "90th percentile", P90_COLOUR, line={"dash": "dot"}))
    figure.data[0].mode = figure.data[1].mode = "lines+markers"
    figure.update_xaxes(title_text="horizon (s)", rangemode="tozero")
    figure.update_yaxes(title_text="relative position error (m)", rangemode="tozero")
    return figure


def _mark_standing(figure: go.Figure, evaluation: Evaluation) -> None:
    """Shade the time over which the stationary clamp held the pose."""
    if evaluation.stationary is None:
        return
    time = seconds(evaluation.trajectory.stamp_ns, origin_ns(evaluation))
    for begin, end in intervals(evaluation.stationary, time):
        if end - begin > 0.2:  # shorter ones are hairlines
            figure.add_vrect(x0=begin, x1=end, fillcolor="#888888", opacity=0.18, line_width=0, layer="below")
