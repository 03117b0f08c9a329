"""The network's own output as its input, segment by segment, is the closed loop over the whole rollout."""

import numpy as np
import pytest
import torch
from synthetic import SyntheticSource, rollout

from trace_ros.estimator.network import VELOCITY, TraceNetwork
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import closed_loop, roll_pitch
from trace_ros.training.config import ClosedLoopConfig, ReplayConfig, TrainingConfig
from trace_ros.training.dataset import FEEDBACK, PREFIX, measure_normalisation, pack
from trace_ros.training.lanes import Lanes
from trace_ros.training.losses import tilt_correction
from trace_ros.training.own_feedback import OwnFeedback
from trace_ros.training.replay import Replay, simulate_chunk
from trace_ros.training.trace_learner import TraceLearner

ROBOT = RobotDescription.load("go2")
SEGMENT = 25


@pytest.fixture(scope="module")
def rows():
    count = PREFIX + 3 * SEGMENT
    packed = [pack(rollout(seed, count + 1, noise=0.02), ROBOT, count) for seed in range(3)]
    return torch.from_numpy(np.stack(packed))


@pytest.fixture(scope="module")
def network(rows):
    torch.manual_seed(3)
    made = TraceNetwork()
    made.set_normalisation(*measure_normalisation(rows, made.config, 0.02))
    with torch.no_grad():  # outputs that matter, so that their feedback does
        made.get_parameter("head.4.weight").mul_(30)
    return made


@torch.no_grad()
def segments(network, rows, own, offsets):
    hidden, seen = network.initial_hidden(len(rows)), []
    for begin in range(0, rows.shape[1] - PREFIX, SEGMENT):
        observations = own.roll_out(network, rows[:, begin : begin + SEGMENT + PREFIX], offsets, hidden)
        hidden = network.sequence(observations, hidden).hidden
        seen.append(observations)
    return seen


def test_segments_follow_each_other_as_one_closed_loop(network, rows):
    offsets = torch.tensor([[0.03, -0.02, 0.1, 0.05]]).repeat(len(rows), 1)
    start = rows[:, PREFIX, FEEDBACK] + offsets
    shifted = rows.clone()
    shifted[:, :PREFIX, FEEDBACK] += offsets[:, None]
    with torch.no_grad():
        run = closed_loop(network, shifted, start)
    own = torch.cat((roll_pitch(run.poses.rotation), run.motion[..., VELOCITY][..., :2]), dim=-1)
    expected = torch.cat((start[:, None], own[:, :-1]), dim=1)
    seen = segments(network, rows, OwnFeedback(len(rows)), offsets)
    fed = torch.cat([observations[:, PREFIX:, FEEDBACK] for observations in seen], dim=1)
    torch.testing.assert_close(fed, expected, rtol=0, atol=2e-5)
    assert (fed - rows[:, PREFIX:, FEEDBACK]).abs().max() > 0.1
    # The window of a later segment holds what was fed before it.
    history = torch.cat((shifted[:, :PREFIX, FEEDBACK], expected), dim=1)
    torch.testing.assert_close(seen[1][:, :PREFIX, FEEDBACK], history[:, SEGMENT : SEGMENT + PREFIX], rtol=0, atol=2e-5)


def test_only_the_fed_back_channels_change(network, rows):
    first = segments(network, rows, OwnFeedback(len(rows)), torch.zeros(len(rows), 4))[0]
    others = [channel for channel in range(47) if not FEEDBACK.start <= channel < FEEDBACK.stop]
    torch.testing.assert_close(first[..., others], rows[:, : SEGMENT + PREFIX, others], rtol=0, atol=0)


def test_a_stopped_lane_begins_at_the_truth_and_the_others_go_on(network, rows):
    own, zero = OwnFeedback(len(rows)), torch.zeros(len(rows), 4)
    segments(network, rows, own, zero)
    before = own.state()["next"]
    own.stop(1)
    begun = own.roll_out(network, rows[:, : SEGMENT + PREFIX], zero, network.initial_hidden(len(rows)))
    truth = rows[:, PREFIX, FEEDBACK]
    torch.testing.assert_close(begun[1, PREFIX, FEEDBACK], truth[1])
    torch.testing.assert_close(begun[[0, 2], PREFIX, FEEDBACK], before[[0, 2]])
    assert (before[0] - truth[0]).abs().max() > 1e-3


def test_state_restores(network, rows):
    zero = torch.zeros(len(rows), 4)
    own, other = OwnFeedback(len(rows)), OwnFeedback(len(rows))
    segments(network, rows, own, zero)
    other.restore(own.state())
    part, hidden = rows[:, : SEGMENT + PREFIX], network.initial_hidden(len(rows))
    torch.testing.assert_close(own.roll_out(network, part, zero, hidden), other.roll_out(network, part, zero, hidden))


def test_lanes_ask_for_the_correction_of_what_was_really_fed_back(network, tmp_path):
    config = TrainingConfig(
        batch=2,
        segment=SEGMENT,
        rollout_samples=3 * SEGMENT,
        tilt_correction_rate=2.0,
        closed_loop=ClosedLoopConfig(start=0.0, offset_scale=1.0),
        replay=ReplayConfig(capacity=4, minimum=4, chunk=4),
    )
    replay = Replay(tmp_path, config.replay)
    replay.path(0).parent.mkdir(parents=True, exist_ok=True)
    np.save(replay.path(0), simulate_chunk(SyntheticSource(200), ROBOT, 5, 0, 4, config.rows))
    lanes = Lanes(TraceLearner(config), replay, 0)
    for _ in range(2):
        segment = lanes.next(0, network).segment
        lanes.advance(network.sequence(*lanes_input(segment, lanes)).hidden)
    truth = lanes._rows
    for lane in range(2):
        begin = (int(lanes._segment[lane]) - 1) * SEGMENT
        true = truth[lane, begin + PREFIX : begin + PREFIX + SEGMENT]
        off = segment.observations[lane, PREFIX:, FEEDBACK][:, :2] - true[:, FEEDBACK][:, :2]
        assert off.abs().max() > 1e-3
        asked = (segment.targets.motion[lane] - true[:, 47:56])[:, 3:6]
        expected = 2.0 * true[:, 46:47] * tilt_correction(true[:, 42:44], off)
        torch.testing.assert_close(asked, expected, rtol=1e-4, atol=1e-9)


def lanes_input(segment, lanes):
    return segment.observations, lanes._hidden
