#!/usr/bin/env python3
"""The proof of ``trace finetune``: a simulated robot's own logs make the model better on other ground.

    python tools/finetuning_proof.py --output out/finetuning

Four stages, each kept: (1) PyBullet walks of a robot whose motors and sensors training did not simulate, as bags with
the reference of a LiDAR odometry to train on, and with the truth to test on; (2) ``trace finetune`` in each mode;
(3) every model on every test course, by the code of ``trace benchmark``; (4) finetuning.json and a table. Stopped with
Ctrl-C, the same command goes on. Courses stand in config/benchmark/finetuning_logs.yaml and finetuning.yaml, the
robot's own faults and its reference in tools/finetuning_proof.yaml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.spatial.transform import Rotation

from trace_ros.bags import write_bag
from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.learned import load_learned
from trace_ros.baselines.legolas_at_once import run_legolas
from trace_ros.baselines.registry import TRACE
from trace_ros.cli.common import console, progress_bar, say, write_json
from trace_ros.errors import TraceError
from trace_ros.evaluation.benchmark import benchmark_runs, run_benchmark
from trace_ros.evaluation.benchmark_methods import Method
from trace_ros.evaluation.benchmark_results import INITIAL, METRICS, Result, Row, result_of
from trace_ros.evaluation.benchmark_tables import figure_of, mean_rows
from trace_ros.evaluation.benchmark_walks import Walk, recorded_walks, walk_log
from trace_ros.evaluation.report import package_versions
from trace_ros.evaluation.runner import evaluate_odometry
from trace_ros.logs import LEGS, SensorLog, Trajectory
from trace_ros.resources import models_directory, read_yaml
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.sim.course import Course, Phase, simulate_course
from trace_ros.sim.course_set import CourseSet, set_digest
from trace_ros.sim.ranges import PositiveRange, draw

ROBOT = "go2"
LOGS, TESTS = "finetuning_logs", "finetuning"
"""Sets of courses."""
PROPOSED, ZERO_SHOT, FULL, LEGOLAS = "finetuned", "zero_shot", "full_finetuned", "legolas_finetuned"
"""``method`` of a row."""
MODES = {PROPOSED: "partial", FULL: "full", LEGOLAS: "partial"}
_STAGES = ("logs", "finetune", "evaluate")
_NAMES = {PROPOSED: "proposed", ZERO_SHOT: "w/o FT", FULL: "full FT", LEGOLAS: "Legolas-FT"}
_FIGURES = (
    ("ate_position_m", "ATE (pos)"),
    ("ate_velocity_mps", "ATE (vel)"),
    ("ate_orientation_rad", "ATE (ori)"),
    ("re10_position_m", "RE (pos)"),
    ("re10_velocity_mps", "RE (vel)"),
    ("re10_orientation_rad", "RE (ori)"),
)
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

Probability = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Triple = tuple[float, float, float]


class Seeds(BaseModel):
    """Of the logs.

    Attributes:
        training, validation: by what they are for.
        validation_duration: s; those need not be as long as the course says.
    """

    model_config = _STRICT
    training: tuple[int, ...]
    validation: tuple[int, ...]
    validation_duration: Positive

    def duration(self, seed: int, usual: float) -> float:
        """Of a log, s."""
        return self.validation_duration if seed in self.validation else usual


class Tour(BaseModel):
    """A random walk within a square.

    Attributes:
        reach: m, half the square's side.
        nearest: m, from one target to the next at least.
        speed: m/s, [low, high].
        any_heading: probability that the robot keeps a random heading on its way.
        stand: probability that it stands before it walks on, for ``stand_for`` s, [low, high].
    """

    model_config = _STRICT
    reach: Positive
    nearest: Positive
    speed: PositiveRange
    any_heading: Probability
    stand: Probability
    stand_for: PositiveRange

    def phases(self, course: Course, seed: int) -> tuple[Phase, ...]:
        """The course's own phases, and then random ones for longer than it lasts."""
        rng = np.random.default_rng([seed, crc32(f"tour {course.name}".encode())])
        phases, time, at = list(course.phases), 0.0, np.zeros(2)
        while time < 2 * course.duration:
            if rng.random() < self.stand:
                phases.append(Phase(stand=draw(rng, self.stand_for)))
            target = rng.uniform(-self.reach, self.reach, 2)
            while np.linalg.norm(target - at) < self.nearest:
                target = rng.uniform(-self.reach, self.reach, 2)
            speed = draw(rng, self.speed)
            facing = float(rng.uniform(-np.pi, np.pi)) if rng.random() < self.any_heading else None
            phases.append(Phase(walk_to=(float(target[0]), float(target[1])), speed=speed, facing=facing))
            time += float(np.linalg.norm(target - at)) / speed
            at = target
        return tuple(phases)


