"""Models in half precision: small files, nearly the same answers, and weights that training can go on from."""

from pathlib import Path

import pytest
import torch

from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.legolas_network import FRAME_SIZE, LegolasNetwork, StreamingLegolas
from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import (
    ModelCard,
    export_model,
    export_script,
    load_model,
    read_archive,
    store_in_half_precision,
)
from trace_ros.estimator.network import TraceNetwork

COMMON = {"robot": "go2", "robot_fingerprint": "none", "rate_hz": 500.0}


@pytest.fixture(scope="module")
def legolas(tmp_path_factory) -> tuple[Path, Path]:
    """One network as two files: as exported, and in half precision."""
    torch.manual_seed(0)
    network, card = LegolasNetwork(), LegolasCard(**COMMON)
    paths = [tmp_path_factory.mktemp("models") / name for name in ("whole.pt", "half.pt")]
    for path in paths:
        export_script(StreamingLegolas(network), network.state_dict(), card, path)
    store_in_half_precision(paths[1], card)
    return paths[0], paths[1]


def test_a_file_of_a_quarter_gives_nearly_the_same(legolas):
    whole, half = legolas
    assert half.stat().st_size < 0.27 * whole.stat().st_size
    frames = torch.randn(60, FRAME_SIZE, generator=torch.Generator().manual_seed(1))
    answers = []
    for path in legolas:
        module = read_archive(path).freeze()
        state = module.prime(frames[0])
        for frame in frames:
            motion, *_, state = module.step(frame, state)
        answers.append(motion)
    assert answers[0].dtype == answers[1].dtype == torch.float32
    assert not torch.equal(*answers)
    assert torch.allclose(*answers, rtol=1e-2, atol=1e-5)


def test_training_can_go_on_from_it(legolas):
    before, after = (read_archive(path).weights for path in legolas)
    assert list(after) == list(before)
    for name, value in before.items():
        assert after[name].dtype == value.dtype, name
        assert torch.allclose(after[name], value, rtol=1e-3, atol=1e-6), name
        if value.numel() < 4096:
            assert torch.equal(after[name], value), name
    LegolasNetwork().load_state_dict(after)


def test_written_once_more_it_stays_as_it_is(legolas, tmp_path):
    again = tmp_path / "again.pt"
    again.write_bytes(legolas[1].read_bytes())
    store_in_half_precision(again, read_archive(again).read_card(LegolasCard))
    assert again.with_suffix(".yaml").is_file()
    first, second = (read_archive(path).weights for path in (legolas[1], again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_model_of_trace_too(tmp_path):
    path = tmp_path / "trace.pt"
    export_model(TraceNetwork(), ModelCard(**COMMON), path)
    size = path.stat().st_size
    store_in_half_precision(path, ModelCard(**COMMON))
    assert path.stat().st_size < 0.8 * size
    assert load_model(path).weights["head.0.weight"].dtype == torch.float32


def test_weights_that_are_elsewhere_are_refused(legolas, tmp_path, monkeypatch):
    broken = tmp_path / "broken.pt"
    broken.write_bytes(legolas[1].read_bytes())
    monkeypatch.setattr("trace_ros.estimator.halving._tensors", lambda _: {})
    with pytest.raises(TraceError, match=r"broken\.pt: cannot be loaded"):
        read_archive(broken)
