"""What ships from a checkpoint."""

from __future__ import annotations

import pytest
import torch

from trace_ros.errors import TraceError
from trace_ros.estimator.network import TraceNetwork
from trace_ros.training.config import TrainingConfig
from trace_ros.training.export import card_from_state, network_from_state


@pytest.fixture
def state() -> dict:
    torch.manual_seed(0)
    weights = TraceNetwork().state_dict()
    averaged = {f"module.{name}": value + 1 for name, value in weights.items()} | {"n_averaged": torch.tensor(5)}
    return {
        "robot": "go2",
        "robot_fingerprint": "0123456789abcdef",
        "rate_hz": 499.99997,
        "seed": 4,
        "config": TrainingConfig().model_dump(mode="json", exclude={"simulation"}),
        "simulation": {"duration": 4.0},
        "budget": {"hours": 1.5, "steps": None},
        "command": "trace train --output /somewhere/private --config /somewhere/else/mine.yaml --hours 1.5",
        "network": weights,
        "averaged": averaged,
        "step": 100,
        "samples": 640_000,
        "elapsed_s": 5400.0,
        "validation": [{"step": 50, "samples": 1, "elapsed_s": 1.0, "total": 0.5, "velocity_rmse": 0.1}],
    }


def test_the_moving_average_ships(state):
    network = network_from_state(state)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, state["network"][name] + 1)


def test_without_an_average_the_weights_ship(state):
    network = network_from_state({**state, "averaged": None})
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, state["network"][name])


def test_the_card_tells_the_intervals_that_training_showed(state):
    assert card_from_state({**state, "interval_s": (0.00124999, 0.0050500001)}).interval_s == (0.00125, 0.00505)
    assert card_from_state(state).interval_s is None  # a run from before they were measured


def test_weights_of_another_shape_are_refused(state):
    weights = {**state["network"], "gru.weight_hh_l0": torch.zeros(3, 3)}
    with pytest.raises(TraceError, match="do not fit"):
        network_from_state({**state, "averaged": None, "network": weights})


def test_the_card_tells_how_to_repeat_the_run(state):
    card = card_from_state(state)
    assert card.command == "trace train --robot go2 --config mine.yaml --hours 1.5 --seed 4 --output runs/go2"
    assert (card.rate_hz, card.steps, card.samples, card.training_hours) == (500.0, 100, 640_000, 1.5)
    assert card.figures["held_out"] == {"total": 0.5, "velocity_rmse": 0.1}
    assert card.figures["held_out_at_step"] == 50
    assert card.training["optimiser"]["schedule"] == "cosine"
    assert "private" not in card.model_dump_json()
    assert card_from_state({**state, "validation": []}).figures == {}
