"""``trace finetune`` as a user types it: from logs to a judged model, stopped and resumed, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
import typer
import yaml
from commands import run_trace
from untrained import export_untrained

from trace_ros.bags import Topics, write_log
from trace_ros.cli import finetuning
from trace_ros.cli.finetune import SeveralValues
from trace_ros.estimator.checkpoint import load_model, write_card
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.joint_delay import with_joints_at_their_time
from trace_ros.estimator.observation import JOINT_POSITION
from trace_ros.logs import SensorLog, Trajectory
from trace_ros.robot import RobotDescription
from trace_ros.run_folder import sole_writer
from trace_ros.sim.course import Course, simulate_course
from trace_ros.training.level_fit import with_level

ROBOT = RobotDescription.load("go2")
QUICK = ("--set", "window=0.5", "--set", "stride=0.25", "--set", "loss.horizon=0.1", "--set", "validation.horizon=0.2",
         "--set", "validation.spacing=0.1", "--set", "optimiser.segment=100", "--set", "optimiser.piece=100",
         "--set", "optimiser.epochs=1", "--set", "reference.clean=false")  # fmt: skip


def walk(seed: int, samples: int = 450) -> SensorLog:
    """Noise of a body that goes ahead, and where it went."""
    rng = np.random.default_rng(seed)
    stamps = np.arange(samples, dtype=np.int64) * 2_000_000
    joints = np.tile([0.0, 0.8, -1.5], 4) + 0.1 * rng.normal(size=(samples, 12))
    position = np.outer(stamps * 1e-9, [0.4, 0.0, 0.0])
    level = np.tile([0.0, 0.0, 0.0, 1.0], (samples, 1))
    reference = Trajectory(stamps, position, level, np.tile([0.4, 0.0, 0.0], (samples, 1)))
    return SensorLog(
        stamps,
        0.1 * rng.normal(size=(samples, 3)),
        np.array([0.0, 0.0, 9.81]) + rng.normal(size=(samples, 3)),
        joints,
        rng.normal(size=(samples, 12)),
        rng.normal(size=(samples, 12)),
        "pd_target",
        "go2",
        reference.select(slice(None, None, 10)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two bags, two other logs and a model."""
    made = tmp_path_factory.mktemp("finetune")
    for seed, name in enumerate(("bag_0", "bag_1", "log_2.npz", "log_3.npz")):
        write_log(made / name, walk(seed), ROBOT)
    write_log(made / "copy.npz", walk(0), ROBOT)
    write_log(made / "blind.npz", replace(walk(7), reference=None), ROBOT)
    write_log(made / "short.npz", walk(8).select(slice(0, 200)), ROBOT)
    export_untrained(made / "base.pt", ROBOT)
    return made


