from dataclasses import replace

import numpy as np
import pytest

from trace_ros.baselines.config import ContactConfig
from trace_ros.baselines.contact import ContactDetector, Reading, ground_force
from trace_ros.leg_model import LegModel
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription

UP = np.array([0.0, 0.0, 1.0])


@pytest.fixture(scope="module")
def legs(go2) -> LegModel:
    return LegModel(go2)


def reading(
    legs: LegModel, force: np.ndarray | None, robot: RobotDescription, lift: np.ndarray | None = None
) -> Reading:
    """A body at rest whose feet the ground pushes by (4, 3) N; ``lift`` (4,) rad bends knees."""
    q = robot.nominal_joint_positions.copy()
    if lift is not None:
        q[2::3] -= lift
        q[1::3] += lift / 2
    posture = legs.at(q)
    accel = np.array([0.0, 0.0, 9.81])
    torque = None
    if force is not None:
        zero = np.zeros(12)
        own = legs.torque(posture, zero, zero, np.zeros(3), accel, np.asarray(robot.imu.position))
        torque = (own - (posture.jacobian.transpose(0, 2, 1) @ force[..., None])[..., 0]).ravel()
    return Reading(0, np.zeros(3), accel, np.zeros(12), torque, posture, np.zeros((4, 3)), np.zeros((4, 3)))


def test_the_force_of_a_resting_body_is_told(go2, legs):
    rng = np.random.default_rng(0)
    force = rng.normal(0, 20, (4, 3)) + [0.0, 0.0, 37.0]
    detector = ContactDetector(go2, legs, ContactConfig())
    detector.update(reading(legs, force, go2), UP, 0.002)
    np.testing.assert_allclose(detector.force, force, rtol=0.02, atol=0.6)  # the damping takes a little


def sequence(detector: ContactDetector, legs: LegModel, robot: RobotDescription, forces: list[float]) -> list[bool]:
    """Whether the first foot stands, for vertical forces as parts of the weight, one each 2 ms."""
    weight = robot.mass * 9.81
    return [
        bool(detector.update(reading(legs, np.tile([0.0, 0.0, f * weight], (4, 1)), robot), UP, 0.002)[0])
        for f in forces
    ]


def test_the_trigger_has_two_thresholds_of_the_bodys_weight(go2, legs):
    config = ContactConfig(enter=0.15, leave=0.08, rest=0.15, touchdown_dwell=0.0, smoothing=0.0)
    detector = ContactDetector(go2, legs, config)
    forces = [0.0, 0.14, 0.16, 0.10, 0.085, 0.075, 0.10, 0.14, 0.16]
    expected = [False, False, True, True, True, False, False, False, True]
    assert sequence(detector, legs, go2, forces) == expected


def test_a_change_must_last(go2, legs):
    config = ContactConfig(enter=0.15, leave=0.08, rest=0.15, touchdown_dwell=0.004, liftoff_dwell=0.002, smoothing=0.0)
    detector = ContactDetector(go2, legs, config)
    forces = [0.2, 0.2, 0.0, 0.2, 0.2, 0.2, 0.2, 0.0, 0.2, 0.0, 0.0]
    expected = [False, False, False, False, False, True, True, True, True, True, False]
    assert sequence(detector, legs, go2, forces) == expected
    detector.reset()
    assert not detector.contact.any()


def test_a_lighter_robot_needs_less_force(go2, legs):
    """The same newtons, above the threshold of one robot and below that of another."""
    heavy = RobotDescription.load("go2")
    newtons = np.tile([0.0, 0.0, 0.4 * go2.mass * 9.81], (4, 1))
    config = ContactConfig(touchdown_dwell=0.0)
    assert ContactDetector(go2, legs, config).update(reading(legs, newtons, go2), UP, 0.002).all()
    links = {name: replace(link, mass=2 * link.mass) for name, link in go2.model.links.items()}
    heavy.__dict__["model"] = replace(go2.model, links=links)
    assert heavy.mass == pytest.approx(2 * go2.mass)
    assert not ContactDetector(heavy, legs, config).update(reading(legs, newtons, go2), UP, 0.002).any()


def test_a_foot_that_lands_stands_at_once_and_one_that_bears_little_after_a_while(go2, legs):
    """A leg that swings shows as much force as one that bears a sixth of the weight, but never for long."""
    config = ContactConfig(enter=0.3, rest=0.12, leave=0.08, rest_dwell=0.02, smoothing=0.0)
    detector = ContactDetector(go2, legs, config)
    assert sequence(detector, legs, go2, [0.0, 0.32, 0.2, 0.07]) == [False, True, True, False]
    detector.reset()
    assert sequence(detector, legs, go2, [0.2] * 10 + [0.0] + [0.2] * 12) == [False] * 21 + [True] * 2
    detector.reset()
    assert not any(sequence(detector, legs, go2, [0.1] * 30))


