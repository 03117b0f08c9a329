"""Tables of ``trace calibrate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from trace_ros.cli.common import console

if TYPE_CHECKING:
    from trace_ros.evaluation.calibration import Judgement

TOLERANCE = 0.05
"""How far from nominal a coverage may be without being marked."""


_OF_COURSE = ("vx", "vy", "vz", "x, y", "z", "roll, pitch", "yaw")
"""Axes that are told course by course."""


def show_judgement(judgement: Judgement, title: str) -> None:
    """Coverage axis by axis, and what is farthest from nominal."""
    from trace_ros.evaluation.calibration import SIGMAS, nominal

    table = Table(title=f"{title}\nerrors within 1, 2 and 3 sigma, %; points off nominal beside")
    table.add_column("error of", no_wrap=True)
    table.add_column("axis", no_wrap=True)
    for sigma in SIGMAS:
        table.add_column(f"{sigma} sigma\n({100 * nominal(sigma):.1f})", justify="right")
    worst = 0.0
    for row in judgement.rows():
        cells = []
        for sigma, share in zip(SIGMAS, row["coverage"], strict=True):
            off = share - nominal(sigma)
            worst = max(worst, abs(off))
            cells.append(f"{100 * share:.1f} {100 * off:+5.1f}{'!' if abs(off) > TOLERANCE else ' '}")
        last = row["axis"] == "all"
        table.add_row(row["of"], row["axis"], *cells, style="bold" if last else None, end_section=last)
    joint = [
        f"{100 * share:.1f} {100 * (share - nominal(sigma)):+5.1f} "
        for sigma, share in zip(SIGMAS, judgement.joint(), strict=True)
    ]
    table.add_row("position ellipsoid", "xyz", *joint)
    console.print(table)
    console.print(f"farthest from nominal: {100 * worst:.1f} points")


def show_courses(judgements: Mapping[str, Judgement], what: str = "course") -> None:
    """Coverage of the axes that matter, a line each."""
    from trace_ros.evaluation.calibration import nominal

    few = "of few walks, the errors that last a whole walk show as too many or too few"
    title = f"{what} by {what}: errors within 1 ({100 * nominal(1):.1f}) and 2 ({100 * nominal(2):.1f}) sigma, %"
    table = Table(title=f"{title}\n{few}")
    rows = {course: judgement.rows() for course, judgement in judgements.items()}
    table.add_column(what, no_wrap=True)
    for row in next(iter(rows.values())):
        if row["axis"] in _OF_COURSE:
            table.add_column(f"{row['of'].split()[0]}\n{row['axis']}", justify="right")
    for course, own in rows.items():
        shares = [row["coverage"] for row in own if row["axis"] in _OF_COURSE]
        table.add_row(course, *(f"{100 * share[0]:.0f} {100 * share[1]:.0f}" for share in shares))
    console.print(table)
