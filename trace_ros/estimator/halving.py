"""Model files at a quarter of their size: large tensors in half precision, and those kept once that a script and its
weights to train on share. Whoever reads the file gets single precision again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LARGE = 4096
"""Elements from which on a tensor is stored in half precision: for normalisation and biases it would save nothing."""


def halve(script: torch.jit.ScriptModule, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Round the large tensors of a script where they are, and say how to get the weights.

    Args:
        script: is changed.
        weights: to train on.

    Returns:
        For `restore`: a tensor for each weight, or where the script has it: name there, shape, and whether its last two
        axes were swapped before it was flattened.
    """
    own = _tensors(script)
    shared = {name: place for name, value in weights.items() if (place := _place(value, own)) is not None}
    for tensor in own.values():
        if _is_large(tensor):
            tensor.data = tensor.data.half()
    return {
        name: shared.get(name, value.detach().half() if _is_large(value) else value.detach().clone())
        for name, value in weights.items()
    }


def restore(script: torch.jit.ScriptModule, stored: dict[str, Any]) -> dict[str, Tensor]:
    """A script in single precision (changed where it is), and its weights to train on; others stay as they are.

    Raises:
        KeyError, RuntimeError, ValueError: the two do not belong together.
    """
    own = _tensors(script)
    for tensor in own.values():
        if tensor.dtype == torch.float16:
            tensor.data = tensor.data.float()
    return {name: _taken(value, own) for name, value in stored.items()}


def _taken(stored: Any, own: dict[str, Tensor]) -> Tensor:
    if isinstance(stored, Tensor):
        return stored.float() if stored.dtype == torch.float16 else stored
    name, shape, swapped = stored
    if not swapped:
        return own[name].detach().reshape(shape).clone()
    *outer, rows, columns = shape
    return own[name].detach().reshape(*outer, columns, rows).transpose(-1, -2).contiguous()


def _place(value: Tensor, own: dict[str, Tensor]) -> tuple[str, list[int], bool] | None:
    if not _is_large(value):
        return None
    turned = {False: value} | ({True: value.transpose(-1, -2)} if value.dim() > 2 else {})
    for swapped, each in turned.items():
        flat = each.reshape(-1)
        for name, tensor in own.items():
            if tensor.numel() == flat.numel() and torch.equal(tensor.detach().reshape(-1), flat):
                return name, list(value.shape), swapped
    return None


def _is_large(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.numel() >= _LARGE


def _tensors(script: torch.jit.ScriptModule) -> dict[str, Tensor]:
    return dict([*script.named_parameters(), *script.named_buffers()])
