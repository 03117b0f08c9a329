"""How long one step takes, for each way to compute it, in turns in one process so that noise hits all alike."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count as counting
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trace_ros.baselines.iekf import IekfSlipRejection
from trace_ros.estimator.checkpoint import LoadedModel
from trace_ros.estimator.engines import EngineName, make_engine
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.interface import Estimator
from trace_ros.estimator.observation import WINDOW
from trace_ros.estimator.streaming import StreamingTrace
from trace_ros.evaluation.latency_networks import LegolasSized, NmnSized, PaperWindow, Products
from trace_ros.geometry import GRAVITY
from trace_ros.logs import JOINTS, Sample
from trace_ros.robot import RobotDescription

Step = Callable[[], object]

ROWS = {
    "eager_window": "network, paper's formulation: whole window, eager",
    "torchscript_window": "network, whole window, TorchScript",
    "torchscript_streaming": "network, streaming, TorchScript",
    "onnxruntime_streaming": "network, streaming, ONNX Runtime",
    "estimator_step": "TraceEstimator.step as a whole",
    "legolas": "network of Legolas' size (1.4 M), TorchScript",
    "nmn": "network of NMN's size (GRU 128), TorchScript",
    "nmn_estimator": "the same and the invariant filter that it corrects: NMN's estimator as a whole",
    "floor": "the streaming network's matrix-vector products alone",
}
"""Names of what is timed, and what each is."""

COMPARED = (
    *(("torchscript_streaming", other) for other in ("legolas", "nmn", "floor")),
    ("onnxruntime_streaming", "nmn"),
    ("estimator_step", "nmn_estimator"),
)
"""Rows that are compared with each other, like with like."""

_SAMPLES = 512
_STEP_NS = 2_000_000
"""Between two samples: the paper's 500 Hz."""
_BLOCK = 50
"""Steps of one row before the next one's turn."""
_SETTLING = 5
"""Steps of a turn that do not count: the row before had the caches."""


@dataclass(frozen=True)
class Latency:
    """Wall time of a step, ms."""

    mean_ms: float
    std_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: NDArray[np.float64]) -> Latency:
        """Of measured times (N,), s."""
        ms = seconds * 1e3
        p50, p99 = np.percentile(ms, (50, 99)).tolist()
        return cls(float(ms.mean()), float(ms.std()), p50, p99, float(ms.max()))

    def to_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


def steps_to_time(
    model: LoadedModel, robot: RobotDescription, engines: Sequence[EngineName], seed: int = 0
) -> dict[str, Step]:
    """What `measure` runs, by the names of `ROWS`: each call is one step, at batch 1.

    Args:
        model: its weights are used; the script in its file only in ``estimator_step``.
        robot: that it was trained for.
        engines: that are installed.
        seed: of the inputs and of the random weights.
    """
    torch.manual_seed(seed)
    network = model.network().eval()
    samples = walking_samples(_SAMPLES, seed)
    rows = torch.stack([_observation(sample) for sample in samples])
    steps: dict[str, Step] = {}
    window = PaperWindow(network).eval()
    steps["eager_window"] = _window_step(window, rows, network.config.hidden)
    steps["torchscript_window"] = _window_step(_scripted(window), rows, network.config.hidden)
    steps["torchscript_streaming"] = _streaming_step(_scripted(StreamingTrace(network).eval(), "prime", "step"), rows)
    if "onnxruntime" in engines:
        engine = make_engine("onnxruntime", model)
        observations = rows.numpy()
        engine.prime(observations[: WINDOW - 1])
        following = cycle(observations)

        def onnx_step() -> object:
            engine.observation[:] = next(following)
            return engine.step()

        steps["onnxruntime_streaming"] = onnx_step
    steps["estimator_step"] = _estimator_step(TraceEstimator(model, robot), samples)
    legolas, frames = _scripted(LegolasSized().eval()), torch.randn(1, 44, 50)
    steps["legolas"] = lambda: legolas(frames)
    steps["nmn"] = _nmn_step(_scripted(NmnSized().eval()))
    steps["nmn_estimator"] = _both(
        _nmn_step(_scripted(NmnSized().eval())), _estimator_step(IekfSlipRejection(robot), samples)
    )
    products = Products(network).eval()
    steps["floor"] = partial(_scripted(products), products.vectors())
    return {name: steps[name] for name in ROWS if name in steps}


