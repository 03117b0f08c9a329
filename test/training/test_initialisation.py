"""Training that starts from an earlier model."""

import dataclasses

import numpy as np
import pytest
import torch
from pretraining import Recorder, describe
from synthetic import SyntheticSource, rollout

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import ModelCard, export_model, load_model
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.robot import RobotDescription
from trace_ros.training.config import ClosedLoopConfig
from trace_ros.training.dataset import Normalisation, measure_normalisation, pack
from trace_ros.training.export import card_from_state
from trace_ros.training.initialisation import adopt, check_start
from trace_ros.training.losses import LossConfig
from trace_ros.training.pretrain import Pretraining
from trace_ros.training.state import load_state

ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def rows():
    return torch.from_numpy(np.stack([pack(rollout(seed, 200), ROBOT, 129) for seed in range(3)]))


@pytest.fixture(scope="module")
def model(rows, tmp_path_factory):
    torch.manual_seed(1)
    network = TraceNetwork()
    network.set_normalisation(*measure_normalisation(rows, network.config, 0.02))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    path = tmp_path_factory.mktemp("model") / "trace.pt"
    card = ModelCard(robot="go2", robot_fingerprint=ROBOT.fingerprint, rate_hz=500, steps=11, command="trace train")
    export_model(network, card, path)
    return load_model(path)


def test_the_adopted_network_is_the_same_function_with_a_normalisation_for_other_rates(model, rows):
    before = model.network()
    other = Normalisation(torch.full((47,), 3e-3), torch.full((47,), 2e-3), torch.ones(9))
    network = TraceNetwork()
    adopt(network, model, other)
    varied = rows[..., :47].clone()
    varied[..., 46] *= 1 + 0.5 * torch.rand(varied.shape[:-1])
    hidden = 0.3 * torch.randn(len(rows), 128)
    with torch.no_grad():
        expected, found = before.sequence(varied, hidden), network.sequence(varied, hidden)
    torch.testing.assert_close(found.motion, expected.motion, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.attention, expected.attention, rtol=1e-3, atol=1e-5)
    assert float(network.observation_scale[46]) == pytest.approx(2e-3)
    torch.testing.assert_close(network.observation_scale[:46], before.observation_scale[:46])


def test_another_network_is_refused_by_key(model):
    with pytest.raises(TraceError, match=r"network\.hidden 128 instead of 64"):
        check_start(model, NetworkConfig(hidden=64))
    with pytest.raises(TraceError, match=r"'measured' instead of 'feet'.* \(--set network\.joints=measured\)"):
        check_start(model, NetworkConfig(joints="feet"))
    check_start(model, NetworkConfig(memory=7))


def test_a_run_starts_from_the_model_and_its_card_says_so(model, tmp_path):
    description = describe(steps=1)
    slow = dataclasses.replace(
        description,
        config=description.config.model_copy(
            update={"optimiser": description.config.optimiser.model_copy(update={"learning_rate": 1e-9})}
        ),
    )
    run = Pretraining.start(slow, SyntheticSource(samples=90), tmp_path, initial=model)
    assert run.run(Recorder())
    torch.testing.assert_close(
        run.network.get_parameter("gru.weight_hh_l0"), model.network().get_parameter("gru.weight_hh_l0")
    )
    card = card_from_state(load_state(tmp_path / "checkpoint.pt"))
    assert card.initial is not None
    assert card.initial["steps"] == 11
    resumed = Pretraining.resume(dataclasses.replace(slow, initial=card.initial), SyntheticSource(90), tmp_path)
    resumed.save()
    assert card_from_state(load_state(tmp_path / "checkpoint.pt")).initial == card.initial


def test_a_network_is_kept_near_what_it_started_from(model, rows, tmp_path):
    """The truth draws it away from the model's outputs, and the further the less these are asked."""
    inputs, hidden, off = rows[..., :47], torch.zeros(len(rows), 128), {}
    for keep in (0.0, 100.0):
        run = Pretraining.start(
            describe(25, loss=LossConfig(keep=keep)), SyntheticSource(90), tmp_path / f"{keep}", initial=model
        )
        assert run.run(Recorder())
        with torch.no_grad():
            own, start = (network.sequence(inputs, hidden).motion for network in (run.network, model.network()))
        off[keep] = float((own - start).abs().mean())
    assert off[100.0] < 0.5 * off[0.0]


def test_a_run_that_is_kept_near_its_start_resumes_as_if_unbroken(model, tmp_path):
    keep = {"loss": LossConfig(keep=10, spread=1), "closed_loop": ClosedLoopConfig(start=0.3)}
    source = SyntheticSource(90)
    whole, unbroken = Pretraining.start(describe(8, **keep), source, tmp_path / "whole", initial=model), Recorder()
    assert whole.run(unbroken)
    broken = Pretraining.start(describe(8, **keep), source, tmp_path / "broken", initial=model)
    assert not broken.run(Recorder(), lambda: broken.step == 4)
    rest = Recorder()
    assert Pretraining.resume(describe(8, **keep), source, tmp_path / "broken").run(rest)
    np.testing.assert_allclose(rest.losses, unbroken.losses[4:], rtol=1e-5)


def test_a_network_is_kept_to_another_than_it_started_from(model, rows, tmp_path):
    """It begins as one, and is held to the other; a resumed run too."""
    torch.manual_seed(2)
    other, shifted = TraceNetwork(), model.network()
    other.load_state_dict(shifted.state_dict())
    with torch.no_grad():
        for parameter in other.head[-1].parameters():
            parameter.mul_(0.5)
    export_model(other, model.card, tmp_path / "other.pt")
    kept_to = load_model(tmp_path / "other.pt")
    off = {}
    for name, given in (("itself", None), ("other", kept_to)):
        plan = describe(30, loss=LossConfig(keep=100))
        run = Pretraining.start(plan, SyntheticSource(90), tmp_path / name, initial=model, keep_to=given)
        assert not run.run(Recorder(), lambda: run.step == 15)  # noqa: B023
        run = Pretraining.resume(plan, SyntheticSource(90), tmp_path / name)
        assert run.run(Recorder())
        with torch.no_grad():
            hidden = torch.zeros(len(rows), 128)
            own, wanted = (network.sequence(rows[..., :47], hidden).motion for network in (run.network, other))
        off[name] = float((own - wanted).abs().mean())
    assert off["other"] < 0.7 * off["itself"]


def test_there_must_be_something_to_keep_and_a_reason(model, tmp_path):
    plan, source = describe(1, loss=LossConfig(keep=1)), SyntheticSource(90)
    with pytest.raises(TraceError, match=r"loss\.keep holds a network to a model: give one with --init or --keep-to"):
        Pretraining.start(plan, source, tmp_path)
    with pytest.raises(TraceError, match=r"--keep-to .*trace\.pt: nothing is kept to it where loss\.keep is 0"):
        Pretraining.start(describe(1), source, tmp_path, keep_to=model)
    small = describe(1, loss=LossConfig(keep=1), network=NetworkConfig(hidden=64))
    with pytest.raises(TraceError, match=r"network\.hidden 128 instead of 64"):
        Pretraining.start(small, source, tmp_path, keep_to=model)
    # From weights drawn at random it learns what that model does.
    run = Pretraining.start(plan, source, tmp_path, keep_to=model)
    assert run.run(Recorder())
    assert run.learner.start_weights is not None
    torch.testing.assert_close(run.learner.start_weights["gru.weight_hh_l0"], model.weights["gru.weight_hh_l0"])
