"""The benchmark as one HTML page: sortable tables, trajectories, and the windows in which TRACE was worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trace_ros.baselines.registry import TRACE
from trace_ros.evaluation.benchmark_figures import errors_svg, trajectories_svg, window_svg
from trace_ros.evaluation.benchmark_paper import CITATION, PAPER
from trace_ros.evaluation.benchmark_results import Result, Row, worst_of_all
from trace_ros.evaluation.benchmark_tables import OWN_ERRORS, best_of, mean_rows, percent
from trace_ros.evaluation.report import CONTENT_SECURITY_POLICY, PAGE_STYLE, nested_list

_DECIMALS = 4


@dataclass(frozen=True)
class _Column:
    label: str
    kind: str = "number"


@dataclass(frozen=True)
class _Cell:
    """What a cell shows, what it is sorted by, and how it looks."""

    text: str
    value: str = ""
    kind: str = "number"


@dataclass(frozen=True)
class _Picture:
    svg: Markup
    caption: str


def benchmark_page(
    results: Sequence[Result],
    reduced: Sequence[Row],
    title: str,
    notes: Sequence[str],
    settings: Mapping[str, Any],
    own: str = TRACE,
) -> str:
    """The page, which asks for nothing from elsewhere.

    Args:
        results: of all walks and methods.
        reduced: see `trace_ros.evaluation.benchmark_tables.reductions`.
        title: heading.
        notes: paragraphs below it.
        settings: printed at the end.
        own: label of the method whose worst windows are shown.
    """
    rows = [result.row for result in results]
    means = mean_rows(rows)
    engines = [_engine(engine, results, means, reduced) for engine in dict.fromkeys(row["engine"] for row in rows)]
    windows = worst_of_all([result for result in results if result.row["method"] == own])
    gallery = [
        _Picture(
            Markup(window_svg(window, f"window{index}")),
            f"{index + 1}. {window.walk}: {window.error_m:.2f} m after ten seconds from {window.start_s:.1f} s",
        )
        for index, window in enumerate(windows)
    ]
    environment = Environment(
        loader=PackageLoader("trace_ros.evaluation", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
    )
    if any((mean["course"], mean["method"]) in PAPER for mean in means):
        notes = [*notes, f"Of the paper: {CITATION}."]
    return environment.get_template("benchmark.html").render(
        title=title,
        notes=notes,
        policy=CONTENT_SECURITY_POLICY,
        style=Markup(PAGE_STYLE),
        engines=engines,
        gallery=gallery,
        settings=Markup(nested_list(settings)),
    )


def _reduction_columns(in_paper: bool) -> list[_Column]:
    columns = [_Column("course", ""), _Column("method", "")]
    for name in ("ATE pos", "RE pos"):
        columns += [_Column(name), _Column("against", "")]
        if in_paper:
            columns.append(_Column(f"{name}, paper", "number paper"))
    return columns


def _engine(engine: str, results: Sequence[Result], all_means: Sequence[Row], reduced: Sequence[Row]) -> dict[str, Any]:
    own = [result for result in results if result.row["engine"] == engine]
    rows = [result.row for result in own]
    means = [mean for mean in all_means if mean["engine"] == engine]
    in_paper = any((mean["course"], mean["method"]) in PAPER for mean in means)
    seeds = len({row["seed"] for row in rows})
    columns = [
        _Column("course", ""),
        _Column("method", ""),
        *map(_Column, ("path m", "ATE pos m", "ATE vel m/s", "ATE ori rad")),
        *map(_Column, ("RE pos m", "std", "P90", "RE vel m/s", "RE ori rad")),
    ]
    if in_paper:
        columns += [_Column(f"{name}, paper", "number paper") for name in ("ATE pos", "RE pos")]
    return {
        "name": engine,
        "caption": f"Means over {seeds} seeds; RE over 10 s; the lowest of each course in bold."
        if seeds > 1
        else "RE over 10 s; the lowest of each course in bold.",
        "columns": columns,
        "rows": [_row(mean, best_of(means, mean["course"]), in_paper) for mean in means],
        "reduction_columns": _reduction_columns(in_paper),
        "reductions": [_reduction_row(row, in_paper) for row in reduced if row["engine"] == engine],
        "reduction_caption": "Change of the error; below zero TRACE is better."
        + (" Of the paper: the same from its tables." if in_paper else ""),
        "bars": [
            _Picture(
                Markup(errors_svg(means, rows, key, label, f"{engine}-{key}")),
                f"{label}: means and single walks",
            )
            for key, label in (("ate_position_m", "ATE position (m)"), ("re10_position_m", "RE position (m)"))
            if any(mean[key] is not None for mean in means)
        ],
        "trajectories": list(_trajectories(engine, own)),
    }


def _row(mean: Row, best: Mapping[str, str], in_paper: bool) -> list[_Cell]:
    def number(key: str, part: str | None = None) -> _Cell:
        value = mean[key]
        if value is not None and part is not None:
            value = value[part]
        bold = " best" if best.get(key) == mean["method"] and part in (None, "mean") else ""
        return _number(value, f"number{bold}")

    cells = [_Cell(mean[key], mean[key], "") for key in ("course", "method")]
    cells.append(_number(mean["path_length_m"], decimals=1))
    cells += [number(key) for key in ("ate_position_m", "ate_velocity_mps", "ate_orientation_rad")]
    cells += [number("re10_position_m", part) for part in ("mean", "std", "p90")]
    cells += [number(key) for key in ("re10_velocity_mps", "re10_orientation_rad")]
    if in_paper:
        printed = PAPER.get((mean["course"], mean["method"]))
        for value in (None, None) if printed is None else (printed.ate_position_m, printed.re10_position_m):
            cells.append(_number(value, "number paper"))
    return cells


def _number(value: float | None, kind: str = "number", decimals: int = _DECIMALS) -> _Cell:
    return _Cell("-", "", kind) if value is None else _Cell(f"{value:.{decimals}f}", repr(value), kind)


def _reduction_row(row: Row, in_paper: bool) -> list[_Cell]:
    cells = [_Cell(row[key], row[key], "") for key in ("course", "method")]
    for key in OWN_ERRORS:
        reduced = row[key] or {"reduction": None, "baseline": "", "paper": None}
        change, paper = reduced["reduction"], reduced["paper"]
        worse = " worse" if change is not None and change < 0 else ""
        cells += [
            _Cell(percent(change), "" if change is None else repr(-change), f"number{worse}"),
            _Cell(reduced["baseline"], reduced["baseline"], ""),
        ]
        if in_paper:
            cells.append(_Cell(percent(paper), "" if paper is None else repr(-paper), "number paper"))
    return cells


def _trajectories(engine: str, results: Sequence[Result]) -> list[_Picture]:
    """One picture a course: of its first seed."""
    pictures: list[_Picture] = []
    for course in dict.fromkeys(result.row["course"] for result in results):
        own = [result for result in results if result.row["course"] == course]
        seed = own[0].row["seed"]
        shown = [result for result in own if result.row["seed"] == seed]
        caption = f"{course}, seed {seed}" if len(own) > len(shown) else course
        name = f"{engine}-{len(pictures)}"
        pictures.append(_Picture(Markup(trajectories_svg(shown, name)), caption))
    return pictures