def measure(
    steps: dict[str, Step], count: int, warm_up: int = 500, progress: Callable[[int], None] | None = None
) -> dict[str, Latency]:
    """Time steps in turns of some dozens, on one thread, until each was timed ``count`` times.

    Args:
        steps: by name.
        count: timed steps of each.
        warm_up: steps of each beforehand.
        progress: called now and then with how many of ``count`` are done.
    """
    clock = time.perf_counter
    times: dict[str, NDArray[np.float64]] = {name: np.empty(count) for name in steps}
    with _one_thread(), torch.inference_mode():
        for step in steps.values():
            for _ in range(warm_up):
                step()
        for begin in range(0, count, _BLOCK):
            for name, step in steps.items():
                for _ in range(_SETTLING):
                    step()
                measured = times[name]
                for index in range(begin, min(begin + _BLOCK, count)):
                    start = clock()
                    step()
                    measured[index] = clock() - start
            if progress is not None:
                progress(min(begin + _BLOCK, count))
    return {name: Latency.of(measured) for name, measured in times.items()}


def ratios(rows: dict[str, Latency]) -> dict[str, float]:
    """Medians relative to each other, as ``a/b``.

    Each row to the eager window, our network to the others', and our whole estimator to NMN's.
    """
    p50 = {name: row.p50_ms for name, row in rows.items()}
    found = {f"{name}/eager_window": value / p50["eager_window"] for name, value in p50.items()}
    found |= {f"{ours}/{other}": p50[ours] / p50[other] for ours, other in COMPARED if ours in p50}
    found.pop("eager_window/eager_window")
    return found


def walking_samples(count: int, seed: int = 0) -> list[Sample]:
    """Readings at 500 Hz that look like walking: all joints swing, body and sensors shake. Nothing is at rest."""
    generator = np.random.default_rng(seed)
    phase = generator.uniform(0, 2 * np.pi, JOINTS)
    samples = []
    for index in range(count):
        swing = 2 * np.pi * 2.5 * (index * _STEP_NS * 1e-9) + phase
        samples.append(
            Sample(
                index * _STEP_NS,
                generator.normal(0, 0.4, 3),
                np.array((0.0, 0.0, GRAVITY)) + generator.normal(0, 2.0, 3),
                0.2 * np.sin(swing),
                np.pi * np.cos(swing),
                generator.normal(0, 4.0, JOINTS),
            )
        )
    return samples


def _observation(sample: Sample) -> Tensor:
    """The 47 numbers of a sample of a level body that does not move."""
    assert sample.joint_velocity is not None
    assert sample.joint_torque is not None
    parts = (
        *(sample.angular_velocity, sample.linear_acceleration),
        *(sample.joint_position, sample.joint_velocity, sample.joint_torque),
        *(np.zeros(4), np.array((_STEP_NS * 1e-9,))),
    )
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def _scripted(module: nn.Module, *methods: str) -> Any:
    """TorchScript, frozen as `load_model` freezes a model. Torch announces that TorchScript will go one day."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        return torch.jit.freeze(torch.jit.script(module), preserved_attrs=list(methods))


def _window_step(network: Callable[..., tuple[Tensor, Tensor, Tensor]], rows: Tensor, size: int) -> Step:
    starts = cycle(range(len(rows) - WINDOW))
    hidden = torch.zeros(1, size)

    def step() -> object:
        nonlocal hidden
        start = next(starts)
        motion, _, hidden = network(rows[None, start : start + WINDOW], hidden)
        return motion

    return step


def _streaming_step(network: Any, rows: Tensor) -> Step:
    observations = cycle(rows.unbind())
    with torch.inference_mode():
        state = network.prime(rows[: WINDOW - 1])

    def step() -> object:
        nonlocal state
        motion, _, state = network.step(next(observations), state)
        return motion

    return step


def _both(first: Step, second: Step) -> Step:
    return lambda: (first(), second())


def _estimator_step(estimator: Estimator, samples: list[Sample]) -> Step:
    """Stamps go on where the samples begin anew."""
    stamps = counting(0, _STEP_NS)
    following = (replace(sample, stamp_ns=next(stamps)) for sample in cycle(samples))
    return lambda: estimator.step(next(following))


def _nmn_step(network: Callable[..., tuple[Tensor, Tensor]]) -> Step:
    frames, hidden = cycle(torch.randn(_SAMPLES, 1, 1, 42).unbind()), torch.zeros(1, 1, 128)

    def step() -> object:
        nonlocal hidden
        output, hidden = network(next(frames), hidden)
        return output

    return step


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
