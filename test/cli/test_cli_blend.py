"""``trace blend``: a model file that loads, and refusals in one line."""

import torch
from commands import run_trace
from untrained import export_untrained

from trace_ros.estimator.checkpoint import export_model, load_model
from trace_ros.robot import RobotDescription


def test_a_mean_is_written_and_loads(tmp_path, monkeypatch, capsys):
    one = load_model(export_untrained(tmp_path / "one.pt", RobotDescription.load("go2")))
    network = one.network()
    with torch.no_grad():
        network.head[-1].bias += 0.5
    export_model(network, one.card, tmp_path / "two.pt")
    given = ("blend", tmp_path / "two.pt", tmp_path / "one.pt", "--share", "0.2")
    result = run_trace(monkeypatch, capsys, *given, "--output", tmp_path / "new" / "mean.pt")
    assert result.code == 0, result.err
    assert "trace calibrate --write" in result.out
    assert "added to the network" not in result.out
    mean = load_model(tmp_path / "new" / "mean.pt")
    bias = next(name for name, _ in network.named_parameters() if name.startswith("head.4.bias"))
    torch.testing.assert_close(mean.weights[bias], one.weights[bias] + 0.4)
    assert (tmp_path / "new" / "mean.yaml").is_file()

    # What the estimator adds to the network is the first model's; where the other has another, that is told.
    export_model(network, one.card.model_copy(update={"input_limit": 4.0}), tmp_path / "limited.pt")
    with_limit = ("blend", tmp_path / "limited.pt", tmp_path / "one.pt", "--output", tmp_path / "limited_mean.pt")
    result = run_trace(monkeypatch, capsys, *with_limit)
    assert result.code == 0, result.err
    assert "so is what is added to the network (input_limit)" in result.out
    assert load_model(tmp_path / "limited_mean.pt").card.input_limit == 4.0

    result = run_trace(monkeypatch, capsys, *given[:2], tmp_path / "none.pt", "--output", tmp_path / "x.pt")
    assert result.code == 2
    assert "none.pt: no such model file" in result.err
    result = run_trace(monkeypatch, capsys, *given[:-1], "2", "--output", tmp_path / "x.pt")
    assert result.code == 2
    assert not (tmp_path / "x.pt").exists()

    (tmp_path / "way.yaml").mkdir()
    before = (tmp_path / "one.pt").read_bytes()
    for output, fault in (
        ("one.pt", "one.pt, which belongs to a model to mix"),
        ("one.bin", "one.yaml, which belongs to a model to mix"),
        ("x.yaml", "x.yaml: is the name of the model's card, give the model's: "),
        ("way.pt", "way.yaml: is a folder, expected a file"),
    ):
        result = run_trace(monkeypatch, capsys, *given, "--output", tmp_path / output)
        assert result.code == 2
        assert fault in result.err
        assert result.err.count("\n") == 1
    assert (tmp_path / "one.pt").read_bytes() == before
    assert not (tmp_path / "x.yaml").exists()
    assert not (tmp_path / "way.pt").exists()
