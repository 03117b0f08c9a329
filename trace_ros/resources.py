"""The package's data files: beside the source in a checkout, under ``share/trace_ros`` once installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from trace_ros.errors import TraceError


def share_directory() -> Path:
    """The folder that holds ``config/``, ``launch/`` and ``models/``.

    Raises:
        TraceError: the installation lacks its data files.
    """
    package = Path(__file__).resolve().parent
    candidates = [package.parent]
    # ament and pip both install data under <prefix>/share/trace_ros; the prefix is an ancestor of the package, named by
    # ament's path, or the running Python's.
    prefixes = [*package.parents, *map(Path, filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)))]
    candidates += [prefix / "share" / "trace_ros" for prefix in (*prefixes, Path(sys.prefix))]
    for candidate in candidates:
        if (candidate / "config" / "robots").is_dir():
            return candidate
    raise TraceError("the data files of trace_ros (config/robots) are not installed: build with pip or colcon")


def config_directory() -> Path:
    """``config/`` of the package."""
    return share_directory() / "config"


def models_directory() -> Path:
    """``models/`` of the package."""
    return share_directory() / "models"


def read_bounded(path: Path, limit: int, what: str) -> bytes:
    """All of a file, unless it is longer than any of its kind.

    Args:
        path: the file.
        limit: bytes.
        what: what it should be, for the error (``a URDF``).

    Raises:
        TraceError: it cannot be read, is too long, or is no file: a pipe is waited for, and some devices never end.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise TraceError(f"{path}: cannot be read (a device or a pipe, expected {what})")
        if (size := path.stat().st_size) > limit:
            raise TraceError(f"{path}: {size} bytes are too many for {what} (at most {limit})")
        with path.open("rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise TraceError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


MAX_YAML_BYTES = 4 * 1024**2
"""No file of settings is as long; what is longer is another file and is not read."""


def read_yaml(path: Path) -> Any:
    """What a YAML file holds: plain values only, no tags that construct objects.

    Raises:
        TraceError: it cannot be read, is too long, or is not YAML.
    """
    try:
        return yaml.safe_load(read_bounded(path, MAX_YAML_BYTES, "a file of settings").decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    except RecursionError as error:
        raise TraceError(f"{path}: not valid YAML (nested too deeply)") from error


def merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``defaults`` with ``own`` over them, section by section; lists are replaced whole."""
    result = dict(defaults)
    for key, value in own.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def read_yaml_on_base(
    path: Path,
    shipped: Path | None = None,
    each: Callable[[Path, dict[str, Any]], dict[str, Any]] | None = None,
) -> Any:
    """What a YAML file holds, over the file that its key ``base`` names, if there is one.

    Args:
        path: the file; ``base`` is a path relative to it, or to what it links to.
        shipped: folder where a base lies that is named without ``.yaml``, or None: there are no such names.
        each: given each file and what it holds, its own keys as they shall be laid over the base's.

    Raises:
        TraceError: a file cannot be read, or is not YAML; or files are each other's base.
    """
    seen: list[Path] = []
    data: Any = {}
    upper: Path | None = path
    while upper is not None:
        seen.append(upper.resolve())
        own = read_yaml(upper)
        if not isinstance(own, dict):
            if len(seen) == 1:
                return own
            raise TraceError(f"{path}: base {upper} holds no keys and values")
        data = merged(own if each is None else each(upper, own), data)
        upper = None
        if "base" in data:
            upper = _base(seen[-1], data.pop("base"), shipped)
            if upper.resolve() in seen:
                raise TraceError(f"{path}: base {upper.name} leads back to itself")
    return data


def _base(path: Path, name: Any, shipped: Path | None) -> Path:
    """The file that a file's key ``base`` names."""
    if not isinstance(name, str):
        raise TraceError(f"{path}: base must name one file, found {name!r}")
    if shipped is None:
        return path.parent / name
    known = f"those of {shipped} are named without .yaml, a base of your own by its path with it"
    file = path.parent / name if Path(name).suffix in (".yaml", ".yml") else shipped / f"{name}.yaml"
    if not file.is_file():
        raise TraceError(f"{path}: base {name!r}: there is no {file}; {known}")
    return file