def test_from_bags_to_a_model(folder, tmp_path, monkeypatch, capsys):
    output, result = tmp_path / "run", tmp_path / "result.json"
    outcome = run_trace(
        monkeypatch, capsys, "finetune", "--logs", folder / "bag_0", folder / "bag_1", "--validation",
        folder / "log_2.npz", "--test", folder / "log_3.npz", "--model", folder / "base.pt", "--output", output,
        "--json", result, *QUICK, "--set", "optimiser.epochs=2", "--torque-source", "none",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "epoch 2: training" in outcome.err
    figures = json.loads(result.read_text())
    assert figures == json.loads((output / "report.json").read_text())
    assert [row["split"] for row in figures["judged"]] == ["validation", "test"]
    for row in figures["judged"]:
        assert {"ate_position_m", "re10_position_m"} <= set(row["before"]) == set(row["after"])
    assert len(figures["history"]) == 3
    assert "log_3" in outcome.out and "->" in outcome.out
    model = load_model(output / "trace.pt")
    model.check_robot(ROBOT)
    card = yaml.safe_load((output / "trace.yaml").read_text())
    logs = card["figures"]["finetuning"]["logs"]
    assert [(log["path"], log["split"]) for log in logs] == [
        ("bag_0", "training"), ("bag_1", "training"), ("log_2.npz", "validation"), ("log_3.npz", "test"),
    ]  # fmt: skip
    assert "--logs bag_0 bag_1 --validation log_2.npz --test log_3.npz" in card["command"]
    assert "--torque-source none" in card["command"]
    assert str(folder) not in (output / "trace.yaml").read_text()
    assert card["figures"]["finetuning"]["judged"][1]["log"] == "log_3"

    again = run_trace(monkeypatch, capsys, "finetune", "--output", output, "--resume")
    assert again.code == 0, again.err
    assert json.loads((output / "report.json").read_text())["history"] == figures["history"]


def test_ctrl_c_saves_and_resume_goes_on(folder, tmp_path, monkeypatch, capsys):
    output = tmp_path / "run"
    command = [sys.executable, "-m", "trace_ros.cli", "finetune", "--output", output, "--model", folder / "base.pt",
               "--logs", folder / "bag_0", folder / "log_2.npz", *QUICK, "--set", "optimiser.epochs=100000",
               "--set", "validation.patience=0"]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, command)), stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "epoch 1:" in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=120)[1]
    assert process.returncode == 130, "".join(said) + rest
    assert "go on with trace finetune --resume" in rest
    assert "Traceback" not in rest
    assert any("log_2.npz is held back for validation" in line for line in said)
    assert not (output / "trace.pt").exists()
    other = run_trace(monkeypatch, capsys, "finetune", "--output", output, "--resume", "--mode", "full")
    assert (other.code, "--resume keeps the run's own: leave --mode out" in other.err) == (2, True)
    other = run_trace(monkeypatch, capsys, "finetune", "--output", output, "--resume", "--set", "loss.start=0")
    assert (other.code, "--resume keeps the run's own loss.start" in other.err) == (2, True)
    shorter = ("finetune", "--output", output, "--resume", "--set", "optimiser.epochs=1")
    assert run_trace(monkeypatch, capsys, *shorter).code == 0
    report = json.loads((output / "report.json").read_text())
    assert report["config"]["optimiser"]["epochs"] == 1 <= len(report["history"]) - 1
    assert report["config"]["level"] is True
    # A run from before there were a level and averages stays without; the level may be asked for.
    state = torch.load(output / "checkpoint.pt", weights_only=False)
    del state["config"]["level"], state["config"]["optimiser"]["average"], state["average"]
    torch.save(state, output / "checkpoint.pt")
    for more, level in (((), False), (("--set", "level=true"), True)):
        assert run_trace(monkeypatch, capsys, *shorter, *more).code == 0
        settings = json.loads((output / "report.json").read_text())["config"]
        assert (settings["level"], settings["optimiser"]["average"]) == (level, 0)


@pytest.fixture(scope="module")
def late_walks(tmp_path_factory) -> list[Path]:
    """Two walks whose joints are 10 ms late, and as they were before."""
    made = tmp_path_factory.mktemp("late")
    course = Course.load("demo").model_copy(update={"duration": 8.0})
    paths = []
    for seed in (0, 1):
        log = simulate_course(course, ROBOT, seed).measured
        for name, written in ((f"late_{seed}.npz", with_joints_at_their_time(log, -0.01)), (f"own_{seed}.npz", log)):
            write_log(made / name, written, ROBOT)
            paths.append(made / name)
    return paths


def test_late_joints_are_put_right_for_training_and_in_the_model(folder, late_walks, tmp_path, monkeypatch, capsys):
    late_0, _, late_1, _ = late_walks
    output = tmp_path / "run"
    command = ("--logs", late_0, "--validation", late_1, "--model", folder / "base.pt", *QUICK)
    outcome = run_trace(monkeypatch, capsys, "finetune", *command, "--output", output)
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.err.split())
    assert "timing of the joints: joint readings are " in said and "with that put right" in said
    assert "the table's figures before are of the base model, which takes them to be 0 ms late" in said
    card = load_model(output / "trace.pt").card
    assert card.joint_delay == pytest.approx(0.01, abs=0.0015)
    report = json.loads((output / "report.json").read_text())
    assert report["joint_delay_s"] == report["joint_timing"]["taken_s"] == card.joint_delay
    assert report["joint_timing"]["windows"] > 12
    # Gone on with, it is the same; and a run from before there was such a thing knows of none.
    resume = ("finetune", "--output", output, "--resume")
    assert run_trace(monkeypatch, capsys, *resume).code == 0
    assert load_model(output / "trace.pt").card.joint_delay == card.joint_delay
    state = torch.load(output / "checkpoint.pt", weights_only=False)
    del state["config"]["joint_delay"], state["joint_delay"], state["joint_timing"]
    torch.save(state, output / "checkpoint.pt")
    assert run_trace(monkeypatch, capsys, *resume).code == 0
    report = json.loads((output / "report.json").read_text())
    assert (report["config"]["joint_delay"], report["joint_delay_s"]) == (False, 0.0)
    # Unasked for, nothing is looked for; and what a model knows of its unit stays.
    other = tmp_path / "other"
    told = tmp_path / "told.pt"
    shutil.copy(folder / "base.pt", told)
    write_card(told, load_model(told).card.model_copy(update={"joint_delay": 0.01}))
    again = ("finetune", *command[: -len(QUICK) - 1], told, *QUICK, "--output", other, "--set", "joint_delay=false")
    outcome = run_trace(monkeypatch, capsys, *again)
    assert outcome.code == 0 and "timing of the joints" not in outcome.err
    assert load_model(other / "trace.pt").card.joint_delay == 0.01


