"""The logs that a benchmark runs on: simulated walks, kept as bags, or bags of the user's.

A simulated walk lies in ``<kept>/<set>-<robot>-<engine>/<course>-<digest>/seed_<seed>``, a rosbag2 that any tool reads.
The digest changes with all that made it (`trace_ros.sim.course_set.set_digest`), so nothing stale is ever used. Which
feet touched the ground, for which there is no standard message, lies in the same folder as ``contact.npz``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from trace_ros.bags import ReadSettings, Topics, read_log, write_bag
from trace_ros.bags.files import file_kind
from trace_ros.bags.storage import is_bag, storage_files
from trace_ros.errors import FallError, TraceError
from trace_ros.evaluation.falls import keep_fall, kept_fall
from trace_ros.evaluation.runner import file_names
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.backend import BACKENDS, check_backend
from trace_ros.sim.course import Course, simulate_course
from trace_ros.sim.course_set import CourseSet, set_digest
from trace_ros.whole_files import DAMAGED_ARCHIVE

PAPER_ENGINES = ("mujoco", "bullet")
"""Physics that is simulated unless told otherwise."""

RECORDED = "recorded"
"""What stands for the engine of a log that was not simulated here."""

_CONTACT = "contact.npz"


@dataclass(frozen=True)
class Walk:
    """One log of the benchmark.

    Attributes:
        engine: physics that simulated it, or `RECORDED`.
        course: name of the course, or of the recorded log.
        seed: of the walk; 0 of a recorded log.
        log: where it lies or is to lie.
        key: name that changes with the log's content, fit for a file.
        plan: how to simulate it, or None: it is there.
        topics: of a recorded bag.
        reading: how its messages become samples, where not as usual.
    """

    engine: str
    course: str
    seed: int
    log: Path
    key: str
    plan: Course | None
    topics: Topics | None = None
    reading: ReadSettings | None = None

    @property
    def missing(self) -> bool:
        """Whether it is still to be simulated."""
        return self.plan is not None and not self._has_bag and self.fall is None

    @property
    def fall(self) -> FallError | None:
        """How the robot fell when it was simulated, if it did and no bag came of another try."""
        return None if self.plan is None or self._has_bag else kept_fall(self.log)

    @property
    def _has_bag(self) -> bool:
        return (self.log / "metadata.yaml").is_file()

    @property
    def name(self) -> str:
        """For messages and titles."""
        return self.course if self.engine == RECORDED else f"{self.course}, seed {self.seed}, {self.engine}"


def choose_engines(names: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Engines by name; None: those of `PAPER_ENGINES` that are installed.

    Returns:
        Engines, and a line for each that was left out.

    Raises:
        TraceError: an engine that is unknown or not installed, or none left.
    """
    engines, notes = [], []
    for name in PAPER_ENGINES if names is None else names:
        check_backend(name)
        package = BACKENDS[name][2]
        if find_spec(package) is not None:
            engines.append(name)
        elif names is not None:
            raise TraceError(f"--engines {name}: {package} is not installed: pip install {package}")
        else:
            notes.append(f"the engine {name} is left out: {package} is not installed")
    if not engines:
        raise TraceError(f"no engine to simulate with: {'; '.join(notes) or 'none was named'}")
    return engines, notes


def simulated_walks(courses: CourseSet, robot: RobotDescription, engines: Sequence[str], kept: Path) -> list[Walk]:
    """The walks of a set, engine by engine and course by course.

    Args:
        courses: is walked with each of its seeds.
        robot: whom to simulate.
        engines: names of `trace_ros.sim.backend.BACKENDS`.
        kept: folder of all that is kept.

    Raises:
        TraceError: unknown engine, or a file of the robot cannot be read.
    """
    walks = []
    for engine in engines:
        for course in courses.simulated_by(engine).courses:
            # Each course for itself: changing one leaves the walks of the others.
            alone = courses.model_copy(update={"courses": (course,)})
            digest = set_digest(alone, robot)
            folder = kept / f"{courses.name}-{robot.name}-{engine}" / f"{course.name}-{digest}"
            walks += [
                Walk(engine, course.name, seed, folder / f"seed_{seed}", f"{course.name}-{digest}-{seed}", course)
                for seed in courses.seeds
            ]
    return walks


