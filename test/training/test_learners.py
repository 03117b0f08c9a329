"""The other methods in the shared machinery: they learn, resume after a kill, export and load."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pretraining import Recorder, describe
from synthetic import PartlyBlindSource, SyntheticSource

from trace_ros.baselines.legolas_network import LegolasConfig, LegolasNetwork, LegolasOutput
from trace_ros.baselines.registry import load_estimator
from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.run import run_estimator
from trace_ros.training.closed_loop import closed_loop
from trace_ros.training.config import CommonTraining, OptimiserConfig, ReplayConfig, TrainingConfig, ValidationConfig
from trace_ros.training.dataset import CONTACT_VELOCITY, MOTION, PREFIX, ROW_SIZE, make_targets, pack
from trace_ros.training.export import card_from_state, learner_from_state, network_from_state
from trace_ros.training.kept_rollouts import keep_rollouts
from trace_ros.training.lanes import Lanes
from trace_ros.training.learner import LaneBatch
from trace_ros.training.legolas_learner import (
    LegolasLearner,
    LegolasLoss,
    LegolasTraining,
    legolas_loss,
    true_increments,
)
from trace_ros.training.methods import METHODS, learner_for, load_training, parse_training
from trace_ros.training.mlp_learner import MlpTraining
from trace_ros.training.nmn_learner import NmnLearner, NmnTraining, standing_feet
from trace_ros.training.pretrain import Pretraining, RunDescription
from trace_ros.training.replay import Replay
from trace_ros.training.state import load_state

SOURCE = SyntheticSource(samples=90)
SMALL = LegolasConfig(stride=2, frames=16, width=16, trunk=32, head=16)
KINDS: dict[str, type[CommonTraining]] = {"legolas": LegolasTraining, "nmn_iekf": NmnTraining, "mlp": MlpTraining}


def describe_method(method: str, steps: int, kept: Path | None = None, **changes: object) -> RunDescription:
    """As `pretraining.describe`, of another method; on kept rollouts where a folder is given."""
    base = describe(steps=steps)
    values = {
        "batch": 4,
        "segment": 20,
        "rollout_samples": 60,
        "replay": ReplayConfig(capacity=8, minimum=4, chunk=4, visits_per_sample=4.0, synchronous=True),
        "validation": ValidationConfig(rollouts=2, interval=1e6),
        "optimiser": OptimiserConfig(warmup_steps=5, learning_rate=3e-3),
        "checkpoint_interval": 1e-3,
    }
    if method == "legolas":
        values["network"] = SMALL
    return replace(base, config=KINDS[method](**{**values, **changes}), rollouts=kept)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Rollouts on disk: with them a run needs no process for the simulation, which takes longest to start."""
    folder, description = tmp_path_factory.mktemp("rollouts"), describe_method("nmn_iekf", 1)
    keep_rollouts(folder, description.robot, SOURCE, description.simulation, description.config, 7, 8)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def unbroken(request, kept, tmp_path_factory) -> tuple[str, Recorder, Path]:
    output, recorder = tmp_path_factory.mktemp(request.param), Recorder()
    assert Pretraining.start(describe_method(request.param, 40, kept), SOURCE, output).run(recorder)
    return request.param, recorder, output


def test_a_run_ends_with_held_out_figures(unbroken):
    method, recorder, output = unbroken
    (figures,) = recorder.figures
    assert all(map(math.isfinite, figures.values()))
    expected = {"legolas": "misjudged", "nmn_iekf": "velocity_rmse_z", "mlp": "tilt_rad"}
    assert {"total", "velocity_rmse", expected[method]} <= set(figures)
    assert load_state(output / "checkpoint.pt")["config"]["method"] == method


def test_a_stopped_and_resumed_run_is_the_unbroken_one(unbroken, kept, tmp_path):
    method, whole, _ = unbroken
    recorder = Recorder()
    first = Pretraining.start(describe_method(method, 40, kept), SOURCE, tmp_path)
    assert not first.run(recorder, stop=lambda: first.step >= 17)
    second = Pretraining.resume(describe_method(method, 40, kept), SOURCE, tmp_path)
    assert second.step == 17 and second.run(recorder)
    np.testing.assert_allclose(recorder.losses, whole.losses, rtol=1e-4, atol=1e-5)


def test_a_run_may_simulate_its_own_rollouts(tmp_path):
    recorder = Recorder()
    assert Pretraining.start(describe_method("legolas", 3), SOURCE, tmp_path).run(recorder)
    assert np.isfinite(recorder.losses).all() and (tmp_path / "replay" / "chunk_000000.npy").exists()


