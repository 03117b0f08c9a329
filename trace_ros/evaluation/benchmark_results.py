"""What is kept of one method on one walk: its row of figures, a curve to draw, and the windows where it was worst."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trace_ros.evaluation.benchmark_methods import Method
from trace_ros.evaluation.benchmark_walks import Walk
from trace_ros.evaluation.figures import smoothed_attention, thinned
from trace_ros.evaluation.metrics import Comparison, MetricSettings, relative_errors
from trace_ros.evaluation.runner import Evaluation, InitialPose
from trace_ros.geometry import FloatArray
from trace_ros.robot import RobotDescription
from trace_ros.whole_files import DAMAGED_ARCHIVE, whole_file

Row = dict[str, Any]
"""``engine``, ``course``, ``method``, ``seed``, ``path_length_m``, ``ate_position_m``, ``ate_velocity_mps``,
``ate_orientation_rad``, ``re10_position_m`` (``mean``, ``std``, ``p90``), and the means ``re10_velocity_mps`` and
``re10_orientation_rad``. None: the method gives no velocity, or the log is shorter than ten seconds."""

METRICS = MetricSettings()
"""How all methods are compared: the defaults of ``trace evaluate``."""

INITIAL: InitialPose = "gravity"
"""Where all methods start: level by gravity, at the origin."""

WORST = 5
"""Windows in the gallery."""

_CURVE_POINTS = 500
_WINDOW_POINTS = 500
_ATTENTION_WINDOW_S = 0.1
_FOLDERS = ("bags", "streams", "estimator", "baselines")
_FILES = (
    *("evaluation/alignment", "evaluation/metrics", "evaluation/runner", "checks/footing"),
    *("geometry", "leg_model", "logs", "robot", "urdf"),
)
_LIBRARIES = ("numpy", "scipy", "torch", "rosbags")


@dataclass(frozen=True)
class Window:
    """Ten seconds of a run.

    Attributes:
        walk: engine, course and seed in words.
        start_s: s from the first sample of the log.
        error_m: relative error of the position at its end.
        time_s: (K,) s from the window's start.
        attention: (K, 6) over `trace_ros.estimator.network.TOKEN_NAMES`, averaged over 0.1 s.
        contact: (K, 4) bool, by the simulator's labels; None of a recorded log.
        speed_mps, true_speed_mps: (K,) estimated and true speed of the body.
        growth_m: (K,) error of the displacement since the window's start.
    """

    walk: str
    start_s: float
    error_m: float
    time_s: FloatArray
    attention: FloatArray
    contact: NDArray[np.bool_] | None
    speed_mps: FloatArray
    true_speed_mps: FloatArray
    growth_m: FloatArray


@dataclass(frozen=True)
class Result:
    """One method on one walk.

    Attributes:
        row: its figures.
        time_s: (K,) s from the first sample of the log.
        position, reference: (K, 3) m; the aligned estimate, and the truth.
        windows: the worst of a method with attention, the worst first.
    """

    row: Row
    time_s: FloatArray
    position: FloatArray
    reference: FloatArray
    windows: tuple[Window, ...] = ()


def result_of(walk: Walk, method: Method, evaluation: Evaluation, has_velocity: bool) -> Result:
    """What to keep of an evaluation against a reference."""
    metrics, comparison = evaluation.metrics, evaluation.comparison
    assert metrics is not None
    assert comparison is not None
    relative = metrics.re_position_m
    row: Row = {
        "engine": walk.engine,
        "course": walk.course,
        "method": method.label,
        "seed": walk.seed,
        "path_length_m": metrics.path_length_m,
        "ate_position_m": metrics.ate_position_m,
        "ate_velocity_mps": metrics.ate_velocity_mps if has_velocity else None,
        "ate_orientation_rad": metrics.ate_orientation_rad,
        "re10_position_m": None if relative is None else relative.model_dump(),
        "re10_velocity_mps": metrics.re_velocity_mps.mean if metrics.re_velocity_mps and has_velocity else None,
        "re10_orientation_rad": metrics.re_orientation_rad.mean if metrics.re_orientation_rad else None,
    }
    assert evaluation.log is not None
    index = thinned(len(comparison.aligned), _CURVE_POINTS)
    return Result(
        row,
        (comparison.aligned.stamp_ns[index] - evaluation.log.stamp_ns[0]) * 1e-9,
        comparison.aligned.position[index],
        comparison.reference.position[index],
        tuple(_worst_windows(walk, evaluation, comparison)) if evaluation.attention is not None and relative else (),
    )


def worst_starts(start: NDArray[np.int_], end: NDArray[np.int_], error: FloatArray, count: int) -> list[int]:
    """Indices of the intervals with the largest errors, none of which overlap; the worst first.

    Args:
        start, end: (P,) increasing indices of poses.
        error: (P,).
        count: at most so many.
    """
    free = np.ones(len(error), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < count and free.any():
        worst = int(np.argmax(np.where(free, error, -np.inf)))
        chosen.append(worst)
        free &= (end <= start[worst]) | (start >= end[worst])
    return chosen


def _worst_windows(walk: Walk, evaluation: Evaluation, comparison: Comparison) -> list[Window]:
    log, trajectory = evaluation.log, evaluation.trajectory
    estimate, truth = comparison.estimate, comparison.reference
    assert log is not None
    errors = relative_errors(estimate, truth, METRICS.horizon_s, METRICS.pair_tolerance_s)
    attention = smoothed_attention(evaluation, _ATTENTION_WINDOW_S)
    windows = []
    for pair in worst_starts(errors.start, errors.end, errors.position, WORST):
        first, last = int(errors.start[pair]), int(errors.end[pair])
        index = first + thinned(last - first + 1, _WINDOW_POINTS)
        stamps = estimate.stamp_ns[index]
        displacements = [
            each.rotation_world_body[first].inv().apply(each.position[index] - each.position[first])
            for each in (estimate, truth)
        ]
        contact = None if log.contact is None else log.contact[np.searchsorted(log.stamp_ns, stamps)]
        windows.append(
            Window(
                walk.name,
                float(stamps[0] - log.stamp_ns[0]) * 1e-9,
                float(errors.position[pair]),
                (stamps - stamps[0]) * 1e-9,
                attention[np.searchsorted(trajectory.stamp_ns, stamps)],
                contact,
                np.linalg.norm(estimate.velocity[index], axis=1),
                np.linalg.norm(truth.velocity[index], axis=1),
                np.linalg.norm(displacements[0] - displacements[1], axis=1),
            )
        )
    return windows


def worst_of_all(results: Sequence[Result]) -> list[Window]:
    """The worst windows over all runs, the worst first."""
    windows = [window for result in results for window in result.windows]
    return sorted(windows, key=lambda window: -window.error_m)[:WORST]


def result_folder(method: Method, robot: RobotDescription, kept: Path) -> Path:
    """Where a method's results are kept: a name that changes with all that they depend on besides the walk.

    Raises:
        TraceError: the model cannot be read.
    """
    digest = hashlib.sha256(_code_digest())
    for part in (method.digest, method.numbers, METRICS.model_dump_json(), INITIAL):
        digest.update(part.encode())
    own = robot.model_dump(mode="json", exclude={"urdf", "policy", "other_policies"})
    digest.update(json.dumps(own, sort_keys=True).encode() + robot.urdf.read_bytes())
    return kept / "results" / f"{method.estimator}-{digest.hexdigest()[:8]}"


def result_file(walk: Walk, folder: Path) -> Path:
    """The file of a walk in a method's folder."""
    return folder / f"{walk.engine}-{walk.key}.npz"


