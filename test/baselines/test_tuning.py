"""tools/tune_filters.py and its compiled filter."""

import json
import math
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from loaded_tools import load_tool

from trace_ros.baselines.config import BaselineConfig
from trace_ros.baselines.iekf import Iekf, IekfSlipRejection
from trace_ros.errors import TraceError
from trace_ros.estimator.run import run_estimator


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("tune_filters")


@pytest.fixture(scope="module")
def kernel(tool, go2, tmp_path_factory):
    return tool.FilterKernel(go2, tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def part(walked):
    """Two seconds in which the robot starts to walk."""
    return walked.measured.select(slice(400, 1400))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Iekf, {"slip_direction": "any"}),
        (IekfSlipRejection, {"slip_speed": 0.05}),  # so that feet slip often
        (IekfSlipRejection, {"slip_speed": 0.01, "slip_patience": 0.02}),  # and all of them at once
    ],
)
def test_the_compiled_filter_is_the_estimator(tool, kernel, part, go2, kind, changes):
    config = BaselineConfig.load()
    config = BaselineConfig.model_validate(config.model_dump() | changes)
    log = tool.prepare("walk", part, go2, config.contact.rotor_inertia)
    found = kernel.run(log, config, kind.rejects_slip)
    true = run_estimator(kind(go2, config), part).trajectory
    same = np.isin(true.stamp_ns, found.stamp_ns)
    assert same.sum() == len(found) == math.ceil((len(part) - 29) / 10)
    np.testing.assert_allclose(found.position, true.position[same], atol=1e-7)
    np.testing.assert_allclose(found.velocity, true.velocity[same], atol=1e-7)
    np.testing.assert_allclose(np.abs((found.orientation * true.orientation[same]).sum(axis=1)), 1, atol=1e-12)


def test_a_kernel_that_is_out_of_date_is_refused(tool, kernel, part, go2, monkeypatch):
    config = BaselineConfig.load()
    numbers = kernel._numbers
    monkeypatch.setattr(kernel, "_numbers", lambda *given: numbers(*given) * 1.01)
    with pytest.raises(TraceError, match=r"differs from the estimator by .* m"):
        tool.check(kernel, part, go2, config)


def test_logs_without_torque_or_with_gaps_are_refused(tool, part, go2):
    with pytest.raises(TraceError, match="needs joint velocities, joint torques"):
        tool.prepare("poor", replace(part, joint_torque=None, torque_source="none"), go2, 0.01)
    keep = np.ones(len(part), dtype=bool)
    keep[300:400] = False
    with pytest.raises(TraceError, match=r"gap of 0\.20\d s"):
        tool.prepare("holes", part.select(keep), go2, 0.01)


def test_candidates_stay_in_range_and_follow_from_the_seed(tool):
    search = tool.Search(seeds=[1], steps=[0.01, 1.0], changed=0.5, numbers={"a": (1e-3, 1.0), "b": (2.0, 3.0)})
    values = {"a": 0.5, "b": 2.5}
    drawn = [tool.candidates(search, values, [1, turn]) for turn in range(50)]
    assert drawn == [tool.candidates(search, values, [1, turn]) for turn in range(50)]
    near, far = (np.array([[c["a"], c["b"]] for c in column]) for column in zip(*drawn, strict=True))
    for table in (near, far):
        assert (table >= [1e-3, 2.0]).all()
        assert (table <= [1.0, 3.0]).all()
        assert 0.2 < (table[:, 0] == 0.5).mean() < 0.8
    assert np.ptp(near[:, 0]) < 0.3 < np.ptp(far[:, 0])


def test_a_search_finds_better_numbers_and_goes_on_where_it_stopped(tool, tmp_path, walked, monkeypatch):
    """Two runs of three rounds are one of six; another seed is refused."""
    folder = tmp_path / "logs"
    folder.mkdir()
    replace(walked.measured, contact_normal=None, foot_force=None).save(folder / "demo_5.npz")
    (tmp_path / "search.yaml").write_text(
        f"courses: {folder}\nseeds: [5]\nsteps: [0.1, 0.3]\nchanged: 1.0\n"
        "numbers: {noise.accel: [1.0e-6, 10], contact.enter: [0.14, 0.6]}\n"
    )
    (tmp_path / "start.yaml").write_text("noise: {accel: 5.0}\n")
    monkeypatch.setattr(tool, "_SETTINGS", tool.MetricSettings(warm_up_samples=3, horizon_s=3.0))

    def run(output: str, rounds: int, seed: int = 1) -> int:
        given = ["--search", f"{tmp_path}/search.yaml", "--start", f"{tmp_path}/start.yaml", "--jobs", "2"]
        given += ["--output", f"{tmp_path / output}", "--rounds", str(rounds), "--seed", str(seed)]
        monkeypatch.setattr(sys, "argv", ["tune_filters.py", *given])
        return tool.main()

    assert run("one", 3) == 0
    # Each run holds the kernel against the estimator first, seconds of a filter in Python: once will do.
    monkeypatch.setattr(tool, "check", lambda *_: None)
    assert run("one", 6) == 0
    assert run("whole", 6) == 0
    one, whole = (json.loads((tmp_path / name / "tuning.json").read_text()) for name in ("one", "whole"))
    one.pop("command"), whole.pop("command")
    assert one == whole
    assert one["round"] == 6
    assert one["tried"] == 13
    assert one["after"]["demo_5"]["ate_percent"] < one["before"]["demo_5"]["ate_percent"]
    tuned = BaselineConfig.load(tmp_path / "one" / "tuned.yaml")
    assert tuned.noise.accel == one["values"]["noise.accel"] != 5.0
    assert run("one", 6, seed=2) == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("seeds: [1]\nsteps: [0.1]\nnumbers: {noise.accel: [1, 0.1]}", "must be a range"),
        ("seeds: [1]\nsteps: []\nnumbers: {noise.accel: [0.1, 1]}", "steps"),
        ("seeds: [1]\nsteps: [0.1]\nnumbers: {noise.acel: [0.1, 1]}", "numbers.noise.acel is no number"),
    ],
)
def test_a_bad_search_is_one_line(tool, tmp_path, monkeypatch, capsys, text, fault):
    (tmp_path / "bad.yaml").write_text(text)
    monkeypatch.setattr(
        sys, "argv", ["tune_filters.py", "--search", str(tmp_path / "bad.yaml"), "--output", str(tmp_path)]
    )
    assert tool.main() == 2
    told = capsys.readouterr().err.strip()
    assert fault in told
    assert "bad.yaml" in told.replace("\n", "")


def test_the_table_holds_means_over_the_seeds(tool):
    keys = "ate_position_m", "ate_percent", "ate_z_m", "ate_velocity_mps", "re10_position_m"
    logs = {
        f"{course}_{seed}": dict.fromkeys(keys, value)
        for course, seed, value in (("a_b", 1, 1.0), ("a_b", 2, 2.0), ("c", 1, 4.0))
    }
    text = tool.markdown({"iekf": tool.Score(0.0, logs)}).splitlines()
    assert text[2:] == [
        "| a_b | `iekf` | 1.500 | 1.50 | 1.500 | 1.500 | 1.500 |",
        "| c | `iekf` | 4.000 | 4.00 | 4.000 | 4.000 | 4.000 |",
    ]
