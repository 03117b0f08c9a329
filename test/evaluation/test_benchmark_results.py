"""What is kept of a run, and the tables that are made of it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_results import COURSES, METHODS, row, rows, window
from trajectories import disturb, sensor_log, walk

from trace_ros.baselines.nmn import NmnFilterConfig
from trace_ros.evaluation.benchmark_methods import Method
from trace_ros.evaluation.benchmark_paper import PAPER
from trace_ros.evaluation.benchmark_results import (
    Result,
    code_files,
    load_result,
    result_file,
    result_folder,
    result_of,
    save_result,
    worst_of_all,
    worst_starts,
)
from trace_ros.evaluation.benchmark_tables import (
    best_of,
    compare_rows,
    markdown,
    mean_rows,
    paper_reduction,
    reductions,
)
from trace_ros.evaluation.benchmark_walks import Walk
from trace_ros.evaluation.metrics import relative_errors
from trace_ros.evaluation.runner import evaluate_odometry
from trace_ros.robot import RobotDescription

TRUTH = walk(34.0, 100.0)
ROBOT = RobotDescription.load("go2")


@pytest.fixture(scope="module")
def evaluation():
    """With attention, against a reference, 34 s long."""
    judged = evaluate_odometry("hill", "trace", disturb(TRUTH), sensor_log(TRUTH, simulated=True))
    attention = np.random.default_rng(0).random((len(TRUTH), 6))
    return replace(judged, attention=attention / attention.sum(axis=1, keepdims=True))


@pytest.fixture
def somewhere(tmp_path):
    return Walk("mujoco", "hill", 3, tmp_path / "seed_3", "hill-0-3", None)


METHOD = Method("mine", "trace", ROBOT.urdf)


def test_a_row_has_the_figures_of_the_metrics_and_nothing_else(evaluation, somewhere):
    result = result_of(somewhere, METHOD, evaluation, True)
    metrics = evaluation.metrics
    assert result.row == {
        "engine": "mujoco",
        "course": "hill",
        "method": "mine",
        "seed": 3,
        "path_length_m": metrics.path_length_m,
        "ate_position_m": metrics.ate_position_m,
        "ate_velocity_mps": metrics.ate_velocity_mps,
        "ate_orientation_rad": metrics.ate_orientation_rad,
        "re10_position_m": {part: getattr(metrics.re_position_m, part) for part in ("mean", "std", "p90")},
        "re10_velocity_mps": metrics.re_velocity_mps.mean,
        "re10_orientation_rad": metrics.re_orientation_rad.mean,
    }
    without = result_of(somewhere, METHOD, evaluation, False).row
    assert {key for key in without if without[key] != result.row[key]} == {"ate_velocity_mps", "re10_velocity_mps"}
    assert without["ate_velocity_mps"] is without["re10_velocity_mps"] is None


def test_windows_are_the_worst_and_their_curves_end_at_the_error(evaluation, somewhere):
    windows = result_of(somewhere, METHOD, evaluation, True).windows
    comparison = evaluation.comparison
    errors = relative_errors(comparison.estimate, comparison.reference, 10.0)
    assert windows[0].error_m == pytest.approx(errors.position.max())
    assert [w.error_m for w in windows] == sorted((w.error_m for w in windows), reverse=True)
    starts = sorted(w.start_s for w in windows)
    assert len(starts) >= 2
    assert (np.diff(starts) >= 9.99).all()
    for each in windows:
        assert each.time_s[-1] == pytest.approx(10.0, abs=0.011)
        assert each.growth_m[0] == 0
        assert each.growth_m[-1] == pytest.approx(each.error_m)
        # The curves are those of the log at that time.
        at = np.searchsorted(TRUTH.stamp_ns, TRUTH.stamp_ns[0] + round((each.start_s + each.time_s[7]) * 1e9))
        assert np.array_equal(each.contact[7], evaluation.log.contact[at])
        assert each.true_speed_mps[7] == pytest.approx(np.linalg.norm(TRUTH.velocity[at]))
        assert each.attention.sum(axis=1) == pytest.approx(1.0)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.integers(1, 12), st.integers(1, 6))
def test_worst_intervals_never_overlap(errors, length, count):
    start = np.arange(len(errors))
    chosen = worst_starts(start, start + length, np.array(errors), count)
    assert 1 <= len(chosen) <= count
    assert errors[chosen[0]] == max(errors)
    assert all(abs(a - b) >= length for i, a in enumerate(chosen) for b in chosen[:i])
    assert [errors[i] for i in chosen] == sorted((errors[i] for i in chosen), reverse=True)
    if len(chosen) < count:  # then nothing free is left
        assert all(any(abs(i - c) < length for c in chosen) for i in range(len(errors)))


def test_a_result_is_kept_whole_and_a_damaged_one_is_none(tmp_path):
    windows = (window("hill", 0.5), window("hill", 0.25, contact=False))
    kept = Result(row("mujoco", "flat", "trace", 1), np.arange(5.0), np.ones((5, 3)), np.zeros((5, 3)), windows)
    path = tmp_path / "deep" / "result.npz"
    save_result(path, kept)
    again = load_result(path, Method("under_another_name", "trace", path))
    assert again.row == kept.row | {"method": "under_another_name"}
    assert np.array_equal(again.position, kept.position)
    assert len(again.windows) == 2
    assert np.array_equal(again.windows[0].contact, windows[0].contact)
    assert again.windows[1].contact is None
    assert again.windows[0].walk == "hill"
    assert np.array_equal(again.windows[0].attention, windows[0].attention)
    assert load_result(tmp_path / "none.npz", METHOD) is None
    whole = path.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert load_result(path, METHOD) is None


def test_the_name_of_a_result_changes_with_what_it_depends_on(tmp_path, somewhere):
    model = tmp_path / "model.pt"
    model.write_bytes(b"one")
    method = Method("a", "trace", model)
    first = result_folder(method, ROBOT, tmp_path)
    assert result_folder(replace(method, label="b"), ROBOT, tmp_path) == first
    assert result_folder(method, ROBOT.model_copy(update={"foot_radius": 0.5}), tmp_path) != first
    model.write_bytes(b"two")
    assert result_folder(method, ROBOT, tmp_path) == first  # read once
    assert result_folder(replace(method), ROBOT, tmp_path) != first
    others = (somewhere, replace(somewhere, key="hill-1-3"), replace(somewhere, engine="bullet"))
    assert len({result_file(each, first) for each in others}) == 3


def test_results_of_a_filter_around_a_network_change_with_the_filters_numbers(tmp_path, monkeypatch):
    model = tmp_path / "model.pt"
    model.write_bytes(b"one")
    method, network = Method("a", "nmn_iekf", model), Method("a", "trace", model)
    before, of_network = result_folder(method, ROBOT, tmp_path), result_folder(network, ROBOT, tmp_path)
    changed = NmnFilterConfig(cutoff=10.0)
    monkeypatch.setattr(NmnFilterConfig, "load", lambda: changed)
    assert result_folder(replace(method), ROBOT, tmp_path) != before
    assert result_folder(replace(network), ROBOT, tmp_path) == of_network


def test_names_of_results_change_with_all_code_that_makes_them():
    load = (
        "import sys, trace_ros.bags, trace_ros.baselines.registry, trace_ros.evaluation.runner\n"
        "print(*(getattr(m, '__file__', None) for n, m in sys.modules.items() if n.startswith('trace_ros')), sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    loaded = {Path(line) for line in run.stdout.split("\n") if line.endswith(".py")} - set(code_files())
    # Packages' own files, and what finds and writes files.
    assert {path.stem for path in loaded} <= {"__init__", "errors", "resources", "whole_files"}


def test_the_gallery_holds_the_five_worst_of_all_walks():
    def of(*errors):
        made = tuple(window(str(error), error) for error in errors)
        return Result({}, np.zeros(0), np.zeros((0, 3)), np.zeros((0, 3)), made)

    chosen = worst_of_all([of(3, 1), of(), of(5, 4, 2), of(0.5)])
    assert [each.error_m for each in chosen] == [5, 4, 3, 2, 1]


def test_means_over_the_seeds():
    means = mean_rows(rows())
    assert len(means) == 2 * len(COURSES) * len(METHODS)
    flat = means[0]
    assert (flat["engine"], flat["course"], flat["method"], flat["seeds"]) == ("mujoco", "flat", "trace", 2)
    assert flat["ate_position_m"] == pytest.approx(0.1 * 1.15)
    assert flat["re10_position_m"]["p90"] == pytest.approx(0.1 * 1.15 / 2)
    assert next(mean for mean in means if mean["method"] == "legolas")["ate_velocity_mps"] is None
    short = mean_rows([rows()[0] | {"re10_position_m": None}, rows()[4]])
    assert short[0]["re10_position_m"] is None


def test_reductions_are_against_the_strongest_of_the_others():
    found = reductions(mean_rows(rows()))
    assert [(each["engine"], each["course"]) for each in found] == [
        (e, c) for e in ("mujoco", "bullet") for c in COURSES
    ]
    for each in found:
        assert each["ate_position_m"]["baseline"] == "iekf_sr"
        assert each["ate_position_m"]["reduction"] == pytest.approx(0.5)
    assert found[0]["ate_position_m"]["paper"] == pytest.approx(1 - 0.0882 / 0.1788)
    worse = [each | ({"ate_position_m": 9.0} if each["method"] == "trace" else {}) for each in rows()]
    assert reductions(mean_rows(worse))[0]["ate_position_m"]["reduction"] < 0
    assert reductions(mean_rows([each for each in rows() if each["method"] == "trace"])) == []
    assert reductions(mean_rows([each for each in rows() if each["method"] != "trace"])) == []


def test_variants_of_trace_are_no_baselines():
    named = {"trace": "trace", "iekf_sr": "short", "nmn_iekf": "nmn_iekf", "legolas": "plain"}
    means = mean_rows([each | {"method": named[each["method"]]} for each in rows(("mujoco",))])
    found = reductions(means, ("trace", "short"), ("plain",))
    assert [each["method"] for each in found] == 3 * ["trace", "short"]
    for each in found:
        assert each["re10_position_m"]["baseline"] == "nmn_iekf"
        share = {"trace": 1 / 3, "short": 2 / 3}[each["method"]]
        assert each["re10_position_m"]["reduction"] == pytest.approx(1 - share)


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("ate_position_m", [50.7, 39.2, 44.1, 53.8, 17.0, 43.3, 63.2]),
        ("re10_position_m", [30.0, 50.9, 39.9, 26.4, 51.9, 33.1, 3.2]),
    ],
)
def test_the_papers_tables_give_the_reductions_of_its_text(key, printed):
    courses = ("flat", "rough", "slippery", "soft", "grass", "hard", "stairs")
    assert [round(100 * paper_reduction(course, key), 1) for course in courses] == printed
    assert round(100 * paper_reduction("full", "re10_position_m"), 1) == 37.4
    assert paper_reduction("moon", key) is None
    assert len(PAPER) == 32


def test_markdown_has_every_figure_and_marks_the_best():
    text = markdown(rows(), reductions(mean_rows(rows())), "Title", ["a note"])
    lines = text.splitlines()
    assert lines[:3] == ["# Title", "", "a note"]
    own = [line for line in lines if line.startswith("| flat | trace | 41.5 ")]
    assert len(own) == 2
    assert "| 41.5 | **0.1150** |" in own[0]
    assert "**0.0288 ± 0.0144** | 0.0575 |" in own[0]
    assert own[0].endswith("| 0.0882 | 0.0538 |")
    legolas = next(line for line in lines if line.startswith("| flat | legolas |"))
    assert legolas.split("|")[5].strip() == "-"
    assert "| flat | trace | -50.0 % | iekf_sr | -50.7 % | -50.0 % | iekf_sr | -30.0 % |" in lines
    for table in text.split("\n\n"):
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) <= 1
    assert best_of(mean_rows(rows()[:1]), "flat") == {}
    yard = [each | {"course": "yard"} for each in rows()]
    assert "paper" not in markdown(yard, reductions(mean_rows(yard)), "Title", []).lower()


def test_rows_are_held_against_earlier_ones():
    now, before = rows(), rows()
    assert all(each.relative == 0 for each in compare_rows(now, before))
    assert len(compare_rows(now[:1], before)) == 9  # the relative error of the position counts as three
    assert len(compare_rows([row("mujoco", "flat", "legolas", 1)], before)) == 7  # has no velocity
    before[0] = before[0] | {"ate_position_m": now[0]["ate_position_m"] * 1.25}
    worst = compare_rows(now, before)[0]
    assert worst.figure == "ate_position_m"
    assert worst.where == "mujoco, flat, trace, 1"
    assert worst.relative == pytest.approx(0.2)
    assert worst.within(0.21)
    assert not worst.within(0.19)
    assert replace(worst, now=0.001, before=0.004).within(0.01)  # nobody cares for millimetres
    assert compare_rows(now, [each | {"seed": 99} for each in before]) == []
