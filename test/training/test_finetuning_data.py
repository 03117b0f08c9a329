"""Windows, anchors and what the reference does and does not cover; splits and recordings under two names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning_logs import ROBOT, config, log, track, untrained
from scipy.spatial.transform import Rotation

from trace_ros.bags import read_log, write_log
from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.logs import Trajectory
from trace_ros.references import ReferenceSettings
from trace_ros.training.dataset import FEEDBACK, PREFIX
from trace_ros.training.finetuning_config import FineTuningConfig
from trace_ros.training.finetuning_data import Window, WindowBatch, with_reference
from trace_ros.training.finetuning_splits import NamedLog, assign_splits, check_recordings, fingerprint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("base") / "trace.pt")


def test_windows_overlap_as_the_config_says(model):
    own = track(model)
    assert own.begins == (0, 75, 150, 225)
    assert own.ends == (150, 225, 300, 375)
    # The paper's numbers: a log of 150 s has 14 windows of 20 s.
    paper = FineTuningConfig.load("paper")
    assert (paper.window, paper.stride, paper.loss.horizon) == (20.0, 10.0, 1.0)
    assert (paper.optimiser.learning_rate, paper.optimiser.epochs, paper.optimiser.gradient_clip) == (1e-5, 20, 1.0)
    assert paper.mode == "partial"


@pytest.mark.parametrize("joints", ["measured", "feet"])
def test_the_network_is_given_what_the_estimator_gives_it(joints, tmp_path):
    """The estimator itself, spied on: its observations but for what it feeds back."""
    model, made = untrained(tmp_path / "trace.pt", joints), log(0, 80)
    estimator = TraceEstimator(model, ROBOT)
    seen = []
    for sample in made:
        estimator.step(sample)
        seen.append(estimator._engine.observation.copy())
    own = track(model, made=made, settings=config(window=0.12, stride=0.1, validation={"horizon": 0.05}))
    others = [channel for channel in range(obs.OBSERVATION_SIZE) if not FEEDBACK.start <= channel < FEEDBACK.stop]
    given = own.observations.numpy()
    np.testing.assert_allclose(given[:, others], np.array(seen)[:, others], rtol=1e-6)
    assert (estimator.feet is not None) == (joints == "feet")


def test_a_window_begins_where_the_reference_has_it(model):
    made = log(0, every=1)
    own = track(model, made=made)
    truth = made.reference
    begin = own.begins[1] + PREFIX
    _, feedback = WindowBatch([Window(own, own.begins[1], own.ends[1])], own.lookback).prefix()
    roll, pitch, _ = Rotation.from_quat(truth.orientation[begin - 1]).as_euler("xyz")
    np.testing.assert_allclose(feedback[0], [roll, pitch, *truth.velocity[begin - 1, :2]], atol=1e-5)


def test_targets_are_relative_motion_of_the_reference(model):
    made = log(0, every=1)
    own = track(model, made=made)
    paired = torch.nonzero(own.anchor >= 0).flatten()
    assert paired[0] == 25
    step = int(paired[100])
    truth = made.reference
    back = truth.rotation_world_body[step - 25].inv()
    expected = back.apply(truth.position[step] - truth.position[step - 25])
    np.testing.assert_allclose(own.displacement[step], expected, atol=1e-6)
    turn = (back * truth.rotation_world_body[step]).as_matrix()
    np.testing.assert_allclose(own.turn[step], turn, atol=1e-6)


def test_nothing_is_interpolated_over_a_gap_or_a_jump(model):
    made = log(0, 1200, every=10)
    truth = made.reference
    gap = (truth.stamp_ns < 900_000_000) | (truth.stamp_ns > 1_300_000_000)
    own = track(model, made=replace(made, reference=truth.select(gap)))
    known = own.known.numpy()
    stamps = own.stamp_ns * 1e-9
    assert not known[(stamps > 0.9) & (stamps < 1.3)].any()
    assert known[stamps < 0.87].all()
    inside = own.anchor[(stamps > 0.9) & (stamps < 1.34)]
    assert (inside < 0).all()
    assert own.left_out > 0

    jump = np.where(np.arange(len(truth)) < 50, 0, 1)
    shifted = replace(truth, position=truth.position + jump[:, None] * [5.0, 0, 0])
    own = track(model, made=replace(made, reference=shifted), piece=jump)
    assert not own.known[491:500].any()
    assert own.known[:491].all() and own.known[500:1190].all()
    assert own.displacement.norm(dim=-1).max() < 1.0
    assert (own.anchor[491:525] < 0).all() and (own.anchor[526:600] >= 0).all()


def test_a_reference_at_another_rate_and_clock_fits_after_cleaning():
    made = log(3, 4000, every=50)  # 10 Hz
    late = replace(made.reference, stamp_ns=made.reference.stamp_ns + 300_000_000)
    settings = FineTuningConfig().reference
    found = with_reference("walk", replace(made, reference=late), ROBOT, settings)
    assert any("late" in note for note in found.notes)
    truth = log(3, 4000, every=1).reference
    at, mask = found.log.reference.resample(truth.stamp_ns)
    assert mask.mean() > 0.95
    assert np.abs(at.velocity - truth.velocity[mask]).mean() < 0.1


def test_a_reference_of_another_motion_is_refused_and_a_wrong_while_is_cut():
    made = log(3, 8000, every=50)
    settings = FineTuningConfig().reference
    whole = with_reference("walk", made, ROBOT, settings)
    seconds = (made.reference.stamp_ns - made.reference.stamp_ns[0]) * 1e-9
    spun = Rotation.from_rotvec(np.outer(2.0 * seconds, (0.0, 0.0, 1.0)))
    other = replace(made.reference, orientation=(spun * made.reference.rotation_world_body).as_quat())
    known = settings.model_copy(update={"cleaning": ReferenceSettings(clock_offset=0.0, jump_angle=3.0)})
    with pytest.raises(TraceError, match=r"walk: its reference turns otherwise than the gyro in 100 % of the time"):
        with_reference("walk", replace(made, reference=other), ROBOT, known)
    some = np.arange(len(made.reference)) // 8 == 5  # 0.8 of 16 s
    while_off = Rotation.from_rotvec(np.outer(some, (0.0, 0.0, 0.8)))
    partly = replace(made.reference, orientation=(while_off * made.reference.rotation_world_body).as_quat())
    found = with_reference("walk", replace(made, reference=partly), ROBOT, known)
    assert any("turns otherwise" in note and "cut there" in note for note in found.notes)
    assert len(found.log.reference) < len(whole.log.reference) and len(np.unique(found.piece)) == 2


def test_a_torn_reference_is_judged_in_one_world():
    made = log(3, 4000, every=50)
    jumped = made.reference.position + np.where(np.arange(len(made.reference)) >= 50, 3.0, 0.0)[:, None]
    found = with_reference(
        "walk", replace(made, reference=replace(made.reference, position=jumped)), ROBOT, FineTuningConfig().reference
    )
    judged, notes = found.in_one_world()
    assert len(notes) == 1 and "longest of 2 parts" in notes[0]
    steps = np.linalg.norm(np.diff(judged.reference.position, axis=0), axis=1)
    assert steps.max() < 0.5 and 0.5 < len(judged.reference) / len(found.log.reference) < 0.7
    assert with_reference("walk", made, ROBOT, FineTuningConfig().reference).in_one_world()[1] == ()


def test_a_reference_that_begins_late_moves_the_windows(model):
    made = log(0, every=1)
    own = track(model, made=replace(made, reference=made.reference.select(slice(10, None))))
    assert (own.begins, own.left_out) == ((10, 85, 160, 235), 0)


def test_padding_counts_for_nothing(model):
    own = track(model)
    short = Window(own, own.begins[0], own.ends[0] - 40)
    batch = WindowBatch([Window(own, own.begins[0], own.ends[0]), short], own.lookback)
    frames = next(iter(batch.segments(1000)))[1]
    assert frames.inside[1, -40:].max() == frames.paired[1, -40:].max() == 0
    assert frames.inside[0].min() == 1
    assert torch.isfinite(frames.dt).all() and frames.dt.min() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.select(slice(0, 100)), "is 0.2 s long, a window 0.3 s"),
        (lambda made: replace(made, reference=shifted_by(made.reference, 100.0)), "share no time"),
    ],
)
def test_what_cannot_be_used_is_named(model, change, message):
    with pytest.raises(TraceError, match=message):
        track(model, made=change(log(0)))


def shifted_by(reference: Trajectory, seconds: float) -> Trajectory:
    return replace(reference, stamp_ns=reference.stamp_ns + round(seconds * 1e9))


def test_a_log_without_reference_is_named():
    with pytest.raises(TraceError, match="walk: has no reference"):
        with_reference("walk", replace(log(0), reference=None), ROBOT, FineTuningConfig().reference)


@pytest.mark.parametrize(
    "change",
    [
        {"loss": {"horizon": 30.0}},
        {"mode": "some"},
        {"optimiser": {"epochs": 0}},
        {"validation": {"horizon": 20.0}},
        {"loss": {"foot": 1.0}},
        {"seed": 2**31},
        {"stride": 1e-9},
        {"validation": {"spacing": 1e-12}},
    ],
)
def test_a_bad_config_is_named(change):
    with pytest.raises(TraceError, match=next(iter(change))):
        FineTuningConfig.parse(change, "mine.yaml")


def paths(*names):
    return [Path(name) for name in names]


def test_the_last_log_is_held_back():
    splits, note = assign_splits(paths("a", "b", "c"), [], paths("t"))
    assert [(path.name, split) for path, split in splits] == [
        ("a", "training"), ("b", "training"), ("c", "validation"), ("t", "test"),
    ]  # fmt: skip
    assert "c is held back" in note
    assert assign_splits(paths("a"), paths("v"), []) == ([(Path("a"), "training"), (Path("v"), "validation")], None)


@pytest.mark.parametrize(
    ("logs", "validation", "test", "message"),
    [
        ("a", "", "", "only log"),
        ("", "v", "", "no --logs"),
        ("ab", "a", "", "--logs and with --validation"),
        ("ab", "v", "b", "--logs and with --test"),
        ("ab", "v", "v", "--validation and with --test"),
        ("aa", "v", "", "--logs: names a log twice"),
    ],
)
def test_a_log_is_for_one_split(logs, validation, test, message):
    with pytest.raises(TraceError, match=message):
        assign_splits(paths(*logs), paths(*validation), paths(*test))


def test_a_recording_under_another_name_or_cut_is_found(tmp_path):
    first, second = log(0), log(1)
    kinds = {"bag": "walk", "npz": "copy.npz", "csv": "table.csv"}
    for name in kinds.values():
        write_log(tmp_path / name, first, ROBOT)
    read = {kind: read_log(tmp_path / name, ROBOT)[0] for kind, name in kinds.items()}
    assert len({fingerprint(copy) for copy in read.values()}) == 1
    assert fingerprint(first) != fingerprint(second)
    others = [*read.values(), first.select(slice(300, None))]
    for split in ("validation", "test", "training"):
        for copy in others:
            named = [
                NamedLog(Path("one"), "training", first, ""),
                NamedLog(Path("two"), "training", second, ""),
                NamedLog(Path("other_name"), split, copy, ""),
            ]
            with pytest.raises(TraceError, match="other_name: the same recording as one"):
                check_recordings(named)
    check_recordings(named[:2])


def test_robots_at_rest_are_not_taken_for_one_recording():
    """Readings of few steps of resolution, as of two robots that stand: single ones agree by chance."""
    made = log(0)
    logs = []
    for seed in range(2):
        noise = np.random.default_rng(seed).integers(-1, 2, (len(made), 6)) * 0.01
        still = replace(made, angular_velocity=noise[:, :3], linear_acceleration=np.array([0, 0, 9.81]) + noise[:, 3:])
        logs.append(NamedLog(Path(str(seed)), "training", still, ""))
    check_recordings(logs)
