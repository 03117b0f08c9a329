"""Training checkpoints and configs: what was not written by us, or by an older version, is refused in one line."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml

from trace_ros.errors import TraceError
from trace_ros.resources import config_directory
from trace_ros.training import state as states
from trace_ros.training.config import TrainingConfig
from trace_ros.training.state import load_state, save_state

COMPLETE = {key: 0 for key in states._KEYS if key not in ("format", "kind")}


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        load_state(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "run" / "checkpoint.pt"
    save_state(path, {**COMPLETE, "network": {"weight": torch.arange(3.0)}})
    loaded = load_state(path)
    assert loaded["network"]["weight"].tolist() == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.pt"]


def test_other_files_are_refused(tmp_path):
    assert "no such training checkpoint" in refused(tmp_path / "checkpoint.pt")
    assert "is a folder" in refused(tmp_path)
    path = tmp_path / "text.pt"
    path.write_text("not a checkpoint")
    assert "not a training checkpoint" in refused(path)
    torch.save({"weights": torch.zeros(2)}, path)
    assert "not a training checkpoint" in refused(path)


def test_truncated_checkpoints_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_state(path, COMPLETE)
    path.write_bytes(path.read_bytes()[:-100])
    assert "truncated" in refused(path)


def test_checkpoints_with_any_damage_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_state(path, COMPLETE)
    whole = path.read_bytes()
    directory, pickled = whole.index(b"PK\1\2"), whole.index(b"\x80\x02}")
    for place in (*range(0, 60, 7), *range(directory, directory + 60, 3), pickled, pickled + 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xA5]) + whole[place + 1 :])
        with suppress(TraceError):  # some bytes do not matter
            load_state(path)


def test_incomplete_and_other_versions_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_state(path, {key: value for key, value in COMPLETE.items() if key != "lanes"})
    assert "lacks lanes" in refused(path)
    torch.save({**COMPLETE, "kind": states._KIND, "format": 99}, path)
    assert "format 99" in refused(path)


class Malicious:
    """Creates a file when it is unpickled without care."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self):
        return (Path.touch, (self.trap,))


def test_an_exported_model_is_named_as_such(tmp_path):
    path = tmp_path / "trace.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    assert "an exported model, expected the checkpoint.pt" in refused(path)


def test_no_code_from_a_checkpoint_is_run(tmp_path):
    path, trap = tmp_path / "checkpoint.pt", tmp_path / "trap"
    torch.save({**COMPLETE, "kind": states._KIND, "format": states.FORMAT, "network": Malicious(trap)}, path)
    assert "not a readable training checkpoint" in refused(path)
    assert not trap.exists()
    path.write_bytes(pickle.dumps(Malicious(trap)))
    refused(path)
    assert not trap.exists()
    pickle.loads(path.read_bytes())  # the trap itself works
    assert trap.exists()


def test_huge_files_are_not_opened(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_state(path, COMPLETE)
    monkeypatch.setattr(states, "MAX_BYTES", 10)
    assert "too many" in refused(path)


@pytest.mark.parametrize(
    ("name", "rows", "simulation"), [("trace", 6029, "simulation.yaml"), ("paper", 2029, "simulation_paper.yaml")]
)
def test_shipped_configs_load(name, rows, simulation):
    config = TrainingConfig.load(name)
    assert config.rows == rows
    assert config.simulation == config_directory() / "training" / simulation


def test_the_shipped_recipe_names_every_key():
    """The YAML is the one visible place of all defaults: none may hide in the code."""
    file = yaml.safe_load((config_directory() / "training" / "trace.yaml").read_text())

    def keys(data: object) -> object:
        return {key: keys(value) for key, value in data.items()} if isinstance(data, dict) else None

    assert keys(file) == keys(TrainingConfig().model_dump(mode="json"))


def test_the_papers_config_is_the_papers():
    config = TrainingConfig.load("paper")
    optimiser = config.optimiser
    assert (optimiser.learning_rate, optimiser.schedule, optimiser.gradient_clip) == (3e-4, "constant", 0)
    assert (config.batch, config.segment, config.rollout_samples) == (400, 100, 2000)
    assert config.loss.drift == config.tilt_correction_rate == optimiser.ema_decay == 0
    assert (config.network.acceleration, config.network.increments, config.network.memory) == ("measured", "direct", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bacth: 3", "unknown key 'bacth'"),
        ("loss: {beta: 0}", "loss.beta"),
        ("optimiser: {schedule: linear}", "optimiser.schedule"),
        ("loss: {foot: .inf}", "loss.foot"),
        ("feedback: {tilt_offset: .nan}", "feedback.tilt_offset"),
        ("batch: [", "not valid YAML"),
        ("- 1", "file"),
    ],
)
def test_bad_configs_are_refused(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        TrainingConfig.load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_config_lists_the_known_ones():
    known = "a1, legolas, mlp, nmn, paper, simulation, simulation_a1, simulation_paper, trace"
    with pytest.raises(TraceError, match=f"no such file; .* has {known}"):
        TrainingConfig.load("fast")


def test_an_empty_config_is_the_default(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("")
    assert TrainingConfig.load(path).model_copy(update={"simulation": Path("simulation.yaml")}) == TrainingConfig()


def test_auto_precision_follows_the_machine(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert TrainingConfig(precision="auto").bfloat16
    assert not TrainingConfig(precision="float32").bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert not TrainingConfig(precision="auto").bfloat16
    assert TrainingConfig(precision="bfloat16").bfloat16
