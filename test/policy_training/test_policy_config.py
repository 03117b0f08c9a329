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