def test_what_is_trained_on_are_the_joints_of_the_time(folder, late_walks, tmp_path, monkeypatch):
    late_0, own_0, late_1, own_1 = late_walks
    changes = [*QUICK[1::2], "joint_delay=true"]
    monkeypatch.setattr(finetuning, "find_and_tell", lambda *_: (0.01, None))
    monkeypatch.setattr(finetuning, "tell_others", lambda *_: None)
    jobs = [
        finetuning.planned(
            tmp_path / name, [logs[0]], [logs[1]], [], "go2", folder / "base.pt", "paper", more, Topics()
        )
        for name, logs, more in (
            ("late", (late_0, late_1), changes),
            ("own", (own_0, own_1), [*changes, "joint_delay=false"]),
        )
    ]  # fmt: skip
    late, own = (job.run._windows[0].track for job in jobs)
    same = np.isin(own.stamp_ns, late.stamp_ns)
    assert same.sum() == len(late.stamp_ns) > len(own.stamp_ns) - 15
    # Interpolated there and back, where samples jitter.
    positions = late.observations[:, JOINT_POSITION].numpy(), own.observations[same][:, JOINT_POSITION].numpy()
    np.testing.assert_allclose(*positions, atol=0.02)
    assert np.abs(positions[0] - positions[1]).mean() < 1e-3
    # The logs themselves stay as they are stamped: the estimator that judges them knows.
    assert len(jobs[0].logs[0].log) == len(SensorLog.load(late_0))


