"""Falls are remembered in a line; a note that is damaged is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_ros.errors import FallError
from trace_ros.evaluation.falls import all_fell, fall_file, keep_fall, kept_fall


@pytest.mark.parametrize("name", ["level_4.npz", "seed_4"])
def test_what_is_kept_is_read(tmp_path: Path, name: str) -> None:
    log = tmp_path / "walks" / name
    assert kept_fall(log) is None
    keep_fall(log, FallError("course 'level': the robot fell after 0.7 s with seed 4"))
    assert fall_file(log).name == f"{log.stem}.fell"
    assert str(kept_fall(log)) == "course 'level': the robot fell after 0.7 s with seed 4"


@pytest.mark.parametrize("content", [b"", b"\n", b" \nfell\n", b"\x00" * 50, b"\xff\xfe", bytes(range(256)) * 1000])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "level_4.npz"
    fall_file(log).write_bytes(content)
    assert kept_fall(log) is None


def test_a_note_that_is_a_folder_or_cannot_be_written_is_none(tmp_path: Path) -> None:
    log = tmp_path / "level_4.npz"
    fall_file(log).mkdir()
    keep_fall(log, FallError("fell"))
    assert kept_fall(log) is None


def test_where_all_fell_their_number_is_told() -> None:
    first = FallError("course 'level': the robot fell")
    assert all_fell(first, 1) is first
    assert str(all_fell(first, 3)) == "the robot fell on all 3 walks; the first: course 'level': the robot fell"