class OwnFaults(BaseModel):
    """What is constantly wrong with this robot's sensors.

    Attributes:
        encoder_offset: rad; hip, thigh and calf of each leg.
        imu_rpy: rad; how the IMU is turned in the base.
    """

    model_config = _STRICT
    encoder_offset: tuple[Triple, Triple, Triple, Triple]
    imu_rpy: Triple

    def read(self, log: SensorLog) -> SensorLog:
        """A log as this robot's sensors give it."""
        turn = Rotation.from_euler("xyz", self.imu_rpy).inv()
        return replace(
            log,
            angular_velocity=turn.apply(log.angular_velocity),
            linear_acceleration=turn.apply(log.linear_acceleration),
            joint_position=log.joint_position + np.array(self.encoder_offset).reshape(3 * LEGS),
        )


class Odometry(BaseModel):
    """The reference of the logs.

    Attributes:
        rate: Hz.
        position_noise, rotation_noise: m and rad, white, each axis.
        latency: s, by which its stamps are late.
    """

    model_config = _STRICT
    rate: Positive
    position_noise: NotNegative
    rotation_noise: NotNegative
    latency: float

    def of(self, truth: Trajectory, rng: np.random.Generator) -> Trajectory:
        """What it makes of the truth."""
        period = round(1e9 / self.rate)
        stamps = np.arange(truth.stamp_ns[0], truth.stamp_ns[-1], period)
        at, _ = truth.resample(stamps)
        shape = at.position.shape
        turned = at.rotation_world_body * Rotation.from_rotvec(rng.normal(0.0, 1.0, shape) * self.rotation_noise)
        return Trajectory(
            at.stamp_ns + round(self.latency * 1e9),
            at.position + rng.normal(0.0, 1.0, shape) * self.position_noise,
            turned.as_quat(),
            np.zeros(shape),
        )


class Proof(BaseModel):
    """What tools/finetuning_proof.yaml holds."""

    model_config = _STRICT
    seeds: Seeds
    tour: Tour
    robot: OwnFaults
    reference: Odometry

    @classmethod
    def load(cls, path: Path) -> Proof:
        """Read it.

        Raises:
            TraceError: no such file, or an unknown or bad key.
        """
        try:
            return cls.model_validate(read_yaml(path))
        except ValidationError as error:
            raise TraceError(f"{path}: {describe_validation_error(error)}") from error


class Logs:
    """The simulated bags in a folder; a name that changes with all that they are made from keeps stale ones out."""

    def __init__(self, proof: Proof, robot: RobotDescription, folder: Path) -> None:
        self._proof, self._robot = proof, robot
        self._sets = {name: CourseSet.load(name) for name in (LOGS, TESTS)}
        self._folders = {name: folder / f"{name}-{self._digest(courses)}" for name, courses in self._sets.items()}

    def _digest(self, courses: CourseSet) -> str:
        told = set_digest(courses, self._robot) + self._proof.model_dump_json()
        return hashlib.sha256(told.encode()).hexdigest()[:8]

    def paths(self, courses: str, seeds: Sequence[int] | None = None) -> list[Path]:
        """Bags of a set, present or to be made."""
        chosen, folder = self._sets[courses], self._folders[courses]
        return [folder / f"{c.name}_{seed}" for c in chosen.courses for seed in (seeds or chosen.seeds)]

    def folder(self, courses: str) -> Path:
        """Of a set."""
        return self._folders[courses]

    def make(self, courses: str, seeds: Sequence[int] | None = None) -> None:
        """Simulate what is missing.

        Raises:
            TraceError: the robot fell, or a bag cannot be written.
        """
        missing = [path for path in self.paths(courses, seeds) if not path.exists()]
        if not missing:
            return
        with progress_bar() as progress:
            for path in missing:
                task = progress.add_task(path.name, total=1.0)
                self._make(courses, path, lambda part, task=task: progress.update(task, completed=part))  # type: ignore[misc]
                say(f"simulated {path}")

    def _make(self, courses: str, path: Path, progress: Callable[[float], None]) -> None:
        name, _, number = path.name.rpartition("_")
        course, seed = self._sets[courses].course(name), int(number)
        if courses == LOGS:
            own = self._proof.seeds.duration(seed, course.duration)
            course = course.model_copy(update={"duration": own, "phases": self._proof.tour.phases(course, seed)})
        measured = simulate_course(course, self._robot, seed, progress).measured
        log = self._proof.robot.read(measured)
        if courses == LOGS:
            assert log.reference is not None
            rng = np.random.default_rng([seed, crc32(f"reference {name}".encode())])
            log = replace(log, reference=self._proof.reference.of(log.reference, rng))
        workshop = path.parent.with_name(f".partial-{path.parent.name}-{path.name}")
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir(parents=True)
        path.parent.mkdir(exist_ok=True)
        write_bag(workshop / path.name, log, self._robot)
        (workshop / path.name).rename(path)
        shutil.rmtree(workshop)


