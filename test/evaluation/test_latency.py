"""What `trace latency` times is what it says, and its figures are those of the times."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from trace_ros.cli.commands import app
from trace_ros.estimator.folding import fold
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.estimator.observation import OBSERVATION_SIZE, WINDOW
from trace_ros.evaluation.latency import ROWS, Latency, measure
from trace_ros.evaluation.latency_networks import LegolasSized, NmnSized, PaperWindow, Products


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_papers_formulation_gives_what_our_network_gives():
    torch.manual_seed(0)
    network = TraceNetwork(NetworkConfig(output_layer_scale=1.0)).eval()
    network.set_normalisation(torch.randn(47), torch.rand(47) + 0.5, torch.rand(9) + 0.5)
    rows = torch.randn(3, 60, OBSERVATION_SIZE)
    window, hidden = PaperWindow(network), network.initial_hidden(3)
    with torch.no_grad():
        expected = network.sequence(rows, hidden)
        for index in range(60 - WINDOW + 1):
            motion, attention, hidden = window(rows[:, index : index + WINDOW], hidden)
            torch.testing.assert_close(motion, expected.motion[:, index], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(attention, expected.attention[:, index], atol=1e-5, rtol=1e-5)


def test_the_other_networks_have_the_stated_sizes():
    assert size(NmnSized()) == 132_871
    assert 1.3e6 < size(LegolasSized()) < 1.5e6
    outputs = LegolasSized()(torch.randn(2, 44, 50))
    assert [tuple(output.shape) for output in outputs] == [(2, 9), (2, 9), (2, 1)]


def test_the_floor_is_every_matrix_of_the_step():
    network = TraceNetwork()
    products = Products(network)
    expected = [weight.sum(dim=1) for weight in fold(network) if weight.dim() == 2]
    for product, sums in zip(products(products.vectors()), expected, strict=True):
        torch.testing.assert_close(product, sums, atol=1e-4, rtol=1e-4)


def test_steps_take_turns_and_each_is_timed_as_often_as_asked():
    calls: list[str] = []
    steps = {"quick": lambda: calls.append("quick"), "slow": lambda: (calls.append("slow"), time.sleep(0.002))}
    done: list[int] = []
    rows = measure(steps, 120, warm_up=3, progress=done.append)
    assert done == [50, 100, 120]
    assert calls.count("quick") == calls.count("slow") == 3 + 120 + 3 * 5
    changes = sum(one != two for one, two in itertools.pairwise(calls[6:]))
    assert changes == 5
    assert rows["slow"].p50_ms >= 2.0
    assert rows["quick"].p50_ms < rows["slow"].p50_ms


def test_figures_are_those_of_the_times():
    assert Latency.of(np.array([1e-3, 2e-3, 3e-3])) == Latency(2.0, np.std([1, 2, 3]), 2.0, 2.98, 3.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_command_writes_every_row(tmp_path):
    output = tmp_path / "latency.json"
    result = CliRunner().invoke(app, ["latency", "--steps", "100", "--json", str(output)])
    assert result.exit_code == 0, result.output
    data = json.loads(output.read_text())
    assert list(data["rows"]) == list(ROWS)
    for row in data["rows"].values():
        assert list(row) == ["mean_ms", "std_ms", "p50_ms", "p99_ms", "max_ms"]
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert data["ratios"]["torchscript_streaming/eager_window"] < 1.0
    p50 = {name: row["p50_ms"] for name, row in data["rows"].items()}
    assert data["ratios"]["estimator_step/nmn_estimator"] == p50["estimator_step"] / p50["nmn_estimator"]
    assert p50["nmn_estimator"] > p50["nmn"]
    assert "estimator_step / nmn_estimator: " in result.output
