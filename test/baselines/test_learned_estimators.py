"""Legolas and NMN-IEKF as estimators, around networks that say what the test wants."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trace_ros.baselines.attitude import reported_tilt
from trace_ros.baselines.cards import LegolasCard, NmnCard
from trace_ros.baselines.iekf import Iekf
from trace_ros.baselines.learned import LearnedModel
from trace_ros.baselines.legolas import LegolasEstimator
from trace_ros.baselines.nmn import NmnFilterConfig, NmnIekf
from trace_ros.baselines.registry import load_estimator
from trace_ros.errors import TraceError
from trace_ros.estimator.interface import Placeable, RateBound
from trace_ros.estimator.run import run_estimator
from trace_ros.logs import SensorLog


@dataclass
class Script:
    """Stands for a TorchScript module: answers one row after another; the state counts."""

    answers: list[tuple[torch.Tensor, ...]]

    def prime(self, frame: torch.Tensor) -> int:
        self.first = frame.clone()
        return 0

    def step(self, frame: torch.Tensor, state: int) -> tuple[Any, ...]:
        self.last = frame.clone()
        return *self.answers[min(state, len(self.answers) - 1)], state + 1


def model(kind: type, go2, answers: list[tuple[torch.Tensor, ...]]) -> LearnedModel:
    card = kind(robot="go2", robot_fingerprint=go2.fingerprint, rate_hz=500.0)
    return LearnedModel(Script(answers), card, Path("made_up.pt"), {})


@pytest.fixture(scope="module")
def log(walked) -> SensorLog:
    """Two seconds, in which the robot starts to walk."""
    part = slice(400, 1400)
    return replace(walked.measured.select(part), reference=walked.measured.reference.select(part))


def knowing_legolas(log: SensorLog, go2, moving: float = 1.0, variance: float = 1e-8) -> LegolasEstimator:
    """Says how the body moved since the sample before."""
    truth = log.reference
    turns = truth.rotation_world_body
    moved = turns[:-1].inv().apply(np.diff(truth.position, axis=0))
    turned = (turns[:-1].inv() * turns[1:]).as_rotvec()
    motion = torch.from_numpy(np.vstack((np.zeros((1, 6)), np.hstack((moved, turned)))))
    answers = [(row, torch.full((6,), variance), torch.tensor(moving)) for row in motion]
    return LegolasEstimator(model(LegolasCard, go2, answers), go2)


def knowing_nmn(log: SensorLog, walked, go2, sigma: float, **numbers: Any) -> NmnIekf:
    """Says which feet stand and how fast the body is, but for noise of a deviation (m/s) that it admits."""
    noise = sigma * np.random.default_rng(0).normal(size=(len(log), 3))
    velocity = torch.from_numpy(log.reference.velocity + noise)
    contact = torch.from_numpy(walked.clean.select(slice(400, 1400)).contact.astype(float))
    variance = torch.full((3,), sigma**2)
    answers = [(*row, variance) for row in zip(contact, velocity, strict=True)]
    return NmnIekf(model(NmnCard, go2, answers), go2, numbers=NmnFilterConfig(velocity_lasts=0.0, **numbers))


def from_the_truth(estimator, log: SensorLog):
    truth = log.reference
    return run_estimator(estimator, log, (truth.position[29], truth.orientation[29])).trajectory


def velocity_error(trajectory, log: SensorLog) -> float:
    return float(np.sqrt(np.square(trajectory.velocity - log.reference.velocity[29:]).sum(axis=1).mean()))


def test_increments_add_up_to_the_truth(log, go2):
    trajectory = from_the_truth(knowing_legolas(log, go2), log)
    truth = log.reference.select(slice(29, None))
    np.testing.assert_allclose(trajectory.position, truth.position, atol=1e-6)
    error = (trajectory.rotation_world_body * truth.rotation_world_body.inv()).as_rotvec()
    assert np.abs(error).max() < 1e-6
    np.testing.assert_allclose(trajectory.velocity[50:], truth.velocity[50:], atol=0.05)  # the mean of an interval


def test_legolas_starts_as_the_others_do(log, go2):
    """29 samples without an estimate; the 30th level at the origin, as TRACE's."""
    legolas, filtered = knowing_legolas(log, go2), Iekf(go2)
    estimates = [legolas.step(sample) for sample in log.select(slice(0, 31))]
    assert estimates[:29] == [None] * 29
    others = [filtered.step(sample) for sample in log.select(slice(0, 31))]
    np.testing.assert_allclose(estimates[29].position, others[29].position)
    np.testing.assert_allclose(estimates[29].orientation, others[29].orientation, atol=1e-12)
    assert legolas.outputs == {"stationary"} and estimates[30].attention is None and estimates[30].contact is None
    assert isinstance(legolas, Placeable) and isinstance(legolas, RateBound) and legolas.rate_hz == 500.0