def test_a_run_survives_sigkill(unbroken, kept, tmp_path):
    method, whole, _ = unbroken
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(here / "killed_learner.py"), method, str(kept), str(tmp_path)]
    process, deadline = subprocess.Popen(command, env=environment), time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline and not (tmp_path / "checkpoint.pt").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run, recorder = Pretraining.resume(describe_method(method, 40, kept), SOURCE, tmp_path), Recorder()
    start = run.step
    assert start >= 1
    if start < 40:
        assert run.run(recorder)
        np.testing.assert_allclose(recorder.losses, whole.losses[start:], rtol=1e-4, atol=1e-5)


def test_it_exports_loads_and_estimates(unbroken, tmp_path):
    method, _, output = unbroken
    state = load_state(output / "checkpoint.pt")
    card, network = card_from_state(state), network_from_state(state)
    assert card.name == method and card.steps == 40
    learner_from_state(state).export(network, card, tmp_path / "any_name.pt")
    robot, walk = describe(steps=1).robot, next(iter(SyntheticSource(120)(describe(steps=1).robot, 3, 1)))
    # Without a name given, the file says what it is.
    estimators = [load_estimator(name, robot, tmp_path / "any_name.pt") for name in ("trace", method)]
    runs = [run_estimator(estimator, walk.measured) for estimator in estimators]
    assert [estimator.name for estimator in estimators] == [method, method]
    assert np.isfinite(runs[0].trajectory.position).all() and len(runs[0].trajectory) == 120 - PREFIX
    np.testing.assert_array_equal(runs[0].trajectory.position, runs[1].trajectory.position)
    other = "nmn_iekf" if method == "legolas" else "legolas"
    with pytest.raises(TraceError, match=f"a model of {method}, expected one of {other}") as caught:
        load_estimator(other, robot, tmp_path / "any_name.pt")
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="engine onnxruntime"):
        load_estimator("trace", robot, tmp_path / "any_name.pt", engine="onnxruntime")


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns_a_few_rollouts(method, precision):
    """Sixty steps on the same segments, some without torque: the loss must fall far below where it started."""
    description = describe_method(method, 1, precision=precision, segment=60)
    config, robot = description.config, description.robot
    rows = torch.from_numpy(np.stack([pack(walk, robot, config.rows) for walk in PartlyBlindSource(90)(robot, 0, 4)]))
    learner, generator = learner_for(config), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = learner.make_network()
    learner.normalise(network, learner.measure(rows))
    rows = torch.stack([learner.prepare(rollout) for rollout in rows])
    if learner.history > PREFIX:
        rows = torch.cat((rows[:, :1].expand(-1, learner.history - PREFIX, -1), rows), dim=1)
    segment = learner.segment(rows, torch.zeros(4, 4), generator)
    batch = LaneBatch(segment, torch.zeros(4, learner.hidden))
    optimiser = torch.optim.Adam([value for value in network.parameters() if value.requires_grad], lr=3e-3)
    losses, parts = [], []
    for _ in range(60):
        terms, hidden = learner.loss(lambda compute: compute(network), batch, 0.0)
        optimiser.zero_grad()
        terms.total.backward()
        optimiser.step()
        losses.append(float(terms.total))
        parts.append(terms)
    assert hidden.shape == (4, learner.hidden)
    if method == "legolas":  # a likelihood may be below zero
        assert parts[-1].likelihood < parts[0].likelihood - 1.0
        assert parts[-1].displacement < 0.4 * parts[0].displacement
    else:
        assert losses[-1] < 0.4 * losses[0]
    assert all(value.grad is not None for value in network.parameters() if value.requires_grad)


def test_lanes_give_legolas_its_long_window(tmp_path):
    """At a rollout's start its first row stands for what came before; later the rows themselves do."""
    config = describe_method("legolas", 1, batch=1, network=SMALL.model_copy(update={"stride": 3})).config
    learner = learner_for(config)
    robot = describe(steps=1).robot
    replay = Replay(tmp_path, config.replay)
    rows = np.stack([pack(walk, robot, config.rows) for walk in SOURCE(robot, 0, 4)])
    replay.write(0, rows)
    lanes = Lanes(learner, replay, 0)
    first = lanes.next(0).segment.observations[0]
    assert len(first) == 20 + learner.history
    (index,) = [k for k, rollout in enumerate(rows) if np.array_equal(rollout[0, :3], first[0, :3])]
    prepared = learner.prepare(torch.from_numpy(rows[index]))[:, : obs.OBSERVATION_SIZE]
    before = learner.history - PREFIX
    torch.testing.assert_close(first[:before], prepared[:1].expand(before, -1))
    torch.testing.assert_close(first[before:], prepared[: 20 + PREFIX])
    lanes.advance(torch.zeros(1, 0))
    second = lanes.next(0).segment
    torch.testing.assert_close(second.observations[0], prepared[20 - before : 40 + PREFIX])
    torch.testing.assert_close(second.targets.motion[0], torch.from_numpy(rows[index, 49:69, MOTION]))


