"""Runs `estimator_cycles.py` apart: in rclpy the services of a managed node outlive it, and answer nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_cycles_in_a_process_of_their_own() -> None:
    tests = Path(__file__).with_name("estimator_cycles.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
