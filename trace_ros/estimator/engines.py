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
            self._weights = FoldedWeights(*(value.detach() for value in fold(model.network())))
            state = prime(self._weights, torch.zeros(WINDOW - 1, OBSERVATION_SIZE))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # The kernel for a single row reads matrices as they are.
        options.add_session_config_entry("session.disable_prepacking", "0")
        self._session = onnxruntime.InferenceSession(
            step_graph(self._weights, state), options, providers=["CPUExecutionProvider"]
        )
        row = np.zeros((1, OBSERVATION_SIZE), dtype=np.float32)
        self.observation: Float32 = row[0]
        self._motion, self._attention = (
            np.zeros((1, OUTPUT_SIZE), np.float32),
            np.zeros((1, len(TOKEN_NAMES)), np.float32),
        )
        # Two sets of state: a step reads one and writes the other.
        self._states = [
            {name: np.zeros((1, *value.shape)[-2:], np.float32) for name, value in state._asdict().items()}
            for _ in range(2)
        ]
        self._bindings = [
            self._bind(onnxruntime, row, *self._states),
            self._bind(onnxruntime, row, *self._states[::-1]),
        ]
        self._turn = 0

    def _bind(self, runtime: Any, observation: Float32, before: dict[str, Float32], after: dict[str, Float32]) -> Any:
        binding = self._session.io_binding()
        given = {"observation": observation, **before}
        made = {"motion": self._motion, "attention": self._attention}
        made |= {f"next_{name}": value for name, value in after.items()}
        for name, value in given.items():
            binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value))
        for name, value in made.items():
            binding.bind_ortvalue_output(name, runtime.OrtValue.ortvalue_from_numpy(value))
        return binding

    def prime(self, window: Float32) -> None:
        """See `Engine.prime`."""
        self._turn = 0
        with torch.no_grad():
            state = prime(self._weights, torch.from_numpy(window))
        for name, value in state._asdict().items():
            self._states[0][name][:] = value.numpy()

    def step(self) -> tuple[list[float], Float32]:
        """See `Engine.step`."""
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn = 1 - self._turn
        motion: list[float] = self._motion[0].tolist()
        return motion, self._attention[0].copy()


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
