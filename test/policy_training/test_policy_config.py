"""Settings that no training can have are refused when the file is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trace_ros.errors import TraceError
from trace_ros.policy_training.config import PolicyTrainingConfig
from trace_ros.resources import config_directory


@pytest.mark.parametrize(
    ("part", "key", "value", "told"),
    [
        ("learner", "hidden", [], r"learner\.hidden"),
        ("learner", "mini_batches", 256 * 24 + 1, r"learner\.mini_batches: 6145 are more than the 6144 samples"),
        ("environment", "episode", 1e-5, r"episode: 1e-05 s are shorter than a step"),
        ("environment", "episode", 1e300, r"environment\.episode"),
        ("randomisation", "actuator_delay", [0.0, 0.02], r"actuator_delay: must be at most 0\.01 s"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, part: str, key: str, value: object, told: str) -> None:
    data = yaml.safe_load((config_directory() / "policy" / "walk.yaml").read_text())
    data[part][key] = value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(TraceError, match=told) as refused:
        PolicyTrainingConfig.load(path)
    assert "\n" not in str(refused.value)


def test_robots_must_start_on_their_ground(tmp_path: Path) -> None:
    climb = config_directory() / "policy" / "climb.yaml"
    leave = yaml.safe_load(climb.read_text())["environment"]["ground"]["leave"]
    data = {"base": str(climb), "environment": {"ground": {"start": leave}}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(TraceError, match=r"environment\.ground: start: 5 m must be less than leave \(5 m\)"):
        PolicyTrainingConfig.load(path)


def test_climbing_differs_from_walking_only_by_the_ground_and_what_it_costs() -> None:
    walk, climb = (PolicyTrainingConfig.load(name).model_dump() for name in ("walk", "climb"))
    assert walk["environment"].pop("ground") is None
    assert climb["environment"].pop("ground") is not None
    differing = {"heave", "tilt", "clearance", "clearance_height"}
    for name in ("rewards", *(part for part in walk if part != "rewards")):
        assert {key for key in walk[name] if walk[name][key] != climb[name][key]} == (
            differing if name == "rewards" else set()
        )
