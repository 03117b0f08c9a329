"""One self-contained page that tells how good an estimate is, and by which settings it came about."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import LoadedModel
from trace_ros.evaluation.alignment import MODE_DESCRIPTIONS
from trace_ros.evaluation.figures import ReportSettings, report_figures
from trace_ros.evaluation.metrics import Metrics, MetricSettings
from trace_ros.evaluation.plots import plot_attention, plot_trajectory, plot_velocity
from trace_ros.evaluation.runner import Evaluation, file_names, step_percentiles

Row = tuple[str, str]

_PLOT_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}

_PACKAGES = ("trace_ros", "numpy", "scipy", "torch", "rosbags")


@dataclass(frozen=True)
class ReportFiles:
    """What a report consists of: the page, and the pictures of each log."""

    page: Path
    pictures: tuple[Path, ...]


def write_report(
    directory: Path,
    evaluations: Sequence[Evaluation],
    settings: MetricSettings | None = None,
    model: LoadedModel | None = None,
    title: str = "TRACE odometry",
    command: str = "",
    report_settings: ReportSettings | None = None,
) -> ReportFiles:
    """Write ``report.html`` (plotly, nothing loaded from elsewhere) and PNGs of each evaluation.

    One evaluation gives ``trajectory.png``, ``velocity.png`` and, where there is one, ``attention.png``; several give
    ``trajectory_<name>.png`` and so on.

    Args:
        directory: is created; files of an earlier report are replaced.
        evaluations: at least one.
        settings: how the metrics were computed.
        model: whose card is printed.
        title: heading.
        command: that made the report, printed for whoever wants to repeat it.
        report_settings: what to draw.

    Raises:
        TraceError: no evaluations, or files that cannot be written.
    """
    settings, report_settings = settings or MetricSettings(), report_settings or ReportSettings()
    if not evaluations:
        raise TraceError("report: no evaluations to report")
    pictures = []
    names = file_names([evaluation.name for evaluation in evaluations])
    for evaluation, name in zip(evaluations, names, strict=True):
        suffix = "" if len(evaluations) == 1 else f"_{name}"
        pictures.append(directory / f"trajectory{suffix}.png")
        plot_trajectory(pictures[-1], evaluation, report_settings, title if len(evaluations) == 1 else evaluation.name)
        pictures.append(directory / f"velocity{suffix}.png")
        plot_velocity(pictures[-1], evaluation, report_settings)
        if evaluation.attention is not None:
            pictures.append(directory / f"attention{suffix}.png")
            plot_attention(pictures[-1], evaluation, report_settings)
    page = directory / "report.html"
    try:
        text = _page(evaluations, names, settings, model, title, command, report_settings)
        page.write_text(text, encoding="utf-8", errors="backslashreplace")  # paths need not be UTF-8
    except OSError as error:
        raise TraceError(f"{page}: cannot be written ({error.strerror})") from error
    return ReportFiles(page, tuple(pictures))


def metric_rows(metrics: Metrics) -> list[Row]:
    """Every error of an evaluation as label and text, the same in the terminal and on the page."""
    share = f" ({100 * metrics.ate_position_m / metrics.path_length_m:.2f} % of path)" if metrics.path_length_m else ""
    rows = [
        ("path length", f"{metrics.path_length_m:.2f} m in {metrics.duration_s:.2f} s"),
        ("ATE position", f"{metrics.ate_position_m:.4f} m{share}"),
        ("ATE height", f"{metrics.ate_z_m:.4f} m"),
        ("ATE velocity (world)", f"{metrics.ate_velocity_mps:.4f} m/s"),
        ("ATE velocity (body)", f"{metrics.ate_velocity_body_mps:.4f} m/s"),
        ("ATE orientation", f"{metrics.ate_orientation_rad:.4f} rad"),
    ]
    relative = (
        ("position", metrics.re_position_m, "m"),
        ("velocity increment", metrics.re_velocity_mps, "m/s"),
        ("velocity at the end", metrics.re_velocity_end_mps, "m/s"),
        ("orientation", metrics.re_orientation_rad, "rad"),
    )
    for name, value, unit in relative:
        if value is not None:
            text = f"{value.mean:.4f} ± {value.std:.4f}, P90 {value.p90:.4f} {unit}"
            rows.append((f"RE {metrics.horizon_s:g} s {name}", text))
    rows.append(("compared", f"{metrics.compared_samples} poses, {metrics.pairs} starts of RE"))
    return rows


def run_rows(evaluation: Evaluation) -> list[Row]:
    """How the run went: speed and standing."""
    rows = []
    if evaluation.real_time_factor is not None:
        rows.append(("speed", f"{evaluation.real_time_factor:.1f} x real time"))
    if evaluation.step_time_s is not None:
        percentiles = step_percentiles(evaluation.step_time_s)
        rows.append(("time of a step", f"median {percentiles['p50']:.3f} ms, P99 {percentiles['p99']:.3f} ms"))
    if evaluation.joint_delay_s:
        rows.append(("joint readings", put_back(evaluation.joint_delay_s)))
    if evaluation.stationary_share is not None:
        rows.append(("standing", f"{100 * evaluation.stationary_share:.1f} % of the poses held"))
    return rows


def put_back(delay_s: float) -> str:
    """In words what was done to joint readings, or to the IMU's where these were the older ones."""
    what = "joints" if delay_s > 0 else "IMU"
    return f"{what} put back by {abs(delay_s) * 1e3:.4g} ms"


