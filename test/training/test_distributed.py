"""Two ranks over gloo, as processes of their own: together they are one rank with the joined batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import two_ranks
from pretraining import describe

from trace_ros.errors import TraceError
from trace_ros.training.distributed import ALONE, Ranks, joined
from trace_ros.training.pretrain import Pretraining
from trace_ros.training.state import load_state

HERE = Path(__file__).parent


def launch(what: str, folder: Path) -> list[subprocess.Popen[str]]:
    """Both ranks, started as torchrun does it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "two_ranks.py"), what, str(folder)]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "PYTHONPATH": paths, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def finish(ranks: list[subprocess.Popen[str]], timeout: float = 120) -> list[str]:
    """What each said on standard error."""
    try:
        return [process.communicate(timeout=timeout)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = launch("agree", folder)
    said = finish(ranks)
    assert [process.returncode for process in ranks] == [0, 0], said
    return folder, [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_gradients_are_those_of_one_rank_with_the_joined_batch(together, tmp_path):
    """With unequal numbers of valid samples, which a plain mean over the ranks would get wrong."""
    expected, terms = two_ranks.gradients(two_ranks.made_up(slice(None)), tmp_path)
    assert len(expected) > 20
    for found in together[1]:
        assert found["gradients"].keys() == expected.keys()
        for name, gradient in expected.items():
            assert (found["gradients"][name] - gradient).norm() <= 1e-5 * gradient.norm(), name
        for name, value in terms.items():
            assert found["terms"][name] == pytest.approx(value, rel=1e-5), name


def test_the_ranks_gradients_differ_before_they_are_averaged(tmp_path):
    """So that the test above can fail."""
    joint, _ = two_ranks.gradients(two_ranks.made_up(slice(None)), tmp_path / "joint")
    parts = (slice(4), slice(4, 8))
    halves = [two_ranks.gradients(two_ranks.made_up(part), tmp_path / str(part.stop))[0] for part in parts]
    together, one, two = (torch.cat([value.flatten() for value in part.values()]) for part in (joint, *halves))
    assert ((one + two) / 2 - together).norm() > 1e-2 * together.norm()


def test_ranks_hold_the_same_weights_and_rates(together):
    one, two = together[1]
    for name in ("weights", "averaged"):
        assert torch.equal(one[name], two[name])
    for name in ("losses", "rates", "samples"):
        assert one[name] == two[name]
    assert (one["validations"], two["validations"]) == (1, 0)


def test_each_rank_has_rollouts_of_its_own(together):
    folder, _ = together
    first, second = (
        np.load(place / "replay" / "chunk_000000.npy") for place in (folder / "unbroken", folder / "unbroken" / "rank1")
    )
    assert first.shape == second.shape
    assert np.abs(first - second).max() > 0.1


def test_a_run_that_one_rank_stops_is_resumed_as_if_unbroken(together):
    folder, results = together
    for result in results:
        assert result["resumed_at"] == two_ranks.STOPPED
        np.testing.assert_allclose(result["resumed_losses"], result["losses"], rtol=1e-5)
    state = load_state(folder / "stopped" / "checkpoint.pt")
    assert len(state["lanes_of_other_ranks"]) == 1
    assert state["samples"] == results[0]["samples"]


def test_a_run_of_two_ranks_is_resumed_by_one(together):
    run = Pretraining.resume(describe(steps=two_ranks.STEPS), two_ranks.SOURCE, together[0] / "unbroken")
    assert run.step == two_ranks.STEPS
    assert run.progress == 1


def test_ranks_with_different_settings_are_refused(together):
    one, two = (result["refused"] for result in together[1])
    assert "rank 1: differs from rank 0 in config;" in two
    assert "rank 0: another rank's settings differ" in one


def test_a_rank_that_dies_ends_the_others_with_one_line(tmp_path):
    ranks = launch("die", tmp_path)
    survivor, _ = finish(ranks, timeout=90)
    assert ranks[0].returncode == 1
    (line,) = [line for line in survivor.splitlines() if not line.startswith("[")]
    assert line.startswith("error: rank 0: another rank has ended")
    assert "--resume" in line


def test_seeds_of_ranks_are_their_own():
    assert ALONE.seed(3) == 3
    seeds = {Ranks(rank, 64).seed(seed) for seed in range(20) for rank in range(64)}
    assert len(seeds) == 20 * 64
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_alone_nothing_is_communicated(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with joined() as ranks:
        assert ranks == ALONE
        assert not torch.distributed.is_initialized()
        assert ranks.any(True)
        assert not ranks.any(False)
        assert ranks.first(lambda: 5) == 5
        assert ranks.gather("x") == ["x"]
        assert ranks.share(7) == (1.0, 1.0, 7)


def test_a_missing_gpu_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TraceError, match="--device cpu"), joined("cuda"):
        pass


def test_bad_variables_are_named(monkeypatch):
    values = {"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TraceError, match="RANK='one'"), joined():
        pass