class Runs:
    """The fine-tuning runs in a folder, each by the command line as a user would give it."""

    def __init__(self, logs: Logs, proof: Proof, folder: Path, models: dict[str, Path], changes: Sequence[str]) -> None:
        self._logs, self._proof, self._folder, self._models, self._changes = logs, proof, folder, models, changes

    def model(self, method: str) -> Path:
        """What a method runs with; without fine-tuning, its base."""
        base = self._models[method]
        return base if method == ZERO_SHOT else self._folder / method / base.name

    def report(self, method: str) -> dict[str, Any] | None:
        """Of a run that came to its end."""
        path = self._folder / method / "report.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def make(self, method: str) -> None:
        """Fine-tune, or go on with it.

        Raises:
            TraceError: it failed.
        """
        if self.report(method) is not None:
            return
        output, seeds = self._folder / method, self._proof.seeds
        command = ["finetune", "--output", str(output)]
        if (output / "checkpoint.pt").is_file():
            command.append("--resume")
        else:
            command += ["--robot", ROBOT, "--model", str(self._models[method]), "--mode", MODES[method]]
            for option, own in (("--logs", seeds.training), ("--validation", seeds.validation)):
                command += [option, *map(str, self._logs.paths(LOGS, own))]
            for change in self._changes:
                command += ["--set", change]
        say(f"{method}: trace {shlex.join(command)}")
        code = subprocess.run([sys.executable, "-m", "trace_ros.cli", *command], check=False).returncode
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise TraceError(f"{method}: trace finetune failed with exit code {code}")

    def summary(self, method: str) -> dict[str, Any] | None:
        """What a run was, and what it did to the validation logs."""
        report = self.report(method)
        if report is None:
            return None
        history, best = report["history"], report["best_epoch"]
        return {
            "base": report["base"]["weights"],
            "config": report["config"],
            "windows": report["windows"],
            "epochs": len(history) - 1,
            "best_epoch": best,
            "updates": report["updates"],
            "hours": report["training_hours"],
            "validation_re10_m": {
                "before": history[0]["validation_position_m"],
                "after": history[best]["validation_position_m"],
            },
            "notes": {Path(log["path"]).name: log["notes"] for log in report["logs"]},
        }


def judge(logs: Logs, runs: Runs, methods: Sequence[str], robot: RobotDescription, folder: Path) -> list[Row]:
    """Rows as ``trace benchmark`` makes them: every method on every test walk.

    Raises:
        TraceError: a model or log cannot be read.
    """
    walks = recorded_walks(logs.folder(TESTS))
    chosen = [Method(method, TRACE, runs.model(method)) for method in methods if method != LEGOLAS]
    with progress_bar() as progress:
        task = progress.add_task("evaluating", total=1.0)
        results = run_benchmark(
            benchmark_runs(walks, chosen, robot, folder),
            robot,
            progress=lambda part: progress.update(task, completed=part),
        )
    if LEGOLAS in methods:
        results += [_legolas_result(walk, runs.model(LEGOLAS), robot) for walk in walks]
    rows = []
    for result in results:
        course, _, seed = result.row["course"].rpartition("_")
        rows.append({**result.row, "engine": "bullet", "course": course, "seed": int(seed)})
    order = {name: index for index, name in enumerate(_NAMES)}
    return sorted(rows, key=lambda row: (_course_order(row["course"]), order[row["method"]], row["seed"]))


def _legolas_result(walk: Walk, model: Path, robot: RobotDescription) -> Result:
    """As `run_benchmark` gives it, with the whole log run at once."""
    log = walk_log(walk, robot)
    trajectory = run_legolas(load_learned(model, LegolasCard), log)
    evaluation = evaluate_odometry(walk.name, LEGOLAS, trajectory, log, METRICS)
    return result_of(walk, Method(LEGOLAS, "legolas", model), evaluation, has_velocity=False)


def _course_order(name: str) -> int:
    return [course.name for course in CourseSet.load(TESTS).courses].index(name)


