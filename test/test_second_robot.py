"""Nothing is wired to one robot: the A1, and one that a user makes, go all the way from simulation to odometry."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from trace_ros.bags import read_log
from trace_ros.cli import main
from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import export_model, load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.resources import config_directory
from trace_ros.robot import LEG_NAMES, RobotDescription
from trace_ros.sim.rollout import SimulationConfig, simulate_rollouts
from trace_ros.training.config import TrainingConfig
from trace_ros.training.export import card_from_state, network_from_state
from trace_ros.training.monitor import SilentMonitor
from trace_ros.training.pretrain import Budget, Pretraining, RunDescription
from trace_ros.training.simulation import SimulationSource
from trace_ros.training.state import load_state

ROBOTS = config_directory() / "robots"
OTHER_GROUND = ("slope", "perlin", "discrete", "random_steps", "inclined_steps", "stairs")
SIMULATION = {
    "duration": 1.0,
    "settle": 0.3,
    "minimum_duration": 0.5,
    "batch": 4,
    "sized_for": {"mass": 15.206, "standing_height": 0.3346},
    "physics": {"rate_hz": 1000},
    "terrain": {"flat": {"weight": 1.0}, **{kind: {"weight": 0.0} for kind in OTHER_GROUND}},
}
TRAINING = {
    "batch": 4,
    "segment": 50,
    "rollout_samples": 450,
    "replay": {"capacity": 8, "minimum": 4, "chunk": 4},
    "validation": {"rollouts": 2, "interval": 1e6},
}


def test_the_a1_trains_and_runs(tmp_path):
    torch.set_num_threads(1)
    robot = RobotDescription.load("a1")
    simulation = SimulationConfig.model_validate(SIMULATION)
    training = TrainingConfig.model_validate(TRAINING)
    plan = RunDescription(robot, training, simulation.model_dump(mode="json"), 0, Budget(steps=1), "trace train")
    run = Pretraining.start(plan, SimulationSource(simulation), tmp_path / "run")
    before = {name: value.clone() for name, value in run.network.named_parameters()}
    assert run.run(SilentMonitor())
    assert run.step == 1
    assert any(not torch.equal(value, before[name]) for name, value in run.network.named_parameters())

    state = load_state(run.checkpoint_path)
    export_model(network_from_state(state), card_from_state(state), tmp_path / "trace.pt")
    model = load_model(tmp_path / "trace.pt")
    assert (model.card.robot, model.card.robot_fingerprint) == ("a1", robot.fingerprint)
    (walk,) = simulate_rollouts(simulation, robot, 7, 1)
    estimator = TraceEstimator(model, robot)
    estimates = [estimate for sample in walk.measured if (estimate := estimator.step(sample)) is not None]
    assert len(estimates) == len(walk.measured) - 29
    assert all(
        np.isfinite([*estimate.position, *estimate.orientation, *estimate.velocity]).all() for estimate in estimates
    )
    with pytest.raises(TraceError, match="trained for robot 'a1', not 'go2'"):
        model.check_robot(RobotDescription.load("go2"))


@pytest.fixture
def own_robot(tmp_path: Path) -> Path:
    """A robot in a folder of the user's: the A1 with names of its own, and other legs first."""
    renamed = {
        leg: f"{'front' if leg[0] == 'F' else 'hind'}_{'left' if leg[1] == 'L' else 'right'}" for leg in LEG_NAMES
    }

    def rename(text: str) -> str:
        text = re.sub(r"\b(FL|FR|RL|RR)_", lambda found: f"{renamed[found[1]]}_", text)
        return text.replace("hip_joint", "abad").replace("calf_joint", "knee").replace("trunk", "torso")

    folder = tmp_path / "robots"
    folder.mkdir()
    (folder / "beast.urdf").write_text(rename((ROBOTS / "a1.urdf").read_text()))
    data = yaml.safe_load(rename((ROBOTS / "a1.yaml").read_text()))
    data["legs"] = {leg: data["legs"][leg] for leg in ("RR", "FL", "RL", "FR")}
    data |= {"urdf": "beast.urdf", "policy": "beast_policy.yaml"}
    (folder / "beast.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    (folder / "beast_policy.yaml").write_text(rename((ROBOTS / "a1_policy.yaml").read_text()))
    return folder / "beast.yaml"


def trace(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of ``trace ARGUMENTS``."""
    monkeypatch.setattr("sys.argv", ["trace", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_a_robot_of_ones_own_goes_all_the_way(own_robot, tmp_path, monkeypatch, capsys):
    robot = RobotDescription.load(own_robot)
    assert robot.fingerprint == RobotDescription.load("a1").fingerprint
    assert robot.joint_names[:3] == ("front_left_abad", "front_left_thigh_joint", "front_left_knee")

    report = tmp_path / "check.json"
    assert trace(monkeypatch, "robot", "check", own_robot, "--json", report) == 0
    verdicts = {verdict["subject"]: verdict["level"] for verdict in json.loads(report.read_text())["verdicts"]}
    assert set(verdicts.values()) == {"ok", "warning"}
    assert verdicts["model"] == "warning"

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SIMULATION))
    (tmp_path / "quick.yaml").write_text(yaml.safe_dump(TRAINING | {"simulation": "mine.yaml"}))
    run, model, bag = tmp_path / "run", tmp_path / "beast.pt", tmp_path / "walk"
    assert trace(monkeypatch, "simulate", "--robot", own_robot, "--stand", 1, "--bag", bag) == 0
    log, _ = read_log(bag, robot)
    lower, upper = robot.kinematics.lower_limit, robot.kinematics.upper_limit
    assert ((log.joint_position > lower) & (log.joint_position < upper)).all()
    # Each joint in its own slot: the posture is that of a standing robot, calves and thighs apart.
    np.testing.assert_allclose(log.joint_position.mean(axis=0), robot.nominal_joint_positions, atol=0.25)

    options = ("--output", run, "--robot", own_robot, "--config", tmp_path / "quick.yaml", "--steps", 1)
    capsys.readouterr()
    assert trace(monkeypatch, "train", *options) == 0
    assert (
        f"trace export {run}/checkpoint.pt --robot {own_robot} --output models/beast/trace.pt"
        in capsys.readouterr().out
    )
    assert trace(monkeypatch, "export", run / "checkpoint.pt", "--robot", own_robot, "--output", model) == 0
    card = yaml.safe_load(model.with_suffix(".yaml").read_text())
    assert card["command"].startswith("trace train --robot beast.yaml ")
    result = tmp_path / "result.json"
    assert trace(monkeypatch, "evaluate", bag, "--robot", own_robot, "--model", model, "--json", result) == 0
    assert np.isfinite(json.loads(result.read_text())["logs"][0]["metrics"]["ate_position_m"])

    capsys.readouterr()
    assert trace(monkeypatch, "evaluate", bag, "--robot", own_robot) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no such model file" in said


def test_faults_of_a_robot_end_the_check_with_2(own_robot, monkeypatch, capsys):
    own_robot.write_text(own_robot.read_text().replace("foot_radius: 0.02", "foot_radius: 0.05"))
    assert trace(monkeypatch, "robot", "check", own_robot, "--walk", "4") == 2
    said = capsys.readouterr()
    assert "not simulated: mend the faults first" in said.err
    assert "1 fault (feet)" in said.err
    assert "foot_radius says 0.05" in said.out


def test_a_robot_without_a_policy_cannot_be_told_to_walk(tmp_path, monkeypatch, capsys):
    still = tmp_path / "still.yaml"
    still.write_text("base: go2\npolicy: null\n")
    assert trace(monkeypatch, "robot", "check", still) == 0
    assert trace(monkeypatch, "robot", "check", still, "--walk", "4") == 2
    said = capsys.readouterr()
    assert "1 fault (walking)" in said.err
    assert "none that could walk: name one (policy: FILE.yaml), or leave --walk out" in " ".join(said.out.split())
