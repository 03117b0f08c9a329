"""The benchmark itself: walks kept as bags, the same samples for all, resumption, methods, and faults."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from trajectories import disturb, sensor_log, walk
from untrained import export_untrained

from trace_ros.bags import Topics, write_bag
from trace_ros.errors import FallError, TraceError
from trace_ros.evaluation import benchmark as module
from trace_ros.evaluation import benchmark_methods, benchmark_walks
from trace_ros.evaluation.benchmark import (
    benchmark_runs,
    benchmark_settings,
    quick_selection,
    run_benchmark,
    runs_to_do,
)
from trace_ros.evaluation.benchmark_methods import Method, choose_methods, variants_of_trace
from trace_ros.evaluation.benchmark_tables import compare_rows
from trace_ros.evaluation.benchmark_walks import (
    choose_engines,
    recorded_walks,
    simulated_walks,
    walk_log,
)
from trace_ros.evaluation.falls import keep_fall
from trace_ros.evaluation.runner import evaluate_run, evaluate_runs
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import simulate_course
from trace_ros.sim.course_set import CourseSet

ROBOT = RobotDescription.load("go2")
SET = CourseSet.model_validate(
    {
        "name": "small",
        "seeds": [3, 4],
        "defaults": {"duration": 0.5, "settle": 0.3, "phases": [{"walk_to": [4.0, 0.0]}], "policy": {}},
        "courses": [{"name": "level"}, {"name": "soft", "ground": {"time_constant": 0.04}}],
    }
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return export_untrained(tmp_path_factory.mktemp("model") / "model.pt", ROBOT)


@pytest.fixture(scope="module")
def methods(model):
    return choose_methods([f"trace={model}", "iekf_sr"], ROBOT)[0]


@pytest.fixture(scope="module")
def kept(methods, tmp_path_factory):
    """A finished benchmark: walks, results, and its folder."""
    folder = tmp_path_factory.mktemp("kept")
    walks = simulated_walks(SET, ROBOT, ["mujoco"], folder)
    assert all(each.missing for each in walks)
    assert to_do(walks, methods, folder) == 8
    told: list[float] = []
    results = run_benchmark(benchmark_runs(walks, methods, ROBOT, folder), ROBOT, workers=2, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    return walks, results, folder


def to_do(walks, methods, folder):
    return sum(run.kept is None for run in benchmark_runs(walks, methods, ROBOT, folder))


def run_all(walks, methods, folder):
    return run_benchmark(benchmark_runs(walks, methods, ROBOT, folder), ROBOT)


@pytest.fixture
def idle(monkeypatch):
    """Neither simulator nor estimator may run."""

    def refuse(*_, **__):
        raise AssertionError("was done already")

    monkeypatch.setattr(benchmark_walks, "simulate_course", refuse)
    monkeypatch.setattr(module, "evaluate_runs", refuse)


def test_a_result_for_each_walk_and_method(kept):
    walks, results, _ = kept
    assert [(r.row["course"], r.row["seed"], r.row["method"]) for r in results] == [
        (w.course, w.seed, m) for w in walks for m in ("trace", "iekf_sr")
    ]
    assert [(w.course, w.seed) for w in walks] == [("level", 3), ("level", 4), ("soft", 3), ("soft", 4)]
    for result in results:
        assert result.row["engine"] == "mujoco"
        assert result.row["ate_position_m"] > 0
        assert result.row["re10_position_m"] is None  # half a second is shorter than ten
        assert result.windows == ()
    assert len({result.row["ate_position_m"] for result in results}) == 8


def test_a_walk_is_a_bag_that_holds_the_simulated_samples(kept, methods):
    walks, results, _ = kept
    chosen = walks[3]
    assert sorted(path.name for path in chosen.log.iterdir()) == ["contact.npz", "metadata.yaml", "seed_4.mcap"]
    log, simulated = walk_log(chosen, ROBOT), simulate_course(SET.course("soft"), ROBOT, 4).measured
    for name in ("stamp_ns", "joint_position", "joint_velocity", "joint_torque", "contact"):
        assert np.array_equal(getattr(log, name), getattr(simulated, name)), name
    for name in ("angular_velocity", "linear_acceleration"):
        assert getattr(log, name) == pytest.approx(getattr(simulated, name), abs=1e-12), name
    assert log.reference.position == pytest.approx(simulated.reference.position, abs=1e-12)
    # And a row is what the estimator makes of exactly these.
    estimator = module.load_estimator("trace", ROBOT, methods[0].model)
    metrics = evaluate_run("again", log, estimator).metrics
    assert results[6].row["ate_position_m"] == pytest.approx(metrics.ate_position_m, rel=1e-4)
    assert results[6].row["path_length_m"] == pytest.approx(metrics.path_length_m, rel=1e-9)


@pytest.mark.usefixtures("idle")
def test_what_is_kept_is_not_done_again(kept, methods):
    walks, results, folder = kept
    assert to_do(walks, methods, folder) == 0
    again = run_all(walks, methods, folder)
    assert [each.row for each in again] == [each.row for each in results]
    one = run_all(walks[2:3], methods[1:], folder)
    assert [each.row for each in one] == [results[5].row]


def test_a_run_that_was_ended_goes_on(kept, methods, monkeypatch, tmp_path):
    walks, results, folder = kept
    shutil.copytree(folder, tmp_path / "kept")
    shutil.rmtree(tmp_path / "kept" / "results")
    moved = simulated_walks(SET, ROBOT, ["mujoco"], tmp_path / "kept")
    assert [each.key for each in moved] == [each.key for each in walks]
    done = []

    def interrupted(names, logs, *more):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.extend(names)
        return evaluate_runs(names, logs, *more)

    monkeypatch.setattr(module, "evaluate_runs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all(moved, methods, tmp_path / "kept")
    assert to_do(moved, methods, tmp_path / "kept") == 3  # TRACE had all four walks at once, the filter one

    def counted(names, *more):
        done.extend(names)
        return evaluate_runs(names, *more)

    monkeypatch.setattr(module, "evaluate_runs", counted)
    monkeypatch.setattr(benchmark_walks, "simulate_course", None)
    again = run_all(moved, methods, tmp_path / "kept")
    assert len(done) == 8
    differences = compare_rows([each.row for each in again], [each.row for each in results])
    assert len(differences) == 8 * 4
    assert differences[0].relative < 1e-4


def test_a_damaged_bag_is_made_anew(tmp_path):
    chosen = simulated_walks(SET, ROBOT, ["mujoco"], tmp_path)[0]
    first = walk_log(chosen, ROBOT)
    for damaged in ("seed_3.mcap", "contact.npz", "metadata.yaml"):
        file = chosen.log / damaged
        file.write_bytes(file.read_bytes()[:40])
        assert np.array_equal(walk_log(chosen, ROBOT).linear_acceleration, first.linear_acceleration)
        assert file.stat().st_size > 40
    assert [path.name for path in chosen.log.parent.iterdir()] == ["seed_3"]


def test_a_walk_that_was_ended_leaves_nothing(monkeypatch, tmp_path):
    chosen = simulated_walks(SET, ROBOT, ["mujoco"], tmp_path)[0]

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_walks.np, "savez_compressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        walk_log(chosen, ROBOT)
    assert list(chosen.log.parent.iterdir()) == []
    assert chosen.missing


def test_walks_on_which_the_robot_falls_are_left_out_and_remembered(methods, monkeypatch, tmp_path):
    def walk_or_fall(course, robot, seed, progress):
        if seed == 4:
            raise FallError(f"course {course.name!r}: the robot fell with seed 4")
        return simulate_course(course, robot, seed, progress)

    monkeypatch.setattr(benchmark_walks, "simulate_course", walk_or_fall)
    walks = simulated_walks(SET.select(["level"]), ROBOT, ["mujoco"], tmp_path)
    results = run_benchmark(benchmark_runs(walks, methods[:1], ROBOT, tmp_path), ROBOT)
    assert [(result.row["course"], result.row["seed"]) for result in results] == [("level", 3)]
    assert [str(walk.fall) for walk in walks] == ["None", "course 'level': the robot fell with seed 4"]

    monkeypatch.setattr(benchmark_walks, "simulate_course", None)  # nothing is simulated again
    runs = benchmark_runs(walks, methods[:1], ROBOT, tmp_path)
    assert not any(walk.missing for walk in walks)
    assert runs_to_do(runs) == []
    assert len(run_benchmark(runs, ROBOT)) == 1
    with pytest.raises(FallError, match="fell with seed 4"):
        run_benchmark([run for run in runs if run.walk.seed == 4], ROBOT)

    # A bag that is there has no fall; without it all of its results are left out, kept ones too.
    keep_fall(walks[0].log, FallError("fell since"))
    assert walks[0].fall is None
    assert len(run_benchmark(benchmark_runs(walks, methods[:1], ROBOT, tmp_path), ROBOT)) == 1
    shutil.rmtree(walks[0].log)
    with pytest.raises(FallError, match="fell on all 2 walks; the first: fell since"):
        run_benchmark(benchmark_runs(walks, methods[:1], ROBOT, tmp_path), ROBOT)


def test_changing_a_course_leaves_the_walks_of_the_others(tmp_path):
    other = SET.courses[1].model_copy(update={"duration": 0.6})
    changed = SET.model_copy(update={"courses": (SET.courses[0], other)})
    before, after = (simulated_walks(each, ROBOT, ["mujoco", "bullet"], tmp_path) for each in (SET, changed))
    assert [a.log == b.log for a, b in zip(before, after, strict=True)] == 2 * [True, True, False, False]
    assert len({each.log for each in before}) == 8
    assert [each.engine for each in before] == 4 * ["mujoco"] + 4 * ["bullet"]
    assert after[4].plan.physics.backend == "bullet"


def test_recorded_logs(methods, tmp_path):
    truth = walk(11.0, 500.0)
    log = sensor_log(truth)
    bags = tmp_path / "bags"
    bags.mkdir()
    write_bag(bags / "yard one", log, ROBOT)
    log.save(bags / "attic.npz")
    (bags / "notes.txt").write_text("not a log")
    walks = recorded_walks(bags)
    assert [(each.engine, each.course, each.seed, each.missing) for each in walks] == [
        ("recorded", "attic", 0, False), ("recorded", "yard_one", 0, False)
    ]  # fmt: skip
    results = run_all(walks, methods[1:], tmp_path / "kept")
    assert [each.row["course"] for each in results] == ["attic", "yard_one"]
    assert results[0].row["ate_position_m"] == pytest.approx(results[1].row["ate_position_m"], rel=1e-6)
    assert set(results[0].row["re10_position_m"]) == {"mean", "std", "p90"}
    assert [each.name for each in bags.iterdir()] != []  # nothing of ours among the user's
    assert not list(bags.rglob("result*"))
    alone = recorded_walks(bags / "yard one")
    assert [each.course for each in alone] == ["yard_one"]
    assert alone[0].key == walks[1].key
    assert recorded_walks(bags / "yard one", Topics(reference="truth"))[0].key != walks[1].key
    disturbed = replace(log, reference=disturb(truth))
    (bags / "attic.npz").unlink()
    disturbed.save(bags / "attic.npz")
    assert recorded_walks(bags)[0].key != walks[0].key


def test_recorded_logs_that_cannot_be_compared(methods, tmp_path):
    with pytest.raises(TraceError, match="bags: no such file"):
        recorded_walks(tmp_path / "bags")
    with pytest.raises(TraceError, match="holds no log"):
        recorded_walks(tmp_path)
    log = replace(sensor_log(walk(0.4)), reference=None)
    log.save(tmp_path / "blind.npz")
    write_bag(tmp_path / "dark", log, ROBOT)
    lone = sensor_log(walk(0.4))
    assert lone.reference is not None
    replace(lone, reference=lone.reference.select(slice(0, 1))).save(tmp_path / "lone.npz")
    blind, dark, one_pose = recorded_walks(tmp_path)
    with pytest.raises(TraceError, match=r"lone\.npz: has one pose of a reference only, .*: take it away"):
        walk_log(one_pose, ROBOT)
    with pytest.raises(TraceError, match=r"blind\.npz: has no reference, so nothing can be compared: take it away"):
        walk_log(blind, ROBOT)
    with pytest.raises(TraceError, match=r"dark: has no reference.*record reference/odom, or give --reference-topic"):
        run_all([dark], methods[1:], tmp_path / "kept")


def test_a_model_that_is_replaced_meanwhile_is_not_taken_for_the_one_before(tmp_path):
    mine, kept = tmp_path / "mine.yaml", tmp_path / "kept"
    shutil.copy(DEFAULT_MODEL("iekf", ROBOT), mine)
    first = mine.read_text()
    sensor_log(walk(0.4)).save(tmp_path / "yard.npz")
    methods, _ = choose_methods([f"iekf={mine}"], ROBOT)
    walks = recorded_walks(tmp_path)
    runs = benchmark_runs(walks, methods, ROBOT, kept)
    before = benchmark_settings(walks, methods, ROBOT)
    mine.write_text(first.replace("slip_speed: 0.16", "slip_speed: 0.17"))
    with pytest.raises(TraceError, match=r"mine\.yaml: was changed meanwhile; start again"):
        run_benchmark(runs, ROBOT)
    assert to_do(walks, methods, kept) == 1
    assert benchmark_settings(walks, methods, ROBOT) == before
    mine.write_text(first)
    assert len(run_benchmark(runs, ROBOT)) == 1


def test_methods_by_name(model, tmp_path, monkeypatch):
    chosen, notes = choose_methods([f"trace={model}", f"mine:trace={model}", "iekf_sr"], ROBOT)
    assert [(m.label, m.estimator) for m in chosen] == [("trace", "trace"), ("mine", "trace"), ("iekf_sr", "iekf_sr")]
    assert notes == []
    assert chosen[0].model == model
    assert variants_of_trace([*chosen, Method("plain", "mlp", model)]) == (["trace", "mine"], ["plain"])
    monkeypatch.setattr(benchmark_methods, "PAPER_METHODS", ("trace", "iekf_sr", "not_yet"))
    monkeypatch.setattr(
        benchmark_methods,
        "default_model",
        lambda name, robot: tmp_path / "none.pt" if name == "trace" else DEFAULT_MODEL(name, robot),
    )
    chosen, notes = choose_methods(None, ROBOT)
    assert [m.label for m in chosen] == ["iekf_sr"]
    assert notes[0].startswith("trace is left out: ")
    assert notes[0].endswith("none.pt: no such file")
    assert notes[1] == "not_yet is left out: this version has no such estimator"
    with pytest.raises(TraceError, match=r"--methods trace: .*none\.pt: no such file; train or give one: trace=FILE"):
        choose_methods(["iekf_sr", "trace"], ROBOT)


DEFAULT_MODEL = benchmark_methods.default_model


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["moon"], "no estimator is called 'moon'"),
        (["iekf_sr", "iekf_sr"], "'iekf_sr' is there twice; give labels of their own"),
        (["trace="], "give ESTIMATOR, ESTIMATOR=FILE or LABEL:ESTIMATOR=FILE"),
        ([":trace"], "give ESTIMATOR, ESTIMATOR=FILE or LABEL:ESTIMATOR=FILE"),
        (["a:=x.pt"], "give ESTIMATOR, ESTIMATOR=FILE or LABEL:ESTIMATOR=FILE"),
        (["trace=none.pt"], r"none\.pt: no such file"),
        ([], "no method to compare: none was named"),
    ],
)
def test_bad_methods_are_refused(names, message):
    with pytest.raises(TraceError, match=message):
        choose_methods(names, ROBOT)


def test_a_broken_model_is_known_before_the_simulation(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"no model")
    with pytest.raises(TraceError, match=r"model\.pt"):
        choose_methods([f"trace={tmp_path / 'model.pt'}"], ROBOT)


def test_engines_by_name(monkeypatch):
    with pytest.raises(TraceError, match="unknown simulation backend 'havok'"):
        choose_engines(["havok"])
    monkeypatch.setattr(benchmark_walks, "find_spec", lambda name: None if name == "pybullet" else object())
    assert choose_engines(None) == (["mujoco"], ["the engine bullet is left out: pybullet is not installed"])
    with pytest.raises(TraceError, match="--engines bullet: pybullet is not installed: pip install pybullet"):
        choose_engines(["mujoco", "bullet"])


def test_the_settings_say_what_made_the_rows(kept, methods):
    walks, _, _ = kept
    settings = benchmark_settings(walks, methods, ROBOT)
    json.dumps(settings, allow_nan=False)
    assert settings["seeds"] == [3, 4]
    assert settings["courses"] == ["level", "soft"]
    assert settings["methods"]["iekf_sr"]["model"] == "config/baselines/iekf.yaml"
    assert len(settings["methods"]["trace"]["sha256"]) == 64
    assert len(settings["walks"]) == 4
    assert settings["metrics"]["alignment"] == "posyaw"
    assert settings["initial"] == "gravity"
    assert "torch" in settings["versions"]


def test_a_model_of_the_users_has_its_own_digest(model, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("a: 1\n")
    first = Method("x", "iekf_sr", other).digest
    other.write_text("a: 1 # the same\n")
    assert Method("x", "iekf_sr", other).digest == first
    other.write_text("a: 2\n")
    assert Method("x", "iekf_sr", other).digest != first
    assert Method("x", "trace", model).digest != first


def test_quick_takes_every_other_course_and_one_seed():
    shipped = CourseSet.load("courses")
    quick = quick_selection(shipped, None, None)
    assert [course.name for course in quick.courses] == ["flat", "slippery", "grass", "stairs"]
    assert quick.seeds == shipped.seeds[:1]
    assert quick_selection(shipped, ["full"], [9]).seeds == (9,)


def test_the_shipped_courses_are_none_on_which_anything_was_chosen():
    shipped, validation = CourseSet.load("courses"), CourseSet.load("validation")
    names = ["flat", "rough", "slippery", "soft", "grass", "hard", "stairs", "full"]
    assert [course.name for course in shipped.courses] == names
    assert not set(shipped.seeds) & set(validation.seeds)
    assert len(shipped.seeds) == 3
    ways = [course.phases for course in validation.courses]
    assert all(course.phases not in ways for course in shipped.courses)
    grounds = [patch for course in validation.courses for patch in course.patches]
    assert not [patch for course in shipped.courses for patch in course.patches if patch in grounds]
    friction = shipped.course("slippery").randomization.contact.friction
    assert friction[1] < 0.3
