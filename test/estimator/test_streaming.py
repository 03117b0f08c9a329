"""The scripted step against whole windows: over long runs, after gaps and resets, and in models of before."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from trace_ros.estimator.checkpoint import ModelCard, export_model, load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.estimator.observation import OBSERVATION_SIZE, WINDOW
from trace_ros.estimator.streaming import StreamingTrace
from trace_ros.evaluation.latency import walking_samples
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def network(**changes: object) -> TraceNetwork:
    torch.manual_seed(0)
    made = TraceNetwork(NetworkConfig(output_layer_scale=1.0, **changes))  # type: ignore[arg-type]
    made.set_normalisation(torch.randn(OBSERVATION_SIZE), torch.rand(OBSERVATION_SIZE) + 0.5, torch.rand(9) + 0.5)
    return made.eval()


def rows(count: int, made: TraceNetwork, seed: int = 1) -> torch.Tensor:
    drawn = torch.randn(count, OBSERVATION_SIZE, generator=torch.Generator().manual_seed(seed))
    return drawn * made.observation_scale + made.observation_mean


def freeze(made: TraceNetwork) -> torch.jit.ScriptModule:
    return torch.jit.freeze(torch.jit.script(StreamingTrace(made).eval()), preserved_attrs=["prime", "step"])


@pytest.mark.parametrize("changes", [{}, {"kernel": 3, "heads": 4, "hidden": 32}])
def test_the_running_sum_equals_the_mean_over_the_window_in_a_long_run(changes):
    """Forty rounds of the ring, one loud: what a large column leaves of rounding must not stay in the sum."""
    made = network(**changes)
    drawn = rows(1000, made)
    drawn[400:420] *= 1000.0
    script = freeze(made)
    with torch.inference_mode():
        expected = made.sequence(drawn[None], made.initial_hidden(1))
        state = script.prime(drawn[: WINDOW - 1])
        for index, row in enumerate(drawn[WINDOW - 1 :]):
            motion, attention, state = script.step(row, state)
            if not 400 <= index + WINDOW - 1 < 450:
                torch.testing.assert_close(motion, expected.motion[0, index], atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(attention, expected.attention[0, index], atol=1e-5, rtol=1e-5)


def test_priming_again_leaves_nothing_of_the_past():
    """A gap or a reset fills the window anew."""
    made = network()
    script = freeze(made)
    before, after = rows(75, made, 1), rows(80, made, 2)
    with torch.inference_mode():
        state = script.prime(before[: WINDOW - 1])
        for row in before[WINDOW - 1 :]:
            _, _, state = script.step(row, state)
        expected = made.sequence(after[None], made.initial_hidden(1))
        state = script.prime(after[: WINDOW - 1])
        for index, row in enumerate(after[WINDOW - 1 :]):
            motion, _, state = script.step(row, state)
            torch.testing.assert_close(motion, expected.motion[0, index], atol=1e-5, rtol=1e-5)


class FourCaches(torch.nn.Module):
    """As models of before hold their state: another tuple, of other shapes."""

    def __init__(self, made: StreamingTrace) -> None:
        super().__init__()
        self.made = made

    @torch.jit.export
    def prime(self, window: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return window, torch.zeros(128)

    @torch.jit.export
    def step(
        self, observation: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        inputs, columns, ring, total, _, index = self.made.prime(state[0])
        motion, attention, after = self.made.step(observation, (inputs, columns, ring, total, state[1], index))
        return motion, attention, (torch.cat((state[0][1:], observation.unsqueeze(0))), after[4])


def test_the_estimator_runs_scripts_whatever_their_state_is(tmp_path):
    """The window itself as the state, convolved anew each step: the same poses as from the caches."""
    robot, made = RobotDescription.load("go2"), network()
    made.set_normalisation(torch.zeros(47), torch.ones(47), torch.full((9,), 0.01))
    card = ModelCard(robot=robot.name, robot_fingerprint=robot.fingerprint, rate_hz=500.0, network=made.config)
    export_model(made, card, tmp_path / "trace.pt")
    model = load_model(tmp_path / "trace.pt")
    whole = torch.jit.freeze(
        torch.jit.script(FourCaches(StreamingTrace(made)).eval()), preserved_attrs=["prime", "step"]
    )
    one, two = TraceEstimator(model, robot), TraceEstimator(replace(model, module=whole), robot)
    samples = walking_samples(120)
    pause = 500_000_000  # the window fills anew
    samples = [s if i < 60 else replace(s, stamp_ns=s.stamp_ns + pause) for i, s in enumerate(samples)]
    for _ in range(2):
        estimates = 0
        for sample in samples:
            first, second = one.step(copy.deepcopy(sample)), two.step(copy.deepcopy(sample))
            assert (first is None) == (second is None)
            if first is not None and second is not None:
                estimates += 1
                np.testing.assert_allclose(first.position, second.position, atol=1e-5)
                np.testing.assert_allclose(first.attention, second.attention, atol=1e-5)
        assert estimates == 120 - 2 * (WINDOW - 1)
        one.reset()
        two.reset()


def test_the_script_in_the_shipped_file_equals_this_version_of_the_step():
    """A file keeps the step that it was exported with."""
    path: Path = models_directory() / "go2" / "trace.pt"
    model = load_model(path)
    made = model.network().eval()
    now, drawn = freeze(made), rows(200, made)
    with torch.inference_mode():
        state, state_now = model.module.prime(drawn[: WINDOW - 1]), now.prime(drawn[: WINDOW - 1])
        for row in drawn[WINDOW - 1 :]:
            motion, attention, state = model.module.step(row, state)
            motion_now, attention_now, state_now = now.step(row, state_now)
            torch.testing.assert_close(motion_now, motion, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(attention_now, attention, atol=1e-5, rtol=1e-5)
