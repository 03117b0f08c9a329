"""Means of two models' weights."""

from dataclasses import replace

import pytest
import torch
from untrained import export_untrained

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import export_model, load_model
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.training.blending import blend
from trace_ros.training.initialisation import describe_start

ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model, and another with weights that are a little different."""
    folder = tmp_path_factory.mktemp("models")
    one = load_model(export_untrained(folder / "one.pt", ROBOT))
    network = one.network()
    torch.manual_seed(1)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.1 * value.abs().mean() * torch.randn_like(value)
    card = one.card.model_copy(update={"command": "trace train further", "steps": 7, "figures": {"held_out": {}}})
    export_model(network, card, folder / "two.pt")
    return one, load_model(folder / "two.pt")


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_weights_lie_between(models, share):
    one, two = models
    network, card = blend(two, one, share)
    for name, value in network.state_dict().items():
        expected = (1 - share) * two.weights[name] + share * one.weights[name]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    assert card.command == "trace train further"
    assert card.training["blend"]["share"] == share
    assert card.training["blend"]["command"] == "none at all"
    assert card.figures == {}
    # What is trained on from the mean can tell of it too.
    assert describe_start(replace(two, card=card))["blend"] == card.training["blend"]
    assert "blend" not in describe_start(two)


def test_what_has_no_mean_is_refused(models, tmp_path):
    one, two = models
    with pytest.raises(TraceError, match=r"share 1\.5"):
        blend(one, two, 1.5)
    torch.manual_seed(9)
    export_model(TraceNetwork(), one.card, tmp_path / "stranger.pt")
    with pytest.raises(TraceError, match=r"stranger\.pt: their weights have nothing in common"):
        blend(one, load_model(tmp_path / "stranger.pt"), 0.5)
    small = NetworkConfig(hidden=64)
    card = one.card.model_copy(update={"network": small})
    export_model(TraceNetwork(small), card, tmp_path / "small.pt")
    with pytest.raises(TraceError, match=r"small\.pt: has network\.hidden 64 instead of 128, unlike .*one\.pt"):
        blend(one, load_model(tmp_path / "small.pt"), 0.5)
    broken = one.network()
    with torch.no_grad():
        broken.head[0].bias.fill_(float("nan"))
    export_model(broken, one.card, tmp_path / "broken.pt")
    for pair in ((one, load_model(tmp_path / "broken.pt")), (load_model(tmp_path / "broken.pt"), one)):
        with pytest.raises(TraceError, match=r"broken\.pt: damaged: it has weights that are not numbers"):
            blend(*pair, 0.5)
    for update in ({"robot": "a1"}, {"robot_fingerprint": "of longer legs"}):
        export_model(one.network(), one.card.model_copy(update=update), tmp_path / "other.pt")
        with pytest.raises(TraceError, match=r"other\.pt: not a model for the go2 of .*one\.pt"):
            blend(one, load_model(tmp_path / "other.pt"), 0.5)


def test_models_that_ship_and_were_trained_apart_are_refused():
    folder = models_directory() / "go2"
    apart, further = (load_model(folder / f"{name}.pt") for name in ("trace_equal", "trace_contacts"))
    shipped = load_model(folder / "trace_measured.pt")
    with pytest.raises(TraceError, match="nothing in common"):
        blend(apart, shipped, 0.5)
    _, card = blend(further, shipped, 0.5)
    assert card.training["blend"]["share"] == 0.5
    assert card.training["blend"]["earlier"]["share"] == further.card.training["blend"]["share"] == 0.3
