"""The objective and its gradient against small direct implementations, in double precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from finetuning_logs import config, track, untrained
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.estimator.folding import fold
from trace_ros.training.closed_loop import closed_loop
from trace_ros.training.dataset import PREFIX
from trace_ros.training.finetuning_data import WindowBatch, all_windows
from trace_ros.training.finetuning_loss import Past, distance_from_start, finetuning_terms, rotation_vector
from trace_ros.training.finetuning_method import FineTunedTrace
from trace_ros.training.finetuning_rollout import LoopInputs, LoopState, Rollout, backpropagate, begin, roll_out


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("base") / "trace.pt")


@pytest.fixture(scope="module")
def made(model):
    """A track, its windows side by side, and the lookback."""
    own = track(model)
    return own, WindowBatch(all_windows([own]), own.lookback), own.lookback


def double(parts):
    return type(parts)(*(part.double() if part.is_floating_point() else part for part in parts))


def network_of(model, mode="partial"):
    network = model.network().double()
    FineTunedTrace(model).set_trainable(network, mode)
    return network


def started(network, batch):
    prefix, feedback = batch.prefix()
    with torch.no_grad():
        return begin(fold(network), prefix.double(), feedback.double())


def segment(batch, number=0, length=60):
    inputs, frames = list(batch.segments(length))[number]
    return LoopInputs(*double(inputs)), double(frames)


def smooth(error, beta):
    size = np.abs(error)
    return np.where(size < beta, 0.5 * size**2 / beta, size - beta / 2).mean()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-1.7, 1.7), min_size=3, max_size=3))
def test_the_logarithm_is_that_of_scipy(vector):
    rotation = Rotation.from_rotvec(vector)
    found = rotation_vector(torch.tensor(rotation.as_matrix()))
    np.testing.assert_allclose(found, rotation.as_rotvec(), atol=1e-7)


def test_the_logarithm_has_a_gradient_at_no_rotation():
    rotation = torch.eye(3, dtype=torch.float64).requires_grad_()
    rotation_vector(rotation).sum().backward()
    assert torch.isfinite(rotation.grad).all()
    assert rotation.grad.abs().max() > 0.4


def test_the_objective_is_what_the_paper_says(model, made):
    """Frame by frame, with scipy's rotations, from the log's own reference; over the whole first window."""
    own, batch, lookback = made
    network = network_of(model)
    state = started(network, batch)
    inputs, frames = segment(batch, 0, batch.outputs)
    with torch.no_grad():
        rollout, _ = roll_out(fold(network), inputs, state)
        terms = finetuning_terms(rollout, Past.none(state.rotation, state.feedback, lookback), frames, config().loss)
    loss = config().loss
    reference = Rotation.from_matrix(own.rotation.double().numpy())
    position, rotation, model_parts = [], [], []
    for number, window in enumerate(all_windows([own])):
        motion, attitude = rollout.motion[number].numpy(), Rotation.from_matrix(rollout.rotation[number].numpy())
        origin = window.begin + PREFIX
        previous = np.array([*state.feedback[number, 2:], 0.0])
        for step in range(window.outputs):
            displacement, turn, velocity = np.split(motion[step], 3)
            kinematic = 0.5 * (previous + Rotation.from_rotvec(turn).apply(velocity))
            model_parts.append(smooth(displacement / 0.002 - kinematic, loss.model_beta))
            previous = velocity
            anchor = step - round(loss.horizon / 0.002)
            if anchor < 0:
                continue
            moved = sum(reference[origin + k - 1].apply(motion[k, :3]) for k in range(anchor + 1, step + 1))
            back = reference[origin + anchor].inv()
            true = back.apply(own.position[origin + step] - own.position[origin + anchor])
            position.append(smooth(back.apply(moved) - true, loss.position_beta))
            error = (back * reference[origin + step]).inv() * (attitude[anchor].inv() * attitude[step])
            rotation.append(smooth(error.as_rotvec(), loss.rotation_beta))
    assert int(terms.pairs) == len(position)
    np.testing.assert_allclose(float(terms.position), np.mean(position), rtol=1e-4)
    np.testing.assert_allclose(float(terms.rotation), np.mean(rotation), rtol=1e-3, atol=1e-10)
    np.testing.assert_allclose(float(terms.model), np.mean(model_parts), rtol=1e-4)
    count = len(model_parts)
    expected = loss.relative * (loss.position * sum(position) + loss.rotation * sum(rotation)) / count
    np.testing.assert_allclose(float(terms.total), expected + loss.model * np.mean(model_parts), rtol=1e-4)


def test_a_second_segment_looks_back_into_the_first(model, made):
    """The objective of two segments one after the other adds up to that of both at once."""
    _, batch, lookback = made
    network = network_of(model)
    state = started(network, batch)
    past = Past.none(state.rotation, state.feedback, lookback)
    inputs, frames = segment(batch, 0, batch.outputs)
    with torch.no_grad():
        rollout, _ = roll_out(fold(network), inputs, state)
        whole = finetuning_terms(rollout, past, frames, config().loss)
        totals, pairs, length = 0.0, 0, 50
        for number, (part, own) in enumerate(batch.segments(length)):
            made_part = Rollout(*(kind[:, number * length : (number + 1) * length] for kind in rollout))
            terms = finetuning_terms(made_part, past, double(own), config().loss)
            past = past.then(made_part, double(own))
            totals += float(terms.total) * part.observations.shape[1]
            pairs += int(terms.pairs)
    assert pairs == int(whole.pairs) > 200
    np.testing.assert_allclose(totals / batch.outputs, float(whole.total), rtol=1e-6)


def test_the_loop_is_that_of_training(model, made):
    own, batch, _ = made
    network = model.network()
    rows = torch.stack([own.observations[w.begin : w.begin + 100] for w in all_windows([own])])
    with torch.no_grad():
        expected = closed_loop(network, torch.cat((rows, rows.new_zeros(*rows.shape[:2], 21)), dim=-1))
        found, _ = roll_out(
            fold(network),
            LoopInputs(rows[:, PREFIX:], torch.ones(len(rows), 100 - PREFIX, 9)),
            begin(fold(network), *batch.prefix()),
        )
    torch.testing.assert_close(found.motion, expected.motion, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.rotation, expected.poses.rotation, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["partial", "full"])
def test_gradients_are_those_of_finite_differences(model, made, mode):
    """Through the loop's own feedback, the GRU, the relative motion and L_model; along the gradient and at random."""
    _, batch, lookback = made
    network = network_of(model, mode)
    state = started(network, batch)
    inputs, frames = segment(batch, 0, 40)
    past = Past.none(state.rotation, state.feedback, lookback)

    def objective(rollout):
        return finetuning_terms(rollout, past, frames, config().loss).total

    def value(changed):
        with torch.no_grad():
            return float(objective(roll_out(fold(changed), inputs, state)[0]))

    backpropagate(network, inputs, state, objective, 40)
    generator = torch.Generator().manual_seed(0)
    parameters = {name: p for name, p in network.named_parameters() if p.grad is not None}
    assert len(parameters) > (8 if mode == "partial" else 25)
    for name, parameter in parameters.items():
        direction = parameter.grad + parameter.grad.abs().mean() * torch.randn(
            parameter.shape, generator=generator, dtype=torch.float64
        )
        direction /= direction.norm() + 1e-30
        slope = float((parameter.grad * direction).sum())
        values = []
        for sign in (1, -1):
            changed = copy.deepcopy(network)
            with torch.no_grad():
                changed.get_parameter(name).add_(sign * 1e-6 * direction)
            values.append(value(changed))
        assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=5e-3, abs=1e-8), name