def code_files() -> list[Path]:
    """All code between a log's file and its figures."""
    package = Path(__file__).resolve().parents[1]
    folders = [path for name in _FOLDERS for path in sorted((package / name).glob("*.py"))]
    return [*folders, *(package / f"{name}.py" for name in _FILES), Path(__file__).resolve()]


@cache
def _code_digest() -> bytes:
    """Of `code_files`, and the libraries below them."""
    digest = hashlib.sha256()
    for path in code_files():
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(" ".join(metadata.version(library) for library in _LIBRARIES).encode())
    return digest.digest()


def save_result(path: Path, result: Result) -> None:
    """Keep a result.

    Raises:
        OSError: the file cannot be written.
    """
    arrays = {
        "row": np.array(json.dumps(result.row)),
        "time_s": result.time_s,
        "position": result.position.astype(np.float32),
        "reference": result.reference.astype(np.float32),
    }
    for index, window in enumerate(result.windows):
        for name, value in asdict(window).items():
            if value is not None:
                arrays[f"window{index}_{name}"] = np.asarray(value)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_result(path: Path, method: Method) -> Result | None:
    """A kept result under the method's label; None: there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            windows: list[Window] = []
            while f"window{len(windows)}_walk" in arrays:
                windows.append(_load_window(arrays, f"window{len(windows)}_"))
            row = json.loads(str(arrays["row"])) | {"method": method.label}
            return Result(row, arrays["time_s"], arrays["position"], arrays["reference"], tuple(windows))
    except DAMAGED_ARCHIVE:
        return None


def _load_window(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Window:
    return Window(
        str(arrays[f"{prefix}walk"]),
        float(arrays[f"{prefix}start_s"]),
        float(arrays[f"{prefix}error_m"]),
        arrays[f"{prefix}time_s"],
        arrays[f"{prefix}attention"],
        arrays.get(f"{prefix}contact"),
        arrays[f"{prefix}speed_mps"],
        arrays[f"{prefix}true_speed_mps"],
        arrays[f"{prefix}growth_m"],
    )