def test_its_window_begins_with_the_first_sample_and_knows_the_imus_tilt(log, go2):
    legolas = knowing_legolas(log, go2)
    for sample in log.select(slice(0, 200)):
        legolas.step(sample)
    first, last = legolas.model.module.first, legolas.model.module.last
    np.testing.assert_allclose(first[5:17], log.joint_position[0], atol=1e-6)
    np.testing.assert_allclose(last[29:41], log.joint_torque[199], atol=1e-4)
    assert float(last[41]) == pytest.approx(0.002, rel=0.3)
    roll, pitch, _ = log.reference.rotation_world_body[199].as_euler("xyz")
    # The mean force of the first steps, and the accelerometer's bias: 0.3 m/s^2 are 0.03 rad.
    np.testing.assert_allclose(last[3:5], (roll, pitch), atol=0.05)
    dt = np.diff(log.stamp_ns[:200], prepend=log.stamp_ns[0] - 2_000_000) * 1e-9
    tilt = reported_tilt(log.angular_velocity[:200], log.linear_acceleration[:200], dt)
    np.testing.assert_allclose(last[3:5], tilt[-1], atol=1e-6)
    assert np.abs(tilt[-1]).max() > 0.01
    blind = replace(log, joint_torque=None, torque_source="none")
    legolas.reset()
    legolas.step(next(iter(blind)))
    assert legolas.model.module.last[29:41].isnan().all()


def test_a_body_that_is_called_still_stays(log, go2):
    run = run_estimator(knowing_legolas(log, go2, moving=0.4), log)
    assert run.stationary.all()
    assert (run.trajectory.position == run.trajectory.position[0]).all() and not run.trajectory.velocity.any()


def test_the_covariance_grows_by_the_stated_variances(log, go2):
    variance = 1e-7
    trajectory = from_the_truth(knowing_legolas(log, go2, variance=variance), log)
    first, last = trajectory.covariance[0], trajectory.covariance[-1]
    steps = len(trajectory) - 1
    np.testing.assert_allclose(np.diagonal(last - first)[3:], steps * variance, rtol=1e-6)
    assert (np.diagonal(last - first)[:3] >= steps * variance * (1 - 1e-6)).all()  # the heading turns what follows
    assert np.linalg.eigvalsh(last).min() > 0


def test_a_gap_starts_legolas_anew_from_the_last_pose(log, go2):
    late = log.stamp_ns + np.where(np.arange(len(log)) >= 600, 500_000_000, 0)
    reference = replace(log.reference, stamp_ns=late)
    gappy = replace(log, stamp_ns=late, reference=reference)
    legolas = knowing_legolas(log, go2)
    estimates = [legolas.step(sample) for sample in gappy]
    assert estimates[599] is not None and estimates[600:629] == [None] * 29
    np.testing.assert_allclose(estimates[629].position, estimates[599].position)
    grown = estimates[629].pose_covariance[0, 0] - estimates[599].pose_covariance[0, 0]
    assert grown == pytest.approx((np.linalg.norm(estimates[599].velocity) * (0.5 + 30 * 0.002)) ** 2, rel=0.05)
    with pytest.raises(ValueError, match="does not come after"):
        legolas.step(next(iter(gappy)))


def test_a_pose_that_is_set_holds_with_its_uncertainty(log, go2):
    legolas, position, turned = knowing_legolas(log, go2), np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.6, 0.8])
    samples = list(log)
    legolas.set_pose(position, turned, 0.5, 0.2)
    (*_, first) = [legolas.step(sample) for sample in samples[:30]]
    np.testing.assert_allclose(first.position, position)
    np.testing.assert_allclose(first.orientation, turned, atol=1e-12)
    assert first.pose_covariance[0, 0] == pytest.approx(0.25, rel=1e-2)
    assert first.pose_covariance[5, 5] == pytest.approx(0.04, rel=1e-2)
    legolas.set_pose(-position, turned)
    assert legolas.step(samples[30]).pose_covariance[0, 0] < 1e-4
    legolas.set_initial_pose(position, 1.0)
    legolas.reset()
    (*_, first) = [legolas.step(sample) for sample in samples[:30]]
    np.testing.assert_allclose(first.position, position)
    for bad in ((position, np.zeros(4)), (position[:2], turned), (position * np.nan, turned)):
        with pytest.raises(TraceError, match="not a pose"):
            legolas.set_pose(*bad)
    with pytest.raises(TraceError, match="initial pose"):
        legolas.set_initial_pose(position, np.nan)


