"""How fast bags are read and logs evaluated, and how much faster than message by message and sample by sample.

``python benchmarks/offline.py LOG [LOG ...] [--rounds 3] [--model models/go2/trace.pt] [--json FILE]``

The first log is written as a bag and evaluated alone; all of them are evaluated together. Ways that are compared take
turns, so that what else the machine does hits all alike; the best of the rounds counts, in wall clock and in processor
time. Both are printed: on a busy machine only the latter, and the ratios, say much.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trace_ros.bags import read_bag, reading, write_bag
from trace_ros.bags.files import read_log
from trace_ros.estimator.engines import EngineName
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.evaluation.runner import evaluate_run, evaluate_runs
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription


@dataclass
class Timed:
    """One way to do a piece of work: the least time (s) that it took so far."""

    work: Callable[[], Any]
    wall_s: float = float("inf")
    processor_s: float = float("inf")

    def run(self) -> None:
        """Once more."""
        wall, processor = time.perf_counter(), time.process_time()
        self.work()
        self.wall_s = min(self.wall_s, time.perf_counter() - wall)
        self.processor_s = min(self.processor_s, time.process_time() - processor)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG")
    parser.add_argument("--robot", default="go2")
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of all logs together")
    parser.add_argument("--seconds", type=float, default=None, help="take only the beginning of each log")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    robot = RobotDescription.load(arguments.robot)
    model = arguments.model or models_directory() / robot.name / "trace.pt"
    logs = [read_log(path, robot)[0] for path in arguments.logs]
    if arguments.seconds is not None:
        logs = [_beginning(log, arguments.seconds) for log in logs]
    names = [f"{index}_{path.stem}" for index, path in enumerate(arguments.logs)]
    total_s = sum(log.duration_s for log in logs)

    def estimator(engine: EngineName) -> TraceEstimator:
        return TraceEstimator.load(model, robot, engine=engine)

    script = estimator("torchscript")
    with tempfile.TemporaryDirectory() as folder:
        bags = {"mcap": Path(folder) / "mcap", "sqlite3": Path(folder) / "sqlite3"}
        for storage, path in bags.items():
            write_bag(path, replace(logs[0], reference=None), robot, storage)  # type: ignore[arg-type]
        whole = Path(folder) / "whole"
        write_bag(whole, logs[0], robot)

        def one_by_one() -> None:
            with mock.patch.object(reading, "samples_at_once", return_value=None):
                read_bag(bags["mcap"], robot)

        ways = {
            "reading, message by message": Timed(one_by_one),
            "reading at once, mcap": Timed(lambda: read_bag(bags["mcap"], robot)),
            "reading at once, sqlite3": Timed(lambda: read_bag(bags["sqlite3"], robot)),
            "one log, sample by sample": Timed(lambda: evaluate_run(names[0], logs[0], script, stepwise=True)),
            "one log": Timed(lambda: evaluate_run(names[0], logs[0], script)),
            "one bag, with its reading": Timed(lambda: evaluate_run(names[0], read_bag(whole, robot), script)),
            "all logs": Timed(lambda: evaluate_runs(names, logs, script, threads=arguments.threads)),
        }
        try:
            other = estimator("onnxruntime")
            ways["one log, onnxruntime"] = Timed(lambda: evaluate_run(names[0], logs[0], other))
        except Exception as error:
            print(f"without onnxruntime: {error}", file=sys.stderr)
        evaluate_run(names[0], logs[0].select(slice(0, 1000)), script)  # the script is compiled at first
        for _ in range(arguments.rounds):
            for way in ways.values():
                way.run()

    rows = {}
    for name, way in ways.items():
        if name.startswith("reading"):
            amount, unit = 2.0 * len(logs[0]), "messages/s"
        else:
            amount, unit = total_s if name == "all logs" else logs[0].duration_s, "x real time"
        rows[name] = {"unit": unit, "wall": amount / way.wall_s, "processor": amount / way.processor_s}
    print(f"{len(logs)} logs, {total_s:.0f} s in all; the first {logs[0].duration_s:.0f} s, {len(logs[0])} samples")
    for name, row in rows.items():
        print(f"{name:30s} {row['wall']:12,.0f} {row['unit']} ({row['processor']:,.0f} by processor time)")
    ratios = {
        "reading at once / message by message": _ratio(ways, "reading, message by message", "reading at once, mcap"),
        "one log / sample by sample": _ratio(ways, "one log, sample by sample", "one log"),
        "all logs / sample by sample": _ratio(ways, "one log, sample by sample", "all logs")
        * (total_s / logs[0].duration_s),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.1f} times as fast, by processor time")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": rows, "ratios": ratios}, indent=2) + "\n", encoding="utf-8")


def _beginning(log: SensorLog, seconds: float) -> SensorLog:
    """With what the reference says of it, and no more."""
    log = log.select(slice(0, round(seconds * log.rate_hz)))
    if log.reference is not None:
        log = replace(log, reference=log.reference.select(log.reference.stamp_ns <= log.stamp_ns[-1]))
    return log


def _ratio(ways: dict[str, Timed], slow: str, fast: str) -> float:
    return ways[slow].processor_s / ways[fast].processor_s


if __name__ == "__main__":
    main()
