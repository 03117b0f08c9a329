"""The programs in ``tools/`` as modules; they are no package, and not there where only the package is tested."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


def load_tool(name: str) -> ModuleType:
    """Load one; tests are skipped where it is not there."""
    path = TOOLS / f"{name}.py"
    if not path.is_file():
        pytest.skip("tools/ is not here: not a checkout", allow_module_level=True)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(TOOLS))  # they import their neighbours by name
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module
