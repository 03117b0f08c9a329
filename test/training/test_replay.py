"""The replay on disk, the simulation process that fills it, and the lanes that train from it."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from synthetic import FailingSource, SyntheticSource

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.training.config import ReplayConfig, TrainingConfig
from trace_ros.training.dataset import PREFIX, ROW_SIZE, FeedbackNoise
from trace_ros.training.lanes import Lanes
from trace_ros.training.replay import Replay, SimulationWorker, chunk_seed, simulate_chunk
from trace_ros.training.trace_learner import TraceLearner

CONFIG = ReplayConfig(capacity=8, minimum=4, chunk=4, visits_per_sample=2.0)


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


def numbered(chunk: int, rows: int = 40, count: int = 4) -> np.ndarray:
    """Rollouts whose every number tells their chunk."""
    return np.full((count, rows, ROW_SIZE), chunk + 1, dtype=np.float32)


def test_chunks_are_written_read_and_forgotten(tmp_path):
    replay = Replay(tmp_path / "replay", CONFIG)
    assert replay.newest() == -1
    for chunk in range(9):
        replay.write(chunk, numbered(chunk))
        assert replay.newest() == chunk
    assert replay.capacity_chunks == 2  # and four to spare
    assert sorted(path.name for path in replay.directory.iterdir()) == [f"chunk_{k:06d}.npy" for k in range(3, 9)]
    assert (replay.rollout(4, 1) == 5).all()


def test_a_reopened_replay_goes_on_where_it_was(tmp_path):
    replay = Replay(tmp_path, CONFIG)
    for chunk in range(9):
        replay.write(chunk, numbered(chunk))
    again = Replay(tmp_path, CONFIG)
    assert again.newest() == 8
    again.write(9, numbered(9))
    assert again.newest() == 9


def test_a_chunk_half_written_does_not_count(tmp_path):
    replay = Replay(tmp_path, CONFIG)
    replay.write(0, numbered(0))
    (tmp_path / "chunk_000001.partial").write_bytes(b"half")
    assert replay.newest() == 0


def test_a_damaged_chunk_is_named(tmp_path):
    replay = Replay(tmp_path, CONFIG)
    replay.path(0).write_bytes(b"\x93NUMPY and then nothing")
    with pytest.raises(TraceError, match=r"chunk_000000\.npy.*delete"):
        replay.chunk(0)
    np.save(replay.path(1), np.zeros((2, 3)))
    with pytest.raises(TraceError, match="expected rows of 72"):
        replay.chunk(1)


def test_draws_come_from_the_newest_chunks_only(tmp_path):
    replay = Replay(tmp_path, CONFIG)
    for chunk in range(5):
        replay.write(chunk, numbered(chunk))
    generator = torch.Generator().manual_seed(0)
    drawn = {replay.draw(4, generator) for _ in range(200)}
    assert drawn == {(chunk, index) for chunk in (3, 4) for index in range(4)}
    assert {chunk for chunk, _ in (replay.draw(3, generator) for _ in range(50))} == {2, 3}


def test_simulation_is_asked_for_as_much_as_training_visits(tmp_path):
    replay = Replay(tmp_path, CONFIG)
    assert replay.wanted(0) == 0  # the minimum is one chunk
    assert replay.wanted(7) == 0
    assert replay.wanted(8) == 1  # 4 rollouts a chunk, visited twice each
    assert replay.wanted(81) == 10


def test_each_chunk_has_a_seed_of_its_own():
    seeds = {chunk_seed(seed, chunk) for seed in range(20) for chunk in range(-1, 50)}
    assert len(seeds) == 20 * 51
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_simulation_process_stays_one_chunk_ahead(tmp_path, robot):
    replay = Replay(tmp_path, CONFIG)
    source = SyntheticSource(samples=80)
    with SimulationWorker(source, robot, 3, replay, 4, 79) as worker:
        worker.want(2)
        deadline = time.monotonic() + 60
        while replay.newest() < 2 and time.monotonic() < deadline:
            worker.check()
            time.sleep(0.05)
        time.sleep(0.3)
        assert replay.newest() == 2
    np.testing.assert_array_equal(replay.chunk(1), simulate_chunk(source, robot, 3, 1, 4, 79))


def test_a_failing_simulation_tells_why(tmp_path, robot):
    with SimulationWorker(FailingSource(), robot, 0, Replay(tmp_path, CONFIG), 4, 79) as worker:
        deadline = time.monotonic() + 60
        with pytest.raises(TraceError, match="the ground is missing"):
            while time.monotonic() < deadline:
                worker.check()
                time.sleep(0.05)


class NoRollouts(SyntheticSource):
    def __call__(self, _robot, _seed, _count):
        return iter(())


def test_no_surviving_rollout_is_an_error(robot):
    with pytest.raises(TraceError, match="none of 4 rollouts"):
        simulate_chunk(NoRollouts(), robot, 0, 0, 4, 79)


def lane_config(**changes: object) -> TrainingConfig:
    quiet = FeedbackNoise(tilt_noise=0, velocity_noise=0)
    values = {"batch": 4, "segment": 20, "rollout_samples": 80, "replay": CONFIG, "feedback": quiet}
    return TrainingConfig(**{**values, **changes})


def filled(tmp_path, robot, samples: int = 140) -> Replay:
    replay = Replay(tmp_path, CONFIG)
    for chunk in range(2):
        replay.write(chunk, simulate_chunk(SyntheticSource(samples), robot, 1, chunk, 4, 80 + PREFIX))
    return replay


def test_lanes_walk_through_rollouts_and_carry_the_state(tmp_path, robot):
    config = lane_config()
    assert config.rows == 80 + PREFIX
    lanes = Lanes(TraceLearner(config), filled(tmp_path, robot), seed=0)
    previous = None
    for count in range(12):
        batch = lanes.next(1)
        assert batch.segment.observations.shape == (4, 49, 47)
        # Lanes begin at segments 0, 1, 2, 3 of their first rollout, so one of them ends at each step.
        fresh = (batch.hidden == 0).all(1)
        assert fresh.tolist() == ([True] * 4 if count == 0 else [(lane + count) % 4 == 0 for lane in range(4)])
        if previous is not None:
            # The window of a segment is the end of the one before, unless the lane has changed its rollout.
            same = (batch.segment.observations[:, :PREFIX, :42] == previous[:, -PREFIX:, :42]).all(2).all(1)
            assert (same | fresh).all()
            assert not (same & fresh).any()
        previous = batch.segment.observations
        lanes.advance(torch.full((4, 128), float(count + 1)))
    assert lanes.rollouts_drawn == 4 + 11


def test_the_offset_of_the_feedback_is_one_a_rollout(tmp_path, robot):
    replay = filled(tmp_path, robot)
    lanes = Lanes(TraceLearner(lane_config(batch=1)), replay, seed=0)
    seen = []
    for _ in range(4):
        batch = lanes.next(1)
        chunk, index = lanes.state()["source"][0].tolist()
        start = int(lanes.state()["segment"][0]) * 20
        clean = replay.rollout(chunk, index)[start : start + 49, :47]
        seen.append((batch.segment.observations[0] - clean)[:, 42:46])
        lanes.advance(torch.zeros(1, 128))
    offset = torch.cat(seen)
    torch.testing.assert_close(offset, offset[:1].expand_as(offset), atol=1e-5, rtol=0)
    assert offset[0].abs().min() > 0


def test_a_rollout_cut_short_by_a_fall_wastes_no_segments(tmp_path, robot):
    lanes = Lanes(
        TraceLearner(lane_config(batch=2)), filled(tmp_path, robot, samples=29 + 31), seed=0
    )  # 30 outputs: two segments
    for _ in range(8):
        batch = lanes.next(1)
        assert (batch.segment.targets.valid.sum(1) >= 10).all()
        lanes.advance(batch.hidden)


def test_restored_lanes_go_on_exactly(tmp_path, robot):
    replay = filled(tmp_path, robot)
    config = lane_config(feedback=FeedbackNoise())
    lanes = Lanes(TraceLearner(config), replay, seed=5)
    for _ in range(5):
        lanes.advance(lanes.next(1).hidden + 1)
    other = Lanes(TraceLearner(config), replay, seed=99)
    other.restore(lanes.state())
    for _ in range(6):
        one, two = lanes.next(1), other.next(1)
        assert torch.equal(one.segment.observations, two.segment.observations)
        assert torch.equal(one.segment.targets.motion, two.segment.targets.motion)
        assert torch.equal(one.hidden, two.hidden)
        lanes.advance(one.hidden + 1)
        other.advance(two.hidden + 1)


def test_a_lane_whose_rollout_is_gone_takes_another(tmp_path, robot):
    replay = filled(tmp_path, robot)
    lanes = Lanes(TraceLearner(lane_config()), replay, seed=0)
    lanes.advance(lanes.next(1).hidden)
    replay.path(0).unlink()
    other = Lanes(TraceLearner(lane_config()), Replay(tmp_path, ReplayConfig(capacity=4, minimum=4, chunk=4)), seed=0)
    other.restore(lanes.state())
    assert torch.isfinite(other.next(1).segment.observations).all()
