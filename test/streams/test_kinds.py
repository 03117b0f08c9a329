"""The table of kinds: the code's and the one in the documentation are one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trace_ros.streams.kinds import KINDS, Kind, Tally

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"


def test_the_first_of_a_kind_is_told_and_all_are_counted() -> None:
    told: list[tuple[Kind, str]] = []
    tally = Tally(lambda kind, text: told.append((kind, text)))
    tally.count("imu_gap", "a pause of 3 s")
    tally.count("imu_gap", "a pause of 4 s", times=2)
    tally.count("joints_foreign")
    assert tally.counts == {"imu_gap": 3, "joints_foreign": 1}
    assert [kind.name for kind, _ in told] == ["imu_gap", "joints_foreign"]
    assert told[0][1].startswith("a pause of 3 s: kept; usually ")
    assert tally.warnings == 3
    assert tally.of("kept") == tally.counts
    assert not tally.of("dropped", "repaired")
    with pytest.raises(KeyError):
        tally.count("imu_nonsense")


def test_every_kind_is_documented_with_what_is_done() -> None:
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {name: action for *names, action in rows for name in names if name}
    assert documented == {name: kind.action for name, kind in KINDS.items()}
