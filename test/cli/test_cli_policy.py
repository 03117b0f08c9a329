"""``trace policy train``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from commands import run_trace

from trace_ros.resources import config_directory
from trace_ros.run_folder import sole_writer


@pytest.fixture
def config(tmp_path: Path) -> Path:
    data = yaml.safe_load((config_directory() / "policy" / "walk.yaml").read_text())
    data["environment"]["robots"] = 2
    data["learner"] |= {"hidden": [8], "steps": 2, "epochs": 1, "mini_batches": 1}
    path = tmp_path / "quick.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "1e300"])
def test_hours_that_are_no_budget_are_refused(hours, tmp_path, monkeypatch, capsys):
    outcome = run_trace(monkeypatch, capsys, "policy", "train", "--output", tmp_path / "run", "--hours", hours)
    assert outcome.code != 0
    assert "--hours must be above zero" in " ".join(outcome.err.split())
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_budget_and_tells_where_the_policy_is(config, tmp_path, monkeypatch, capsys):
    pytest.importorskip("rsl_rl", reason="needs rsl-rl-lib")
    monkeypatch.chdir(tmp_path)
    arguments = ("policy", "train", "--output", "run", "--config", config)
    outcome = run_trace(monkeypatch, capsys, *arguments, "--hours", "1e-4")
    assert outcome.code == 0, outcome.err
    assert f"(policy: {(tmp_path / 'run' / 'go2_policy.yaml').resolve()})" in outcome.out
    update = json.loads((tmp_path / "run" / "run.json").read_text())["update"]
    assert update > 0
    outcome = run_trace(monkeypatch, capsys, *arguments, "--resume")
    assert outcome.code == 0
    assert "nothing was left to do: the budget of 0.0001 h is used up; give more with --hours" in outcome.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["update"] == update
    state = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**state, "budget": state["hours"] + 1e-4}))
    outcome = run_trace(monkeypatch, capsys, *arguments, "--resume")
    assert outcome.code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["update"] > update


def test_a_resumed_run_begins_with_no_other(tmp_path, monkeypatch, capsys):
    given = ("policy", "train", "--output", tmp_path / "run", "--init", tmp_path, "--resume")
    outcome = run_trace(monkeypatch, capsys, *given)
    assert outcome.code == 2
    assert "leave --init out" in outcome.err


def test_a_run_that_another_process_writes_is_left_alone(config, tmp_path, monkeypatch, capsys):
    with sole_writer(tmp_path / "run"):
        outcome = run_trace(monkeypatch, capsys, "policy", "train", "--output", tmp_path / "run", "--config", config)
    assert outcome.code == 2
    assert "is at work there; wait until it ends, or give another --output" in " ".join(outcome.err.split())
    assert not (tmp_path / "run").exists()  # nothing came of it