def test_the_load_is_told_in_parts_of_the_weight(go2, legs):
    detector = ContactDetector(go2, legs, ContactConfig(smoothing=0.0))
    shares = np.array([0.1, 0.5, -0.2, 0.3])
    force = np.zeros((4, 3))
    force[:, 2] = shares * go2.mass * 9.81
    detector.update(reading(legs, force, go2), UP, 0.002)
    np.testing.assert_allclose(detector.load, [0.1, 0.5, 0.0, 0.3], atol=0.005)
    lift = np.array([0.0, 0.5, 0.0, 0.0])
    for _ in range(2):
        detector.update(reading(legs, None, go2, lift), UP, 0.002)
    np.testing.assert_allclose(detector.load, [1 / 3, 0.0, 1 / 3, 1 / 3])


def test_whole_logs_give_the_same_force(go2, legs):
    """Kinematics, inverse dynamics and ground reaction force of many samples at once."""
    rng = np.random.default_rng(3)
    q, dq, ddq = (scale * rng.normal(size=(7, 12)) for scale in (0.5, 5.0, 50.0))
    gyro, accel, torque = rng.normal(size=(7, 3)), rng.normal(0, 10, (7, 3)), rng.normal(0, 10, (7, 4, 3))
    at = np.asarray(go2.imu.position)
    many = legs.at(q)
    forces = ground_force(many, torque - legs.torque(many, dq, ddq, gyro, accel, at))
    for i in range(7):
        one = legs.at(q[i])
        for part, whole in zip(one, many, strict=True):
            np.testing.assert_allclose(part, whole[i], atol=1e-14)
        np.testing.assert_allclose(one.foot_velocity(dq[i]), many.foot_velocity(dq)[i], atol=1e-14)
        np.testing.assert_allclose(one.shank_rate(dq[i]), many.shank_rate(dq)[i], atol=1e-14)
        own = legs.torque(one, dq[i], ddq[i], gyro[i], accel[i], at)
        np.testing.assert_allclose(ground_force(one, torque[i] - own), forces[i], rtol=1e-9, atol=1e-9)


def test_a_swinging_leg_does_not_stand(walked, go2, legs):
    """Its torques look like those of a foot that bears something; a point that moves with it would carry the body
    along, so the height of the feet that are found to stand must not run away."""
    log = walked.measured
    standing = detected(log, go2, legs)
    truth = log.reference
    foot = truth.position[:, None] + np.einsum("nij,nlj->nli", truth.rotation_world_body.as_matrix(), feet(legs, log))
    fall = np.diff(foot[..., 2], axis=0)
    early = standing[1:] & standing[:-1] & ~log.contact[1:]
    assert -fall[early].sum() < 0.01 * standing.sum() * 0.002 * 4


def feet(legs: LegModel, log: SensorLog) -> np.ndarray:
    return legs.at(log.joint_position).foot


def test_without_torque_low_feet_stand(go2, legs):
    detector = ContactDetector(go2, legs, ContactConfig())
    lift = np.array([0.0, 0.5, 0.0, 0.0])
    for _ in range(5):
        contact = detector.update(reading(legs, None, go2, lift), UP, 0.002)
    assert contact.tolist() == [True, False, True, True]
    assert detector.force is None


def test_a_robot_without_masses_is_judged_by_kinematics(go2, legs):
    weightless = RobotDescription.load("go2")
    links = {name: replace(link, mass=0.0) for name, link in go2.model.links.items()}
    weightless.__dict__["model"] = replace(go2.model, links=links)
    detector = ContactDetector(weightless, LegModel(weightless), ContactConfig())
    for _ in range(5):
        contact = detector.update(reading(legs, np.zeros((4, 3)), go2), UP, 0.002)
    assert contact.all()


def detected(log: SensorLog, robot: RobotDescription, legs: LegModel) -> np.ndarray:
    detector = ContactDetector(robot, legs, ContactConfig())
    vertical = log.reference.rotation_world_body.as_matrix()[:, 2]
    found = []
    for sample, up in zip(log, vertical, strict=True):
        posture, dq = legs.at(sample.joint_position), sample.joint_velocity
        rates = posture.foot_velocity(dq), posture.shank_rate(dq)
        parts = sample.angular_velocity, sample.linear_acceleration, dq, sample.joint_torque
        found.append(detector.update(Reading(sample.stamp_ns, *parts, posture, *rates), up, 0.002))
    return np.array(found)


def test_contacts_of_a_simulated_walk_are_found(walked, go2, legs):
    log = walked.measured
    by_force = detected(log, go2, legs)
    assert (by_force == log.contact).mean() > 0.93
    assert by_force[~log.contact].mean() < 0.1
    blind = replace(log, joint_torque=None, torque_source="none")
    by_kinematics = detected(blind, go2, legs)
    assert (by_kinematics == log.contact).mean() > 0.75
