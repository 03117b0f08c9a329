"""From rows to tables: means over the seeds, reductions against the strongest baseline, Markdown, and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trace_ros.baselines.registry import TRACE
from trace_ros.evaluation.benchmark_paper import CITATION, PAPER
from trace_ros.evaluation.benchmark_results import Row

OWN_ERRORS = ("ate_position_m", "re10_position_m")
"""Figures for which reductions are given, as the paper does."""

_FIGURES = (
    "path_length_m",
    "ate_position_m",
    "ate_velocity_mps",
    "ate_orientation_rad",
    "re10_position_m",
    "re10_velocity_mps",
    "re10_orientation_rad",
)
_FLOOR = 0.005
"""m, m/s or rad: errors below this may differ by as much, whatever their ratio."""


def mean_rows(rows: Sequence[Row]) -> list[Row]:
    """Means over the seeds of each engine, course and method, in the order of the rows; ``seeds`` counts them.

    A figure that some row lacks is None.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["engine"], row["course"], row["method"]), []).append(row)
    means = []
    for (engine, course, method), members in groups.items():
        mean: Row = {"engine": engine, "course": course, "method": method, "seeds": len(members)}
        for key in _FIGURES:
            values = [member[key] for member in members]
            if any(value is None for value in values):
                mean[key] = None
            elif isinstance(values[0], dict):
                mean[key] = {part: float(np.mean([value[part] for value in values])) for part in values[0]}
            else:
                mean[key] = float(np.mean(values))
        means.append(mean)
    return means


def figure_of(row: Row, key: str) -> float | None:
    """One figure of a row or mean; of a relative error of the position its mean."""
    value = row[key]
    return value["mean"] if isinstance(value, dict) else value


def reductions(means: Sequence[Row], own: Sequence[str] = (TRACE,), ablations: Sequence[str] = ()) -> list[Row]:
    """How much lower the errors of TRACE are than those of the strongest baseline, course by course.

    Args:
        means: see `mean_rows`.
        own: labels of what is TRACE, each held against the baselines.
        ablations: labels that are no baselines either.

    Returns:
        A row for each engine, course and own label with a baseline on the same course: ``engine``, ``course``,
        ``method``, and for each of `OWN_ERRORS` ``baseline`` (the label of the strongest), ``reduction`` (1 is all,
        negative is worse) and ``paper`` (the same from the paper's table, or None). None where a figure is missing.
    """
    found = []
    for engine, course in dict.fromkeys((mean["engine"], mean["course"]) for mean in means):
        members = {m["method"]: m for m in means if (m["engine"], m["course"]) == (engine, course)}
        baselines = [mean for label, mean in members.items() if label not in (*own, *ablations)]
        for label in own if baselines else ():
            if label not in members:
                continue
            row: Row = {"engine": engine, "course": course, "method": label}
            for key in OWN_ERRORS:
                others = {mean["method"]: figure_of(mean, key) for mean in baselines}
                row[key] = _reduction(figure_of(members[label], key), others)
                if row[key] is not None:
                    row[key]["paper"] = paper_reduction(course, key)
            found.append(row)
    return found


def paper_reduction(course: str, key: str) -> float | None:
    """The paper's own reduction against its strongest baseline, from its tables; None: it has no such course."""
    figures = {method: getattr(each, key) for (name, method), each in PAPER.items() if name == course}
    reduced = _reduction(figures.pop(TRACE, None), figures)
    return None if reduced is None else reduced["reduction"]


def _reduction(mine: float | None, others: dict[str, float | None]) -> dict[str, Any] | None:
    known = {name: value for name, value in others.items() if value}
    if mine is None or not known:
        return None
    strongest = min(known, key=lambda name: known[name])
    return {"baseline": strongest, "reduction": 1 - mine / known[strongest]}


@dataclass(frozen=True)
class Difference:
    """A figure that two runs of a benchmark have in common."""

    where: str
    figure: str
    now: float
    before: float

    @property
    def relative(self) -> float:
        """|now - before| over the larger of both; 0 where they differ by less than rounding of what is printed."""
        apart = abs(self.now - self.before)
        return 0.0 if apart <= 1e-9 else apart / max(abs(self.now), abs(self.before))

    def within(self, tolerance: float) -> bool:
        """Whether the two agree to a relative tolerance, or to half a centimetre (cm/s, hundredth of a radian)."""
        return self.relative <= tolerance or abs(self.now - self.before) <= _FLOOR


