"""tools/finetuning_proof.py: tours, a robot's own faults, its reference, and how methods are compared."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from loaded_tools import TOOLS, load_tool
from scipy.spatial.transform import Rotation
from synthetic import rollout

from trace_ros.sim.course_set import CourseSet

TOOL = TOOLS / "finetuning_proof.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("finetuning_proof")


@pytest.fixture(scope="module")
def proof(tool):
    return tool.Proof.load(TOOL.with_suffix(".yaml"))


def test_tours_are_random_long_enough_and_stay_on_their_ground(proof):
    course = CourseSet.load("finetuning_logs").course("grass")
    one, other = (proof.tour.phases(course, seed) for seed in (701, 702))
    assert one == proof.tour.phases(course, 701) != other
    walks = [phase for phase in one if phase.walk_to]
    targets = np.array([phase.walk_to for phase in walks])
    assert np.abs(targets).max() <= proof.tour.reach < 6.2
    legs = np.linalg.norm(np.diff(targets, axis=0, prepend=[[0.0, 0.0]]), axis=1)
    assert legs.min() >= proof.tour.nearest
    assert sum(legs / [phase.speed for phase in walks]) > course.duration
    assert {phase.facing is None for phase in walks} == {True, False} and any(phase.stand for phase in one[1:])


def test_training_and_test_walk_the_same_robot_on_other_ground():
    logs, tests = CourseSet.load("finetuning_logs"), CourseSet.load("finetuning")
    assert not set(logs.seeds) & set(tests.seeds)
    for course in tests.courses:
        assert course.physics == logs.courses[0].physics and course.sensors == logs.courses[0].sensors
        assert course.randomization.dynamics == logs.courses[0].randomization.dynamics
    assert [course.name for course in tests.courses] == ["flat", "rough", "slippery", "soft"]


def test_the_robots_own_faults(proof):
    made = rollout(0, 200).measured
    read = proof.robot.read(made)
    offset = read.joint_position - made.joint_position
    np.testing.assert_allclose(offset, np.tile(np.ravel(proof.robot.encoder_offset), (200, 1)), atol=1e-12)
    turn = Rotation.from_euler("xyz", proof.robot.imu_rpy)
    np.testing.assert_allclose(turn.apply(read.linear_acceleration), made.linear_acceleration, atol=1e-9)
    assert read.joint_velocity is made.joint_velocity


def test_the_reference_is_slow_late_and_noisy(proof):
    truth = rollout(1, 2000).measured.reference
    seen = proof.reference.of(truth, np.random.default_rng(0))
    assert np.allclose(np.diff(seen.stamp_ns), 1e8)
    at, _ = truth.resample(seen.stamp_ns - round(proof.reference.latency * 1e9))
    off = seen.position - at.position
    assert off.std() == pytest.approx(proof.reference.position_noise, rel=0.3)
    turned = (seen.rotation_world_body.inv() * at.rotation_world_body).as_rotvec()
    assert turned.std() == pytest.approx(proof.reference.rotation_noise, rel=0.3)


def test_the_verdict_compares_course_by_course(tool):
    def row(course, method, ate, relative):
        figures = dict.fromkeys(
            ("ate_velocity_mps", "ate_orientation_rad", "re10_velocity_mps", "re10_orientation_rad")
        )
        spread = {"mean": relative, "std": 0.0, "p90": relative}
        return {"engine": "bullet", "course": course, "method": method, "seed": 1, "path_length_m": 30.0,
                "ate_position_m": ate, "re10_position_m": spread, **figures}  # fmt: skip

    rows = [row("flat", "finetuned", 0.5, 0.2), row("flat", "zero_shot", 1.0, 0.1)]
    rows += [row("soft", "finetuned", 0.3, 0.1), row("soft", "zero_shot", 0.4, 0.1)]
    against = tool.verdict(rows)
    assert set(against) == {"zero_shot"}
    position, relative = against["zero_shot"]["ate_position_m"], against["zero_shot"]["re10_position_m"]
    assert position["change"] == pytest.approx({"flat": -0.5, "soft": -0.25})
    assert position["mean_change"] == pytest.approx(-0.375)
    assert position["change_of_means"] == pytest.approx(0.8 / 1.4 - 1)
    assert relative["change"] == pytest.approx({"flat": 1.0, "soft": 0.0})
    text = tool.table(rows)
    assert "| flat | proposed | **0.5000** | - | - | 0.2000 |" in text and "| flat | w/o FT | 1.0000 |" in text
