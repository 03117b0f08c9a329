"""Whole logs side by side give the poses of `TraceEstimator.step`, whatever is in them."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_ros.errors import TraceError
from trace_ros.estimator.batch import run_logs
from trace_ros.estimator.checkpoint import ModelCard, export_model, load_model
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.estimator.run import run_estimator
from trace_ros.geometry import GRAVITY
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings

MS = 1_000_000
# Of increments over 2 ms, single precision leaves this much of an angular velocity. The network's head is 300 times too
# strong, and its rounding with it: either way is 1e-6 m/s from double precision at worst.
TOLERANCE = {"position": 1e-6, "orientation": 1e-6, "velocity": 2e-6, "angular_velocity": 3e-6, "covariance": 1e-8}


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Estimators whose network answers strongly to what is fed back; by options of the network."""
    robot = RobotDescription.load("go2")
    folder = tmp_path_factory.mktemp("models")

    @cache
    def exported(height=None, **options):
        torch.manual_seed(7)
        network = TraceNetwork(NetworkConfig(**options))
        with torch.no_grad():
            network.head[-1].weight.mul_(300)
            network.absent_torque.copy_(torch.tensor([0.5, -0.3, 0.8]))
        path = folder / f"{len(list(folder.iterdir()))}.pt"
        card = ModelCard(
            robot="go2", robot_fingerprint=robot.fingerprint, rate_hz=500.0, network=network.config, height=height
        )
        export_model(network.eval(), card, path)
        return load_model(path)

    def estimator(gaps=None, engine="torchscript", **options):
        return TraceEstimator(exported(**options), robot, gaps, engine)

    return estimator


def log_of(steps_ms, seed=0, still=(), absent=(), robot="go2"):
    """A log by its intervals; standing still at some samples, without velocity or torque at others."""
    rng = np.random.default_rng(seed)
    n = len(steps_ms)
    moving = np.ones((n, 1))
    for start, stop in still:
        moving[start:stop] = 0.0
    smooth = np.cumsum(rng.normal(scale=0.02, size=(n, 3)), axis=0)
    values = {
        "angular_velocity": moving * (0.4 * np.sin(smooth * 3) + rng.normal(scale=0.05, size=(n, 3))),
        "linear_acceleration": moving * rng.normal(scale=0.7, size=(n, 3)) + [0.0, 0.0, GRAVITY],
        "joint_position": rng.normal(scale=0.2, size=(n, 12)),
        "joint_velocity": moving * rng.normal(scale=1.0, size=(n, 12)),
        "joint_torque": rng.normal(scale=5.0, size=(n, 12)),
    }
    for name, start, stop in absent:
        values[name][start:stop] = np.nan
    for name in ("joint_velocity", "joint_torque"):
        if np.isnan(values[name]).all():
            values[name] = None
    stamp_ns = 1_700_000_000 * 10**9 + np.round(np.cumsum(np.asarray(steps_ms) * MS)).astype(np.int64)
    source = "none" if values["joint_torque"] is None else "pd_target"
    return SensorLog(stamp_ns, **values, torque_source=source, robot=robot)


def jittered(n, seed=0, rate=500.0):
    return 1000 / rate * np.random.default_rng(seed).uniform(0.95, 1.05, n)


def interrupted(steps_ms, **gaps):
    steps_ms = np.array(steps_ms)
    for at, pause in gaps.items():
        steps_ms[int(at[1:])] = pause
    return steps_ms


def check(estimator, logs, initial_poses=None, tolerances=TOLERANCE):
    runs = run_logs(estimator, logs, initial_poses=initial_poses)
    for index, (log, run) in enumerate(zip(logs, runs, strict=True)):
        expected = run_estimator(estimator, log, None if initial_poses is None else initial_poses[index])
        np.testing.assert_array_equal(run.trajectory.stamp_ns, expected.trajectory.stamp_ns)
        np.testing.assert_array_equal(run.stationary, expected.stationary)
        np.testing.assert_allclose(run.attention, expected.attention, atol=2e-6)
        for name, tolerance in (TOLERANCE | tolerances).items():
            mine, theirs = getattr(run.trajectory, name), getattr(expected.trajectory, name)
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=tolerance, err_msg=f"{name} of log {index}")
    return runs


