"""The real estimator node as a process, alone in a namespace of its own, to be watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rclpy
from rclpy.node import Node

from trace_ros.errors import TraceError
from trace_ros.nodes.lifecycle import change_states

START_LIMIT_S = 60.0


class EstimatorProcess:
    """A running node: its memory, its share of the processor, what it says."""

    def __init__(self, process: subprocess.Popen[bytes], namespace: str, log: Path) -> None:
        self._process, self._log = process, log
        self.namespace = namespace
        """Of its topics, among which are ``tf`` and ``diagnostics``."""

    def activate(self, node: Node) -> None:
        """Have it configured and activated, through a node of the caller's.

        Raises:
            TraceError: it refuses, or does not start (with what it said).
        """
        try:
            change_states(node, f"{self.namespace}/estimator", ["configure", "activate"], START_LIMIT_S)
        except TraceError as error:
            raise TraceError(f"{error}; its log ends with: {' | '.join(self.last_lines(2))}") from error

    def memory_mb(self) -> float:
        """MB (1e6 bytes) of its own memory, in RAM or swapped out; 0 when it has ended.

        Not the pages of files that it has mapped: those come and go with what else the machine does.
        """
        with suppress(OSError):
            return own_memory_mb(Path(f"/proc/{self._process.pid}/status").read_text())
        return 0.0

    def cpu_s(self) -> float:
        """Time on a processor so far, all threads, s; 0 when it has ended."""
        with suppress(OSError, IndexError, ValueError):
            # After the name in brackets: user and system time are the 12th and 13th fields.
            parts = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def check(self) -> None:
        """That it still runs.

        Raises:
            TraceError: it has ended (with what it said).
        """
        if self._process.poll() is not None:
            raise TraceError(f"the estimator node ended: {' | '.join(self.last_lines(3))}")

    def last_lines(self, count: int) -> list[str]:
        """The end of its log."""
        return self._log.read_text(errors="replace").splitlines()[-count:]


def own_memory_mb(status: str) -> float:
    """MB (1e6 bytes) that a process takes for itself, out of its ``/proc/PID/status``; 0 where that does not say."""
    lines = (line.partition(":") for line in status.splitlines())
    sizes = {name: text.split() for name, _, text in lines}
    own = [sizes[name] for name in ("RssAnon", "RssShmem", "VmSwap") if name in sizes]
    return sum(int(number) for number, _unit in own) * 1024 / 1e6


@contextmanager
def estimator_process(name: str, parameters: Mapping[str, object]) -> Iterator[EstimatorProcess]:
    """Start the estimator node, unconfigured, and end it afterwards; rclpy is initialised meanwhile.

    Args:
        name: of what watches it, for the namespace.
        parameters: of the node; those that are None are left out.

    Raises:
        TraceError: the system has no /proc.
    """
    if not Path("/proc/self/status").is_file():
        raise TraceError(f"{name}: memory and processor time are read from /proc, which this system does not have")
    # On its own: nothing else on this machine or the network hears or feeds this node.
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    namespace = f"/trace_{name}_{os.getpid()}"
    arguments = ["-r", f"__ns:={namespace}", "-r", "/tf:=tf", "-r", "/diagnostics:=diagnostics"]
    for key, value in parameters.items():
        if value is not None:
            arguments += ["-p", f"{key}:={value}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "estimator.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "trace_ros.nodes.estimator_node", "--ros-args", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        begun = not rclpy.ok()
        try:
            if begun:
                rclpy.init(args=[])
            yield EstimatorProcess(process, namespace, log)
        finally:
            end(process)
            if begun:
                rclpy.try_shutdown()


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, and make it."""
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def faults_of(values: Mapping[str, str]) -> dict[str, int]:
    """What the node counted, by kind, out of the values of its diagnostics."""
    return {
        key.split(": ", 1)[1]: int(value)
        for key, value in values.items()
        if key.split(": ", 1)[0] in ("dropped", "repaired", "kept")
    }
