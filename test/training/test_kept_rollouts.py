"""Rollouts that several trainings share."""

import dataclasses

import numpy as np
import pytest
from pretraining import Recorder, describe
from synthetic import FailingSource, SyntheticSource

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.training.kept_rollouts import check_rollouts, count_rollouts, keep_rollouts, read_manifest
from trace_ros.training.pretrain import Pretraining

ROBOT = RobotDescription.load("go2")
SOURCE = SyntheticSource(samples=90)


def keep(folder, count=8, source=SOURCE, robot=ROBOT, **changes):
    description = describe(steps=1, **changes)
    return keep_rollouts(folder, robot, source, {"made": "up"}, description.config, description.seed, count)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rollouts")
    keep(path)
    return path


def test_a_training_on_kept_rollouts_needs_no_simulator(folder, tmp_path):
    description = dataclasses.replace(describe(steps=12), rollouts=folder)
    run, recorder = Pretraining.start(description, FailingSource(), tmp_path / "a"), Recorder()
    assert run.run(recorder)
    assert len(recorder.losses) == 12
    assert recorder.figures
    again = Recorder()
    assert Pretraining.start(description, FailingSource(), tmp_path / "b").run(again)
    np.testing.assert_allclose(again.losses, recorder.losses, rtol=1e-6)
    assert read_manifest(folder).chunks == 2
    assert sorted(path.name for path in folder.glob("*.npy")) == [
        "chunk_000000.npy",
        "chunk_000001.npy",
        "validation.npy",
    ]


def test_the_chunks_are_those_that_a_run_would_simulate(folder, tmp_path):
    run = Pretraining.start(describe(steps=1), SOURCE, tmp_path)
    assert run.run(Recorder())
    for name in ("chunk_000000.npy",):
        np.testing.assert_array_equal(np.load(folder / name), np.load(tmp_path / "replay" / name))
    np.testing.assert_array_equal(np.load(folder / "validation.npy"), np.load(tmp_path / "validation.npy"))


def test_a_run_on_kept_rollouts_resumes_as_if_unbroken(folder, tmp_path):
    description = dataclasses.replace(describe(steps=12), rollouts=folder)
    whole = Recorder()
    assert Pretraining.start(description, SOURCE, tmp_path / "whole").run(whole)
    broken = Pretraining.start(description, SOURCE, tmp_path / "broken")
    assert not broken.run(Recorder(), lambda: broken.step == 5)
    rest = Recorder()
    assert Pretraining.resume(description, SOURCE, tmp_path / "broken").run(rest)
    np.testing.assert_allclose(rest.losses, whole.losses[5:], rtol=1e-6)


def test_a_folder_is_completed_and_only_what_is_missing_is_simulated(tmp_path):
    keep(tmp_path)
    before = (tmp_path / "chunk_000000.npy").read_bytes()
    (tmp_path / "chunk_000001.npy").unlink()
    with pytest.raises(TraceError, match=r"chunk_000001\.npy: is missing"):
        check_rollouts(tmp_path, ROBOT, describe(steps=1).config)
    assert keep(tmp_path, count=9).chunks == 3
    assert (tmp_path / "chunk_000000.npy").read_bytes() == before
    assert keep(tmp_path, count=1, source=FailingSource()).chunks == 3


def test_unfit_folders_are_refused(folder, tmp_path):
    config = describe(steps=1).config
    with pytest.raises(TraceError, match="trace rollouts makes such a folder"):
        check_rollouts(tmp_path, ROBOT, config)
    with pytest.raises(TraceError, match="rollouts of go2"):
        check_rollouts(folder, RobotDescription.load("a1"), config)
    with pytest.raises(TraceError, match="rows"):
        check_rollouts(folder, ROBOT, describe(steps=1, rollout_samples=80).config)
    with pytest.raises(TraceError, match="other settings"):
        keep(folder, validation=config.validation.model_copy(update={"rollouts": 3}))
    (tmp_path / "rollouts.json").write_text("{}")
    with pytest.raises(TraceError, match=r"rollouts\.json"):
        read_manifest(tmp_path)


def test_what_was_stopped_is_gone_on_with_by_the_same_settings_alone(tmp_path):
    with pytest.raises(TraceError, match="the ground is missing"):
        keep(tmp_path, source=FailingSource())
    with pytest.raises(TraceError, match=r"its rollouts are not complete; run trace rollouts again"):
        check_rollouts(tmp_path, ROBOT, describe(steps=1).config)
    with pytest.raises(TraceError, match="holds rollouts of other settings"):
        keep(tmp_path, robot=RobotDescription.load("a1"))
    assert keep(tmp_path).chunks == 2
    assert count_rollouts(tmp_path) == (8, describe(steps=1).config.validation.rollouts)
    (tmp_path / "validation.npy").write_bytes(b"half")
    with pytest.raises(TraceError, match=r"validation\.npy: not readable"):
        count_rollouts(tmp_path)
    (tmp_path / "rollouts.json").unlink()
    with pytest.raises(TraceError, match="holds rollouts of unknown settings"):
        keep(tmp_path)
