"""Late joint readings are put where they belong: in logs, and by every estimator that knows of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import LoadedModel, ModelCard, load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.joint_delay import joint_delay_of, with_joints_at_their_time
from trace_ros.estimator.run import run_estimator
from trace_ros.logs import JOINTS, SensorLog
from trace_ros.resources import models_directory
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course
from trace_ros.streams.kinds import Tally
from trace_ros.streams.pairing import PairingSettings, SamplePairer
from trace_ros.streams.readings import JointReading

MS = 1_000_000
START = 1_700_000_000_000_000_000
ALL = tuple(range(JOINTS))


def told(stamps_ms: list[float], torque: bool = True) -> SensorLog:
    """Joints read their own stamp in ms, the gyro too."""
    time = np.array(stamps_ms)
    rows = np.repeat(time[:, None], JOINTS, axis=1)
    return SensorLog(
        START + np.round(time * MS).astype(np.int64),
        rows[:, :3].copy(),
        np.tile((0.0, 0.0, 9.81), (len(time), 1)),
        rows,
        10 * rows,
        100 * rows if torque else None,
        "measured_effort" if torque else "none",
    )


def test_readings_belong_to_what_was_measured_then() -> None:
    log = told([2.0 * k for k in range(100)])
    for delay in (0.012, 0.005, -0.004, 0.0005):
        moved = with_joints_at_their_time(log, delay)
        gyro = moved.angular_velocity[:, 0]
        np.testing.assert_allclose(moved.joint_position[:, 0], gyro + 1e3 * delay, atol=1e-9)
        np.testing.assert_allclose(moved.joint_velocity, 10 * moved.joint_position)
        assert moved.joint_torque is not None
        np.testing.assert_allclose(moved.joint_torque, 100 * moved.joint_position)
        # Nothing is made up for the ends.
        assert moved.joint_position.min() >= 0 and moved.joint_position.max() <= 198
        assert len(moved) == 100 - int(np.ceil(abs(delay) * 500))
    assert with_joints_at_their_time(log, 0.0) is log


def test_over_a_pause_they_are_held_and_then_missing() -> None:
    log = told([2.0 * k for k in range(50)] + [200 + 2.0 * k for k in range(50)])
    moved = with_joints_at_their_time(log, 0.01)
    pairs = dict(zip(moved.angular_velocity[:, 0], moved.joint_position[:, 0], strict=True))
    assert pairs[88] == 98
    # Up to 50 ms, as in the streams; the pause lies between readings of 98 and 200 ms.
    assert [pairs[ms] for ms in (90, 92, 94, 96, 98)] == [98] * 5
    assert pairs[200] == 210
    short = told([2.0 * k for k in range(50)] + [118 + 2.0 * k for k in range(50)])
    bridged = with_joints_at_their_time(short, 0.01)
    assert dict(zip(bridged.angular_velocity[:, 0], bridged.joint_position[:, 0], strict=True))[98] == 108
    far = with_joints_at_their_time(log, 0.09)
    assert 98.0 not in far.angular_velocity[:, 0]


def test_what_one_of_two_readings_lacks_is_the_others() -> None:
    log = told([2.0 * k for k in range(30)])
    assert log.joint_torque is not None
    torque = log.joint_torque.copy()
    torque[10] = np.nan
    moved = with_joints_at_their_time(replace(log, joint_torque=torque), 0.001)
    assert moved.joint_torque is not None
    assert not np.isnan(moved.joint_torque).any()
    np.testing.assert_allclose(moved.joint_torque[[9, 10], 0], [1800, 2200])
    assert with_joints_at_their_time(told([2.0 * k for k in range(30)], torque=False), 0.004).joint_torque is None


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-100, 100),
    st.lists(st.sampled_from([1.0, 2.0, 2.5, 7.0, 24.0, 26.0, 40.0, 60.0]), min_size=5, max_size=40),
)
def test_a_log_is_changed_as_the_streams_would_have_paired_it(delay_ms: int, intervals: list[float]) -> None:
    log = told(np.cumsum(intervals).tolist())
    pairer = SamplePairer(PairingSettings(joint_wait=1.0, joint_delay=delay_ms / 1e3), Tally())
    samples = []
    for sample in log:
        reading = JointReading(ALL, sample.joint_position, sample.joint_velocity, sample.joint_torque)
        assert pairer.accepts(sample.stamp_ns, ALL)
        samples += pairer.add_joints(sample.stamp_ns, reading)
        samples += pairer.add_imu(sample.stamp_ns, sample.angular_velocity, sample.linear_acceleration)
    samples += pairer.flush()
    # At the end of all, the streams hold the last reading for what comes after it; a log is cut there.
    last = log.stamp_ns[-1] - delay_ms * MS
    samples = [sample for sample in samples if sample.stamp_ns <= last]
    moved = with_joints_at_their_time(log, delay_ms / 1e3)
    assert [sample.stamp_ns for sample in samples] == moved.stamp_ns.tolist()
    if samples:
        np.testing.assert_allclose([s.joint_position for s in samples], moved.joint_position, atol=1e-9)
        np.testing.assert_allclose([s.joint_torque for s in samples], moved.joint_torque, atol=1e-7)


@pytest.fixture(scope="module")
def walk() -> SensorLog:
    course = Course.load("demo").model_copy(update={"duration": 6.0})
    return simulate_course(course, RobotDescription.load("go2"), 0).measured


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(models_directory() / "go2" / "trace.pt")


def late(log: SensorLog, samples: int) -> SensorLog:
    """As that log, with joints that were stamped so many samples later."""
    assert log.joint_velocity is not None and log.joint_torque is not None
    kept = log.select(slice(samples, None))
    return replace(
        kept,
        joint_position=log.joint_position[:-samples],
        joint_velocity=log.joint_velocity[:-samples],
        joint_torque=log.joint_torque[:-samples],
    )


@pytest.mark.parametrize("at_once", [True, False])
def test_an_estimator_that_knows_walks_as_if_nothing_were_late(
    walk: SensorLog, model: LoadedModel, at_once: bool
) -> None:
    go2 = RobotDescription.load("go2")
    even = replace(walk, stamp_ns=START + 2 * MS * np.arange(len(walk)))
    knowing = TraceEstimator(replace(model, card=model.card.model_copy(update={"joint_delay": 0.01})), go2)
    plain = TraceEstimator(model, go2)
    assert (joint_delay_of(knowing), joint_delay_of(plain), joint_delay_of(object())) == (0.01, 0.0, 0.0)

    def run(estimator: TraceEstimator, log: SensorLog) -> np.ndarray:
        made = run_logs(estimator, [log])[0] if at_once else run_estimator(estimator, log)
        return made.trajectory.position

    # The late log begins 10 ms later, and its last 10 ms have no joints yet.
    wanted = run(plain, even.select(slice(5, -5)))
    np.testing.assert_allclose(run(knowing, late(even, 5)), wanted, atol=1e-6)
    assert np.abs(run(plain, late(even, 5))[: len(wanted)] - wanted).max() > 1e-3


@pytest.mark.parametrize("delay", [0.11, -0.2, float("nan"), float("inf")])
def test_a_card_says_what_can_be(model: LoadedModel, delay: float) -> None:
    data = model.card.model_dump()
    assert data["joint_delay"] == 0.0
    with pytest.raises(ValidationError, match="joint_delay"):
        ModelCard.model_validate({**data, "joint_delay": delay})
    del data["joint_delay"]  # a model from before there was such a thing
    assert ModelCard.model_validate(data) == model.card


def test_the_shipped_models_are_for_every_unit() -> None:
    assert {load_model(path).card.joint_delay for path in models_directory().glob("*/trace.pt")} == {0.0}
