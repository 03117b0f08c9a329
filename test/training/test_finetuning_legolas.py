"""Legolas in fine-tuning: whole logs at once equal its steps, and only the pose and variance heads learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning_logs import ROBOT, config, log, steady, track, untrained

from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.learned import load_learned
from trace_ros.baselines.legolas import LegolasEstimator
from trace_ros.baselines.legolas_at_once import run_legolas
from trace_ros.baselines.legolas_network import LegolasConfig, LegolasNetwork, StreamingLegolas, frames_of
from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import export_script
from trace_ros.estimator.run import run_estimator
from trace_ros.training.dataset import PREFIX
from trace_ros.training.finetuning import FineTuning, FineTuningPlan
from trace_ros.training.finetuning_data import ReferencedLog, WindowBatch, all_windows
from trace_ros.training.finetuning_loss import Past, finetuning_terms
from trace_ros.training.finetuning_method import FineTunedTrace, fine_tuned
from trace_ros.training.finetuning_rollout import backpropagate

SIZES = LegolasConfig(frames=16, stride=4, width=8, stem=3, trunk=12, head=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Untrained, with increments that matter, of a body that moves."""
    torch.manual_seed(3)
    network = LegolasNetwork(SIZES)
    rows = torch.from_numpy(np.concatenate([_observed(log(seed)) for seed in range(3)]))
    network.set_normalisation(rows.mean(0), rows.std(0).clamp(min=1e-4), torch.full((9,), 0.3))
    with torch.no_grad():
        network.last[0].weight.mul_(100)
        network.last[1].weight.mul_(100)
        network.last[2].bias.fill_(0.1)  # moves
    path = tmp_path_factory.mktemp("legolas") / "base.pt"
    card = LegolasCard(robot="go2", robot_fingerprint=ROBOT.fingerprint, rate_hz=500.0, network=SIZES)
    export_script(StreamingLegolas(network), network.state_dict(), card, path)
    return path


def _observed(made) -> np.ndarray:
    from trace_ros.baselines.legolas_at_once import log_observations

    card = LegolasCard(robot="go2", robot_fingerprint=ROBOT.fingerprint, rate_hz=500.0)
    return frames_of(log_observations(made, card)).numpy()


def tracks_of(method, made=log, settings=None):
    settings = settings or config()
    pieces = [(seed, made(seed)) for seed in range(3)]
    return [
        method.track(f"log {s}", ReferencedLog(m, np.zeros(len(m.reference), dtype=np.int64), ()), ROBOT, settings)
        for s, m in pieces
    ]


class Quiet:
    def working(self, *_):
        pass

    def epoch(self, _row):
        pass


def test_a_whole_log_at_once_gives_the_poses_of_its_steps(model):
    made = log(5)
    learned = load_learned(model, LegolasCard)
    stepped = run_estimator(LegolasEstimator(learned, ROBOT), made).trajectory
    at_once = run_legolas(learned, made)
    np.testing.assert_array_equal(at_once.stamp_ns, stepped.stamp_ns)
    assert np.abs(stepped.position).max() > 1e-3
    np.testing.assert_allclose(at_once.position, stepped.position, atol=1e-6)
    np.testing.assert_allclose(
        at_once.rotation_world_body.as_matrix(), stepped.rotation_world_body.as_matrix(), atol=1e-6
    )
    np.testing.assert_allclose(at_once.velocity, stepped.velocity, atol=1e-5)


def test_only_pose_and_variance_heads_learn(model, tmp_path):
    method = fine_tuned(model)
    settings = config(
        loss={"start": 0.0}, optimiser={"epochs": 4, "learning_rate": 2e-2, "batch": 2}, validation={"patience": 0}
    )
    tracks = tracks_of(method, steady, settings)
    run = FineTuning(FineTuningPlan("go2", settings, "test", []), method, tracks[:2], tracks[2:], tmp_path).start()
    assert run.run(Quiet())
    assert run.history[4]["position"] < 0.8 * run.history[1]["position"]
    assert run.history[4]["likelihood"] < run.history[1]["likelihood"]
    moved = {name for name, value in run.network.named_parameters() if not torch.equal(value, method.weights[name])}
    assert {name.rsplit(".", 1)[0] for name in moved} == {"heads.0.0", "heads.1.0", "last.0", "last.1"}
    run.export(run.card({}), tmp_path / "legolas.pt")
    tuned = load_learned(tmp_path / "legolas.pt", LegolasCard)
    assert tuned.card.figures["finetuning"]["best_epoch"] == run.best_epoch > 0
    assert run_estimator(LegolasEstimator(tuned, ROBOT), log(5)).trajectory.position.shape == (371, 3)


def test_the_likelihood_is_for_the_variances_alone(model):
    method = fine_tuned(model)
    network = method.network()
    method.set_trainable(network, "partial")
    (one, *_) = tracks_of(method)
    batch = WindowBatch(all_windows([one]), one.lookback)
    inputs, frames = next(batch.segments(100))
    state = method.begin(network, batch)
    past = Past.none(state.rotation, state.feedback, one.lookback, stated=True)
    loss = method.objective(config().loss.model_copy(update={"relative": 0.0, "likelihood": 1.0}))
    method.backpropagate(network, inputs, state, lambda made: finetuning_terms(made, past, frames, loss).total, None)
    grads = {name: value.grad.abs().max() for name, value in network.named_parameters() if value.grad is not None}
    assert grads["last.1.weight"] > 0 and grads["heads.1.0.weight"] > 0
    assert grads.get("last.0.weight", torch.zeros(())) == 0


def test_it_is_refused_as_a_whole(model, tmp_path):
    plan = FineTuningPlan("go2", config(mode="full"), "test", [])
    with pytest.raises(TraceError, match="heads alone"):
        FineTuning(plan, fine_tuned(model), [], [], tmp_path)


def test_without_gradients_of_the_feedback_the_windows_are_run_through_the_same(tmp_path):
    """TRACE: all samples at once, with what was fed back, give the motion of the closed loop; only gradients differ."""
    trace = FineTunedTrace(untrained(tmp_path / "trace.pt"))
    network = trace.network()
    trace.set_trainable(network, "partial")
    own = track(trace._loaded)
    batch = WindowBatch(all_windows([own]), own.lookback)
    optimiser = config().optimiser
    with torch.no_grad():
        state = trace.begin(network, batch)
    closed = state.loop
    for inputs, _ in batch.segments(50):
        seen = []

        def objective(made, seen=seen):
            seen.append(made)
            return made.motion.square().sum()

        made, state = trace.backpropagate(network, inputs, state, objective, optimiser)
        expected, closed = backpropagate(trace.network(), inputs, closed, lambda m: m.motion.sum(), 50)
        torch.testing.assert_close(made.motion, expected.motion)
        torch.testing.assert_close(seen[0].motion.detach(), expected.motion, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(seen[0].rotation.detach(), expected.rotation, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(state.loop.hidden, closed.hidden)
    assert network.get_parameter("gru.weight_hh_l0").grad.abs().max() > 0
    assert network.get_parameter("convolution_1.weight").grad is None
    assert state.history.shape[1] == PREFIX
