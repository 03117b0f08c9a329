"""A set of courses with seeds, on which estimators are judged; its logs are simulated once and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from trace_ros.errors import TraceError
from trace_ros.resources import config_directory, merged, read_yaml
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.sim.backend import BACKENDS
from trace_ros.sim.course import Course, course_file, holds_set
from trace_ros.sim.policy_description import policy_content, version_of
from trace_ros.sim.ranges import STRICT, load_yaml_model

Seed = Annotated[int, Field(ge=0)]

# What decides how a course goes besides this package's own code and the engine.
_LIBRARIES = ("numpy", "scipy", "torch")


class CourseSet(BaseModel):
    """Courses that are walked with the same seeds (``config/benchmark/<name>.yaml``).

    In YAML, ``defaults`` holds what the courses share; each course's own keys go before it, key by key also inside
    sections, while lists are replaced whole.

    Attributes:
        name: for records and the folder of the logs.
        seeds: each course is walked once with each.
        courses: with different names.
    """

    model_config = STRICT
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    seeds: tuple[Seed, ...]
    courses: tuple[Course, ...]

    @model_validator(mode="before")
    @classmethod
    def _defaults_into_courses(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # First of all: a misspelt ``defaults`` would show as many keys that the courses lack.
        if unknown := [key for key in data if key not in (*cls.model_fields, "defaults")]:
            raise ValueError(f"unknown key {unknown[0]!r}")
        if "defaults" not in data:
            return data
        data = dict(data)
        defaults = data.pop("defaults")
        if not isinstance(defaults, dict):
            raise ValueError("defaults must hold keys and values")
        courses = data.get("courses")
        if isinstance(courses, list):
            data["courses"] = [merged(defaults, course) if isinstance(course, dict) else course for course in courses]
        return data

    @field_validator("courses")
    @classmethod
    def _names_differ(cls, courses: tuple[Course, ...]) -> tuple[Course, ...]:
        if not courses:
            raise ValueError("at least one is needed")
        names = [course.name for course in courses]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two courses have the name {repeated[0]!r}")
        if odd := [name for name in names if "/" in name or not name.strip(".")]:
            raise ValueError(f"the name {odd[0]!r} cannot be that of a file")
        return courses

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError("at least one is needed, each once")
        return seeds

    @classmethod
    def load(cls, name: str | Path) -> CourseSet:
        """Load by name (``config/benchmark/<name>.yaml``) or from the path of a YAML file.

        A file with a single course is a set of one, with seed 0.

        Raises:
            TraceError: unknown set (lists the known ones), or a bad file, key or value.
        """
        path = course_file(str(name))
        if path is None:
            known = ", ".join(sorted(path.stem for path in (config_directory() / "benchmark").glob("*.yaml")))
            raise TraceError(
                f"unknown set of courses {str(name)!r}: known are {known}; or give the path of a YAML file"
            )
        if not holds_set(path):
            course = load_yaml_model(Course, path, "course")
            return cls._checked({"name": path.stem, "seeds": (0,), "courses": (course,)}, path)
        return cls._checked(read_yaml(path), path)

    @classmethod
    def _checked(cls, data: Any, path: Path) -> CourseSet:
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error

    @property
    def full_names(self) -> list[str]:
        """``set/course`` of each."""
        return [f"{self.name}/{course.name}" for course in self.courses]

    def course(self, name: str) -> Course:
        """One of the courses.

        Raises:
            TraceError: no course has this name (lists those there are).
        """
        for course in self.courses:
            if course.name == name:
                return course
        known = ", ".join(course.name for course in self.courses)
        raise TraceError(f"unknown course {name!r} of the set {self.name!r}: known are {known}")

    def select(self, only: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> CourseSet:
        """The set with fewer courses or with other seeds; None leaves them as they are.

        Raises:
            TraceError: unknown course, or unfit seeds.
        """
        courses = self.courses if only is None else tuple(self.course(name) for name in only)
        try:
            return CourseSet(name=self.name, seeds=self.seeds if seeds is None else tuple(seeds), courses=courses)
        except ValidationError as error:
            raise TraceError(f"set {self.name!r}: {describe_validation_error(error)}") from error

    def simulated_by(self, backend: str) -> CourseSet:
        """The same courses in another engine.

        Raises:
            TraceError: no engine has this name.
        """
        courses = tuple(course.simulated_by(backend) for course in self.courses)
        return self.model_copy(update={"courses": courses})


def set_digest(courses: CourseSet, robot: RobotDescription) -> str:
    """Eight hexadecimal digits that change with all that the courses' logs depend on besides the seed: the courses, the
    robot's files, this package's simulation code, and the versions of the libraries below it. Of the engines only those
    count that the courses use.

    Raises:
        TraceError: a file of the robot cannot be read.
    """
    digest = hashlib.sha256(_code_digest(frozenset(course.physics.backend for course in courses.courses)))
    for course in courses.courses:
        digest.update(json.dumps(course.model_dump(mode="json"), sort_keys=True).encode())
    # The clamp belongs to the estimator; where the files lie does not matter, and other policies walk no courses.
    own = robot.model_dump(mode="json", exclude={"urdf", "policy", "other_policies", "stationary"})
    digest.update(json.dumps(own, sort_keys=True).encode())
    for part in _robot_files(robot):
        digest.update(part)
    return digest.hexdigest()[:8]


def _robot_files(robot: RobotDescription) -> Iterator[bytes]:
    if robot.policy is not None:
        yield from policy_content(robot.policy)
    try:
        yield robot.urdf.read_bytes()
    except OSError as error:
        raise TraceError(f"{error.filename}: cannot be read ({error.strerror})") from error


@cache
def _code_digest(engines: frozenset[str]) -> bytes:
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    # Modules of one engine begin with its name.
    others = tuple(f"{engine}_" for engine in BACKENDS if engine not in engines)
    shared = [path for path in sorted((package / "sim").glob("*.py")) if not path.name.startswith(others)]
    for path in (*shared, *(package / f"{name}.py" for name in ("robot", "urdf", "geometry"))):
        digest.update(path.name.encode() + path.read_bytes())
    for library in (*_LIBRARIES, *sorted(BACKENDS[engine][2] for engine in engines if engine in BACKENDS)):
        digest.update(version_of(library))
    return digest.digest()