def compare_rows(rows: Iterable[Row], earlier: Iterable[Row]) -> list[Difference]:
    """Figures of the rows that both have, by engine, course, method and seed; the largest difference first."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("engine", "course", "method", "seed"))

    before = {key(row): row for row in earlier}
    found = []
    for row in rows:
        other = before.get(key(row))
        for name in _FIGURES if other is not None else ():
            assert other is not None
            mine, theirs = row.get(name), other.get(name)
            pairs = (
                {f"{name} {part}": (mine[part], theirs.get(part)) for part in mine}
                if isinstance(mine, dict) and isinstance(theirs, dict)
                else {name: (mine, theirs)}
            )
            where = ", ".join(map(str, key(row)))
            found += [
                Difference(where, label, float(a), float(b))
                for label, (a, b) in pairs.items()
                if isinstance(a, int | float) and isinstance(b, int | float)
            ]
    return sorted(found, key=lambda difference: -difference.relative)


def markdown(rows: Sequence[Row], reduced: Sequence[Row], heading: str, notes: Sequence[str]) -> str:
    """The tables as Markdown.

    Args:
        rows: of all walks.
        reduced: see `reductions`.
        heading: on the first line.
        notes: paragraphs below it.
    """
    means = mean_rows(rows)
    lines = [f"# {heading}", ""]
    for note in notes:
        lines += [note, ""]
    for engine in dict.fromkeys(row["engine"] for row in rows):
        own = [mean for mean in means if mean["engine"] == engine]
        in_paper = any((mean["course"], mean["method"]) in PAPER for mean in own)
        lines += [f"## {engine}", "", *_markdown_errors(own, in_paper), ""]
        if of_engine := [row for row in reduced if row["engine"] == engine]:
            lines += [*_markdown_reductions(of_engine, in_paper), ""]
    if any((mean["course"], mean["method"]) in PAPER for mean in means):
        lines += [f"Paper: {CITATION}.", ""]
    return "\n".join(lines)


def _markdown_errors(means: Sequence[Row], in_paper: bool) -> list[str]:
    head = ["course", "method", "path m", "ATE pos m", "vel m/s", "ori rad"]
    head += ["RE pos m", "P90", "RE vel m/s", "RE ori rad"]
    if in_paper:
        head += ["paper ATE pos", "paper RE pos"]
    lines = [_line(head), _line(["---", "---", *["---:"] * (len(head) - 2)])]
    for mean in means:
        best = best_of(means, mean["course"])
        relative = mean["re10_position_m"]
        cells = [mean["course"], mean["method"], f"{mean['path_length_m']:.1f}"]
        cells += [_number(mean, key, best) for key in _FIGURES[1:4]]
        text = "-" if relative is None else f"{relative['mean']:.4f} ± {relative['std']:.4f}"
        cells.append(f"**{text}**" if best.get("re10_position_m") == mean["method"] else text)
        cells.append("-" if relative is None else f"{relative['p90']:.4f}")
        cells += [_number(mean, key, best) for key in _FIGURES[5:]]
        if in_paper:
            printed = PAPER.get((mean["course"], mean["method"]))
            cells += (
                ["-", "-"] if printed is None else [f"{printed.ate_position_m:.4f}", f"{printed.re10_position_m:.4f}"]
            )
        lines.append(_line(cells))
    return lines


def best_of(means: Sequence[Row], course: str) -> dict[str, str]:
    """The method with the smallest error, by figure; only where several methods have it."""
    found = {}
    for key in _FIGURES[1:]:
        values = {
            m["method"]: value for m in means if m["course"] == course and (value := figure_of(m, key)) is not None
        }
        if len(values) > 1:
            found[key] = min(values, key=lambda method: values[method])
    return found


def _markdown_reductions(rows: Sequence[Row], in_paper: bool) -> list[str]:
    columns = 3 if in_paper else 2  # of each error
    against = ["against", "paper"][: columns - 1]
    lines = [
        "TRACE against the strongest baseline of each course:",
        "",
        _line(["course", "method", "ATE pos", *against, "RE pos", *against]),
        _line(["---", "---", *2 * ["---:", "---", "---:"][:columns]]),
    ]
    for row in rows:
        cells = [row["course"], row["method"]]
        for key in OWN_ERRORS:
            reduced = row[key]
            texts = ["-", "-", "-"]
            if reduced is not None:
                texts = [percent(reduced["reduction"]), reduced["baseline"], percent(reduced["paper"])]
            cells += texts[:columns]
        lines.append(_line(cells))
    return lines


def percent(value: float | None) -> str:
    """A reduction as text: ``-50.7 %`` for half the error."""
    return "-" if value is None else f"{-100 * value:+.1f} %"


def _number(mean: Row, key: str, best: dict[str, str]) -> str:
    value = mean[key]
    if value is None:
        return "-"
    return f"**{value:.4f}**" if best.get(key) == mean["method"] else f"{value:.4f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
