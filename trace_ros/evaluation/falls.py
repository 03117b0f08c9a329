"""How a robot fell on a simulated walk: kept beside the place of its log, so that it is not simulated again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trace_ros.errors import FallError
from trace_ros.whole_files import whole_file

_MOST_BYTES = 1000


def fall_file(log: Path) -> Path:
    """Beside the log."""
    return log.with_suffix(".fell")


def kept_fall(log: Path) -> FallError | None:
    """How the robot fell on the walk of a log; None where it did not, or the note is damaged: it then walks again."""
    try:
        with fall_file(log).open("rb") as file:
            first, _, _ = file.read(_MOST_BYTES).decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    how = first.strip()
    return FallError(how) if how and how.isprintable() else None


def keep_fall(log: Path, fall: FallError) -> None:
    """Keep it, where the disk lets it."""
    with suppress(OSError), whole_file(fall_file(log)) as part:
        part.write_text(f"{fall}\n")


def fall_row(course: str, seed: int, fall: FallError) -> dict[str, str | int]:
    """A walk that has no row of figures, as commands write it."""
    return {"course": course, "seed": seed, "reason": str(fall)}


def all_fell(first: FallError, walks: int) -> FallError:
    """What is told where no walk is left."""
    return first if walks == 1 else FallError(f"the robot fell on all {walks} walks; the first: {first}")
