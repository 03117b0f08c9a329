"""Models on courses: rows, kept logs, the same input for all, and faults."""

import re
from dataclasses import replace

import numpy as np
import pytest
from untrained import export_untrained

from trace_ros.errors import FallError, TraceError
from trace_ros.evaluation import courses as module
from trace_ros.evaluation.courses import CourseRun, course_log, course_runs, evaluate_courses, mean_rows
from trace_ros.evaluation.metrics import MetricSettings
from trace_ros.evaluation.runner import evaluate_run
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import simulate_course
from trace_ros.sim.course_set import CourseSet

ROBOT = RobotDescription.load("go2")
SETTINGS = MetricSettings(horizon_s=0.5)
SET = CourseSet.model_validate(
    {
        "name": "small",
        "seeds": [3, 4],
        "defaults": {"duration": 1.0, "settle": 0.3, "phases": [{"walk_to": [4.0, 0.0]}], "policy": {}},
        "courses": [{"name": "level"}, {"name": "soft", "ground": {"time_constant": 0.04}}],
    }
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return export_untrained(tmp_path_factory.mktemp("model") / "model.pt", ROBOT)


@pytest.fixture(scope="module")
def judged(model, tmp_path_factory):
    """The rows of two models that are the same, with two processes and an empty cache; and the cache."""
    cache = tmp_path_factory.mktemp("cache")
    other = model.with_name("other.pt")
    other.write_bytes(model.read_bytes())
    seen = []
    rows = evaluate_courses([model, other], SET, "go2", cache=cache, jobs=2, settings=SETTINGS, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 4.0
    return rows, cache


@pytest.fixture
def no_simulator(monkeypatch):
    def refuse(*_):
        raise AssertionError("simulated again")

    monkeypatch.setattr(module, "simulate_course", refuse)


def plain(rows, model):
    return [{key: value for key, value in row.items() if key != "model"} for row in rows if row["model"] == str(model)]


def assert_same(rows, others):
    """The same but for the last digits, which depend on what runs side by side."""
    assert [row.keys() for row in rows] == [row.keys() for row in others]
    for row, other in zip(rows, others, strict=True):
        for key, value in row.items():
            assert other[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5, abs=1e-6))


def test_a_row_for_each_model_course_and_seed(judged, model):
    rows, _ = judged
    assert [(row["course"], row["seed"]) for row in rows[:4]] == [("level", 3), ("level", 4), ("soft", 3), ("soft", 4)]
    assert plain(rows, model) == plain(rows, model.with_name("other.pt"))
    keys = ["path_length_m", "ate_position_m", "ate_velocity_mps", "ate_orientation_rad", "ate_z_m"]
    for row in rows:
        assert set(row) == {"course", "seed", "model", *keys, "re0.5_position_m"}
        assert set(row["re0.5_position_m"]) == {"mean", "std", "p90"}
        assert 0.1 < row["path_length_m"] < 1.0
        assert row["ate_z_m"] <= row["ate_position_m"]
    assert len({row["path_length_m"] for row in plain(rows, model)}) == 4


def test_a_row_is_what_the_estimator_makes_of_the_log(judged, model):
    from trace_ros.estimator.estimator import TraceEstimator

    log = simulate_course(SET.course("soft"), ROBOT, 4).measured
    estimator = TraceEstimator.load(model, ROBOT)
    metrics = evaluate_run("soft_4", log, estimator, SETTINGS, stepwise=True).metrics.to_dict()
    row = judged[0][3]
    shared = [key for key in row if key in metrics]
    assert_same([{key: row[key] for key in shared}], [{key: metrics[key] for key in shared}])
    assert len(set(row) & set(metrics)) == 6


@pytest.mark.usefixtures("no_simulator")
def test_kept_logs_are_used_and_give_the_same(judged, model):
    rows, cache = judged
    again = evaluate_courses([model], SET, ROBOT, cache=cache, settings=SETTINGS)
    assert_same(again, rows[:4])
    some = evaluate_courses([model], SET, ROBOT, cache=cache, settings=SETTINGS, only=["soft"], seeds=[4])
    assert_same(some, rows[3:4])


@pytest.mark.usefixtures("no_simulator")
def test_a_folder_of_logs_is_taken_as_it_is(judged, model):
    rows, cache = judged
    (folder,) = cache.iterdir()
    assert folder.name.startswith("small-go2-")
    assert_same(evaluate_courses([model], folder, settings=SETTINGS), rows[:4])
    some = evaluate_courses([model], folder, settings=SETTINGS, only=["soft", "level"], seeds=[3])
    assert_same(some, [rows[2], rows[0]])
    with pytest.raises(TraceError, match="holds no log of course 'moon': there are level, soft"):
        course_runs(folder, ROBOT, ["moon"])
    with pytest.raises(TraceError, match="holds no log of seed 9: there are 3, 4"):
        course_runs(folder, ROBOT, seeds=[9])
    with pytest.raises(TraceError, match="holds no log of a course"):
        course_runs(folder.parent, ROBOT)


def test_a_damaged_log_in_the_cache_is_made_anew(tmp_path):
    (run,) = course_runs(SET, ROBOT, ["level"], [3], tmp_path)
    first = course_log(run, ROBOT)
    run.log.write_bytes(run.log.read_bytes()[:2000])
    assert np.array_equal(course_log(run, ROBOT).linear_acceleration, first.linear_acceleration)
    assert np.array_equal(SensorLog.load(run.log).linear_acceleration, first.linear_acceleration)
    assert [path.name for path in run.log.parent.iterdir()] == ["level_3.npz"]
    # Without a plan there is no way to make it anew.
    run.log.write_bytes(b"")
    with pytest.raises(TraceError, match=r"level_3\.npz: not a"):
        course_log(CourseRun("level", 3, run.log, None), ROBOT)
    with pytest.raises(TraceError, match=r"level_9\.npz: no such file"):
        course_log(CourseRun("level", 9, run.log.with_name("level_9.npz"), None), ROBOT)


def test_a_log_of_another_robot_is_refused(tmp_path):
    (run,) = course_runs(SET, ROBOT, ["level"], [3], tmp_path)
    log = course_log(run, ROBOT)
    replace(log, robot="spot").save(run.log)
    with pytest.raises(TraceError, match="not a simulated log of the robot 'go2'"):
        course_log(CourseRun("level", 3, run.log, None), ROBOT)


def test_means_over_seeds_and_over_all(judged):
    rows = judged[0][:4]
    means = mean_rows(rows)
    assert [(mean["course"], mean["rows"]) for mean in means] == [("level", 2), ("soft", 2), (None, 4)]
    assert means[1]["ate_position_m"] == pytest.approx(np.mean([row["ate_position_m"] for row in rows[2:]]))
    over = [row["re0.5_position_m"]["p90"] for row in rows]
    assert means[2]["re0.5_position_m"]["p90"] == pytest.approx(np.mean(over))
    without = mean_rows([rows[0] | {"re0.5_position_m": None}, rows[1]])
    assert without[0]["re0.5_position_m"] is None


@pytest.mark.usefixtures("no_simulator")
def test_faults_come_before_the_simulation(model, tmp_path):
    with pytest.raises(TraceError, match=r"none\.pt: no such"):
        evaluate_courses([model.with_name("none.pt")], SET, cache=tmp_path)
    with pytest.raises(TraceError, match="no model to judge"):
        evaluate_courses([], SET, cache=tmp_path)
    with pytest.raises(TraceError, match="unknown set of courses 'moon'"):
        evaluate_courses([model], "moon", cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_walks_on_which_the_robot_falls_are_left_out_and_remembered(model, tmp_path, monkeypatch):
    wall = [{"kind": "discrete", "x": [0.6, 1.6], "y": [-0.6, 0.6], "height": 0.5, "block": 0.3, "count": 60}]
    level = SET.course("level").model_dump()
    falls = level | {"patches": wall, "duration": 12.0, "name": "wall", "foot_friction": 0.2}
    plans = CourseSet.model_validate({"name": "bad", "seeds": [0], "courses": [falls, level]})
    how = r"course 'wall': the robot fell after \d+\.\d s with seed"
    with pytest.raises(FallError, match=how):
        evaluate_courses([model], plans, cache=tmp_path, settings=SETTINGS)
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["wall_0.fell"]

    told = []
    given = {"cache": tmp_path, "settings": SETTINGS, "fallen": lambda run, fall: told.append((run.course, str(fall)))}
    rows = evaluate_courses([model], plans, **given)
    assert [(row["course"], row["seed"]) for row in rows] == [("level", 0)]
    ((course, reason),) = told
    assert course == "wall"
    assert re.match(how, reason)
    monkeypatch.setattr(module, "simulate_course", None)  # neither walk is simulated again
    assert_same(evaluate_courses([model], plans, **given), rows)
    assert told == 2 * [("wall", reason)]
    with pytest.raises(FallError, match=how):  # nothing is left
        evaluate_courses([model], plans, only=["wall"], **given)

    # The folder itself, whatever the courses have become.
    assert_same(evaluate_courses([model], folder, settings=SETTINGS, fallen=given["fallen"]), rows)
    assert told == 3 * [("wall", reason)]
