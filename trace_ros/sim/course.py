"""A course: ground, a path with pauses, and one robot that follows it; a long log with ground truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from trace_ros.errors import FallError, TraceError
from trace_ros.geometry import roll_pitch_yaw
from trace_ros.resources import config_directory, read_yaml
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import (
    CONTROL_RATE_HZ,
    PhysicsConfig,
    PhysicsTrace,
    RobotDynamics,
    Scene,
    check_backend,
)
from trace_ros.sim.contacts import ContactLabelConfig
from trace_ros.sim.domain_randomization import (
    RandomizationConfig,
    SlipProcess,
    draw_dynamics,
    draw_pushes,
    draw_slips,
    nominal_dynamics,
)
from trace_ros.sim.patches import Patch
from trace_ros.sim.policy import WalkingPolicy
from trace_ros.sim.policy_randomization import UNCHANGED, PolicyRandomizationConfig, RandomizedPolicy, draw_variation
from trace_ros.sim.ranges import STRICT, load_yaml_model
from trace_ros.sim.recording import record
from trace_ros.sim.rollout import Rollout
from trace_ros.sim.sampling import SamplingConfig
from trace_ros.sim.scaling import RobotSize, fit_to_robot
from trace_ros.sim.sensors import SensorConfig
from trace_ros.sim.terrain import Box, HeightField, Plane, Surface, Terrain
from trace_ros.sim.walk import FallConfig, Walk, first_fall, standing_pose

FloatArray = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]


class Phase(BaseModel):
    """One part of a course: ``{stand: seconds}``, or ``{walk_to: [x, y], speed: m/s}``.

    With ``facing`` (rad) the robot keeps that heading on its way, and so walks sideways or backwards.
    """

    model_config = STRICT
    stand: Positive | None = None
    walk_to: tuple[float, float] | None = None
    speed: Positive = 0.6
    facing: float | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Phase:
        if (self.stand is None) == (self.walk_to is None):
            raise ValueError("give either stand (s) or walk_to ([x, y] in m)")
        return self


class FollowerConfig(BaseModel):
    """How the robot follows the path: pure pursuit of a point ahead on the line.

    Attributes:
        look_ahead: m.
        arrival: m, distance along the line at which a waypoint counts as reached.
        turn_gain: 1/s, yaw rate for an error of heading.
        turn_first: rad; beyond this error of heading the robot turns on the spot.
    """

    model_config = STRICT
    look_ahead: Positive = 0.5
    arrival: Positive = 0.15
    turn_gain: Positive = 2.0
    turn_first: Positive = 0.8


class GroundSurface(BaseModel):
    """What the level ground is made of; see `trace_ros.sim.terrain.Surface`.

    Attributes:
        friction: sliding friction coefficient, or None: the feet's.
        time_constant: s, softness of the contact, or None: the feet's.
        sinkage: m, depth over which the contact comes to its full stiffness, or None.
    """

    model_config = STRICT
    friction: Positive | None = None
    time_constant: Positive | None = None
    sinkage: Positive | None = None


class Course(BaseModel):
    """A course (``config/benchmark/<name>.yaml``, or one of a set: `trace_ros.sim.course_set`).

    Attributes:
        name: for records.
        duration: s, recorded; when all phases are done the robot stands, or begins again with ``repeat``.
        phases: what the robot does, in order, from the origin, facing +x.
        repeat: whether to begin again after the last phase.
        final_stand: s at the end in which the robot stands, whatever phases are left.
        ground: what the level plane is made of.
        patches: ground that is not the level plane.
        foot_friction: sliding friction coefficient of the feet.
        foot_time_constant: s, softness of the feet.
        hold_after: s of standing after which the robot holds still.
        settle: s, standing before the recording begins.
        follower, physics, sampling, sensors, contact_labels, falls: see there.
        sized_for: robot that forces, masses and torques were chosen for; they are scaled to the one that walks
            (`trace_ros.sim.scaling`), its path and patches are not. None: taken as they are.
        randomization: variation of robot and disturbances with the seed, or None: as its files describe it. Its contact
            friction and softness replace those above.
        policy: variation of the policy with the seed, or None: as it was trained.
    """

    model_config = STRICT
    name: str
    duration: Positive
    phases: tuple[Phase, ...]
    repeat: bool = False
    final_stand: Annotated[float, Field(ge=0)] = 0.0
    ground: GroundSurface = GroundSurface()
    patches: tuple[Patch, ...] = ()
    foot_friction: Positive = 0.8
    foot_time_constant: Positive = 0.01
    hold_after: Annotated[float, Field(ge=0)] = 0.4
    settle: Annotated[float, Field(ge=0.1)] = 1.5
    follower: FollowerConfig = FollowerConfig()
    physics: PhysicsConfig = PhysicsConfig()
    sampling: SamplingConfig = SamplingConfig()
    sensors: SensorConfig = SensorConfig()
    contact_labels: ContactLabelConfig = ContactLabelConfig()
    falls: FallConfig = FallConfig()
    sized_for: RobotSize | None = None
    randomization: RandomizationConfig | None = None
    policy: PolicyRandomizationConfig | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> Course:
        if not self.phases:
            raise ValueError("phases: at least one is needed")
        return self

    @classmethod
    def load(cls, course: str | Path) -> Course:
        """Load by name (``config/benchmark/<name>.yaml``) or from the path of a YAML file; of a set of courses, one as
        ``set/course``.

        Raises:
            TraceError: unknown course (lists the known ones), or a bad file, key or value.
        """
        from trace_ros.sim.course_set import CourseSet  # which is made of courses

        text = str(course)
        folder, _, name = text.rpartition("/")
        if Path(text).suffix not in YAML_SUFFIXES and folder and (path := course_file(folder)) is not None:
            return CourseSet.load(path).course(name)
        if (path := course_file(text)) is None:
            known = ", ".join(available_courses()) or "none"
            raise TraceError(f"unknown course {text!r}: known are {known}; or give the path of a YAML file")
        if holds_set(path):
            raise TraceError(f"{text} is a set of courses: choose one, such as {CourseSet.load(path).full_names[0]}")
        return load_yaml_model(cls, path, "course")

    def standing(self, duration: float) -> Course:
        """The same robot, sensors and settings, standing still on level ground for ``duration`` (s)."""
        return self.model_copy(
            update={
                "name": "stand",
                "duration": duration,
                "phases": (Phase(stand=duration),),
                "ground": GroundSurface(),
                "patches": (),
            }
        )

    def simulated_by(self, backend: str) -> Course:
        """The same in another engine.

        Raises:
            TraceError: no engine has this name.
        """
        check_backend(backend)
        return self.model_copy(update={"physics": self.physics.model_copy(update={"backend": backend})})

    def terrain(self, rng: np.random.Generator) -> Terrain:
        """The ground: a plane with the patches on it."""
        parts = [part for patch in self.patches for part in patch.build(rng)]
        return Terrain(
            self.name,
            planes=(Plane(surface=Surface(**self.ground.model_dump())),),
            height_fields=tuple(part for part in parts if isinstance(part, HeightField)),
            boxes=tuple(part for part in parts if isinstance(part, Box)),
        )


YAML_SUFFIXES = (".yaml", ".yml")


def course_file(name: str) -> Path | None:
    """The YAML file of a course or a set: a path is taken as it is, a name is looked up; None is an unknown name."""
    if Path(name).suffix in YAML_SUFFIXES:
        return Path(name)
    path = config_directory() / "benchmark" / f"{name}.yaml"
    return path if path.is_file() else None


def holds_set(path: Path) -> bool:
    """Whether a YAML file holds a set of courses rather than one.

    Raises:
        TraceError: it cannot be read, or is not YAML.
    """
    data = read_yaml(path)
    return isinstance(data, dict) and "courses" in data


def available_courses() -> list[str]:
    """Names of the courses that ship with the package; those of sets as ``set/course``."""
    from trace_ros.sim.course_set import CourseSet

    names: list[str] = []
    for path in sorted((config_directory() / "benchmark").glob("*.yaml")):
        names += CourseSet.load(path).full_names if holds_set(path) else [path.stem]
    return names


class PathFollower:
    """Turns a course's phases and the robot's true pose into velocity commands."""

    def __init__(self, course: Course, limits: FloatArray) -> None:
        """``limits``: (3,) largest vx, vy (m/s), wz (rad/s)."""
        self._course = course
        self._config = course.follower
        self._limits = limits
        self._index = 0
        self._stood = 0.0
        self._from = np.zeros(2)

    @property
    def done(self) -> bool:
        """Whether all phases are over."""
        return self._index >= len(self._course.phases)

    def command(self, position: FloatArray, yaw: float, period: float) -> FloatArray:
        """vx, vy (m/s), wz (rad/s) for the next ``period`` (s); ``position`` (2,) m."""
        while not self.done:
            phase = self._course.phases[self._index]
            if phase.walk_to is None:
                assert phase.stand is not None
                if self._stood < phase.stand:
                    self._stood += period
                    return np.zeros(3)
                self._stood = 0.0
            else:
                goal = np.asarray(phase.walk_to)
                along, length, direction = self._progress(position, goal)
                if along < length - self._config.arrival:
                    target = self._from + direction * min(max(along, 0.0) + self._config.look_ahead, length)
                    return self._pursue(target - position, yaw, phase)
                self._from = goal
            self._index += 1
            if self.done and self._course.repeat:
                self._index = 0
        return np.zeros(3)

    def _progress(self, position: FloatArray, goal: FloatArray) -> tuple[float, float, FloatArray]:
        line = goal - self._from
        length = float(np.linalg.norm(line))
        direction = line / length if length > 0 else np.array([1.0, 0.0])
        return float((position - self._from) @ direction), length, direction

    def _pursue(self, offset: FloatArray, yaw: float, phase: Phase) -> FloatArray:
        bearing = _wrapped(float(np.arctan2(offset[1], offset[0])) - yaw)
        error = bearing if phase.facing is None else _wrapped(phase.facing - yaw)
        velocity = np.zeros(2)
        if abs(error) <= self._config.turn_first:
            # Whoever faces the target walks ahead; turning brings the rest.
            aside = 0.0 if phase.facing is None else float(np.sin(bearing))
            velocity = phase.speed * np.array([float(np.cos(bearing)), aside])
            # Shortened as a whole: clipping one component would bend the path.
            velocity /= max(1.0, *(np.abs(velocity) / self._limits[:2]))
        return np.clip(np.array([*velocity, self._config.turn_gain * error]), -self._limits, self._limits)


def _wrapped(angle: float) -> float:
    """The same angle within [-pi, pi] (rad)."""
    return float(np.arctan2(np.sin(angle), np.cos(angle)))


def simulate_course(
    course: Course,
    robot: RobotDescription,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Rollout:
    """Walk a course once; deterministic in (course, robot, seed).

    Args:
        course: ground, path, sensors.
        robot: whom to simulate; its file must name a policy.
        seed: of the ground's randomness, the sensors and what else the course varies.
        progress: called now and then with the part done, 0 to 1.

    Returns:
        The whole course as one rollout; ``info`` has ``path_length_m``, ``finished`` and what was drawn.

    Raises:
        FallError: the robot fell.
        TraceError: there is no policy or engine for it.
    """
    policy = WalkingPolicy.load(robot)
    course = fit_to_robot(course, robot)
    # Courses of a set are walked with the same seeds, but each by robots of its own.
    rng = np.random.default_rng([seed, crc32(course.name.encode())])
    terrain = course.terrain(rng)
    variation = UNCHANGED if course.policy is None else draw_variation(course.policy, policy, rng)
    steps = int(np.ceil((course.settle + course.duration) * CONTROL_RATE_HZ - 1e-9))
    dynamics = _dynamics(course, robot, policy, rng)
    pushes, slips = np.zeros((steps, 6)), None
    if course.randomization is not None:
        duration = steps / CONTROL_RATE_HZ
        pushes = draw_pushes(course.randomization.push, course.settle, duration, CONTROL_RATE_HZ, rng)
        schedule = draw_slips(course.randomization.contact, duration, CONTROL_RATE_HZ, rng)
        slips = SlipProcess(np.array([dynamics.foot_friction]), [schedule])

    varied = RandomizedPolicy(policy, [variation], 1.0 / CONTROL_RATE_HZ)
    walk = Walk([Scene(terrain, dynamics)], varied, robot, course.physics, steps)
    walk.reset(*standing_pose([terrain], np.zeros((1, 2)), np.zeros(1), policy.default_joint_position, robot))
    follower = PathFollower(course, policy.command_limits)
    period = 1.0 / CONTROL_RATE_HZ
    settling = int(course.settle * CONTROL_RATE_HZ)
    walking = range(settling, steps - round(course.final_stand * CONTROL_RATE_HZ))
    stood = 0.0
    for step in range(steps):
        command = np.zeros(3)
        if step in walking:
            yaw = float(roll_pitch_yaw(walk.orientation[0])[2])
            command = follower.command(walk.position[0, :2], yaw, period)
        stood = 0.0 if command.any() else stood + period
        walk.step(command[None], np.array([stood > course.hold_after]), pushes[step][None], slips)
        if step and step % CONTROL_RATE_HZ == 0:
            _refuse_fall(course, walk.trace, (step - CONTROL_RATE_HZ, step), seed)
            if progress is not None:
                progress(step / steps)
    _refuse_fall(course, walk.trace, (steps - CONTROL_RATE_HZ, steps), seed)

    rate = course.physics.rate_hz
    first = round(course.settle * rate) - 1
    recording = record(
        walk.trace,
        0,
        (first, walk.trace.position.shape[1]),
        walk.joint_target[0],
        (policy.kp, policy.kd),
        robot,
        course.physics,
        course.sampling,
        course.sensors,
        course.contact_labels,
        rng,
    )
    measured, clean = recording.measured, recording.clean
    if progress is not None:
        progress(1.0)
    assert clean.reference is not None
    info: dict[str, float | str] = {
        "course": course.name,
        "seed": float(seed),
        "path_length_m": clean.reference.path_length_m,
        "finished": float(follower.done or course.repeat),
        "friction": dynamics.foot_friction,
        "action_scale": variation.scale,
        "low_pass": variation.low_pass,
    }
    info.update(recording.info)
    return Rollout(measured, clean, info)


def _dynamics(
    course: Course, robot: RobotDescription, policy: WalkingPolicy, rng: np.random.Generator
) -> RobotDynamics:
    if course.randomization is not None:
        return draw_dynamics(course.randomization, robot, policy, not course.patches, rng)
    nominal = nominal_dynamics(robot, policy)
    return RobotDynamics(
        nominal.kp,
        nominal.kd,
        nominal.torque_limit,
        foot_friction=course.foot_friction,
        foot_time_constant=course.foot_time_constant,
    )


def _refuse_fall(course: Course, trace: PhysicsTrace, steps: tuple[int, int], seed: int) -> None:
    """Look at these control steps, from the first and before the second."""
    start, end = (max(step, 0) * course.physics.steps_per_control for step in steps)
    part = PhysicsTrace(**{f.name: getattr(trace, f.name)[:, start:end] for f in fields(trace)})
    fall = int(first_fall(part, course.falls)[0])
    if fall < end - start:
        seconds = (start + fall) / course.physics.rate_hz - course.settle
        when = f"after {seconds:.1f} s" if seconds >= 0 else "before the start"
        raise FallError(
            f"course {course.name!r}: the robot fell {when} with seed {seed}; "
            "take another seed, a lower speed or easier ground"
        )
