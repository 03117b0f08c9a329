"""Models as files: what is written can be read, and what was not written by us is refused in one line."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError

from trace_ros.baselines.learned import method_of
from trace_ros.errors import TraceError
from trace_ros.estimator import checkpoint
from trace_ros.estimator.checkpoint import ModelCard, export_model, load_model
from trace_ros.estimator.network import ABSENT_TORQUE, NetworkConfig, TraceNetwork
from trace_ros.estimator.observation import OBSERVATION_SIZE, WINDOW
from trace_ros.estimator.streaming import StreamingTrace
from trace_ros.robot import RobotDescription


@pytest.fixture(scope="module")
def robot() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="module")
def network() -> TraceNetwork:
    torch.manual_seed(0)
    made = TraceNetwork(NetworkConfig(output_layer_scale=1.0))
    made.set_normalisation(torch.randn(47), torch.rand(47) + 0.5, torch.rand(9) + 0.5)
    return made


@pytest.fixture(scope="module")
def card(robot, network) -> ModelCard:
    return ModelCard(
        robot=robot.name,
        robot_fingerprint=robot.fingerprint,
        rate_hz=500.0,
        network=network.config,
        seeds={"training": 3},
        figures={"held_out": {"velocity_rmse": 0.05}},
    )


@pytest.fixture(scope="module")
def model(network, card, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "trace.pt"
    export_model(network, card, path)
    return path


def test_a_loaded_model_gives_what_was_exported(model, network, card):
    loaded = load_model(model)
    assert loaded.card == card
    rows = torch.randn(60, OBSERVATION_SIZE, generator=torch.Generator().manual_seed(1))
    eager = StreamingTrace(network)
    with torch.inference_mode():
        one, two = eager.prime(rows[: WINDOW - 1]), loaded.module.prime(rows[: WINDOW - 1])
        for row in rows[WINDOW - 1 :]:
            motion, attention, one = eager.step(row, one)
            motion_2, attention_2, two = loaded.module.step(row, two)
            torch.testing.assert_close(motion_2, motion, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(attention_2, attention, atol=1e-6, rtol=1e-6)


def test_a_loaded_model_can_be_trained_on(model, network):
    again = load_model(model).network()
    assert again.config == network.config
    for name, value in network.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, atol=0, rtol=0)


def test_an_absent_torque_is_told_as_nan_but_to_older_models_as_their_mean(model, network, tmp_path):
    assert np.isnan(load_model(model).absent_torque).all()
    older = tmp_path / "trace.pt"
    weights = {name: value for name, value in network.state_dict().items() if name != ABSENT_TORQUE}
    replace_weights(model, older, weights)
    loaded = load_model(older)
    np.testing.assert_array_equal(loaded.absent_torque, network.observation_mean[30:42].numpy())
    assert (loaded.network().absent_torque == 0).all()


def test_trained_intervals(card):
    assert card.interval_s is None
    assert card.trained_intervals_s == (0.5 / 500.0, 1.5 / 500.0)
    several = card.model_copy(update={"interval_s": (0.001, 0.006)})
    assert several.trained_intervals_s == (0.001, 0.006)
    assert ModelCard.model_validate_json(several.model_dump_json()) == several
    for bad in ((0.006, 0.001), (0.0, 0.002), (0.001, float("inf"))):
        with pytest.raises(ValidationError, match="interval_s"):
            ModelCard.model_validate({**card.model_dump(), "interval_s": bad})


def test_the_card_stands_beside_the_model(model, card):
    assert ModelCard.model_validate(yaml.safe_load(model.with_suffix(".yaml").read_text())) == card
    assert not list(model.parent.glob("*.partial"))


def test_the_right_robot_is_accepted(model, robot):
    load_model(model).check_robot(robot)


def test_other_robots_are_refused(model, robot):
    loaded = load_model(model)
    with pytest.raises(TraceError, match="trained for robot 'go2', not 'go1'"):
        loaded.check_robot(robot.model_copy(update={"name": "go1"}))
    changed = robot.model_copy(update={"foot_radius": 0.03})
    changed.__dict__.pop("fingerprint", None)
    with pytest.raises(TraceError, match="of other dimensions"):
        loaded.check_robot(changed)


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_missing_files_and_folders_are_refused(tmp_path):
    assert "no such model file" in refused(tmp_path / "nothing.pt")
    assert "is a folder" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", bytes(5000)])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "trace.pt"
    path.write_bytes(content)
    assert "is empty" in refused(path) or "not a TorchScript model" in refused(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_models_are_refused(model, tmp_path, share):
    path = tmp_path / "trace.pt"
    path.write_bytes(model.read_bytes()[: int(share * model.stat().st_size)])
    assert "truncated" in refused(path)


def test_damaged_models_are_refused(model, tmp_path):
    data = bytearray(model.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(value ^ 0xFF for value in data[middle : middle + 64])
    path = tmp_path / "trace.pt"
    path.write_bytes(data)
    assert "damaged" in refused(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_models_with_any_damage_are_refused_in_one_line(model, tmp_path, kind):
    packed = io.BytesIO()
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(packed, "w", kind) as target:
        for item in source.infolist():
            target.writestr(item.filename, source.read(item.filename))
    whole, path = packed.getvalue(), tmp_path / "trace.pt"
    card, directory = whole.index(checkpoint.CARD_FILE.encode()), whole.index(b"PK\1\2")
    # Name and start of the card; version, flags, kind and name in the directory.
    for place in (card, card + 25, card + 60, directory + 6, directory + 8, directory + 10, directory + 50):
        data = bytearray(whole)
        data[place] ^= 0xA5
        path.write_bytes(data)
        assert refused(path)
        assert isinstance(method_of(path), str)


@pytest.mark.parametrize("pickled", [b"\x80\x02)R.", b"\x80\x02h\x05.", b"\x80\x02G\x00.", b"\x80\x02X\x01\0\0\0\xff."])
def test_weights_that_trip_the_unpickler_are_refused(model, tmp_path, pickled):
    path = tmp_path / "trace.pt"
    replace_weights(model, path, {}, pickled)
    assert "cannot be loaded" in refused(path)


def test_training_checkpoints_and_foreign_scripts_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"weights": torch.zeros(3)}, path)
    assert "trace export" in refused(path)
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "linear.pt"))
    assert "not exported by trace_ros" in refused(tmp_path / "linear.pt")


def rewrite_card(model: Path, path: Path, text: str) -> None:
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(path, "w") as target:
        for item in source.infolist():
            is_card = item.filename.endswith(checkpoint.CARD_FILE)
            target.writestr(item, text if is_card else source.read(item.filename))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda card: card.model_copy(update={"format": 99}).model_dump_json(), "model format 99"),
        (lambda card: card.model_dump_json().replace('"seeds"', '"sedes"'), "unknown key 'sedes'"),
        (lambda card: card.model_dump_json()[:-10], "its model card is damaged"),
        (lambda _: "[1]", "its model card is damaged"),
        (lambda _: "[" * 100_000, "its model card is damaged"),
    ],
)
def test_bad_cards_are_refused(model, card, tmp_path, change, said):
    path = tmp_path / "trace.pt"
    rewrite_card(model, path, change(card))
    assert said in refused(path)


def replace_weights(model: Path, path: Path, weights: object, pickled: bytes = b"") -> None:
    saved, buffer = io.BytesIO(), io.BytesIO()
    torch.save(weights, saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(buffer, "w") as target:
        for item in source.infolist():
            spoilt = pickled and item.filename.endswith("data.pkl")
            target.writestr(item.filename, pickled if spoilt else source.read(item.filename))
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(path, "w") as target:
        for item in source.infolist():
            is_weights = item.filename.endswith(checkpoint._WEIGHTS)
            target.writestr(item, buffer.getvalue() if is_weights else source.read(item.filename))


class Pickled:
    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self):
        return Path.touch, (self.trap,)


def test_code_in_place_of_weights_is_not_run(model, tmp_path):
    path, trap = tmp_path / "trace.pt", tmp_path / "ran"
    replace_weights(model, path, Pickled(trap))
    assert "not only tensors" in refused(path)
    assert not trap.exists()


def test_weights_of_another_network_are_refused(model, network, tmp_path):
    path = tmp_path / "trace.pt"
    replace_weights(model, path, {"linear.weight": torch.zeros(3)})
    assert "do not belong together" in refused(path)
    weights = network.state_dict()
    weights["observation_mean"] = torch.zeros(46)
    replace_weights(model, path, weights)
    assert "do not belong together" in refused(path)


def test_another_script_with_our_card_is_refused(model, tmp_path):
    extra = {checkpoint.CARD_FILE: "", checkpoint._WEIGHTS: ""}
    torch.jit.load(str(model), _extra_files=extra)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "linear.pt"), _extra_files=extra)
    assert "do not belong together" in refused(tmp_path / "linear.pt")


def test_huge_files_are_not_opened(model, tmp_path, monkeypatch):
    path = tmp_path / "trace.pt"
    shutil.copy(model, path)
    monkeypatch.setattr(checkpoint, "MAX_BYTES", 1000)
    assert "too many" in refused(path)


def test_a_file_that_cannot_be_written_is_named(network, card, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match="cannot be written"):
        export_model(network, card, tmp_path / "file" / "trace.pt")


def test_a_write_that_fails_leaves_what_was_there(network, card, tmp_path, monkeypatch):
    path = tmp_path / "trace.pt"
    export_model(network, card, path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for method in ("write_bytes", "write_text"):

        def full(_path: Path, _data: object, **_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, full)
            with pytest.raises(TraceError, match="No space left"):
                export_model(network, card, path)
        assert sorted(file.name for file in tmp_path.iterdir()) == sorted(before)
        load_model(path)
    assert (tmp_path / "trace.yaml").read_bytes() == before["trace.yaml"]
