"""The streaming step of `streaming.py` as an ONNX graph, made from the same folded weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from trace_ros.estimator.folding import FoldedWeights
from trace_ros.estimator.network import OUTPUT_SIZE, TOKEN_NAMES
from trace_ros.estimator.observation import JOINT_POSITION, JOINT_TORQUE, OBSERVATION_SIZE
from trace_ros.estimator.streaming import StreamingState

OPSET = 17
"""The oldest with layer normalisation, so that many runtimes know it."""
_IR_VERSION = 8
NEXT, NEWEST = "next_", "newest_"
"""Before the names of outputs: a value as the next step takes it, and what to put behind those of the past."""


class _Builder:
    """Collects nodes and constants. Everything that flows between nodes is a matrix; a vector is one row."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: NDArray[np.generic]) -> str:
        """Name of a new constant."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def row(self, value: Tensor) -> str:
        """Name of a new constant (1, n) from a vector (n)."""
        return self.constant(value.numpy()[None])

    def node(self, kind: str, *inputs: str, to: str | None = None, **attributes: object) -> str:
        """Name of the only output of a new node."""
        name = to or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def affine(self, vector: str, weight: Tensor, bias: Tensor | str) -> str:
        """``weight @ vector + bias``."""
        term = bias if isinstance(bias, str) else self.row(bias)
        return self.node("Gemm", vector, self.constant(weight.numpy().T), term)

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Parts of a row."""
        names = [f"value_{len(self.nodes)}_{part}" for part in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [value, self.constant(np.array(sizes, np.int64))], names, axis=1))
        return names

    def join(self, *values: str, to: str | None = None) -> str:
        """One row from several."""
        return self.node("Concat", *values, to=to, axis=1)

    def reshape(self, value: str, *shape: int) -> str:
        """The same numbers in another shape."""
        return self.node("Reshape", value, self.constant(np.array(shape, np.int64)))


def step_graph(weights: FoldedWeights, state: StreamingState) -> bytes:
    """A model of one step, which leaves it to the caller to keep the past: nothing is copied within.

    Vectors of `StreamingState` are rows here. Inputs are ``observation`` (1, 47); ``inputs`` and ``columns`` of the
    last samples, and ``hidden``, as there; and ``pooled`` (21, d). Outputs are ``motion`` (1, 9), ``attention`` (1, 6);
    ``newest_inputs``, ``newest_columns`` and ``newest_pooled``, one sample's part of each; and ``next_hidden``.

    Args:
        weights: of `folding.fold`.
        state: of `streaming.prime` for one sample; only its shapes matter.
    """
    build = _Builder()
    tokens, hidden_size = len(TOKEN_NAMES), state.hidden.shape[-1]
    width = state.pooled.shape[-1]

    centred = build.node("Sub", "observation", build.row(weights.centre))
    # Only torque may be absent: a NaN elsewhere stays one.
    absent = np.full((1, OBSERVATION_SIZE), math.nan, np.float32)
    absent[:, JOINT_TORQUE] = 0.0
    centred = build.node("Where", build.node("IsNaN", centred), build.constant(absent), centred)
    angles_size = len(weights.direct_bias) - 2 * OUTPUT_SIZE
    direct = build.affine(centred, weights.direct, weights.direct_bias)
    angles, term, factor = build.split(direct, (angles_size, OUTPUT_SIZE, OUTPUT_SIZE))
    before, after = JOINT_POSITION.start, OBSERVATION_SIZE - JOINT_TORQUE.stop
    sizes = (before, OBSERVATION_SIZE - before - after, after - 1, 1)
    imu, joints, fed_back, dt = build.split(centred, sizes)
    inputs = build.join(imu, fed_back, dt, build.node("Sin", angles), to=NEWEST + "inputs")

    column = build.affine(build.join("inputs", inputs), weights.convolution_1, weights.convolution_1_bias)
    column = build.node("Relu", column, to=NEWEST + "columns")
    column = build.affine(build.join("columns", column), weights.convolution_2, weights.convolution_2_bias)
    column = build.node("Relu", column, to=NEWEST + "pooled")
    # As a product, the sum of all columns is as quick as a running one, and rounding cannot grow.
    past = state.pooled.shape[0]
    total = build.node("Gemm", build.constant(np.ones((1, past), np.float32)), "pooled", column)

    query = build.affine(total, weights.query, weights.query_bias)
    ones = build.constant(np.ones(width, np.float32))
    query = build.node("LayerNormalization", query, ones, axis=-1, epsilon=1e-5)
    asked = build.affine(query, weights.attention_query, weights.attention_query_bias)
    features = build.affine(build.join(inputs, joints), weights.features, weights.features_bias)
    features = build.reshape(build.node("Max", features, build.row(weights.features_floor)), tokens, -1)
    asked = build.reshape(asked, -1, len(weights.features_bias) // tokens)
    attention = build.node("Softmax", build.node("Gemm", asked, features, transB=1), axis=-1)
    gathered = build.reshape(build.node("MatMul", attention, features), 1, -1)
    found = build.affine(gathered, weights.attention_value, weights.attention_value_bias)
    split = build.constant(np.array((len(weights.attention_value_bias) - tokens, tokens), np.int64))
    build.nodes.append(helper.make_node("Split", [found, split], ["context", "attention"], axis=1))

    gru_input = torch.cat((weights.gru_input_gates, weights.gru_input_new))
    gru_input_bias = torch.cat((weights.gru_gates_bias, weights.gru_input_new_bias))
    gates, new = build.split(build.affine("context", gru_input, gru_input_bias), (2 * hidden_size, hidden_size))
    gates = build.node("Sigmoid", build.affine("hidden", weights.gru_hidden_gates, gates))
    reset, update = build.split(gates, (hidden_size, hidden_size))
    remembered = build.affine("hidden", weights.gru_hidden_new, weights.gru_hidden_new_bias)
    new = build.node("Tanh", build.node("Add", new, build.node("Mul", reset, remembered)))
    kept = build.node("Mul", update, build.node("Sub", "hidden", new))
    hidden = build.node("Add", new, kept, to=NEXT + "hidden")

    # Of the inputs, the head sees dt alone.
    seen = [*range(width + hidden_size), width + hidden_size + before + after - 1]
    head = build.affine(build.join("context", hidden, dt), weights.head_1[:, seen], weights.head_1_bias)
    head = build.node("Relu", head)
    head = build.node("Relu", build.affine(head, weights.head_2, weights.head_2_bias))
    build.node("Mul", build.affine(head, weights.head_3, term), factor, to="motion")

    given = {"observation": (1, OBSERVATION_SIZE), "inputs": (1, state.inputs.shape[-1])}
    given |= {"columns": (1, state.columns.shape[-1]), "pooled": (past, width), "hidden": (1, hidden_size)}
    made = {"motion": (1, OUTPUT_SIZE), "attention": (1, tokens), NEWEST + "inputs": (1, before + after + angles_size)}
    made |= {NEWEST + "columns": (1, width), NEWEST + "pooled": (1, width), NEXT + "hidden": (1, hidden_size)}
    graph = helper.make_graph(
        build.nodes,
        "trace_step",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in made.items()],
        build.constants,
    )
    model = helper.make_model(
        graph, producer_name="trace_ros", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