def test_legolas_feels_what_the_imu_reports_not_the_truth():
    robot = describe(steps=1).robot
    rows = torch.from_numpy(pack(next(iter(SOURCE(robot, 0, 1))), robot, 89))
    prepared = LegolasLearner(describe_method("legolas", 1).config).prepare(rows)
    changed = prepared != rows
    assert changed[:, obs.ROLL_PITCH].any() and not changed[:, :42].any() and not changed[:, 44:].any()


def test_legolas_calls_a_body_that_stands_still():
    """The mask's label, and that misjudging fast motion costs more than misjudging slow motion."""
    rows = torch.zeros(1, PREFIX + 3, ROW_SIZE)
    rows[..., 46] = 0.002
    for index, speed in enumerate((0.0, 0.1, 1.0)):
        rows[0, PREFIX + index, MOTION] = torch.tensor([0.002 * speed] + [0.0] * 8)
    targets = make_targets(rows, torch.zeros(1, 1, 2), 0.0)
    increment = torch.cat((targets.motion[..., :3] / 0.002, torch.zeros(1, 3, 6)), dim=-1)

    def terms(logits: list[float]) -> object:
        output = LegolasOutput(increment, torch.zeros(1, 3, 9), torch.tensor([logits]))
        return legolas_loss(output, targets, LegolasLoss(), 1.0)

    right = terms([-9.0, 9.0, 9.0])
    assert right.misjudged == 0 and right.displacement < 1e-12 and right.mask < 1e-3
    slow, fast = terms([-9.0, -9.0, 9.0]), terms([-9.0, 9.0, -9.0])
    assert slow.misjudged == fast.misjudged == pytest.approx(1 / 3)
    assert fast.mask > 1.5 * slow.mask


def test_legolas_likelihood_is_that_of_a_gaussian():
    config = LegolasLoss(mask=0.0, squared_until=0.5)
    rows = torch.zeros(1, PREFIX + 2, ROW_SIZE)
    rows[..., 46] = 0.002
    targets = make_targets(rows, torch.zeros(1, 1, 2), 0.0)
    torch.manual_seed(0)
    error = torch.randn(1, 2, 9, requires_grad=True)
    log_variance = torch.randn(1, 2, 9, requires_grad=True)
    output = LegolasOutput(error, log_variance, torch.full((1, 2), -20.0))
    later = legolas_loss(output, targets, config, 0.6)
    density = torch.distributions.Normal(0.0, (0.5 * log_variance).exp()).log_prob(error).mean()
    constant = 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(later.total, -density - constant, atol=1e-5, rtol=1e-5)
    # Before, the mean learns from squared errors alone.
    (gradient,) = torch.autograd.grad(legolas_loss(output, targets, config, 0.4).likelihood, error, allow_unused=True)
    assert gradient is None
    assert torch.autograd.grad(later.likelihood, error)[0].abs().min() > 0


def test_legolas_is_judged_by_poses_that_its_increments_add_up_to():
    """A network that knows the truth drifts nowhere."""
    robot = describe(steps=1).robot
    rows = torch.from_numpy(np.stack([pack(walk, robot, 89) for walk in SOURCE(robot, 0, 2)]))
    learner = LegolasLearner(describe_method("legolas", 1).config)

    class Knowing(LegolasNetwork):
        def sequence(self, observations: torch.Tensor, _bfloat16: bool = False) -> LegolasOutput:
            count = observations.shape[1] - self.config.history
            dt = observations[:, -count:, obs.DT]
            increment = true_increments(rows[:, PREFIX : PREFIX + count, MOTION], torch.where(dt > 0, dt, 1.0))
            return LegolasOutput(increment, torch.zeros_like(increment), torch.full(increment.shape[:2], 9.0))

    figures = learner.evaluate(Knowing(SMALL), rows)
    assert figures["position_m"] < 1e-4 and figures["yaw_rad"] < 1e-4 and figures["tilt_rad"] < 1e-4
    assert learner.evaluate(LegolasNetwork(SMALL), rows)["position_m"] > 1e-3


