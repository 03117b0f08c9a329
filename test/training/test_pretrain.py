"""Runs: they learn, end when their budget ends, survive a kill, and refuse what does not fit."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pretraining import Recorder, describe
from pydantic import ValidationError
from synthetic import FailingSource, PartlyBlindSource, SyntheticSource

from trace_ros.errors import TraceError
from trace_ros.estimator.network import TraceNetwork
from trace_ros.training.config import ClosedLoopConfig, OptimiserConfig
from trace_ros.training.dataset import ROW_SIZE, FeedbackNoise, make_segment
from trace_ros.training.losses import LossConfig, total_loss
from trace_ros.training.pretrain import Budget, Pretraining
from trace_ros.training.state import load_state, save_state

SOURCE = SyntheticSource(samples=90)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[Recorder, Path]:
    output = tmp_path_factory.mktemp("unbroken")
    recorder = Recorder()
    assert Pretraining.start(describe(steps=60), SOURCE, output).run(recorder)
    return recorder, output


def test_a_network_learns(unbroken):
    """Ninety steps on the same rollouts: the loss must fall far below where it started."""
    run = Pretraining.resume(describe(steps=60), SOURCE, unbroken[1])
    rows = torch.from_numpy(np.load(unbroken[1] / "validation.npy"))
    torch.manual_seed(0)
    network = TraceNetwork()
    network.set_normalisation(run.network.observation_mean, run.network.observation_scale, run.network.output_scale)
    optimiser = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=3e-3)
    segment = make_segment(rows, torch.zeros(2, 4), FeedbackNoise(), 1.0, torch.Generator().manual_seed(0))
    losses = []
    for _ in range(90):
        output = network.sequence(segment.observations, network.initial_hidden(2))
        loss = total_loss(output.motion, output.attention, segment.targets, LossConfig()).total
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_a_run_ends_with_held_out_figures(unbroken):
    recorder, output = unbroken
    (figures,) = recorder.figures
    assert all(map(math.isfinite, figures.values()))
    assert {"total", "model", "foot", "position_m", "velocity_rmse", "tilt_rad", "yaw_rad"} <= set(figures)
    assert load_state(output / "checkpoint.pt")["validation"][0]["step"] == 60


def test_the_learning_rate_warms_up_and_falls_with_the_budget(unbroken):
    rates = unbroken[0].rates
    peak = OptimiserConfig().learning_rate
    assert rates[0] == pytest.approx(peak / 5)
    assert max(rates) > 0.95 * peak
    assert rates[30] == pytest.approx(0.5 * peak, rel=0.1)
    assert rates[-1] < 0.02 * peak


def test_a_stopped_and_resumed_run_is_the_unbroken_one(unbroken, tmp_path):
    expected, recorder = unbroken[0].losses, Recorder()
    first = Pretraining.start(describe(steps=60), SOURCE, tmp_path)
    assert not first.run(recorder, stop=lambda: first.step >= 23)
    assert len(recorder.losses) == 23
    second = Pretraining.resume(describe(steps=60), SOURCE, tmp_path)
    assert second.step == 23
    assert second.run(recorder)
    np.testing.assert_allclose(recorder.losses, expected, rtol=1e-5)
    whole, resumed = (load_state(folder / "checkpoint.pt") for folder in (unbroken[1], tmp_path))
    for name, value in whole["averaged"].items():
        torch.testing.assert_close(resumed["averaged"][name], value, atol=1e-5, rtol=1e-4)
    assert resumed["samples"] == whole["samples"]


def test_a_run_on_its_own_feedback_resumes_as_if_unbroken(tmp_path):
    loop = ClosedLoopConfig(start=0.3)
    whole, unbroken = Pretraining.start(describe(20, closed_loop=loop), SOURCE, tmp_path / "whole"), Recorder()
    assert whole.run(unbroken)
    noisy = Recorder()
    assert Pretraining.start(describe(20), SOURCE, tmp_path / "noisy").run(noisy)
    np.testing.assert_allclose(unbroken.losses[:6], noisy.losses[:6], rtol=1e-6)
    assert abs(unbroken.losses[6] / noisy.losses[6] - 1) > 1e-4
    folder = tmp_path / "broken"
    broken = Pretraining.start(describe(20, closed_loop=loop), SOURCE, folder)
    assert not broken.run(Recorder(), lambda: broken.step == 11)
    resumed, rest = Pretraining.resume(describe(20, closed_loop=loop), SOURCE, folder), Recorder()
    assert resumed.run(rest)
    np.testing.assert_allclose(rest.losses, unbroken.losses[11:], rtol=1e-5)


def test_a_run_survives_sigkill(unbroken, tmp_path):
    """The curve of the killed run up to its last checkpoint, and from there that of the resumed one: the unbroken."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(here / "killed_run.py"), str(tmp_path)], env=environment)
    curve, deadline = tmp_path / "losses.txt", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if curve.exists() and len(curve.read_text().splitlines()) >= 20:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = [float(line) for line in curve.read_text().splitlines()]
    np.testing.assert_allclose(killed, unbroken[0].losses[: len(killed)], rtol=1e-5)
    run, recorder = Pretraining.resume(describe(steps=60), SOURCE, tmp_path), Recorder()
    start = run.step
    assert 1 <= start < 60
    assert run.run(recorder)
    np.testing.assert_allclose(killed[:start] + recorder.losses, unbroken[0].losses, rtol=1e-5)