CASES = {
    "regular": {"steps_ms": np.full(300, 2.0)},
    "jitter": {"steps_ms": jittered(300, 1)},
    "intervals from half to twice the usual": {"steps_ms": np.tile([1.0, 2.0, 3.0, 2.0], 75)},
    "stands at first, later, and at the end": {
        "steps_ms": jittered(700), "still": [(0, 150), (300, 480), (600, 700)]
    },
    "lost samples": {"steps_ms": interrupted(jittered(300), s20=6.0, s29=8.0, s100=6.1, s101=4.0, s200=40.0)},
    "a gap": {"steps_ms": interrupted(jittered(300), s150=300.0)},
    "a long gap": {"steps_ms": interrupted(jittered(300), s150=3500.0)},
    "gaps while the window fills": {
        "steps_ms": interrupted(jittered(300), s10=200.0, s100=150.0, s115=400.0, s120=2500.0, s200=101.0)
    },
    "a gap while it stands": {"steps_ms": interrupted(jittered(500), s300=250.0), "still": [(150, 450)]},
    "250 Hz": {"steps_ms": jittered(200, 2, 250.0)},
    "100 Hz, with gaps": {"steps_ms": interrupted(jittered(200, 3, 100.0), s80=300.0, s81=30.0)},
    "1000 Hz": {"steps_ms": jittered(400, 4, 1000.0)},
    "another rate half way": {"steps_ms": np.concatenate((jittered(200), jittered(200, 5, 200.0), jittered(200)))},
    "bursts": {"steps_ms": np.tile([0.1, 0.1, 0.1, 0.1, 9.6], 60)},
    "without torque": {"steps_ms": jittered(200), "absent": [("joint_torque", 0, 200)]},
    "torque at times": {"steps_ms": jittered(200), "absent": [("joint_torque", 50, 90)]},
    "without velocity": {"steps_ms": interrupted(jittered(250), s90=170.0), "absent": [("joint_velocity", 0, 250)]},
    "velocity at times": {"steps_ms": jittered(250), "absent": [("joint_velocity", 0, 10), ("joint_velocity", 60, 99)]},
    "just enough": {"steps_ms": jittered(30)},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_log_as_sample_by_sample(make, name):
    check(make(), [log_of(**CASES[name])])


@pytest.mark.parametrize(("name", "joints"), [*((name, "feet") for name in CASES), ("jitter", "measured")])
def test_where_the_feet_tell_the_height(make, name, joints):
    # Many samples' feet are worked out in another order than one's, and these networks are 300 times too strong.
    loose = {what: 5 * tolerance for what, tolerance in TOLERANCE.items()}
    runs = check(make(height=HeightSettings(), joints=joints), [log_of(**CASES[name])], tolerances=loose)
    if name == "jitter":
        alone = run_logs(make(joints=joints), [log_of(**CASES[name])])
        (mine, theirs) = (run[0].trajectory for run in (runs, alone))
        assert abs(mine.position[-1, 2] - theirs.position[-1, 2]) > 1e-3
        np.testing.assert_array_equal(mine.position[:, :2], theirs.position[:, :2])
        np.testing.assert_array_equal(mine.orientation, theirs.orientation)


def test_all_of_them_side_by_side(make):
    logs = [log_of(**case, seed=index) for index, case in enumerate(CASES.values())]
    check(make(), logs)
    assert len({len(log) for log in logs}) > 5


def test_a_network_that_is_told_of_the_feet(make):
    """With what is special about it: torque or velocity that is absent, resampling, and a gyro's bias taken off."""
    told = ("stands at first, later, and at the end", "torque at times", "velocity at times", "100 Hz, with gaps")
    logs = [log_of(**CASES[name], seed=index) for index, name in enumerate(told)]
    runs = check(make(joints="feet"), logs)
    measured = run_logs(make(), logs)
    assert not np.allclose(runs[0].trajectory.velocity, measured[0].trajectory.velocity, atol=0.01)


@pytest.mark.parametrize("options", [{"acceleration": "measured"}, {"increments": "direct"}, {"kernel": 3, "heads": 1}])
def test_other_networks(make, options):
    check(make(**options), [log_of(jittered(200)), log_of(jittered(150), 1), log_of(jittered(180), 2, [(0, 100)])])


def test_more_logs_than_go_side_by_side(make, monkeypatch):
    monkeypatch.setattr("trace_ros.estimator.batch.MOST_AT_ONCE", 3)
    done = []
    logs = [log_of(interrupted(jittered(90 + 20 * k, k), s50=200.0), k) for k in range(7)]
    check(make(), logs)
    run_logs(make(), logs, progress=done.append)
    assert done == sorted(done)
    assert done[-1] == sum(len(log) - 2 * 29 for log in logs)


def test_threads_share_the_logs(make):
    logs = [log_of(interrupted(jittered(300 + 150 * k, k), s50=200.0), k) for k in range(5)]
    done = []
    alone, shared = run_logs(make(), logs), run_logs(make(), logs, progress=done.append, threads=3)
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_allclose(one.trajectory.position, other.trajectory.position, atol=1e-6)
    assert done[-1] == sum(len(log) - 2 * 29 for log in logs)

    class StoppedError(Exception):
        pass

    def stop(_done):
        raise StoppedError

    before = threading.active_count()
    with pytest.raises(StoppedError):
        run_logs(make(), logs * 8, progress=stop, threads=2)
    assert threading.active_count() == before


def test_in_the_other_engine(make):
    pytest.importorskip("onnxruntime")
    estimator = make(engine="onnxruntime")
    check(estimator, [log_of(**CASES["gaps while the window fills"]), log_of(**CASES["100 Hz, with gaps"], seed=1)])


def test_initial_poses_and_gap_settings(make):
    estimator = make(GapSettings(max_gap=0.05, level_after=0.2, coast_time=0.3))
    estimator.set_initial_pose(np.array([1.0, -2.0, 0.4]), 2.0)
    steps = interrupted(jittered(250), s60=60.0, s120=260.0, s125=40.0)
    turned = np.array([0.1, -0.2, 0.5, 0.8])
    check(estimator, [log_of(steps), log_of(steps, 1), log_of(jittered(100), 2)], [
        None, (np.array([3.0, 2.0, 1.0]), turned / np.linalg.norm(turned)), None
    ])  # fmt: skip


def test_what_feeds_back_matters_here(make):
    """Else the tests above would prove little: the same log from another attitude moves otherwise."""
    log = log_of(jittered(200))
    level, tilted = run_logs(make(), [log, log], initial_poses=[None, (np.zeros(3), np.array([0.1, 0, 0, 0.995]))])
    assert np.abs(level.trajectory.velocity - tilted.trajectory.velocity).max() > 1e-3
    assert level.trajectory.path_length_m > 0.03


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.integers(40, 160),
            st.sampled_from([500.0, 500.0, 400.0, 200.0, 1000.0]),
            st.dictionaries(st.integers(1, 30), st.floats(0.5, 900.0), max_size=3),
            st.booleans(),
            st.sampled_from(["joint_velocity", "joint_torque"]),
            st.integers(0, 100),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_logs(make, drawn):
    logs = []
    for index, (count, rate, pauses, stands, name, missing) in enumerate(drawn):
        steps = jittered(count, index, rate)
        for at, pause in pauses.items():
            steps[at] = pause
        absent = [(name, missing, missing + 20)] if missing < count - 20 else []
        log = log_of(steps, index, [(5, count - 10)] if stands else [], absent)
        try:
            run_estimator(make(), log)
        except TraceError as error:
            with pytest.raises(TraceError, match=rf"^this log: {str(error)[:30]}"):
                run_logs(make(), [log], ["this log"])
            continue
        logs.append(log)
    if logs:
        check(make(), logs)


def test_logs_that_are_too_short_are_named(make):
    logs = [log_of(jittered(100)), log_of(jittered(29))]
    with pytest.raises(TraceError, match=r"^second: the log has 29 samples; the estimator needs at least 30"):
        run_logs(make(), logs, ["first", "second"])
    with pytest.raises(TraceError, match=r"^second: the log has gaps so often that the window never filled"):
        run_logs(make(), [logs[0], log_of(np.full(60, 200.0))], ["first", "second"])


def test_the_estimator_itself_is_left_alone(make):
    estimator, log = make(), log_of(jittered(80))
    before = [estimator.step(sample) for sample in log][-1]
    run_logs(estimator, [log])
    again = replace(log.sample(79), stamp_ns=log.sample(79).stamp_ns + 2 * MS)
    after, fresh = estimator.step(again), make()
    for sample in log:
        fresh.step(sample)
    np.testing.assert_array_equal(after.position, fresh.step(again).position)
    assert after.stamp_ns > before.stamp_ns
