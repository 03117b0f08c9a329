"""What the estimator adds to the network: changed from the command line, and left out by `NetworkAlone`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from trace_ros.baselines.registry import load_estimator
from trace_ros.errors import TraceError
from trace_ros.estimator.additions import changed_additions
from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import ModelCard, export_model, load_model
from trace_ros.estimator.error_model import ErrorModel
from trace_ros.estimator.estimator import NetworkAlone, TraceEstimator
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.network import TraceNetwork
from trace_ros.estimator.run import run_estimator
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription

ROBOT = RobotDescription.load("go2")
PLAIN = ModelCard(robot="go2", robot_fingerprint=ROBOT.fingerprint, rate_hz=500.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {}),
        (["height={}"], {"height": HeightSettings()}),
        (["height.time=2", "input_limit=4"], {"height": HeightSettings(time=2.0), "input_limit": 4.0}),
        (["height=null"], {}),
    ],
)
def test_changes_of_a_card_without(changes, expected):
    assert changed_additions(PLAIN, changes) == expected


def test_changes_of_a_card_with():
    card = PLAIN.model_copy(update={"height": HeightSettings(time=3.0), "input_limit": 5.0})
    assert changed_additions(card, ["height.stride=1"]) == {"height": HeightSettings(time=3.0, stride=1.0)}
    assert changed_additions(card, ["height=null", "input_limit=null"]) == {"height": None, "input_limit": None}
    assert changed_additions(card, ["input_limit=5"]) == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("hight.time=1", "expected one of height, input_limit"),
        ("robot=a1", "expected one of height, input_limit"),
        ("height.tau=1", "height.tau"),
        ("height.time=0", "height.time"),
        ("input_limit=much", "input_limit"),
        ("height", "expected key=value"),
    ],
)
def test_changes_that_make_no_sense_are_refused(change, said):
    with pytest.raises(TraceError, match=f"--set {change}.*{said}"):
        changed_additions(PLAIN, [change])


def jolted_log(n: int = 400) -> SensorLog:
    """A robot whose legs go about; for a moment its readings are beyond anything."""
    rng = np.random.default_rng(5)
    accel = rng.normal(scale=0.5, size=(n, 3)) + (0.0, 0.0, 9.81)
    accel[200:210] += 300.0
    return SensorLog(
        stamp_ns=2_000_000 * np.arange(1, n + 1),
        angular_velocity=rng.normal(scale=0.3, size=(n, 3)),
        linear_acceleration=accel,
        joint_position=ROBOT.nominal_joint_positions + rng.normal(scale=0.1, size=(n, 12)),
        joint_velocity=rng.normal(scale=1.0, size=(n, 12)),
        joint_torque=rng.normal(scale=1.0, size=(n, 12)),
        torque_source="pd_target",
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(3)
    network = TraceNetwork()
    with torch.no_grad():
        network.head[-1].weight.mul_(50)
        network.observation_scale.fill_(2.0)
    path = tmp_path_factory.mktemp("model") / "trace.pt"
    export_model(network.eval(), PLAIN.model_copy(update={"height": HeightSettings(), "input_limit": 5.0}), path)
    return load_model(path)


def test_each_does_what_it_is_for_and_the_network_alone_does_neither(model):
    log = jolted_log()
    variants = {
        name: replace(model, card=model.card.model_copy(update=changes))
        for name, changes in {
            "both": {},
            "height": {"input_limit": None},
            "limit": {"height": None},
            "neither": {"height": None, "input_limit": None},
        }.items()
    }
    runs = {name: run_estimator(TraceEstimator(variant, ROBOT), log).trajectory for name, variant in variants.items()}
    alone = run_estimator(NetworkAlone(model, ROBOT), log).trajectory
    for name in ("position", "orientation", "velocity", "covariance"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(runs["neither"], name))
    calm = slice(0, 150)
    # The height is the feet's from the first; the rest of the pose is the network's.
    np.testing.assert_array_equal(runs["height"].position[:, :2], alone.position[:, :2])
    np.testing.assert_array_equal(runs["height"].orientation, alone.orientation)
    assert np.abs(runs["height"].position[calm, 2] - alone.position[calm, 2]).max() > 1e-3
    # The limit changes nothing until the jolt.
    np.testing.assert_array_equal(runs["limit"].position[calm], alone.position[calm])
    assert np.abs(runs["limit"].velocity - alone.velocity).max() > 1e-2
    # Whole logs at once say the same.
    for kind, expected in ((TraceEstimator, runs["both"]), (NetworkAlone, alone)):
        made = run_logs(kind(model, ROBOT), [log])[0].trajectory
        np.testing.assert_allclose(made.position, expected.position, atol=1e-5)
        np.testing.assert_allclose(made.velocity, expected.velocity, atol=2e-5)


def test_the_height_of_the_network_alone_is_less_certain(model):
    """Its error model was fitted to the feet's height, which does not drift."""
    fitted = ErrorModel(slow_share=(0.3, 0.3, 0.003), slow_time=10.0)
    with_feet = replace(model, card=model.card.model_copy(update={"error_model": fitted}))
    log = jolted_log(3000)
    variance = {
        kind.name: run_estimator(kind(with_feet, ROBOT), log).trajectory.covariance[-1, 2, 2]
        for kind in (TraceEstimator, NetworkAlone)
    }
    assert variance["trace_network"] > 4 * variance["trace"]
    alone = replace(model, card=model.card.model_copy(update={"error_model": fitted, "height": None}))
    assert NetworkAlone(alone, ROBOT).error_model == fitted


def test_a_gap_is_bridged_with_the_velocity_that_is_told(model):
    log = jolted_log(600).select(np.r_[220:400, 450:600])
    both = run_estimator(TraceEstimator(model, ROBOT), log).trajectory
    together = run_logs(TraceEstimator(model, ROBOT), [log])[0].trajectory
    np.testing.assert_allclose(together.position, both.position, atol=1e-5)
    alone = run_estimator(NetworkAlone(model, ROBOT), log).trajectory
    gap = int(np.argmax(np.diff(both.stamp_ns)))
    risen, unaided = (run.position[gap + 1, 2] - run.position[gap, 2] for run in (both, alone))
    climbing = both.velocity[gap, 2] - alone.velocity[gap, 2]
    assert (risen - unaided) * climbing > 0


def test_the_network_alone_is_found_by_name(model):
    estimator = load_estimator("trace_network", ROBOT, model.path)
    assert isinstance(estimator, NetworkAlone)
    assert (estimator.name, estimator.height, estimator.limits) == ("trace_network", None, None)
    with_both = load_estimator("trace", ROBOT, model.path)
    assert (with_both.name, with_both.height) == ("trace", HeightSettings())


def test_the_pose_and_its_velocity_agree(model):
    """The vertical velocity that is told is that of the height, as far as the network's own two are."""
    log = jolted_log(600).select(slice(220, 600))
    both, alone = (run_estimator(kind(model, ROBOT), log).trajectory for kind in (TraceEstimator, NetworkAlone))
    risen = np.diff(both.position[:, 2] - alone.position[:, 2])
    up = both.rotation_world_body.apply(both.velocity)[:, 2] - alone.rotation_world_body.apply(alone.velocity)[:, 2]
    steady = slice(60, None)
    assert np.abs(up[steady]).max() > 0.003
    np.testing.assert_allclose(risen[steady], 0.002 * up[1:][steady], atol=2e-4)
