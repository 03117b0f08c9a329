"""YAML files that stand on others."""

import pytest

from trace_ros.errors import TraceError
from trace_ros.resources import config_directory, read_yaml_on_base
from trace_ros.sim.rollout import SimulationConfig
from trace_ros.training.config import TrainingConfig


def test_a_file_stands_on_its_base_section_by_section(tmp_path):
    (tmp_path / "low.yaml").write_text("a: 1\nb: {c: 2, d: [3, 4]}\n")
    (tmp_path / "middle.yaml").write_text("base: low.yaml\nb: {c: 5}\n")
    (tmp_path / "high.yaml").write_text("base: middle.yaml\nb: {d: [6]}\ne: 7\n")
    assert read_yaml_on_base(tmp_path / "high.yaml") == {"a": 1, "b": {"c": 5, "d": [6]}, "e": 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: high.yaml", "leads back to itself"),
        ("base: gone.yaml", r"gone\.yaml: cannot be read"),
        ("base: list.yaml", "holds no keys"),
        ("base: 3", "base must name one file, found 3"),
    ],
)
def test_a_bad_base_is_named(tmp_path, text, message):
    (tmp_path / "high.yaml").write_text(text)
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(TraceError, match=message):
        read_yaml_on_base(tmp_path / "high.yaml")


def test_the_papers_simulation_is_ours_without_extensions():
    paper = TrainingConfig.load("paper")
    simulation = SimulationConfig.load(paper.simulation)
    ours = SimulationConfig.load(config_directory() / "training" / "simulation.yaml")
    assert (simulation.duration, simulation.physics.rate_hz) == (4.0, 4000)
    assert simulation.randomization.contact.low_probability == 0
    assert simulation.randomization.contact.friction == ours.randomization.contact.friction == (0.4, 1.2)
    assert simulation.sensors.joint_torque_absent == 0
    assert simulation.sensors.gyro_noise == ours.sensors.gyro_noise
