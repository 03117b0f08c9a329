"""Checkpoints of runs: what was not written by us, or by an older version, is refused in one line."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trace_ros.errors import TraceError
from trace_ros.training import checkpoint_files
from trace_ros.training.checkpoint_files import CheckpointKind
from trace_ros.training.finetuning_state import FINETUNING_CHECKPOINT
from trace_ros.training.state import TRAINING_CHECKPOINT

pytestmark = pytest.mark.parametrize("kind", [TRAINING_CHECKPOINT, FINETUNING_CHECKPOINT], ids=lambda kind: kind.name)


def complete(kind: CheckpointKind) -> dict[str, Any]:
    return dict.fromkeys(kind.keys, 0)


def refused(kind: CheckpointKind, path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        kind.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_saved_is_loaded(tmp_path, kind):
    path = tmp_path / "run" / "checkpoint.pt"
    kind.save(path, {**complete(kind), "network": {"weight": torch.arange(3.0)}})
    loaded = kind.load(path)
    assert loaded["network"]["weight"].tolist() == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.pt"]


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, kind):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written") as caught:
        kind.save(tmp_path / "file" / "checkpoint.pt", complete(kind))
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path, kind):
    assert f"no such {kind.name}{kind.absent}" in refused(kind, tmp_path / "checkpoint.pt")
    assert "is a folder" in refused(kind, tmp_path)
    path = tmp_path / "text.pt"
    path.write_text("not a checkpoint")
    assert f"not a {kind.name}" in refused(kind, path)
    for other in ({"weights": torch.zeros(2)}, [1, 2], {**complete(kind), "kind": "of another run", "format": 1}):
        torch.save(other, path)
        assert f"not a {kind.name} of trace_ros" in refused(kind, path)


def test_truncated_checkpoints_are_refused(tmp_path, kind):
    path = tmp_path / "checkpoint.pt"
    kind.save(path, complete(kind))
    whole = path.read_bytes()
    for left in (len(whole) - 100, 20, 0):
        path.write_bytes(whole[:left])
        assert "truncated" in refused(kind, path)


def test_checkpoints_with_any_damage_are_refused(tmp_path, kind):
    path = tmp_path / "checkpoint.pt"
    kind.save(path, complete(kind))
    whole = path.read_bytes()
    directory, pickled = whole.index(b"PK\1\2"), whole.index(b"\x80\x02}")
    for place in (*range(0, 60, 7), *range(directory, directory + 60, 3), pickled, pickled + 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xA5]) + whole[place + 1 :])
        with suppress(TraceError):  # some bytes do not matter
            kind.load(path)


def test_incomplete_and_other_versions_are_refused(tmp_path, kind):
    path = tmp_path / "checkpoint.pt"
    kind.save(path, {key: value for key, value in complete(kind).items() if key != "network"})
    assert "lacks network" in refused(kind, path)
    replace(kind, format=99).save(path, complete(kind))
    assert "checkpoint format 99" in refused(kind, path)
    torch.save({**complete(kind), "kind": kind.kind}, path)
    assert "checkpoint format None" in refused(kind, path)


def test_an_exported_model_is_named_as_such(tmp_path, kind):
    path = tmp_path / "trace.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    assert f"an exported model, expected a {kind.name} (checkpoint.pt)" in refused(kind, path)


class Malicious:
    """Creates a file when it is unpickled without care."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self):
        return (Path.touch, (self.trap,))


def test_no_code_from_a_checkpoint_is_run(tmp_path, kind):
    path, trap = tmp_path / "checkpoint.pt", tmp_path / "trap"
    torch.save({**complete(kind), "kind": kind.kind, "format": kind.format, "network": Malicious(trap)}, path)
    assert f"not a readable {kind.name}" in refused(kind, path)
    assert not trap.exists()
    path.write_bytes(pickle.dumps(Malicious(trap)))
    refused(kind, path)
    assert not trap.exists()
    pickle.loads(path.read_bytes())  # the trap itself works
    assert trap.exists()


def test_huge_files_are_not_opened(tmp_path, monkeypatch, kind):
    path = tmp_path / "checkpoint.pt"
    kind.save(path, complete(kind))
    monkeypatch.setattr(checkpoint_files, "MAX_BYTES", 10)
    assert "too many" in refused(kind, path)
