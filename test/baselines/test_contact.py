from dataclasses import replace

import numpy as np
import pytest

from trace_ros.baselines.config import ContactConfig
from trace_ros.baselines.contact import ContactDetector, Reading
from trace_ros.baselines.legs import LegModel
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
    config = ContactConfig(enter=0.15, leave=0.08, touchdown_dwell=0.0, smoothing=0.0)
    detector = ContactDetector(go2, legs, config)
    forces = [0.0, 0.14, 0.16, 0.10, 0.085, 0.075, 0.10, 0.14, 0.16]
    expected = [False, False, True, True, True, False, False, False, True]
    assert sequence(detector, legs, go2, forces) == expected


def test_a_change_must_last(go2, legs):
    config = ContactConfig(enter=0.15, leave=0.08, touchdown_dwell=0.004, liftoff_dwell=0.002, smoothing=0.0)
    detector = ContactDetector(go2, legs, config)
    forces = [0.2, 0.2, 0.0, 0.2, 0.2, 0.2, 0.2, 0.0, 0.2, 0.0, 0.0]
    expected = [False, False, False, False, False, True, True, True, True, True, False]
    assert sequence(detector, legs, go2, forces) == expected
    detector.reset()
    assert not detector.contact.any()


def test_a_lighter_robot_needs_less_force(go2, legs):
    """The same newtons, above the threshold of one robot and below that of another."""
    heavy = RobotDescription.load("go2")
    newtons = np.tile([0.0, 0.0, 0.2 * go2.mass * 9.81], (4, 1))
    config = ContactConfig(touchdown_dwell=0.0)
    assert ContactDetector(go2, legs, config).update(reading(legs, newtons, go2), UP, 0.002).all()
    links = {name: replace(link, mass=2 * link.mass) for name, link in go2.model.links.items()}
    heavy.__dict__["model"] = replace(go2.model, links=links)
    assert heavy.mass == pytest.approx(2 * go2.mass)
    assert not ContactDetector(heavy, legs, config).update(reading(legs, newtons, go2), UP, 0.002).any()


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
