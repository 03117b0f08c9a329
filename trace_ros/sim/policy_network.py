"""The network of a walking policy: ONNX (a chain of fully connected layers) or TorchScript."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.logs import JOINTS


def load_network(weights: Path, inputs: int) -> torch.nn.Module:
    """In double precision, from so many inputs to the actions of the 12 joints.

    Raises:
        TraceError: the file is none of a network, or of one with other inputs or actions.
    """
    if weights.suffix == ".onnx":
        network: torch.nn.Module = read_onnx_mlp(weights)
    else:
        try:
            network = torch.jit.load(str(weights), map_location="cpu")
        except RuntimeError as error:
            raise TraceError(f"{weights}: neither .onnx nor TorchScript ({str(error).splitlines()[0]})") from error
    network.eval().double()
    try:
        with torch.inference_mode():
            output = network(torch.zeros(2, inputs, dtype=torch.float64))
    except RuntimeError as error:
        raise TraceError(f"{weights}: does not take the {inputs} inputs that the policy file lists") from error
    if (shape := tuple(output.shape)) != (2, JOINTS):
        raise TraceError(f"{weights}: gives {shape[-1]} actions, expected {JOINTS}")
    if not torch.isfinite(output).all():
        raise TraceError(f"{weights}: gives actions that are no numbers; the weights are damaged")
    return network


_ACTIVATIONS: dict[str, type[torch.nn.Module]] = {
    "Elu": torch.nn.ELU,
    "Relu": torch.nn.ReLU,
    "Tanh": torch.nn.Tanh,
    "Sigmoid": torch.nn.Sigmoid,
    "Selu": torch.nn.SELU,
    "Softplus": torch.nn.Softplus,
    "Identity": torch.nn.Identity,
}


def read_onnx_mlp(path: Path) -> torch.nn.Sequential:
    """A chain of fully connected layers from an ONNX file, as a torch module for any batch size.

    Raises:
        TraceError: ``onnx`` is not installed, the file is unreadable, or it holds anything but ``Gemm`` and the usual
            activations, one after another.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ModuleNotFoundError as error:
        raise TraceError(f"{path}: reading it needs onnx: pip install onnx (or give a TorchScript file)") from error
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:  # protobuf's decoding errors share no public base class
        raise TraceError(f"{path}: not a readable ONNX file ({str(error).splitlines()[0]})") from error
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    layers: list[torch.nn.Module] = []
    previous = graph.input[0].name
    for node in graph.node:
        if not node.input or node.input[0] != previous:
            raise TraceError(
                f"{path}: {node.op_type} does not follow its predecessor; only chains of layers are understood"
            )
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Gemm":
            layers.append(_linear(path, [weights.get(name) for name in node.input[1:]], attributes))
        elif node.op_type in _ACTIVATIONS:
            layers.append(_ACTIVATIONS[node.op_type]())
        else:
            known = ", ".join(["Gemm", *_ACTIVATIONS])
            raise TraceError(
                f"{path}: operator {node.op_type} is not understood (known: {known}); export to TorchScript"
            )
        previous = node.output[0]
    return torch.nn.Sequential(*layers)


def _linear(
    path: Path, parameters: Sequence[NDArray[np.float32] | None], attributes: dict[str, float]
) -> torch.nn.Linear:
    weight, bias = (*parameters, None)[:2]
    if weight is None or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise TraceError(f"{path}: a Gemm without stored weights, or scaled, is not understood; export to TorchScript")
    matrix = torch.from_numpy(weight.copy())
    if not attributes.get("transB", 0):
        matrix = matrix.T.contiguous()
    layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(matrix)
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(bias.copy()))
    return layer
