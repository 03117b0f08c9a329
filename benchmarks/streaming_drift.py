"""How far streaming strays from whole windows over a long run, with gaps, on each engine.

``python benchmarks/streaming_drift.py [--steps 100000] [--model models/go2/trace.pt]``; exit code 1 if it is over 1e-5.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.engines import make_engine
from trace_ros.estimator.observation import JOINT_TORQUE, WINDOW
from trace_ros.estimator.streaming import StreamingTrace
from trace_ros.resources import models_directory

ALLOWED = 1e-5
SECTION = 2000
GAP_EVERY = 10
"""Sections between two gaps, after which the window is filled anew."""


def main() -> None:
    """Compare and print the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--model", type=Path, default=models_directory() / "go2" / "trace.pt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
    model = load_model(arguments.model)
    network = model.network().eval()
    current = torch.jit.freeze(torch.jit.script(StreamingTrace(network).eval()), preserved_attrs=["prime", "step"])
    engines = {
        "torchscript": make_engine("torchscript", dataclasses.replace(model, module=current)),
        "onnxruntime": make_engine("onnxruntime", model),
    }
    worst = dict.fromkeys(engines, 0.0)
    generator = torch.Generator().manual_seed(0)
    hidden, before = network.initial_hidden(1), torch.empty(0, 47)
    for section in range(-(-arguments.steps // SECTION)):
        gap = section % GAP_EVERY == 0
        drawn = torch.randn(SECTION + (WINDOW - 1 if gap else 0), 47, generator=generator)
        drawn = drawn * network.observation_scale + network.observation_mean
        absent = torch.rand(len(drawn), 12, generator=generator) < 0.1
        drawn[:, JOINT_TORQUE][absent] = torch.nan
        if gap:
            hidden = network.initial_hidden(1)
            for engine in engines.values():
                engine.prime(drawn[: WINDOW - 1].numpy())
            rows = drawn
        else:
            rows = torch.cat((before, drawn))
        before = rows[1 - WINDOW :]
        with torch.no_grad():
            expected = network.sequence(rows[None], hidden)
        hidden = expected.hidden
        for index, row in enumerate(rows[WINDOW - 1 :].numpy()):
            for name, engine in engines.items():
                engine.observation[:] = row
                motion, attention = engine.step()
                difference = max(
                    np.abs(np.array(motion) - expected.motion[0, index].numpy()).max(),
                    np.abs(attention - expected.attention[0, index].numpy()).max(),
                )
                worst[name] = max(worst[name], float(difference))
    for name, difference in worst.items():
        print(f"{name}: largest difference from the 30-sample window over {arguments.steps:,} steps {difference:.1e}")
    sys.exit(max(worst.values()) > ALLOWED)


if __name__ == "__main__":
    main()