def test_pieces_change_nothing_but_the_memory(model, made):
    _, batch, lookback = made
    inputs, frames = segment(batch, 0, 40)
    grads, states = [], []
    for piece in (40, 15, 1000):
        network = network_of(model, "full")
        state = started(network, batch)
        past = Past.none(state.rotation, state.feedback, lookback)
        made_now, after = backpropagate(
            network, inputs, state, lambda r, past=past: finetuning_terms(r, past, frames, config().loss).total, piece
        )
        grads.append([p.grad for p in network.parameters() if p.grad is not None])
        states.append((made_now, after))
    for other, (made_now, after) in zip(grads[1:], states[1:], strict=True):
        for one, two in zip(grads[0], other, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(made_now.motion, states[0][0].motion)
        torch.testing.assert_close(after, LoopState(*states[0][1]))


def test_gradients_run_through_the_feedback(model, made):
    """Cut off from its feedback, the loop has another gradient."""
    _, batch, lookback = made
    network = network_of(model)
    state = started(network, batch)
    inputs, frames = segment(batch, 0, 40)
    past = Past.none(state.rotation, state.feedback, lookback)

    def objective(rollout):
        return finetuning_terms(rollout, past, frames, config().loss).total

    backpropagate(network, inputs, state, objective, 40)
    whole = network.get_parameter("head.4.weight").grad.clone()
    network.zero_grad()
    parts, now = [], state
    for step in range(40):
        part, now = roll_out(fold(network), inputs.part(step, step + 1), now)
        now = now._replace(feedback=now.feedback.detach())
        parts.append(part)
    objective(Rollout(*(torch.cat(kind, dim=1) for kind in zip(*parts, strict=True)))).backward()
    assert (network.get_parameter("head.4.weight").grad - whole).norm() > 1e-3 * whole.norm()


def test_what_stands_still_is_held(model, made):
    _, batch, _ = made
    network = network_of(model)
    state = started(network, batch)
    inputs, _ = segment(batch, 0, 40)
    factor = inputs.factor.clone()
    factor[:, 10:20] = 0.0
    with torch.no_grad():
        rollout, _ = roll_out(fold(network), inputs._replace(factor=factor), state)
    assert rollout.motion[:, 10:20].abs().max() == 0
    torch.testing.assert_close(rollout.rotation[:, 19], rollout.rotation[:, 9])
    assert rollout.motion[:, 20:].abs().max() > 0


def test_only_gru_and_head_are_updated(model):
    network = network_of(model)
    trained = {name for name, value in network.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in network.named_parameters() if name.startswith(FineTunedTrace.updated)}
    assert {name.split(".")[0] for name in trained} == {"gru", "head"}
    full = network_of(model, "full")
    assert {name for name, value in full.named_parameters() if not value.requires_grad} == {"attention.key.bias"}


def test_l2_sp_pulls_back_to_the_start(model):
    network = network_of(model)
    start = {name: value.detach().clone() for name, value in network.named_parameters()}
    assert float(distance_from_start(network, start).detach()) == 0
    with torch.no_grad():
        network.get_parameter("head.0.bias").add_(0.3)
        network.get_parameter("convolution_1.bias").add_(5.0)  # frozen: not its business
    distance = distance_from_start(network, start)
    assert float(distance.detach()) == pytest.approx(0.5 * 256 * 0.09)
    distance.backward()
    torch.testing.assert_close(network.get_parameter("head.0.bias").grad, torch.full((256,), 0.3).double())