def test_a_model_is_there_when_it_is_levelled_and_not_before(folder, tmp_path, monkeypatch, capsys):
    """Ctrl-C while the level is fitted leaves no model that looks finished, nor takes one away that is."""
    base = tmp_path / "base.pt"
    shutil.copy(folder / "base.pt", base)
    write_card(base, load_model(base).card.model_copy(update={"height": HeightSettings()}))
    output = tmp_path / "run"
    command = ("finetune", "--output", output, "--model", base, "--logs", folder / "bag_0", folder / "bag_1",
               "--validation", folder / "log_2.npz", *QUICK)  # fmt: skip

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "fit_and_tell", stopped)
        outcome = run_trace(patch, capsys, *command)
    assert outcome.code == 130 and "was not levelled and compared" in outcome.err
    assert sorted(path.name for path in output.glob("*trace*")) == []
    assert not list(output.glob(".levelling*"))
    resume = ("finetune", "--output", output, "--resume")
    # Less than a second of walking tells nothing of a level.
    outcome = run_trace(monkeypatch, capsys, *resume)
    assert outcome.code == 0 and "level of the feet is not fitted" in outcome.err
    assert load_model(output / "trace.pt").card.height == HeightSettings()

    def levelled(model, _robot, logs, what, _threads):
        assert len(logs) == 2 and what == "the training logs"
        return with_level(model.card, (0.0, 0.01)), {"level": [0.0, 0.01]}

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "fit_and_tell", levelled)
        assert run_trace(patch, capsys, *resume).code == 0
    made = load_model(output / "trace.pt").card
    assert made.height == HeightSettings(level=(0.0, 0.01))
    assert made.figures["finetuning"]["level"] == {"level": [0.0, 0.01]}
    assert json.loads((output / "report.json").read_text())["level"] == {"level": [0.0, 0.01]}
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "fit_and_tell", stopped)
        assert run_trace(patch, capsys, *resume).code == 130
    assert load_model(output / "trace.pt").card == made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logs", "bag_0"], "give --validation"),
        (["--logs", "bag_0", "log_2.npz", "--test", "copy.npz"], "the same recording as"),
        (["--logs", "bag_0", "log_2.npz", "--test", "bag_0"], "is given with --logs and with --test"),
        (["--logs", "bag_0", "blind.npz"], "has no reference"),
        (["--logs", "short.npz", "log_2.npz"], "is 0.4 s long, a window 0.5 s"),
        (["--logs", "gone", "log_2.npz"], "no such file"),
        (["--logs", "bag_0", "log_2.npz", "--mode", "some"], "--mode 'some'"),
        (["--logs", "bag_0", "log_2.npz", "--config", "unheard"], "unheard.yaml: no such file"),
        (["--logs", "bag_0", "log_2.npz", "--set", "loss.foot=1"], "loss.foot"),
        (["--logs", "bag_0", "log_2.npz", "--robot", "a1"], "trained for robot 'go2', not 'a1'"),
        (["--logs", "bag_0", "log_2.npz", "--resume"], "leave --logs out"),
        (["--resume"], "no such fine-tuning checkpoint"),
        (["--resume", "--torque-source", "none"], "leave --torque-source out"),
        (["--logs", "bag_0", "log_2.npz", "--torque-source", "guess"], "--torque-source 'guess' is none of"),
        (["--logs", "bag_0", "log_2.npz", "--imu-mounting", "tf"], "no transform from base_link"),
    ],
)
def test_what_is_wrong_is_one_line(folder, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    given = arguments if "--resume" in arguments else [*arguments, "--model", "base.pt", *QUICK]
    outcome = run_trace(monkeypatch, capsys, "finetune", "--output", tmp_path / "run", *given)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err
    assert outcome.err.strip().splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "run" / "trace.pt").exists()


def test_a_run_that_another_process_writes_is_left_alone(folder, tmp_path, monkeypatch, capsys):
    given = ("finetune", "--logs", folder / "bag_0", folder / "log_2.npz", "--model", folder / "base.pt", *QUICK)
    with sole_writer(tmp_path / "run"):
        outcome = run_trace(monkeypatch, capsys, *given, "--output", tmp_path / "run")
    assert (outcome.code, "is at work there" in outcome.err) == (2, True)
    assert not (tmp_path / "run").exists()  # nothing came of it


def test_the_base_model_is_never_overwritten(folder, tmp_path, monkeypatch, capsys):
    base = export_untrained(tmp_path / "trace.pt", ROBOT)
    before = base.read_bytes()
    outcome = run_trace(
        monkeypatch, capsys, "finetune", "--logs", folder / "bag_0", folder / "log_2.npz", "--model", base,
        "--output", tmp_path, *QUICK,
    )  # fmt: skip
    assert (outcome.code, "is the base model" in outcome.err) == (2, True)
    assert base.read_bytes() == before


def test_ctrl_c_while_the_new_model_is_judged_says_how_to_go_on(folder, tmp_path, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "my run"
    monkeypatch.chdir(folder)
    with monkeypatch.context() as patch:
        patch.setattr("trace_ros.cli.finetuning._judge", interrupted)
        done = run_trace(patch, capsys, "finetune", "--output", run, "--model", "base.pt", "--logs", "bag_0",
                         "--validation", "log_2.npz", *QUICK)  # fmt: skip
    assert done.code == 130
    assert f"trace finetune --resume --output '{run}'" in done.err
    done = run_trace(monkeypatch, capsys, "finetune", "--output", run, "--resume")
    assert done.code == 0, done.err
    assert (run / "report.json").is_file()


def test_options_take_several_values():
    seen: list[str] = []

    def command(
        words: Annotated[list[str], typer.Option("--logs")], test: Annotated[list[str], typer.Option()]
    ) -> None:
        seen.extend([",".join(words), ",".join(test)])

    app = typer.Typer()
    app.command(cls=SeveralValues)(command)
    with pytest.raises(SystemExit):
        app(["--logs", "a", "b", "--test", "c", "--logs", "d"])
    assert seen == ["a,b,d", "c"]
