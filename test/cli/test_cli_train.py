"""``trace train`` and ``trace export``, on the real simulator, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import run_trace
from untrained import export_untrained

from trace_ros.estimator.checkpoint import load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.robot import RobotDescription
from trace_ros.run_folder import sole_writer
from trace_ros.sim.rollout import SimulationConfig, simulate_rollouts
from trace_ros.training.state import load_state


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A training config that simulates and trains in seconds."""
    folder = tmp_path_factory.mktemp("config")
    simulation = {
        "duration": 1.0,
        "settle": 0.3,
        "minimum_duration": 0.5,
        "batch": 4,
        "physics": {"rate_hz": 1000},
        "terrain": {
            kind: {"weight": 0.0} for kind in ("slope", "perlin", "discrete", "random_steps", "inclined_steps")
        },
    }
    simulation["terrain"] |= {"flat": {"weight": 1.0}, "stairs": {"weight": 0.0}}
    training = {
        "batch": 4,
        "segment": 50,
        "rollout_samples": 450,
        "replay": {"capacity": 8, "minimum": 4, "chunk": 4},
        "validation": {"rollouts": 2, "interval": 1e6},
        "simulation": "mine.yaml",
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(simulation))
    (folder / "quick.yaml").write_text(yaml.safe_dump(training))
    return folder / "quick.yaml"


def test_train_resume_export_and_run(config, tmp_path, monkeypatch, capsys):
    run, result, model = tmp_path / "run", tmp_path / "result.json", tmp_path / "models" / "trace.pt"
    arguments = ("train", "--output", run, "--config", config, "--seed", "3")
    outcome = run_trace(monkeypatch, capsys, *arguments, "--steps", "4", "--json", result)
    assert outcome.code == 0
    figures = json.loads(result.read_text())
    assert (figures["steps"], figures["finished"]) == (4, True)
    assert "checkpoint:" in outcome.out and "velocity_rmse" in outcome.out
    assert "held-out" in outcome.err and "held out:" in outcome.err
    assert list((run / "tensorboard").glob("events*"))

    with sole_writer(run):
        outcome = run_trace(monkeypatch, capsys, "train", "--output", run, "--resume", "--steps", "6")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "is at work there" in outcome.err
    begun = tmp_path / "begun"  # by another process, which has not saved yet
    with sole_writer(begun):
        (begun / "replay").mkdir()
        for name in ("replay/chunk_000000.npy", "validation.npz"):
            (begun / name).touch()
        outcome = run_trace(monkeypatch, capsys, "train", "--output", begun, "--config", config, "--steps", "4")
    assert (outcome.code, "is at work there" in outcome.err) == (2, True)
    assert sorted(path.name for path in begun.rglob("*")) == [".lock", "chunk_000000.npy", "replay", "validation.npz"]

    outcome = run_trace(monkeypatch, capsys, *arguments, "--steps", "4")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "--resume" in outcome.err

    outcome = run_trace(monkeypatch, capsys, "train", "--output", run, "--resume", "--steps", "6", "--json", result)
    assert outcome.code == 0
    assert json.loads(result.read_text())["steps"] == 6

    (tmp_path / "demo.json").write_text('{"ate_position_m": 0.2}')
    outcome = run_trace(
        monkeypatch, capsys, "export", run / "checkpoint.pt", "--output", model, "--figures", tmp_path / "demo.json"
    )
    assert outcome.code == 0
    card = yaml.safe_load(model.with_suffix(".yaml").read_text())
    assert (card["robot"], card["steps"], card["seeds"], card["rate_hz"]) == ("go2", 6, {"training": 3}, 500.0)
    assert card["command"] == "trace train --robot go2 --config quick.yaml --steps 6 --seed 3 --output runs/go2"
    assert str(tmp_path) not in model.with_suffix(".yaml").read_text()
    assert card["figures"]["demo"] == {"ate_position_m": 0.2}
    assert card["simulation"]["physics"]["rate_hz"] == 1000
    assert card["figures"]["held_out"]["velocity_rmse"] > 0

    robot = RobotDescription.load("go2")
    loaded = load_model(model)
    (walk, *_) = simulate_rollouts(SimulationConfig.load(config.parent / "mine.yaml"), robot, 1, 1)
    estimator = TraceEstimator(loaded, robot)
    estimates = [estimate for sample in walk.measured if (estimate := estimator.step(sample)) is not None]
    assert len(estimates) == len(walk.measured) - 29
    assert all(np.isfinite(estimate.position).all() for estimate in estimates)


def test_whose_policies_walk_is_kept_and_held_to(config, tmp_path, monkeypatch, capsys):
    robot, other = tmp_path / "mine.yaml", tmp_path / "trot_policy.yaml"
    other.write_text(RobotDescription.load("go2").policy.read_text())
    robot.write_text("base: go2\nother_policies: {trot_policy.yaml: 0.5}\n")
    run, rollouts = tmp_path / "run", tmp_path / "rollouts"
    common = ("--robot", robot, "--config", config)
    kept = ("rollouts", *common, "--output", rollouts, "--count", "4", "--jobs", "1")
    assert run_trace(monkeypatch, capsys, *kept).code == 0
    assert run_trace(monkeypatch, capsys, "train", *common, "--output", run, "--steps", "1").code == 0
    model = tmp_path / "trace.pt"
    export = ("export", run / "checkpoint.pt", "--robot", robot, "--output", model)
    assert run_trace(monkeypatch, capsys, *export).code == 0
    walked_by = yaml.safe_load(model.with_suffix(".yaml").read_text())["simulation"]["walked_by"]
    assert [(name[:-9], share) for name, share in walked_by.items()] == [("go2_policy", 0.5), ("trot_policy", 0.5)]

    resume = ("train", "--robot", robot, "--output", run, "--resume", "--steps", "2")
    other.write_text(other.read_text().replace("vx: 1.0", "vx: 0.9"))
    outcome = run_trace(monkeypatch, capsys, *resume)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "its rollouts were walked by go2_policy" in outcome.err
    outcome = run_trace(monkeypatch, capsys, *kept)
    assert outcome.code == 2
    assert "holds rollouts of other settings" in outcome.err
    other.write_text(other.read_text().replace("vx: 0.9", "vx: 1.0"))
    assert run_trace(monkeypatch, capsys, *resume).code == 0


