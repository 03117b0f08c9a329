"""The benchmark's pictures as SVG to stand inside a page: they take its text size and its colours, light or dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from itertools import count

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trace_ros.estimator.network import TOKEN_NAMES
from trace_ros.evaluation.benchmark_results import Result, Row, Window
from trace_ros.evaluation.benchmark_tables import figure_of
from trace_ros.evaluation.figures import ESTIMATE_COLOUR, REFERENCE_COLOUR, TOKEN_COLOURS, intervals
from trace_ros.robot import LEG_NAMES

_INK, _RULE = "#010203", "#040506"
"""Stand-ins that become the page's colours."""

_COLOURS = {
    "trace": ESTIMATE_COLOUR,
    "iekf_sr": "#b0569e",
    "legolas": "#2ca7a0",
    "nmn_iekf": "#c8553d",
    "iekf": "#7d6fd0",
    "leg_odometry": "#8a8f2a",
}
_FURTHER_COLOURS = ("#5d9c59", "#a3763c", "#888888", "#4a5fa5", "#bb6688")


def colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each method, always the same for those of the paper."""
    further = count()
    return {
        method: _COLOURS.get(method) or _FURTHER_COLOURS[next(further) % len(_FURTHER_COLOURS)] for method in methods
    }


def trajectories_svg(results: Sequence[Result], name: str) -> str:
    """Top view and height of all methods on one walk.

    Args:
        results: of the same walk.
        name: of the picture; differs from those of the others on the page.
    """
    paint = colours([result.row["method"] for result in results])
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    top, height = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.35, 1.0)})
    truth, time = results[0].reference, results[0].time_s
    top.plot(truth[:, 0], truth[:, 1], color=REFERENCE_COLOUR, lw=4, alpha=0.45, label="reference")
    height.plot(time, truth[:, 2], color=REFERENCE_COLOUR, lw=4, alpha=0.45)
    for result in results:
        method = result.row["method"]
        top.plot(result.position[:, 0], result.position[:, 1], color=paint[method], lw=1.2, label=method)
        height.plot(result.time_s, result.position[:, 2], color=paint[method], lw=1.2)
    top.set_aspect("equal", adjustable="datalim")
    _dress(top, "x (m)", "y (m)")
    _dress(height, "time (s)", "height (m)")
    figure.legend(loc="outside upper center", ncols=len(results) + 1, frameon=False, labelcolor=_INK)
    words = f"top view and height of {', '.join(r.row['method'] for r in results)} and the reference"
    return _svg(figure, name, words)


def errors_svg(means: Sequence[Row], rows: Sequence[Row], key: str, label: str, name: str) -> str:
    """One error of all methods on all courses: bars for the means, dots for the seeds.

    Args:
        means, rows: of one engine; see `trace_ros.evaluation.benchmark_tables.mean_rows`.
        key: of the figure.
        label: of the axis, with the unit.
        name: of the picture.
    """
    methods = list(dict.fromkeys(mean["method"] for mean in means))
    courses = list(dict.fromkeys(mean["course"] for mean in means))
    paint = colours(methods)
    figure = Figure(figsize=(8.6, 3.0), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for at, method in enumerate(methods):
        place = {course: index + (at - (len(methods) - 1) / 2) * width for index, course in enumerate(courses)}
        own = [(place[m["course"]], v) for m in means if m["method"] == method and (v := figure_of(m, key)) is not None]
        if not own:
            continue
        at_course, height = zip(*own, strict=True)
        axes.bar(at_course, height, width=0.9 * width, color=paint[method], label=method)
        dots = [(place[r["course"]], v) for r in rows if r["method"] == method and (v := figure_of(r, key)) is not None]
        axes.plot(*zip(*dots, strict=True), ".", color=_INK, ms=3, alpha=0.7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(courses)), courses)
    _dress(axes, "", label)
    figure.legend(loc="outside upper center", ncols=len(methods), frameon=False, labelcolor=_INK)
    return _svg(figure, name, f"{label} of {', '.join(methods)} on {', '.join(courses)}")


def window_svg(window: Window, name: str) -> str:
    """A window in which the estimate was bad: attention, contact, speed, and how the error grew."""
    known = window.contact is not None
    figure = Figure(figsize=(8.6, 5.4 if known else 4.6), layout="constrained")
    ratios = (1.6, 0.7, 1.0, 1.0) if known else (1.6, 1.0, 1.0)
    rows = figure.subplots(len(ratios), 1, sharex=True, gridspec_kw={"height_ratios": ratios})
    rows[0].stackplot(window.time_s, window.attention.T, labels=TOKEN_NAMES, colors=TOKEN_COLOURS, lw=0)
    rows[0].set(ylim=(0, 1), xlim=(window.time_s[0], window.time_s[-1]))
    _dress(rows[0], "", "attention")
    figure.legend(
        *rows[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=len(TOKEN_NAMES),
        frameon=False,
        labelcolor=_INK,
    )
    if window.contact is not None:
        for leg in range(len(LEG_NAMES)):
            bars = [(begin, end - begin) for begin, end in intervals(window.contact[:, leg], window.time_s)]
            rows[1].broken_barh(bars, (leg - 0.35, 0.7), color=TOKEN_COLOURS[2 + leg], lw=0)
        rows[1].set_yticks(range(len(LEG_NAMES)), LEG_NAMES)
        rows[1].invert_yaxis()
        _dress(rows[1], "", "contact")
    rows[-2].plot(window.time_s, window.true_speed_mps, color=REFERENCE_COLOUR, lw=2.4, alpha=0.6, label="true")
    rows[-2].plot(window.time_s, window.speed_mps, color=ESTIMATE_COLOUR, lw=1.0, label="estimated")
    rows[-2].legend(loc="upper right", ncols=2, frameon=False, labelcolor=_INK, fontsize="small")
    _dress(rows[-2], "", "speed (m/s)")
    rows[-1].plot(window.time_s, window.growth_m, color=ESTIMATE_COLOUR, lw=1.4)
    rows[-1].set_ylim(0, None)
    _dress(rows[-1], "time (s)", "error (m)")
    figure.align_ylabels(rows)
    return _svg(figure, name, f"attention, contact, speed and error over ten seconds of {window.walk}")


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, color=_INK)
    axes.set_ylabel(y_label, color=_INK)
    axes.grid(color=_RULE, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=_INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_RULE)


def _svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an element of a page: no prologue, its own names, the page's colours and font."""
    buffer = StringIO()
    # A salt of its own keeps the names of clip paths apart; text stays text.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\bid=\"", f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r"xlink:href=\"#", f'href="#{name}-', text)
    text = re.sub(r" xmlns(:xlink)?=\"[^\"]*\"", "", text)
    text = text.replace(_INK, "var(--ink)").replace(_RULE, "var(--rule)")
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    # Two digits behind the point are a hundredth of a pixel.
    text = re.sub(r"(\d+\.\d\d)\d+", r"\1", text)
    opening = re.search(r"viewBox=\"[^\"]*\"", text)
    assert opening is not None
    body = text[text.index(">") + 1 :]
    return f'<svg {opening[0]} role="img" aria-label="{escape(description)}">{body}'