def recorded_walks(folder: Path, topics: Topics | None = None, reading: ReadSettings | None = None) -> list[Walk]:
    """The logs in a folder, by name, or the one bag that it is; all are read in the same way.

    Logs are rosbag2 directories, ``.mcap``, ``.db3`` and ``.npz`` files.

    Raises:
        TraceError: missing, or without logs.
    """
    if not folder.exists():
        raise TraceError(f"{folder}: no such file or directory")
    paths = [folder]
    if folder.is_dir() and not is_bag(folder):
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".npz" or is_bag(path))
    elif folder.is_dir() and not (folder / "metadata.yaml").is_file():
        paths = storage_files(folder)  # bare files side by side are recordings of their own
    if not paths:
        raise TraceError(f"{folder}: holds no log (rosbag2 directories, .mcap, .db3 or .npz files)")
    names = file_names([path.resolve().stem for path in paths])
    return [
        Walk(RECORDED, name, 0, path, f"{name}-{_recording_digest(path, topics, reading)}", None, topics, reading)
        for path, name in zip(paths, names, strict=True)
    ]


def _recording_digest(path: Path, topics: Topics | None, reading: ReadSettings | None) -> str:
    digest = hashlib.sha256((topics or Topics()).model_dump_json().encode())
    if reading is not None:
        digest.update(reading.model_dump_json().encode())
    for file in storage_files(path) or [path]:
        status = file.stat()  # gigabytes are not read twice only to know whether they changed
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:8]


def walk_log(walk: Walk, robot: RobotDescription, progress: Callable[[float], None] | None = None) -> SensorLog:
    """The log of a walk as it lies in its bag; simulates it first where it is missing or damaged.

    Args:
        walk: which.
        robot: whose.
        progress: called now and then with the part done, 0 to 1.

    Raises:
        FallError: the robot fell, now or when the walk was simulated before: that is kept too.
        TraceError: the log cannot be read or written; or a recorded one has no reference.
    """
    if walk.plan is None:
        log, _ = read_log(walk.log, robot, walk.topics, walk.reading)
        poses = 0 if log.reference is None else len(log.reference)
        if poses < 2:
            wanted = "reference/odom" if walk.topics is None else walk.topics.reference
            hint = f"record {wanted}, or give --reference-topic" if file_kind(walk.log) == "bag" else "take it away"
            what = "one pose of a reference only" if poses else "no reference"
            raise TraceError(f"{walk.log}: has {what}, so nothing can be compared: {hint}")
        return log
    if not walk.missing:
        try:
            return _read(walk, robot)
        except TraceError:
            shutil.rmtree(walk.log, ignore_errors=True)  # a damaged bag in the cache is worth as much as none
    if (fall := walk.fall) is not None:
        raise fall
    try:
        measured = simulate_course(walk.plan, robot, walk.seed, progress).measured
    except FallError as now:
        keep_fall(walk.log, now)
        raise
    _keep(walk, measured, robot)
    return _read(walk, robot)


def _read(walk: Walk, robot: RobotDescription) -> SensorLog:
    log, _ = read_log(walk.log, robot)
    if log.reference is None:
        raise TraceError(f"{walk.log}: has no reference")
    try:
        with np.load(walk.log / _CONTACT, allow_pickle=False) as arrays:
            contact = np.unpackbits(arrays["contact"], axis=0, count=len(log)).astype(bool)
    except DAMAGED_ARCHIVE as error:
        raise TraceError(f"{walk.log / _CONTACT}: cannot be read ({error})") from error
    return replace(log, contact=contact)


def _keep(walk: Walk, log: SensorLog, robot: RobotDescription) -> None:
    """Write the bag whole or not at all; another command may be writing the same one."""
    workshop = walk.log.parent / f".partial-{os.getpid()}"
    bag = workshop / walk.log.name
    assert log.contact is not None
    try:
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir(parents=True)
        write_bag(bag, log, robot)
        np.savez_compressed(bag / _CONTACT, contact=np.packbits(log.contact, axis=0))
        try:
            bag.rename(walk.log)
        except OSError:
            if walk.missing:
                raise
    except OSError as error:
        raise TraceError(f"{walk.log}: cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
