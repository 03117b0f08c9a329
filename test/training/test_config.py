"""Training configs: the shipped ones, changing single values, and what is refused in one line."""

from pathlib import Path

import pytest
import torch
import yaml

from trace_ros.errors import TraceError
from trace_ros.estimator.height import HeightSettings
from trace_ros.resources import config_directory
from trace_ros.training.config import TrainingConfig


def test_values_are_changed_by_their_dotted_keys():
    changes = ["loss.foot=0", "closed_loop.start=1", "network.increments=direct", "optimiser.ema_decay=0.5"]
    config, before = TrainingConfig.load("trace", changes), TrainingConfig.load("trace")
    assert config.loss.foot == 0
    assert config.closed_loop.start == 1
    assert config.network.increments == "direct"
    assert config.optimiser.ema_decay == 0.5
    assert config.loss.model == before.loss.model
    # What is switched off can be switched on by one of its values.
    assert TrainingConfig.load("paper", ["height.time=2"]).height == HeightSettings(time=2.0)
    assert config.simulation == before.simulation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss.foot", "expected key=value"),
        ("=3", "expected key=value"),
        ("loss..foot=3", "expected key=value"),
        ("loss.feet=3", r"unknown key 'loss\.feet'|loss\.feet"),
        ("batch.size=3", "batch holds a value, not keys"),
        ("height.time=-1", "height.time"),
        ("loss.foot=-1", r"loss\.foot"),
        ("loss.foot=[", "not a YAML value"),
    ],
)
def test_a_bad_change_is_one_line(change, message):
    with pytest.raises(TraceError, match=message) as caught:
        TrainingConfig.load("trace", [change])
    assert "\n" not in str(caught.value)


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
    network = config.network
    assert (network.acceleration, network.joints) == ("measured", "measured")
    assert (network.increments, network.memory) == ("direct", 1)
    assert config.height is config.input_limit is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bacth: 3", "unknown key 'bacth'"),
        ("loss: {beta: 0}", "loss.beta"),
        ("optimiser: {schedule: linear}", "optimiser.schedule"),
        ("loss: {foot: .inf}", "loss.foot"),
        ("feedback: {tilt_offset: .nan}", "feedback.tilt_offset"),
        ("height: {time: 0}", "height.time"),
        ("input_limit: -1", "input_limit"),
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
    known = "a1, legolas, mlp, nmn, one_gait, paper, trace, wide_gaits"
    with pytest.raises(TraceError, match=rf"no such file; .* has {known}$"):
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
