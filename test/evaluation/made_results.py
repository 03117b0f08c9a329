"""Results of a benchmark without running one: figures by formula, curves and windows without meaning."""

from __future__ import annotations

import numpy as np

from trace_ros.evaluation.benchmark_results import Result, Row, Window

METHODS = {"trace": 1.0, "iekf_sr": 2.0, "legolas": 4.0, "nmn_iekf": 3.0}
COURSES = {"flat": 0.1, "soft": 0.3, "stairs": 0.2}


def row(engine: str, course: str, method: str, seed: int) -> Row:
    scale = METHODS[method] * COURSES[course] * (1 + 0.1 * seed)
    has_velocity = method != "legolas"
    return {
        "engine": engine,
        "course": course,
        "method": method,
        "seed": seed,
        "path_length_m": 40.0 + seed,
        "ate_position_m": scale,
        "ate_velocity_mps": scale / 2 if has_velocity else None,
        "ate_orientation_rad": scale / 3,
        "re10_position_m": {"mean": scale / 4, "std": scale / 8, "p90": scale / 2},
        "re10_velocity_mps": scale / 5 if has_velocity else None,
        "re10_orientation_rad": scale / 6,
    }


def rows(engines: tuple[str, ...] = ("mujoco", "bullet"), seeds: tuple[int, ...] = (1, 2)) -> list[Row]:
    return [row(e, c, m, s) for e in engines for c in COURSES for s in seeds for m in METHODS]


def window(walk: str, error: float, contact: bool = True) -> Window:
    rng = np.random.default_rng(0)
    time = np.linspace(0, 10, 120)
    attention = rng.random((120, 6))
    touching = rng.random((120, 4)) < 0.6
    return Window(
        walk,
        12.5,
        error,
        time,
        attention / attention.sum(axis=1, keepdims=True),
        touching if contact else None,
        0.6 + 0.1 * rng.random(120),
        np.full(120, 0.6),
        error * time / 10,
    )


def results() -> list[Result]:
    """Of two engines; only TRACE has windows, three of a walk."""
    time = np.linspace(0, 60, 100)
    truth = np.stack((np.cos(time / 9), np.sin(time / 9), 0.3 + 0 * time), axis=1)
    found = []
    for each in rows():
        error = each["ate_position_m"]
        name = f"{each['course']}, seed {each['seed']}, {each['engine']}"
        windows = tuple(window(name, error * k) for k in (3, 2, 1)) if each["method"] == "trace" else ()
        found.append(Result(each, time, truth + error * time[:, None] / 60, truth, windows))
    return found
