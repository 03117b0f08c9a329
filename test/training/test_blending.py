"""Means of two models' weights."""

from dataclasses import replace

import pytest
import torch
from untrained import export_untrained

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import export_model, load_model
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
    stranger = one.network()
    torch.manual_seed(9)
    with torch.no_grad():
        for value in stranger.parameters():
            value.copy_(torch.randn_like(value))
    export_model(stranger, one.card, tmp_path / "stranger.pt")
    with pytest.raises(TraceError, match=r"stranger\.pt: their weights have nothing in common"):
        blend(one, load_model(tmp_path / "stranger.pt"), 0.5)
    broken = one.network()
    with torch.no_grad():
        broken.head[0].bias.fill_(float("nan"))
    export_model(broken, one.card, tmp_path / "broken.pt")
    with pytest.raises(TraceError, match="nothing in common"):
        blend(one, load_model(tmp_path / "broken.pt"), 0.5)
    export_model(one.network(), one.card.model_copy(update={"robot": "a1"}), tmp_path / "a1.pt")
    with pytest.raises(TraceError, match=r"a1\.pt: a model for a1, .*one\.pt is one for go2"):
        blend(one, load_model(tmp_path / "a1.pt"), 0.5)