def summary_rows(evaluation: Evaluation) -> list[Row]:
    """What can be said of a trajectory without a reference."""
    summary = evaluation.summary()
    return [
        ("estimated path", f"{summary['path_length_m']:.2f} m in {summary['duration_s']:.2f} s"),
        ("end from start", f"{summary['displacement_m']:.3f} m, {summary['height_change_m']:+.3f} m in height"),
        ("heading change", f"{summary['heading_change_rad']:+.3f} rad"),
        ("greatest speed", f"{summary['greatest_speed_mps']:.2f} m/s"),
    ]


def alignment_text(settings: MetricSettings) -> str:
    """The alignment mode in words, for headings."""
    return f"alignment {settings.alignment}: {MODE_DESCRIPTIONS[settings.alignment]}"


def package_versions() -> dict[str, str]:
    """Versions that a result may depend on."""
    return {"python": platform.python_version()} | {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"


def _page(
    evaluations: Sequence[Evaluation],
    names: Sequence[str],
    settings: MetricSettings,
    model: LoadedModel | None,
    title: str,
    command: str,
    report_settings: ReportSettings,
) -> str:
    sections = [
        _section(evaluation, name, settings, report_settings)
        for evaluation, name in zip(evaluations, names, strict=True)
    ]
    contents = ""
    if len(evaluations) > 1:
        links = (
            f'<li><a href="#{escape(n)}">{escape(e.name)}</a></li>' for e, n in zip(evaluations, names, strict=True)
        )
        contents = f"<nav><ul>{''.join(links)}</ul></nav>"
    made: dict[str, Any] = {
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "metrics": settings.model_dump(mode="json"),
        "drawing": report_settings.model_dump(mode="json"),
        "versions": package_versions(),
    }
    if command:
        made = {"command": command} | made
    if model is not None:
        made |= {"model file": str(model.path), "model card": model.card.model_dump(mode="json")}
    return _TEMPLATE.format(
        title=escape(title),
        policy=CONTENT_SECURITY_POLICY,
        style=PAGE_STYLE,
        plotly=get_plotlyjs(),
        alignment=escape(alignment_text(settings)),
        contents=contents,
        sections="\n".join(sections),
        settings=nested_list(made),
        script=_SCRIPT,
    )


def _section(evaluation: Evaluation, name: str, settings: MetricSettings, report_settings: ReportSettings) -> str:
    rows = metric_rows(evaluation.metrics) if evaluation.metrics else summary_rows(evaluation)
    caption = alignment_text(settings) if evaluation.metrics else "no reference: the estimate alone"
    log = evaluation.log
    if log is not None:
        rows = [
            *rows,
            ("samples", f"{len(log)} at {log.rate_hz:.0f} Hz, torque: {log.torque_source.replace('_', ' ')}"),
        ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in evaluation.notes)
    figures = "".join(
        f"<figure><figcaption>{escape(label)}</figcaption>"
        + figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            config=_PLOT_CONFIG,
            div_id=f"{name}-{k}",
        )
        + "</figure>"
        for k, (label, figure) in enumerate(report_figures(evaluation, report_settings).items())
    )
    return (
        f'<section id="{escape(name)}"><h2>{escape(evaluation.name)}</h2>'
        f"<p>Estimated by {escape(evaluation.source)}.</p>"
        f"{_table([*rows, *run_rows(evaluation)], caption)}"
        f"{f'<ul class=notes>{notes}</ul>' if notes else ''}"
        f'<div class="figures">{figures}</div></section>'
    )


