"""Model files of the learned baselines: whose they are, and what runs them."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import CARD_FILE, Card, ModelCard, read_archive
from trace_ros.resources import MAX_YAML_BYTES
from trace_ros.whole_files import DAMAGED_ARCHIVE

Kind = TypeVar("Kind", bound=Card)


@dataclass(frozen=True)
class LearnedModel(Generic[Kind]):
    """A model ready to run.

    Attributes:
        module: TorchScript with ``prime`` and ``step``, frozen for inference.
        card: what it is.
        path: where it came from.
        weights: state of the network that it was made from.
    """

    module: torch.jit.ScriptModule
    card: Kind
    path: Path
    weights: dict[str, torch.Tensor]


def load_learned(path: Path, kind: type[Kind]) -> LearnedModel[Kind]:
    """Load a model of a learned baseline, frozen for inference on the CPU.

    Args:
        path: as ``trace export`` wrote it.
        kind: of its card.

    Raises:
        TraceError: no such file, not a model of this package, of another method, damaged, or of another version.
    """
    method = str(kind.model_fields["name"].default)
    if not path.exists():
        option = method.removesuffix("_iekf")
        raise TraceError(
            f"{path}: no such model; train one with trace train --method {option} and write it with trace export"
        )
    archive = read_archive(path)
    if archive.method != method:
        raise TraceError(f"{path}: a model of {archive.method}, expected one of {method}")
    return LearnedModel(archive.freeze(), archive.read_card(kind), path, archive.weights)


def method_of(path: Path) -> str:
    """Name of the estimator that a model file is of, from its card alone; ``trace`` where it holds none.

    What is wrong with a file is for `read_archive` to say.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (card,) = [item for item in archive.infolist() if item.filename.endswith(f"/{CARD_FILE}")]
            data = json.loads(archive.read(card)) if card.file_size < MAX_YAML_BYTES else {}
        return str(data["name"])
    except DAMAGED_ARCHIVE:
        return str(ModelCard.model_fields["name"].default)


class FrameBuffer:
    """The numbers of one sample, shared with the network without a copy."""

    def __init__(self, size: int) -> None:
        self.values: NDArray[np.float32] = np.zeros(size, dtype=np.float32)
        self.tensor = torch.from_numpy(self.values)
