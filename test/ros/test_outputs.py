"""The output side of the node, in this process: rates, forms, and publishers that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rclpy.lifecycle import LifecycleNode
from rclpy.parameter import Parameter as RosParameter

from trace_ros.estimator.estimator import Estimate
from trace_ros.nodes import channels
from trace_ros.nodes.channels import Channel
from trace_ros.nodes.estimator_parameters import PARAMETERS
from trace_ros.nodes.outputs import Outputs, OutputSchedule
from trace_ros.nodes.parameters import Parameters

STEP_NS = 2_000_000


def estimate(stamp_ns: int = STEP_NS) -> Estimate:
    return Estimate(
        stamp_ns=stamp_ns,
        position=np.array([1.0, 2.0, 3.0]),
        orientation=np.array([0.1, 0.0, 0.0, np.sqrt(0.99)]),
        velocity=np.array([0.5, 0.1, 0.2]),
        angular_velocity=np.array([0.1, 0.2, 0.3]),
        attention=np.full(6, 1 / 6, dtype=np.float32),
        stationary=False,
        pose_covariance=0.1 * np.eye(6),
        twist_covariance=0.2 * np.eye(6),
    )


def admitted(stamps: list[int], max_rate: float) -> list[int]:
    schedule = OutputSchedule()
    return [stamp for stamp in stamps if schedule.admits(stamp, max_rate)]


@given(st.lists(st.integers(0, 10**9), max_size=50))
def test_stamps_strictly_increase(stamps: list[int]) -> None:
    out = admitted(stamps, 0.0)
    assert (np.diff(out) > 0).all()
    assert (max(stamps) in out) if stamps else out == []


@pytest.mark.parametrize("rate", [500.0, 250.0, 200.0, 100.0, 30.0, 1.0, 2000.0])
def test_max_rate_is_kept_on_average(rate: float) -> None:
    stamps = [k * STEP_NS for k in range(1, 5001)]
    out = admitted(stamps, rate)
    assert len(out) == pytest.approx(min(rate, 500.0) * 10, abs=1)
    assert np.diff(out).min() >= min(1e9 / rate, 1e12) - STEP_NS


def test_after_a_pause_there_is_no_burst() -> None:
    out = admitted([*range(0, 10**9, STEP_NS), *range(10**10, 11 * 10**9, STEP_NS)], 100.0)
    late = [stamp for stamp in out if stamp >= 10**10]
    assert len(late) == pytest.approx(100, abs=1)
    assert np.diff(late).min() == 10_000_000


def test_a_new_time_line_begins_anew() -> None:
    schedule = OutputSchedule()
    assert schedule.admits(10**9, 0.0)
    assert not schedule.admits(10**9, 0.0)
    assert not schedule.admits(5, 0.0)
    schedule.clear()
    assert schedule.admits(5, 0.0)


@pytest.fixture
def make(robot) -> Iterator[Callable[..., tuple[LifecycleNode, Outputs, list[str]]]]:
    made: list[tuple[LifecycleNode, Outputs]] = []

    def start(**given: Any) -> tuple[LifecycleNode, Outputs, list[str]]:
        overrides = [RosParameter(name, value=value) for name, value in given.items()]
        node = LifecycleNode(f"outputs_{len(made)}", parameter_overrides=overrides, use_global_arguments=False)
        parameters = Parameters(node, PARAMETERS)
        parameters.check()
        lines: list[str] = []
        outputs = Outputs(node, parameters, robot, lines.append)
        outputs.start()
        for channel in outputs.channels[:2]:
            channel.publisher.on_activate(None)
        made.append((node, outputs))
        return node, outputs, lines

    yield start
    for node, outputs in made:
        outputs.destroy()
        node.destroy_node()


def test_overrides_of_covariance_and_the_flat_mode(make: Callable) -> None:
    _, outputs, _ = make()
    before = estimate()
    assert outputs.shaped(before) is before
    _, outputs, _ = make(pose_covariance_diagonal=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], twist_covariance_diagonal=[0.5] * 6)
    shaped = outputs.shaped(before)
    np.testing.assert_array_equal(shaped.pose_covariance, np.diag([1, 2, 3, 4, 5, 6]))
    np.testing.assert_array_equal(shaped.twist_covariance, 0.5 * np.eye(6))
    node, outputs, _ = make(two_d_mode=True)
    assert outputs.shaped(before).position[2] == 0.0
    assert node.set_parameters([RosParameter("two_d_mode", value=False)])[0].successful
    assert outputs.shaped(before).position[2] == 3.0


def test_a_publisher_that_fails_is_told_once_and_made_anew(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_RETRY_S", 0.0)
    _, outputs, lines = make()
    odometry = outputs.channels[0]
    broken = odometry.publisher

    def fail(_message: Any) -> None:
        raise RuntimeError("the middleware\nis gone")

    monkeypatch.setattr(broken, "publish", fail)
    assert outputs.publish(estimate(STEP_NS), np.zeros(12))
    assert outputs.published == 0
    assert outputs.faults == {"odom": "the middleware is gone"}
    assert outputs.publish(estimate(2 * STEP_NS), np.zeros(12))
    assert odometry.publisher is not broken
    assert outputs.published == 1
    assert outputs.faults == {}
    assert outputs.failures == {"odom": 1}
    assert len(lines) == 2
    assert lines[0] == "odom: cannot be published (the middleware is gone): trying again every 0 s"
    assert lines[1].startswith("odom: publishing again after 1 messages")


def test_the_feet_are_only_sent_to_somebody(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    _, outputs, _ = make()
    feet = outputs.channels[1]
    sent: list[list[float]] = []
    listeners: list[int | Exception] = [0]

    def count() -> int:
        if isinstance(listeners[0], Exception):
            raise listeners[0]
        return listeners[0]

    monkeypatch.setattr(feet.publisher, "get_subscription_count", count)
    monkeypatch.setattr(feet.publisher, "publish", lambda message: sent.append(list(message.data)))
    assert outputs.publish(estimate(STEP_NS), np.zeros(12))
    assert sent == []
    listeners[0] = 1
    assert outputs.publish(estimate(2 * STEP_NS), np.zeros(12))
    listeners[0] = RuntimeError("the middleware does not say")
    assert outputs.publish(estimate(3 * STEP_NS), np.zeros(12))
    assert sent == [[pytest.approx(1 / 6)] * 4] * 2
    assert outputs.messages.foot_reliability.layout.dim[1].label == "stamp=0.006000000"


def test_an_estimator_that_tells_nothing_of_the_feet_has_no_such_topic(robot) -> None:
    node = LifecycleNode("outputs_without_feet", use_global_arguments=False)
    outputs = Outputs(node, Parameters(node, PARAMETERS), robot, lambda _line: None, feet=False)
    assert "estimator/foot_reliability" not in [channel.name for channel in outputs.channels]
    assert outputs.publish(estimate(), np.zeros(12))
    outputs.destroy()
    node.destroy_node()


def test_a_channel_waits_between_attempts_and_survives_a_maker_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(channels.time, "monotonic", lambda: now[0])
    attempts: list[float] = []
    works = [False]
    lines: list[str] = []

    def create() -> object:
        attempts.append(now[0])
        if len(attempts) > 1 and not works[0]:
            raise ValueError("no")
        return object()

    def send(_publisher: Any) -> None:
        if not works[0]:
            raise RuntimeError

    channel = Channel("/tf", create, send, lambda _publisher: None, lines.append)
    for _ in range(30):
        assert not channel.send()
        now[0] += 0.1
    assert channel.failures == 30
    assert 3 <= len(attempts) <= 5
    assert len(lines) == 1
    assert "RuntimeError" in lines[0]
    works[0] = True
    now[0] += 1.0
    assert channel.send()
    assert len(lines) == 2
