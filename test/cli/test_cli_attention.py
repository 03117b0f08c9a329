"""``trace attention`` on the real simulator, as a user types it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml
from commands import run_trace
from untrained import export_untrained

from trace_ros.robot import RobotDescription
from trace_ros.training.simulation import SimulationSource

KEYS = {
    "samples", "mean_contact", "mean_swing", "median_contact", "median_swing", "top1_contact", "auc", "total_leg",
    "contact_samples", "swing_samples", "bins",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A model with random weights, and a config that simulates in seconds."""
    folder = tmp_path_factory.mktemp("files")
    robot = RobotDescription.load("go2")
    export_untrained(folder / "model.pt", robot)
    export_untrained(folder / "other.pt", robot, "spot")
    kinds = ("slope", "perlin", "discrete", "random_steps", "inclined_steps", "stairs")
    quick = {
        "duration": 1.0,
        "settle": 0.3,
        "minimum_duration": 0.5,
        "physics": {"rate_hz": 1000},
        "commands": {"standing": 0.0, "onset": [0.0, 0.1]},
        "terrain": {kind: {"weight": 0.0} for kind in kinds} | {"flat": {"weight": 1.0}},
    }
    (folder / "quick.yaml").write_text(yaml.safe_dump(quick))
    (folder / "short.yaml").write_text(yaml.safe_dump(quick | {"duration": 0.05}))
    (folder / "folder").mkdir()
    return folder


@pytest.fixture
def trace(files, monkeypatch, capsys):
    def run(*arguments, config: str = "quick.yaml"):
        options = ("--model", files / "model.pt", "--config", files / config, "--samples", 2000)
        return run_trace(monkeypatch, capsys, "attention", *options, *arguments)

    return run


def test_table_picture_and_json(trace, tmp_path):
    result = trace("--output", tmp_path / "out", "--json", tmp_path / "a.json")
    assert result.code == 0, result.err
    for text in ("paper", "0.9637", "0.2106", "2,000,000", "top 1 is in contact", "flat", "contact-point speed"):
        assert text in result.out
    written = json.loads((tmp_path / "a.json").read_text())
    assert set(written) >= KEYS
    assert written == json.loads((tmp_path / "out" / "attention_analysis.json").read_text())
    assert (tmp_path / "out" / "attention_analysis.png").stat().st_size > 10_000
    assert written["samples"] >= 2000
    assert written["samples"] == written["contact_samples"] + written["swing_samples"]
    assert sum(entry["count"] for entry in written["bins"]) == written["contact_samples"]
    assert list(written["by_terrain"]) == ["flat"]
    assert written["by_terrain"]["flat"]["auc"] == written["auc"]
    assert written["simulation"]["duration"] == 1.0
    # A trot has two feet on the ground most of the time, and these hardly move.
    assert 0.3 < written["contact_samples"] / written["samples"] < 0.9
    assert sum(entry["count"] for entry in written["bins"] if entry["low_mps"] < 0.4) > 0.6 * written["contact_samples"]
    # Random weights know nothing of contacts.
    assert 0 < written["total_leg"] < 1


def test_the_seed_decides(trace, tmp_path):
    results = []
    for seed in (3, 3, 4):
        assert trace("--seed", seed, "--json", tmp_path / "a.json").code == 0
        results.append(json.loads((tmp_path / "a.json").read_text()))
    assert results[0] == results[1]
    assert results[0]["mean_contact"] != results[2]["mean_contact"]


def test_ctrl_c_ends_it_and_says_that_nothing_was_written(trace, tmp_path, monkeypatch):
    def interrupted(_self, _robot, _seed, _count):
        signal.raise_signal(signal.SIGINT)
        return iter(())

    monkeypatch.setattr(SimulationSource, "__call__", interrupted)
    result = trace("--output", tmp_path / "out", "--json", tmp_path / "a.json")
    assert result.code == 130
    assert "nothing was written" in result.err
    assert "Traceback" not in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "config", "said"),
    [
        (("--robot", "unicorn"), "quick.yaml", "unknown robot 'unicorn'"),
        (("--model", "{f}/none.pt"), "quick.yaml", "{f}/none.pt: no such model file"),
        (("--model", "{f}/other.pt"), "quick.yaml", "trained for robot 'spot', not 'go2'"),
        ((), "none.yaml", "{f}/none.yaml: "),
        ((), "short.yaml", "only fill the window of 30: raise duration"),
        (("--output", "{f}/model.pt"), "quick.yaml", "is a file, expected a folder"),
        (("--json", "{f}/folder"), "quick.yaml", "is a folder, expected a file"),
    ],
)
def test_mistakes_are_told_in_one_line(files, trace, arguments, config, said):
    result = trace(*(argument.format(f=files) for argument in arguments), config=config)
    assert result.code == 2
    errors = [line for line in result.err.splitlines() if line.strip() and not line.startswith("simulating")]
    assert len(errors) == 1, result.err
    assert said.format(f=files) in errors[0]