def _table(rows: Sequence[Row], caption: str) -> str:
    body = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in rows)
    return f'<div class="scroll"><table><caption>{escape(caption)}</caption>{body}</table></div>'


def nested_list(values: Mapping[str, Any]) -> str:
    """Settings as a definition list; whatever is nested can be unfolded."""
    items = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            content = f"<details><summary>{len(value)} entries</summary>{nested_list(value)}</details>"
        else:
            content = escape(str(value)) or "&mdash;"
        items.append(f"<dt>{escape(str(key))}</dt><dd>{content}</dd>")
    return f"<dl>{''.join(items)}</dl>"


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Forbids every request, so that a page is provably self-contained."""

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
<script>{plotly}</script>
</head>
<body>
<header><h1>{title}</h1><p>{alignment}. Estimate in blue, reference in orange; grey: the pose is held.</p></header>
{contents}
{sections}
<section id="settings"><h2>How it was made</h2>{settings}</section>
<script>{script}</script>
</body>
</html>
"""

PAGE_STYLE = """
:root { color-scheme: light dark;
  --ink: #1c1f23; --ground: #ffffff; --soft: #5d6670; --rule: #d9dee3; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7eb; --ground: #14171a; --soft: #9aa4ae; --rule: #343b42; --card: #1c2126; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: var(--ground);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0.4rem 0 0; } h2 { font-size: 1.25rem; border-bottom: 1px solid var(--rule); }
header p, caption, dt, figcaption { color: var(--soft); }
a { color: inherit; }
table { border-collapse: collapse; } caption { text-align: left; padding-bottom: 0.3rem; }
th, td { text-align: left; font-weight: normal; padding: 0.15rem 1.2rem 0.15rem 0; border-top: 1px solid var(--rule); }
td { font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
.figures { display: grid; gap: 1rem; margin-top: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; padding: 0.6rem; background: var(--card); border-radius: 6px; min-width: 0; overflow: hidden; }
figcaption { font-weight: 600; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: 0.1rem 1rem; margin: 0; }
dd { margin: 0; overflow-wrap: anywhere; }
"""

_SCRIPT = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim(), rule = style.getPropertyValue("--rule").trim();
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const change = {"font.color": ink, "hoverlabel.bgcolor": style.getPropertyValue("--card").trim()};
    for (const key of Object.keys(plot.layout)) {
      if (/^[xy]axis[0-9]*$/.test(key)) {
        Object.assign(change, {[key + ".gridcolor"]: rule, [key + ".zerolinecolor"]: rule, [key + ".linecolor"]: rule});
      }
    }
    Plotly.relayout(plot, change);
    Plotly.Plots.resize(plot);  // the first plots were drawn before the grid had its columns
  }
}
dark.addEventListener("change", paint);
window.addEventListener("load", paint);
"""
