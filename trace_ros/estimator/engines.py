"""What computes the network's steps: TorchScript, or ONNX Runtime where that is installed. Results agree to 1e-5."""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import LoadedModel
from trace_ros.estimator.folding import FoldedWeights, fold
from trace_ros.estimator.network import OUTPUT_SIZE, TOKEN_NAMES
from trace_ros.estimator.observation import OBSERVATION_SIZE, WINDOW
from trace_ros.estimator.streaming import prime

EngineName = Literal["torchscript", "onnxruntime"]

DEFAULT_ENGINE: EngineName = "torchscript"

Float32 = NDArray[np.float32]


class Engine(Protocol):
    """The network with its state: primed with a window, then stepped sample by sample.

    Attributes:
        observation: (47,) SI, torque NaN where absent. The next sample is written here; a step copies nothing.
    """

    observation: Float32

    def prime(self, window: Float32) -> None:
        """Forget the past and take the 29 samples (29, 47) before the next step."""
        ...

    def step(self) -> tuple[list[float], Float32]:
        """Take the sample that stands in `observation`.

        Returns:
            Motion (9) SI: displacement, rotation, velocity; and a new array with the attention (6,).
        """
        ...


class TorchScriptEngine:
    """Runs the script in the model's file, as it was exported. Threads are those of torch (`torch.set_num_threads`)."""

    def __init__(self, model: LoadedModel) -> None:
        self._module = model.module
        self.observation: Float32 = np.zeros(OBSERVATION_SIZE, dtype=np.float32)
        # The network reads the observation through this tensor; both share one buffer.
        self._tensor = torch.from_numpy(self.observation)
        self._state: tuple[Any, ...] = ()

    def prime(self, window: Float32) -> None:
        """See `Engine.prime`."""
        with torch.inference_mode():
            self._state = self._module.prime(torch.from_numpy(window))

    def step(self) -> tuple[list[float], Float32]:
        """See `Engine.step`."""
        with torch.inference_mode():
            motion, attention, self._state = self._module.step(self._tensor, self._state)
        return motion.tolist(), attention.numpy()


class OnnxRuntimeEngine:
    """Runs a graph made from the weights in the model's file, on one thread."""

    def __init__(self, model: LoadedModel) -> None:
        """Make the graph and its buffers.

        Raises:
            TraceError: ONNX Runtime or onnx is not installed.
        """
        try:
            import onnxruntime

            from trace_ros.estimator.onnx_graph import step_graph
        except ImportError as error:
            raise TraceError(
                f"engine onnxruntime: {error.name} is not installed; pip install 'trace_ros[onnxruntime]', "
                "or use engine torchscript"
            ) from error
        with torch.no_grad():
            self._weights = weights = FoldedWeights(*(value.detach() for value in fold(model.network())))
            state = prime(weights, torch.zeros(WINDOW - 1, OBSERVATION_SIZE))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            step_graph(weights, state), options, providers=["CPUExecutionProvider"]
        )
        row = np.zeros((1, OBSERVATION_SIZE), dtype=np.float32)
        self.observation: Float32 = row[0]
        self._motion, self._attention = (np.zeros(size, np.float32) for size in (OUTPUT_SIZE, len(TOKEN_NAMES)))
        # The past in rows, oldest first. A step reads some of them and writes behind those; after as many steps as a
        # window has pooled columns, what is still needed goes to the front again.
        self._round = round_ = state.pooled.shape[0] + 1
        pooled, hidden = state.pooled.shape[-1], state.hidden.shape[-1]
        column = weights.convolution_1.shape[0]
        kernel = weights.convolution_2.shape[1] // column
        self._rows = {
            "inputs": np.zeros((kernel - 1 + round_, state.inputs.shape[-1] // (kernel - 1)), np.float32),
            "columns": np.zeros((kernel - 1 + round_, column), np.float32),
            "pooled": np.zeros((2 * round_ - 1, pooled), np.float32),
            "hidden": np.zeros((1 + round_, hidden), np.float32),
        }
        self._bindings = [self._bind(onnxruntime, row, step, kernel - 1) for step in range(round_)]
        self._turn = 0

    def _bind(self, runtime: Any, observation: Float32, step: int, before: int) -> Any:
        """What a step of a round reads and writes."""
        binding, rows = self._session.io_binding(), self._rows
        given = {
            "observation": observation,
            "inputs": rows["inputs"][step : step + before].reshape(1, -1),
            "columns": rows["columns"][step : step + before].reshape(1, -1),
            "pooled": rows["pooled"][step : step + self._round - 1],
            "hidden": rows["hidden"][step : step + 1],
        }
        made = {
            "motion": self._motion[None],
            "attention": self._attention[None],
            "newest_inputs": rows["inputs"][step + before : step + before + 1],
            "newest_columns": rows["columns"][step + before : step + before + 1],
            "newest_pooled": rows["pooled"][step + self._round - 1 : step + self._round],
            "next_hidden": rows["hidden"][step + 1 : step + 2],
        }
        for name, value in given.items():
            binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value))
        for name, value in made.items():
            binding.bind_ortvalue_output(name, runtime.OrtValue.ortvalue_from_numpy(value))
        return binding

    def prime(self, window: Float32) -> None:
        """See `Engine.prime`."""
        with torch.no_grad():
            state = prime(self._weights, torch.from_numpy(window))
        rows, round_ = self._rows, self._round
        for name, value in (("inputs", state.inputs), ("columns", state.columns)):
            rows[name][round_:] = value.numpy().reshape(rows[name][round_:].shape)
        rows["pooled"][round_:] = state.pooled.numpy()
        rows["hidden"][round_] = state.hidden.numpy()
        self._begin_round()

    def _begin_round(self) -> None:
        """Bring to the front what the next steps need."""
        rows = self._rows
        for name in ("inputs", "columns", "pooled", "hidden"):
            kept = rows[name][self._round :]
            rows[name][: len(kept)] = kept
        self._turn = 0

    def step(self) -> tuple[list[float], Float32]:
        """See `Engine.step`."""
        if self._turn == self._round:
            self._begin_round()
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn += 1
        motion: list[float] = self._motion.tolist()
        return motion, self._attention.copy()


_ENGINES: dict[EngineName, type[TorchScriptEngine] | type[OnnxRuntimeEngine]] = {
    "torchscript": TorchScriptEngine,
    "onnxruntime": OnnxRuntimeEngine,
}


def make_engine(name: str, model: LoadedModel) -> Engine:
    """The engine of that name for a model.

    Raises:
        TraceError: no such engine, or it is not installed.
    """
    if name not in get_args(EngineName):
        raise TraceError(f"engine {name!r} is none of {', '.join(get_args(EngineName))}")
    return _ENGINES[name](model)  # type: ignore[index]