@pytest.mark.parametrize("method", ["mlp", "legolas", "nmn_iekf"])
def test_rollouts_are_simulated_for_any_method(config, tmp_path, monkeypatch, capsys, method):
    own = config.with_name(f"{method}.yaml")
    loss = "loss: {foot: 0.0}" if method == "mlp" else ""
    own.write_text(f"base: quick.yaml\nmethod: {method}\n{loss}\n")
    arguments = ("rollouts", "--output", tmp_path / "r", "--config", own, "--count", "4", "--jobs", "1")
    outcome = run_trace(monkeypatch, capsys, *arguments)
    assert outcome.code == 0, outcome.err
    assert "4 rollouts and 2 held-out ones" in outcome.out


def test_ctrl_c_saves_and_resume_goes_on(config, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    trace = [sys.executable, "-c", "from trace_ros.cli import main; main()"]
    command = [*trace, "train", "--output", run, "--config", config, "--steps", "100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment) as process:
        deadline = time.monotonic() + 120
        events = run / "tensorboard"
        while not (run / "replay" / "chunk_000001.npy").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.1)
        assert events.exists()
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    outcome = run_trace(monkeypatch, capsys, "train", "--output", run, "--resume", "--steps", "1")
    assert outcome.code == 0
    assert f"training go2 in {run} for 1 steps, 100% done" in outcome.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], "--output"),
        (["train", "--output", "x", "--robot", "unicorn"], "unknown robot 'unicorn'"),
        (["train", "--output", "x", "--config", "unheard"], "unheard.yaml: no such file"),
        (["train", "--output", "x", "--hours", "1", "--steps", "5"], "one of both"),
        (["train", "--output", "x", "--steps", "0"], "above zero"),
        (["train", "--output", "x", "--method", "oracle"], "expected one of trace, legolas, nmn, mlp"),
        (["train", "--output", "x", "--method", "nmn", "--config", "legolas"], "of the method legolas, not nmn"),
        (
            ["train", "--output", "x", "--method", "mlp", "--set", "loss.foot=1"],
            "loss.foot: there is no such loss",
        ),
        (["train", "--output", "x", "--config", "mlp", "--set", "height.time=1"], "nothing tells which feet stand"),
        (["train", "--output", "x", "--resume", "--method", "mlp"], "leave --method"),
        (["train", "--output", "x", "--resume", "--keep-to", "a.pt"], "--init, --keep-to, --rollouts and --set out"),
        (["train", "--output", "x", "--keep-to", "a.pt"], "a.pt: no such model"),
        (["train", "--output", "x", "--resume"], "no such training checkpoint"),
        (["train", "--output", "x", "--resume", "--seed", "1"], "leave them out"),
        (["export", "nothing.pt", "--output", "y.pt"], "nothing.pt: no such training checkpoint"),
        (["export", "nothing.pt", "--output", "y.pt", "--robot", "unicorn"], "unknown robot"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outcome = run_trace(monkeypatch, capsys, *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_torchrun_trains_over_two_processes_and_goes_on(config, tmp_path):
    """As docs/training.md gives it: each process simulates, rank 0 alone speaks and saves."""
    run, result = tmp_path / "run", tmp_path / "result.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["train", "--output", run, "--json", result]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def launch(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [*launcher, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)

    outcome = launch("-m", "trace_ros.cli", *train, "--config", config, "--steps", "3")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("checkpoint:") == 1
    assert "2 ranks" in outcome.stderr
    figures = json.loads(result.read_text())
    assert (figures["steps"], figures["finished"]) == (3, True)
    assert figures["samples"] > 3 * 4 * 50  # more than one rank's lanes can hold
    assert (run / "replay" / "chunk_000000.npy").exists() and (run / "rank1" / "replay" / "chunk_000000.npy").exists()

    # The console script needs no module name.
    console = Path(sys.executable).with_name("trace")
    program = ["--no-python", console] if console.exists() else ["-m", "trace_ros.cli"]
    outcome = launch(*program, *train, "--resume", "--steps", "5")
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(result.read_text())["steps"] == 5


def test_what_starts_from_a_model_is_told_of_its_legs_as_that_was(config, tmp_path, monkeypatch, capsys):
    """The training's config asks for the feet, the model was told of the joints: it stays what it is, and says so."""
    model = export_untrained(tmp_path / "old.pt", RobotDescription.load("go2"))
    feet = config.parent / "feet.yaml"
    feet.write_text(f"base: {config.name}\nnetwork: {{joints: feet}}\n")
    common = ("train", "--config", feet, "--init", model, "--steps", "1")
    outcome = run_trace(monkeypatch, capsys, *common, "--output", tmp_path / "a")
    assert outcome.code == 0
    assert f"note: {model} is told of its legs by network.joints measured" in " ".join(outcome.err.split())
    assert load_state(tmp_path / "a" / "checkpoint.pt")["config"]["network"]["joints"] == "measured"
    outcome = run_trace(monkeypatch, capsys, *common, "--set", "network.joints=feet", "--output", tmp_path / "b")
    assert outcome.code == 2
    assert "network.joints 'measured' instead of 'feet'" in " ".join(outcome.err.split())