def test_the_networks_velocity_makes_the_filters_better(log, walked, go2):
    """The surer it says it is, and is, the nearer the filter gets; noise that it admits does no harm."""
    alone = velocity_error(from_the_truth(Iekf(go2), log), log)
    sure = velocity_error(from_the_truth(knowing_nmn(log, walked, go2, 0.005), log), log)
    unsure = velocity_error(from_the_truth(knowing_nmn(log, walked, go2, 0.2), log), log)
    assert sure < 0.4 * alone
    assert sure < unsure < 1.3 * alone
    assert unsure < 0.2


def test_one_measurement_pulls_the_velocity_towards_it(log, walked, go2):
    estimator = knowing_nmn(log, walked, go2, 0.01)
    from_the_truth(estimator, log)
    state, network = estimator._filter, estimator._network
    network.velocity = state.rotation.T @ state.velocity + (0.3, 0.0, 0.0)
    reading = estimator._previous
    before = state.rotation.T @ state.velocity - np.cross(reading.gyro - state.gyro_bias, estimator._imu)
    sigma = state.covariance[3, 3]
    assert estimator._correct_velocity(reading, 0.002)
    after = state.rotation.T @ state.velocity - np.cross(reading.gyro - state.gyro_bias, estimator._imu)
    assert np.linalg.norm(after - network.velocity) < np.linalg.norm(before - network.velocity)
    assert state.covariance[3, 3] < sigma


def test_errors_that_last_count_for_less(log, walked, go2):
    """Half a metre a second off throughout: the longer errors last, the less the filter follows."""
    offset = []
    for lasts in (0.0, 10.0):
        estimator = knowing_nmn(log, walked, go2, 0.1)
        estimator.numbers = NmnFilterConfig(velocity_lasts=lasts)
        module = estimator.model.module
        module.answers = [(contact, velocity + 0.5, variance) for contact, velocity, variance in module.answers]
        offset.append(velocity_error(from_the_truth(estimator, log), log))
    assert offset[1] < 0.7 * offset[0]


def test_contacts_are_the_networks(log, walked, go2):
    estimator = knowing_nmn(log, walked, go2, 0.1, cutoff=0.0)
    answers = estimator.model.module.answers
    told = np.array([estimate.contact for sample in log if (estimate := estimator.step(sample)) is not None])
    expected = np.array([contact.numpy() > 0.5 for contact, *_ in answers[29:]])
    np.testing.assert_array_equal(told, expected)
    assert estimator.outputs == {"velocity", "contact"} and estimator.rate_hz == 500.0


def test_a_slow_robot_with_still_joints_is_left_to_its_feet(log, walked, go2):
    estimator = knowing_nmn(log, walked, go2, 0.01)
    from_the_truth(estimator, log)
    reading = estimator._previous._replace(joint_velocity=np.zeros(12))
    estimator._network.velocity = np.array([0.04, 0.0, 0.0])
    assert not estimator._correct_velocity(reading, 0.002)
    assert estimator._correct_velocity(reading._replace(joint_velocity=np.full(12, 0.5)), 0.002)
    estimator._network.velocity = np.array([0.06, 0.0, 0.0])
    assert estimator._correct_velocity(reading, 0.002)


def test_a_reset_run_equals_a_fresh_one(log, walked, go2):
    for made in (lambda: knowing_nmn(log, walked, go2, 0.1), lambda: knowing_legolas(log, go2)):
        used, fresh = made(), made()
        from_the_truth(used, log)
        again, once = run_estimator(used, log).trajectory, run_estimator(fresh, log).trajectory
        np.testing.assert_array_equal(again.position, once.position)
        np.testing.assert_array_equal(again.covariance, once.covariance)


@pytest.mark.parametrize(("name", "option"), [("legolas", "legolas"), ("nmn_iekf", "nmn"), ("mlp", "mlp")])
def test_without_a_model_it_is_told_how_to_train_one(go2, tmp_path, name, option):
    with pytest.raises(TraceError, match=f"no such model; train one with trace train --method {option}") as caught:
        load_estimator(name, go2, tmp_path / "missing.pt")
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="not a YAML file"):
        load_estimator(name, go2, tmp_path / "numbers.yaml")


def test_a_model_of_another_robot_is_refused(log, go2):
    other = replace(knowing_legolas(log, go2).model, card=LegolasCard(robot="a1", robot_fingerprint="x", rate_hz=500.0))
    with pytest.raises(TraceError, match="trained for robot 'a1'"):
        LegolasEstimator(other, go2)


def test_numbers_of_the_filter_are_read_and_checked(tmp_path):
    assert NmnFilterConfig.load() == NmnFilterConfig()
    bad = tmp_path / "bad.yaml"
    bad.write_text("cutof: 3")
    with pytest.raises(TraceError, match="cutof"):
        NmnFilterConfig.load(bad)
