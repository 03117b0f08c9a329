"""Sets of courses: defaults, names, selections, and what the logs' folder depends on."""

from pathlib import Path

import numpy as np
import pytest

from trace_ros.errors import TraceError
from trace_ros.sim import course_set
from trace_ros.sim.course import Course, available_courses
from trace_ros.sim.course_set import CourseSet, merged, set_digest

TWO = """
name: two
seeds: [3, 4]
defaults:
  duration: 5.0
  phases: [{stand: 1.0}]
  sensors: {gyro_noise: 0.5, accel_noise: 0.25}
courses:
  - {name: a}
  - {name: b, duration: 7.0, phases: [{walk_to: [1, 0]}], sensors: {gyro_noise: 0.0}}
"""


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    return path


def test_a_course_has_the_defaults_below_its_own_keys(two):
    a, b = CourseSet.load(two).courses
    assert (a.duration, b.duration) == (5.0, 7.0)
    assert (a.sensors.gyro_noise, b.sensors.gyro_noise) == (0.5, 0.0)
    assert (a.sensors.accel_noise, b.sensors.accel_noise) == (0.25, 0.25)  # sections merge
    assert [phase.stand for phase in b.phases] == [None]  # lists do not


def test_merging_leaves_its_parts_alone():
    defaults, own = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"c": [2]}, "e": {"f": 3}}
    assert merged(defaults, own) == {"a": {"b": 1, "c": [2]}, "d": 2, "e": {"f": 3}}
    assert defaults == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_the_validation_set_is_what_it_promises():
    courses = CourseSet.load("validation")
    names = ["flat", "rough", "slippery", "soft", "grass", "hard", "stairs", "mixed"]
    assert [course.name for course in courses.courses] == names
    assert len(courses.seeds) >= 3
    for course in courses.courses:
        assert course.duration == 60.0
        assert course.phases[0].stand == 2.0
        assert course.final_stand == 2.0
        assert course.randomization is not None
        assert course.policy is not None
        assert min(course.sensors.gyro_noise, course.sensors.gyro_bias, course.sensors.accel_bias) > 0
        # The way ends where it began, so that walking it again goes on smoothly.
        assert course.phases[-1].walk_to == (0.0, 0.0)
    assert courses.course("slippery").randomization.contact.friction == (0.25, 0.25)
    # Softer than what training draws for level ground.
    assert courses.course("soft").ground.time_constant > 0.03


def test_one_of_a_set_is_a_course_by_its_name(two):
    assert Course.load("validation/flat") == CourseSet.load("validation").course("flat")
    assert Course.load(f"{two}/b").duration == 7.0
    assert {"demo", "validation/flat", "validation/mixed", "long"} <= set(available_courses())


def test_a_file_with_one_course_is_a_set_of_one():
    demo = CourseSet.load("demo")
    assert demo.courses == (Course.load("demo"),)
    assert demo.seeds == (0,)
    assert Course.load("long").duration == 600.0


def test_a_selection(two):
    courses = CourseSet.load(two)
    chosen = courses.select(["b"], [9])
    assert [course.name for course in chosen.courses] == ["b"]
    assert chosen.seeds == (9,)
    assert courses.select() == courses
    with pytest.raises(TraceError, match="unknown course 'c' of the set 'two': known are a, b"):
        courses.select(["c"])
    with pytest.raises(TraceError, match="seeds"):
        courses.select(seeds=[1, 1])


def test_the_digest_changes_with_whatever_changes_the_logs(two, go2, monkeypatch, tmp_path):
    courses = CourseSet.load(two)
    before = set_digest(courses, go2)
    assert set_digest(CourseSet.load(two), go2) == before
    assert set_digest(courses.select(seeds=[9]), go2) == before  # seeds stand in the names of the files
    two.write_text(TWO.replace("gyro_noise: 0.5", "gyro_noise: 0.6"))
    control = go2.control.model_copy(update={"kp": 21.0})
    urdf = tmp_path / "other.urdf"
    urdf.write_text(go2.urdf.read_text() + "<!-- -->")
    others = [
        set_digest(CourseSet.load(two), go2),
        set_digest(courses, go2.model_copy(update={"control": control})),
        set_digest(courses, go2.model_copy(update={"urdf": urdf})),
    ]
    # The clamp is the estimator's.
    clamp = go2.stationary.model_copy(update={"dwell": 0.2})
    assert set_digest(courses, go2.model_copy(update={"stationary": clamp})) == before
    monkeypatch.setattr(course_set, "_code_digest", lambda _: b"other code")
    others.append(set_digest(courses, go2))
    assert len({before, *others}) == 5