def verdict(rows: Sequence[Row]) -> dict[str, Any]:
    """How the proposed compares: ATE and RE of the position against the others, by course, and on average."""
    means = {(row["course"], row["method"]): row for row in mean_rows(rows)}
    courses = list(dict.fromkeys(course for course, _ in means))
    found: dict[str, Any] = {}
    for other in (ZERO_SHOT, FULL, LEGOLAS):
        pairs = [(means[c, PROPOSED], means[c, other]) for c in courses if {(c, PROPOSED), (c, other)} <= set(means)]
        if not pairs:
            continue
        own: dict[str, Any] = {}
        for key in ("ate_position_m", "re10_position_m"):
            values = [(figure_of(mine, key), figure_of(theirs, key)) for mine, theirs in pairs]
            changes = [a / b - 1 for a, b in values if a is not None and b]
            own[key] = {
                "change": dict(zip([mine["course"] for mine, _ in pairs], changes, strict=True)),
                "mean_change": float(np.mean(changes)),
                "change_of_means": float(sum(a for a, _ in values if a) / sum(b for _, b in values if b) - 1),
            }
        found[other] = own
    return found


def table(rows: Sequence[Row]) -> str:
    """Means over the seeds as Markdown, the best of each course and figure in bold."""
    means = mean_rows(rows)
    lines = [f"| course | method | {' | '.join(name for _, name in _FIGURES)} |", "|---|---|" + "---:|" * len(_FIGURES)]
    for mean in means:
        cells = []
        for key, _ in _FIGURES:
            value = figure_of(mean, key)
            others = [figure_of(other, key) for other in means if other["course"] == mean["course"]]
            best = value is not None and value == min(each for each in others if each is not None)
            cells.append("-" if value is None else f"**{value:.4f}**" if best else f"{value:.4f}")
        lines.append(f"| {mean['course']} | {_NAMES[mean['method']]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("out/finetuning"), help="folder of all that is kept")
    parser.add_argument("--methods", default=",".join(_NAMES), help=f"of {', '.join(_NAMES)}")
    parser.add_argument("--stage", choices=_STAGES, help="this one alone; its inputs must be there")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="of trace finetune: key=value")
    parser.add_argument("--model", type=Path, help="of TRACE [models/go2/trace.pt]")
    parser.add_argument("--legolas", type=Path, help="of Legolas [models/go2/legolas.pt]")
    parser.add_argument("--json", type=Path, help="rows and settings, such as docs/finetuning.json")
    given = parser.parse_args()
    methods = given.methods.split(",")
    if unknown := [method for method in methods if method not in _NAMES]:
        raise TraceError(f"--methods: {unknown[0]!r} is none of {', '.join(_NAMES)}")
    robot = RobotDescription.load(ROBOT)
    proof = Proof.load(Path(__file__).with_suffix(".yaml"))
    logs = Logs(proof, robot, given.output)
    base = given.model or models_directory() / ROBOT / "trace.pt"
    models = {method: base for method in _NAMES}
    models[LEGOLAS] = given.legolas or models_directory() / ROBOT / "legolas.pt"
    runs = Runs(logs, proof, given.output / "runs", models, given.changes)
    stages = _STAGES if given.stage is None else (given.stage,)
    if "logs" in stages:
        logs.make(LOGS, (*proof.seeds.training, *proof.seeds.validation))
        logs.make(TESTS)
    if "finetune" in stages:
        for method in methods:
            if method != ZERO_SHOT:
                runs.make(method)
    if "evaluate" not in stages:
        return
    rows = judge(logs, runs, methods, robot, given.output / "kept")
    compared = verdict(rows)
    data = {
        "rows": rows,
        "means": mean_rows(rows),
        "finetuned_against": compared,
        "finetuning": {method: runs.summary(method) for method in methods if method != ZERO_SHOT},
        "settings": {
            "command": shlex.join(["python", "tools/finetuning_proof.py", *sys.argv[1:]]),
            "robot": ROBOT,
            "engine": "bullet",
            "proof": proof.model_dump(mode="json"),
            "metrics": METRICS.model_dump(mode="json"),
            "initial": INITIAL,
            "versions": package_versions(),
        },
    }
    target = given.json or given.output / "finetuning.json"
    write_json(target, data)
    console.print(table(rows), highlight=False, soft_wrap=True)
    for other, own in compared.items():
        for key, values in own.items():
            each = ", ".join(f"{course} {100 * change:+.1f} %" for course, change in values["change"].items())
            say(f"proposed against {_NAMES[other]}, {key}: {each}; mean {100 * values['mean_change']:+.1f} %")
    console.print(f"wrote {target}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except TraceError as error:
        say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        sys.exit(130)
