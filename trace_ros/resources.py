"""The package's data files: beside the source in a checkout, under ``share/trace_ros`` once installed."""

from __future__ import annotations

import os
import sys
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


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        TraceError: it cannot be read, or is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
