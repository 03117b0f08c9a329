"""Changing single values of a training config."""

import pytest

from trace_ros.errors import TraceError
from trace_ros.training.config import TrainingConfig


def test_values_are_changed_by_their_dotted_keys():
    changes = ["loss.foot=0", "closed_loop.start=1", "network.increments=direct", "optimiser.ema_decay=0.5"]
    config, before = TrainingConfig.load("trace", changes), TrainingConfig.load("trace")
    assert config.loss.foot == 0
    assert config.closed_loop.start == 1
    assert config.network.increments == "direct"
    assert config.optimiser.ema_decay == 0.5
    assert config.loss.model == before.loss.model
    assert config.simulation == before.simulation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss.foot", "expected key=value"),
        ("=3", "expected key=value"),
        ("loss..foot=3", "expected key=value"),
        ("loss.feet=3", r"unknown key 'loss\.feet'|loss\.feet"),
        ("batch.size=3", "batch holds a value, not keys"),
        ("loss.foot=-1", r"loss\.foot"),
        ("loss.foot=[", "not a YAML value"),
    ],
)
def test_a_bad_change_is_one_line(change, message):
    with pytest.raises(TraceError, match=message) as caught:
        TrainingConfig.load("trace", [change])
    assert "\n" not in str(caught.value)