def test_the_digest_counts_only_the_engines_that_simulate(two, go2, monkeypatch):
    courses = CourseSet.load(two)
    ours = {engine: courses.simulated_by(engine) for engine in ("mujoco", "bullet")}
    assert {course.physics.backend for course in ours["bullet"].courses} == {"bullet"}
    assert ours["mujoco"] == courses
    before = {engine: set_digest(own, go2) for engine, own in ours.items()}
    assert before["bullet"] != before["mujoco"]

    def changed(which) -> set[str]:
        """Engines whose logs another version of what ``which`` chooses by name makes stale."""
        course_set._code_digest.cache_clear()
        with monkeypatch.context() as patch:
            read, version = Path.read_bytes, course_set.version_of
            patch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * which(path.name))
            patch.setattr(course_set, "version_of", lambda library: version(library) + b"1" * which(library))
            stale = {engine for engine, own in ours.items() if set_digest(own, go2) != before[engine]}
        course_set._code_digest.cache_clear()
        return stale

    assert changed(lambda _: False) == set()
    for name in ("bullet_backend.py", "bullet_urdf.py", "pybullet"):
        assert changed(lambda other, name=name: other == name) == {"bullet"}
    for name in ("mujoco_backend.py", "mujoco"):
        assert changed(lambda other, name=name: other == name) == {"mujoco"}
    assert changed(lambda name: name == "raisim_backend.py") == set()
    for name in ("walk.py", "scene_urdf.py", "robot.py", "numpy"):
        assert changed(lambda other, name=name: other == name) == {"bullet", "mujoco"}


def test_an_engine_that_is_none(two):
    with pytest.raises(TraceError, match="unknown simulation backend 'havok': known are bullet, mujoco, raisim"):
        CourseSet.load(two).simulated_by("havok")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seeds: [3, 4]", "seeds: []"), "seeds: at least one"),
        (("seeds: [3, 4]", "seeds: [3, 3]"), "seeds: at least one is needed, each once"),
        (("seeds: [3, 4]", "seeds: [-1]"), "seeds.0"),
        (("name: two", "name: ../two"), "name:"),
        (("{name: a}", "{name: b}"), "courses: two courses have the name 'b'"),
        (("{name: a}", "{name: a/b}"), "'a/b' cannot be that of a file"),
        (("{name: a}", "{name: a, speeed: 1}"), "unknown key 'courses.0.speeed'"),
        (("{name: a}", "{name: a, ground: {friction: -1}}"), "courses.0.ground.friction"),
        (("{name: a}", "7"), "courses.0"),
        (("defaults:\n", "defaultz:\n"), "unknown key 'defaultz'"),
        (("  duration: 5.0\n", "  duration: 5.0\n  weather: 3\n"), "unknown key 'courses.0.weather'"),
    ],
)
def test_bad_sets_are_one_line(two, change, words):
    assert change[0] in TWO
    two.write_text(TWO.replace(*change))
    with pytest.raises(TraceError) as error:
        CourseSet.load(two)
    assert words in str(error.value)
    assert str(two) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (lambda: CourseSet.load("moon"), "unknown set of courses 'moon': known are courses, demo, finetuning,"),
        (lambda: Course.load("moon"), "unknown course 'moon': known are courses/flat, courses/rough"),
        (lambda: Course.load("moon/flat"), "unknown course 'moon/flat'"),
        (lambda: Course.load("validation/moon"), "unknown course 'moon' of the set 'validation'"),
        (lambda: Course.load("validation"), "validation is a set of courses: choose one, such as validation/flat"),
        (lambda: CourseSet.load("none.yaml"), "none.yaml: cannot be read"),
    ],
)
def test_unknown_names_are_one_line(load, words):
    with pytest.raises(TraceError) as error:
        load()
    assert words in str(error.value)


def test_robots_differ_between_courses_of_a_set(go2):
    from trace_ros.sim.course import simulate_course

    course = Course.load("validation/flat").model_copy(update={"duration": 0.2, "settle": 0.2, "final_stand": 0.0})
    other = course.model_copy(update={"name": "other"})
    first, second = (simulate_course(plan, go2, 5).info for plan in (course, other))
    assert first["action_scale"] != second["action_scale"]
    assert np.isclose(first["action_scale"], simulate_course(course, go2, 5).info["action_scale"])
