"""How far streaming strays from whole windows over a long run, with gaps, on each engine.

    python benchmarks/streaming_drift.py out/courses/validation-*/flat_*.npz   # readings of walks, a gap after each
    python benchmarks/streaming_drift.py                                       # readings drawn anew each step

Drawn readings leap as no robot's do, and show more rounding. Exit code 1 where an engine is over 1e-5.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from trace_ros.cli.common import say
from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.engines import make_engine
from trace_ros.estimator.network import TraceNetwork
from trace_ros.estimator.streaming import StreamingTrace
from trace_ros.logs import SensorLog
from trace_ros.resources import models_directory

ALLOWED = 1e-5
SECTION = 2000
GAP_EVERY = 10
"""Drawn sections between two gaps, after which the window is filled anew."""


def main() -> int:
    """Compare and print the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="*", metavar="LOG", help=".npz with all joint readings")
    parser.add_argument("--steps", type=int, default=100_000, help="of drawn readings [100000]")
    parser.add_argument("--model", type=Path, default=models_directory() / "go2" / "trace.pt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
    try:
        return compare(arguments)
    except TraceError as error:
        say(f"error: {error}")
        return 2


def compare(arguments: argparse.Namespace) -> int:
    model = load_model(arguments.model)
    network = model.network().eval()
    current = torch.jit.freeze(torch.jit.script(StreamingTrace(network).eval()), preserved_attrs=["prime", "step"])
    engines = {
        "torchscript": make_engine("torchscript", dataclasses.replace(model, module=current)),
        "onnxruntime": make_engine("onnxruntime", model),
    }
    worst, steps = dict.fromkeys(engines, 0.0), 0
    hidden, before = network.initial_hidden(1), np.empty((0, obs.OBSERVATION_SIZE), np.float32)
    for gap, readings in of_walks(arguments.logs) if arguments.logs else drawn(network, arguments.steps):
        if gap:
            hidden, before = network.initial_hidden(1), readings[: obs.WINDOW - 1]
            for engine in engines.values():
                engine.prime(before)
            readings = readings[obs.WINDOW - 1 :]
        rows = np.concatenate((before, readings))
        before = rows[1 - obs.WINDOW :]
        with torch.no_grad():
            expected = network.sequence(torch.from_numpy(rows)[None], hidden)
        hidden = expected.hidden
        motions, attentions = expected.motion[0].numpy(), expected.attention[0].numpy()
        for row, *wanted in zip(readings, motions, attentions, strict=True):
            steps += 1
            for name, engine in engines.items():
                engine.observation[:] = row
                for found, value in zip(engine.step(), wanted, strict=True):
                    worst[name] = max(worst[name], float(np.abs(np.array(found) - value).max()))
    for name, difference in worst.items():
        print(f"{name}: largest difference from the 30-sample window over {steps:,} steps {difference:.1e}")
    return int(max(worst.values()) > ALLOWED)


def of_walks(paths: list[Path]) -> Iterator[tuple[bool, np.ndarray]]:
    """Whether the window begins anew, and (M, 47) readings; what a network feeds back is left at zero."""
    for path in paths:
        log = SensorLog.load(path)
        if log.joint_velocity is None or log.joint_torque is None:
            raise TraceError(f"{path}: needs joint velocities and torques")
        rows = np.zeros((len(log), obs.OBSERVATION_SIZE), np.float32)
        for columns, values in (
            (obs.GYRO, log.angular_velocity),
            (obs.ACCEL, log.linear_acceleration),
            (obs.JOINT_POSITION, log.joint_position),
            (obs.JOINT_VELOCITY, log.joint_velocity),
            (obs.JOINT_TORQUE, log.joint_torque),
        ):
            rows[:, columns] = values
        rows[:, obs.DT] = np.median(np.diff(log.stamp_ns)) * 1e-9
        for start in range(0, len(rows), SECTION):
            if start == 0 or len(rows) - start >= obs.WINDOW:
                yield start == 0, rows[start : start + SECTION]


def drawn(network: TraceNetwork, steps: int) -> Iterator[tuple[bool, np.ndarray]]:
    """As `of_walks`: normally distributed readings, of which a tenth of the torques is absent."""
    generator = torch.Generator().manual_seed(0)
    for section in range(-(-steps // SECTION)):
        gap = section % GAP_EVERY == 0
        rows = torch.randn(SECTION + (obs.WINDOW - 1 if gap else 0), obs.OBSERVATION_SIZE, generator=generator)
        rows = rows * network.observation_scale + network.observation_mean
        absent = torch.rand(len(rows), 12, generator=generator) < 0.1
        rows[:, obs.JOINT_TORQUE][absent] = torch.nan
        yield gap, rows.numpy()


if __name__ == "__main__":
    sys.exit(main())