def test_feet_that_slide_do_not_stand():
    rows = torch.zeros(1, PREFIX + 1, ROW_SIZE)
    rows[..., 46] = 0.002
    rows[0, PREFIX, MOTION.stop - 3] = 0.5  # the body's velocity along x
    rows[0, PREFIX, CONTACT_VELOCITY] = torch.tensor([-0.5, 0, 0, -0.4, 0, 0, -0.2, 0, 0, 1.0, 0, 0])
    targets = make_targets(rows, torch.zeros(1, 1, 2), 0.0)
    assert standing_feet(targets, 0.2).tolist() == [[[1.0, 1.0, 0.0, 0.0]]]


def test_the_filter_learns_how_far_the_network_is_off():
    learner = NmnLearner(describe_method("nmn_iekf", 1).config)
    network = learner.make_network()
    learner.finish(network, {"velocity_rmse_x": 0.1, "velocity_rmse_y": 0.2, "velocity_rmse_z": 0.3})
    torch.testing.assert_close(network.velocity_variance, torch.tensor([0.01, 0.04, 0.09]))


def test_the_mlp_trains_on_its_own_feedback(kept, tmp_path):
    """As TRACE: in closed loop from the start on the run goes another way."""
    curves = []
    for name, start in (("own", 0.0), ("noise", 1.0)):
        recorder = Recorder()
        description = describe_method("mlp", 4, kept, closed_loop={"start": start})
        assert Pretraining.start(description, SOURCE, tmp_path / name).run(recorder)
        curves.append(recorder.losses)
    assert np.isfinite(curves).all() and curves[0] != curves[1]


def test_the_mlp_closes_its_loop():
    """The loop starts from what is fed in, and depends on it."""
    robot = describe(steps=1).robot
    rows = torch.from_numpy(np.stack([pack(walk, robot, 89) for walk in SOURCE(robot, 0, 2)]))
    network = learner_for(describe_method("mlp", 1).config).make_network()
    with torch.no_grad():
        truth = closed_loop(network, rows)
        off = closed_loop(network, rows, rows[:, PREFIX, 42:46] + 0.1)
    assert truth.motion.shape == (2, 60, 9) and not truth.attention.any()
    assert (off.motion - truth.motion).abs().max() > 1e-6


def test_shipped_configs_are_of_their_methods_and_see_the_same_data():
    shared = ("replay", "validation", "rows", "simulation", "rollout_samples")
    reference = TrainingConfig.load("trace")
    for name, config_name in METHODS.items():
        config = load_training(config_name)
        assert config.method.removesuffix("_iekf") == name
        assert all(getattr(config, key) == getattr(reference, key) for key in shared)
        assert config.batch * config.segment <= 8000
    mlp = load_training("mlp")
    assert isinstance(mlp, MlpTraining) and mlp.loss.foot == 0 and mlp.loss.rotation == reference.loss.rotation


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"method": "oracle"}, "method 'oracle' is none of trace, legolas, nmn_iekf, mlp"),
        ({"method": "mlp", "loss": {"foot": 0.1}}, "loss.foot: there is no such loss without attention"),
        ({"method": "mlp", "loss": {"foot": 0, "spread": 0.1}}, "loss.spread: there is no such loss without attention"),
        ({"method": "mlp", "loss": {"foot": 0, "contact": 1}}, "loss.contact: there is no such loss without attention"),
        ({"method": "mlp", "height": {"time": 1.0}}, "nothing tells which feet stand"),
        ({"method": "legolas", "tilt_correction_rate": 1.0}, "tilt_correction_rate"),
        ({"method": "legolas", "network": {"stride": 1, "frames": 20}}, "29 samples"),
        ({"method": "nmn_iekf", "network": {"stride": 1}}, "stride"),
    ],
)
def test_what_does_not_fit_is_one_line(data, said):
    with pytest.raises(TraceError, match=said) as caught:
        parse_training(data, "mine.yaml")
    assert "mine.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_run_may_start_from_a_model_of_its_own_method_alone(unbroken, kept, tmp_path):
    method, _, output = unbroken
    state = load_state(output / "checkpoint.pt")

    class Model:
        card, path, weights = card_from_state(state), output / "model.pt", network_from_state(state).state_dict()

    recorder = Recorder()
    run = Pretraining.start(describe_method(method, 2, kept), SOURCE, tmp_path / "on", initial=Model())
    assert run.run(recorder)
    assert load_state(tmp_path / "on" / "checkpoint.pt")["initial"]["steps"] == 40
    other = "nmn_iekf" if method == "legolas" else "legolas"
    with pytest.raises(TraceError, match="its network is another"):
        Pretraining.start(describe_method(other, 2, kept), SOURCE, tmp_path / "other", initial=Model())