def test_a_budget_of_time_ends_in_time(tmp_path):
    recorder = Recorder()
    run = Pretraining.start(describe(hours=12 / 3600), SOURCE, tmp_path)
    begun = time.monotonic()
    assert run.run(recorder)
    assert time.monotonic() - begun < 90  # on a busy machine; without the budget it would take for ever
    assert recorder.rates[-1] < 0.05 * max(recorder.rates)


def test_a_folder_with_a_run_is_not_overwritten(unbroken):
    with pytest.raises(TraceError, match="--resume"):
        Pretraining.start(describe(steps=60), SOURCE, unbroken[1])


def test_nothing_to_resume(tmp_path):
    with pytest.raises(TraceError, match="no such training checkpoint"):
        Pretraining.resume(describe(steps=60), SOURCE, tmp_path)


def test_another_robots_run_is_not_resumed(unbroken):
    description = describe(steps=60)
    other = description.robot.model_copy(update={"name": "other", "foot_radius": 0.05})
    other.__dict__.pop("fingerprint", None)
    with pytest.raises(TraceError, match="trains go2"):
        Pretraining.resume(type(description)(**{**vars(description), "robot": other}), SOURCE, unbroken[1])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns_what_an_absent_torque_means(tmp_path, precision):
    run, recorder = (
        Pretraining.start(describe(steps=10, precision=precision), PartlyBlindSource(90), tmp_path),
        Recorder(),
    )
    assert run.run(recorder)
    assert np.isfinite(recorder.losses).all()
    assert all(math.isfinite(value) for value in recorder.figures[-1].values())
    assert run.evaluated_network().absent_torque.abs().min() > 0


def test_the_intervals_of_the_data_are_kept(unbroken):
    np.testing.assert_allclose(load_state(unbroken[1] / "checkpoint.pt")["interval_s"], (0.00198, 0.00202), rtol=1e-6)
    run = Pretraining.resume(describe(steps=60), SOURCE, unbroken[1])
    np.testing.assert_allclose(run.interval_s, (0.00198, 0.00202), rtol=1e-6)


def test_a_run_of_a_network_with_fewer_parameters_is_not_resumed(unbroken, tmp_path):
    state = load_state(unbroken[1] / "checkpoint.pt")
    state["optimiser"]["param_groups"][0]["params"].pop()
    save_state(tmp_path / "checkpoint.pt", state)
    with pytest.raises(TraceError, match="exported, but not resumed"):
        Pretraining.resume(describe(steps=60), SOURCE, tmp_path)


def test_leftovers_of_other_settings_are_not_trained_on(tmp_path):
    (tmp_path / "replay").mkdir()
    np.save(tmp_path / "replay" / "chunk_000000.npy", np.zeros((1, 2, ROW_SIZE), dtype=np.float32))
    run = Pretraining.start(describe(steps=1), SOURCE, tmp_path)
    assert run.replay.newest() == -1


def test_held_out_rollouts_of_another_version_are_named(tmp_path):
    run = Pretraining.start(describe(steps=1), SOURCE, tmp_path)
    np.save(tmp_path / "validation.npy", np.zeros((2, 9, ROW_SIZE - 4), dtype=np.float32))
    with pytest.raises(TraceError, match=rf"validation\.npy: holds .* expected rows of {ROW_SIZE}, .*: delete it"):
        run.run(Recorder())


def test_a_simulation_that_fails_ends_the_run(tmp_path):
    with pytest.raises(TraceError, match="the ground is missing"):
        Pretraining.start(describe(steps=1), FailingSource(), tmp_path).run(Recorder())


@pytest.mark.parametrize("budget", [{}, {"hours": 1, "steps": 5}, {"hours": 0}, {"steps": 0}])
def test_a_budget_is_one_number_above_zero(budget):
    with pytest.raises(ValidationError):
        Budget(**budget)


def test_progress_is_capped():
    assert Budget(steps=10).progress(25, 0.0) == 1.0
    assert Budget(hours=2).progress(0, 3600.0) == 0.5
