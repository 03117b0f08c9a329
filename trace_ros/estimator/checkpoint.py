"""The shipped model: a TorchScript file with normalisation, weights to train on and card inside; the card beside it."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from trace_ros.errors import TraceError
from trace_ros.estimator.halving import halve, restore
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.joint_delay import JointDelay
from trace_ros.estimator.network import ABSENT_TORQUE, NetworkConfig, TraceNetwork
from trace_ros.estimator.observation import JOINT_TORQUE
from trace_ros.estimator.odometry import ErrorModel
from trace_ros.estimator.streaming import StreamingTrace
from trace_ros.logs import JOINTS
from trace_ros.robot import RobotDescription, describe_validation_error
from trace_ros.whole_files import DAMAGED_ARCHIVE, whole_file

FORMAT = 1
"""Of shipped models; raised when older files can no longer be read."""

MAX_BYTES = 256 * 1024**2
"""A model has about two megabytes; what is larger is another file and is not even opened."""

CARD_FILE = "trace_card.json"
"""Beside the TorchScript archive's own files."""
# And the weights in the form that training wants them.
_WEIGHTS = "trace_weights.pt"


_JITTER = (0.5, 1.5)
"""What jitter in training makes of the interval of a model that was trained at one rate, as factors on it."""

AnyCard = TypeVar("AnyCard", bound="Card")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Card(BaseModel):
    """What a model is, where it comes from and what was measured of it; whatever its method.

    Attributes:
        format: version of the file's layout.
        name: of the estimator.
        robot, robot_fingerprint: whom it was trained for (`RobotDescription.fingerprint`).
        rate_hz: sampling rate of the training data, their median.
        interval_s: shortest and longest time between two samples that training showed often enough to be learned, s;
            None in models that were trained at one rate with a little jitter.
        error_model: how fast its pose becomes uncertain.
        joint_delay: s; how much older joint readings are than IMU readings of the same stamp on the unit that the model
            was fitted to (`trace_ros.estimator.joint_delay`); 0 in models for every unit.
        training: config of the training.
        simulation: config of the simulator that made the data.
        seeds: of everything random.
        command: that trained it.
        initial: what the model had seen that training started from (command, seeds, steps, samples, hours); None where
            it started from weights drawn at random.
        steps, samples: gradient steps, and samples that they saw.
        training_hours: wall clock.
        figures: what was measured on held-out data, by name.
        versions: of the packages that made the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: int = FORMAT
    name: str = "trace"
    robot: str
    robot_fingerprint: str
    rate_hz: Annotated[float, Field(gt=0)]
    interval_s: tuple[Positive, Positive] | None = None
    error_model: ErrorModel = ErrorModel()
    joint_delay: JointDelay = 0.0
    training: dict[str, Any] = {}
    simulation: dict[str, Any] = {}
    seeds: dict[str, int] = {}
    command: str = ""
    initial: dict[str, Any] | None = None
    steps: int = 0
    samples: int = 0
    training_hours: float = 0.0
    figures: dict[str, Any] = {}
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _interval_is_in_order(self) -> Card:
        if self.interval_s is not None and self.interval_s[0] > self.interval_s[1]:
            raise ValueError("interval_s: the shortest is longer than the longest")
        return self

    @property
    def trained_intervals_s(self) -> tuple[float, float]:
        """Between which intervals (s) the network knows what it is told."""
        if self.interval_s is not None:
            return self.interval_s
        shortest, longest = _JITTER
        return shortest / self.rate_hz, longest / self.rate_hz

    def check_robot(self, robot: RobotDescription, path: Path) -> None:
        """Refuse a robot that the model in ``path`` was not trained for.

        Raises:
            TraceError: another name or other kinematics.
        """
        if self.robot != robot.name:
            raise TraceError(f"{path}: trained for robot {self.robot!r}, not {robot.name!r}: choose its own model")
        if self.robot_fingerprint != robot.fingerprint:
            raise TraceError(
                f"{path}: trained for a {self.robot} of other dimensions (fingerprint {self.robot_fingerprint}, "
                f"robot file has {robot.fingerprint}): undo the change of the robot file, or train again"
            )


class ModelCard(Card):
    """The card of a TRACE model.

    Attributes:
        network: sizes and parametrisation.
        height: when the height that the feet show takes the place of the network's own
            (`trace_ros.estimator.height`); None: never.
        input_limit: standard deviations of the training, beyond which a reading is told to the network as that many
            (`trace_ros.estimator.input_limits`); None: readings are told as they are.
    """

    network: NetworkConfig = NetworkConfig()
    height: HeightSettings | None = None
    input_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        module: TorchScript with ``prime(window (29, 47)) -> state`` and
            ``step(observation (47,), state) -> (motion (9,), attention (6,), state)``, frozen for inference.
        card: what it is.
        path: where it came from.
        weights: state of the `TraceNetwork` that it was made from, to train on.
    """

    module: torch.jit.ScriptModule
    card: ModelCard
    path: Path
    weights: dict[str, torch.Tensor]

    def check_robot(self, robot: RobotDescription) -> None:
        """Refuse a robot that the model was not trained for.

        Raises:
            TraceError: another name or other kinematics.
        """
        self.card.check_robot(robot, self.path)

    @property
    def absent_torque(self) -> NDArray[np.float32]:
        """What to put into the observation for a joint torque that the robot does not report: (12,).

        NaN, for which the network has a value of its own. Models from before it had one get what training saw on
        average, a zero to them.
        """
        if ABSENT_TORQUE in self.weights:
            return np.full(JOINTS, np.nan, dtype=np.float32)
        mean: NDArray[np.float32] = self.weights["observation_mean"][JOINT_TORQUE].numpy()
        return mean

    def network(self) -> TraceNetwork:
        """The network with the model's weights, trainable."""
        network = TraceNetwork(self.card.network)
        network.load_state_dict(self.weights)
        return network


def export_model(network: TraceNetwork, card: ModelCard, path: Path) -> Path:
    """Write a model and its card.

    Args:
        network: trained.
        card: what to say of it.
        path: of the TorchScript file; the card goes beside it with the suffix ``.yaml``.

    Returns:
        Path of the card.

    Raises:
        TraceError: a file cannot be written.
    """
    return export_script(StreamingTrace(network), network.state_dict(), card, path)


def export_script(streaming: nn.Module, weights: dict[str, torch.Tensor], card: Card, path: Path) -> Path:
    """Write a model of any method: a module with ``prime`` and ``step`` as TorchScript, weights to train on, and card.

    Returns:
        Path of the card.

    Raises:
        TraceError: a file cannot be written.
    """
    with _torchscript():
        script = torch.jit.script(streaming.eval())
    kept = io.BytesIO()
    torch.save({name: value.detach().clone() for name, value in weights.items()}, kept)
    return _write(script, card, kept.getvalue(), path)


def _write(script: torch.jit.ScriptModule, card: Card, weights: bytes, path: Path) -> Path:
    card_path = path.with_suffix(".yaml")
    try:
        extra = {CARD_FILE: card.model_dump_json().encode(), _WEIGHTS: weights}
        text = yaml.safe_dump(card.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        archive = io.BytesIO()
        with _torchscript():
            torch.jit.save(script, archive, _extra_files=extra)
        with whole_file(path) as temporary:
            temporary.write_bytes(archive.getvalue())
        with whole_file(card_path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as error:
        raise TraceError(f"{path}: cannot be written ({error})") from error
    return card_path


def write_card(path: Path, card: ModelCard) -> Path:
    """Give an exported model another card, in it and beside it; the network stays as it is.

    Returns:
        Path of the card.

    Raises:
        TraceError: not a model of this package, or a file cannot be written.
    """
    load_model(path)
    extra: dict[str, Any] = {_WEIGHTS: ""}
    with _torchscript():
        script = torch.jit.load(str(path), map_location="cpu", _extra_files=extra)
    return _write(script, card, extra[_WEIGHTS], path)


def store_in_half_precision(path: Path, card: Card) -> None:
    """Write an exported model again with `trace_ros.estimator.halving`: a quarter of the size, rounded to 5e-4.

    Args:
        path: of the model; its card is written again too.
        card: the model's.

    Raises:
        TraceError: not a model of this package, or a file cannot be written.
    """
    archive = read_archive(path)
    kept = io.BytesIO()
    torch.save(halve(archive.script, archive.weights), kept)
    _write(archive.script, card, kept.getvalue(), path)


@dataclass(frozen=True)
class Archive:
    """What a model file of any method holds.

    Attributes:
        script: the module with ``prime`` and ``step``, not frozen.
        card: as written.
        path: of the file.
        weights: to train on.
    """

    script: torch.jit.ScriptModule
    card: bytes
    path: Path
    weights: dict[str, torch.Tensor]

    @property
    def method(self) -> str:
        """Name of the estimator that the model is of.

        Raises:
            TraceError: the card is damaged or of another version.
        """
        return str(_card_data(self.path, self.card).get("name", ModelCard.model_fields["name"].default))

    def read_card(self, kind: type[AnyCard]) -> AnyCard:
        """The card as one of its kind.

        Raises:
            TraceError: it is damaged, of another version or of another kind.
        """
        try:
            return kind.model_validate(_card_data(self.path, self.card))
        except ValidationError as error:
            raise TraceError(f"{self.path}: its model card is damaged ({describe_validation_error(error)})") from error

    def freeze(self) -> torch.jit.ScriptModule:
        """The module for inference.

        Raises:
            TraceError: it has no such methods.
        """
        try:
            with _torchscript():
                return torch.jit.freeze(self.script.eval(), preserved_attrs=["prime", "step"])
        except (RuntimeError, TypeError, AttributeError) as error:
            raise TraceError(f"{self.path}: damaged: network, weights and card do not belong together") from error


def load_model(path: Path) -> LoadedModel:
    """Load a model that `export_model` wrote, frozen for inference on the CPU.

    Raises:
        TraceError: no such file, too large, not TorchScript, damaged, not a model of this package, of another method,
            or another version.
    """
    archive = read_archive(path)
    if (method := archive.method) != ModelCard.model_fields["name"].default:
        raise TraceError(f"{path}: a model of {method}, expected one of trace")
    card = archive.read_card(ModelCard)
    try:
        model = LoadedModel(archive.freeze(), card, path, archive.weights)
        model.network()
    except (RuntimeError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: damaged: network, weights and card do not belong together") from error
    return model


def read_archive(path: Path) -> Archive:
    """Open a model file of any method.

    Raises:
        TraceError: no such file, too large, not TorchScript, damaged, or not a model of this package.
    """
    _check_file(path)
    extra: dict[str, Any] = {CARD_FILE: "", _WEIGHTS: ""}
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rsplit("/", 1)[-1] for name in archive.namelist()}
            # Packed, a small file may stand for more than the memory holds.
            if (size := sum(item.file_size for item in archive.infolist())) > MAX_BYTES:
                raise TraceError(f"{path}: {size} bytes once unpacked, too many for a model (at most {MAX_BYTES})")
            # Reads every byte, so that a damaged file is refused before its weights are used.
            damaged = archive.testzip()
    except DAMAGED_ARCHIVE as error:
        raise TraceError(f"{path}: not a TorchScript model, or truncated ({error})") from error
    if damaged is not None:
        raise TraceError(f"{path}: damaged ({damaged.rsplit('/', 1)[-1]}): copy or export it again")
    if "constants.pkl" not in names:
        raise TraceError(f"{path}: not a TorchScript model; a training checkpoint becomes one by trace export")
    if not {CARD_FILE, _WEIGHTS} <= names:
        raise TraceError(f"{path}: TorchScript, but not exported by trace_ros (it holds no model card)")
    try:
        with _torchscript():
            module = torch.jit.load(str(path), map_location="cpu", _extra_files=extra)
        stored = torch.load(io.BytesIO(extra[_WEIGHTS]), map_location="cpu", weights_only=True)
        weights = restore(module, stored)
    except pickle.UnpicklingError as error:
        # Torch's own text advises to load it regardless.
        raise TraceError(f"{path}: refused: its weights are not only tensors, and could run code") from error
    except Exception as error:  # the unpickler raises whatever the bytes make it trip over
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TraceError(f"{path}: cannot be loaded ({reason})") from error
    return Archive(module, extra[CARD_FILE], path, weights)


@contextmanager
def _torchscript() -> Iterator[None]:
    """Torch announces that TorchScript will go one day; users of the estimator can do nothing about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        yield


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise TraceError(f"{path}: is a folder, expected a model file (trace.pt)")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: no such model file; make one with trace train and trace export") from error
    if size > MAX_BYTES:
        raise TraceError(f"{path}: {size} bytes are too many for a model of trace_ros (at most {MAX_BYTES})")
    if size == 0:
        raise TraceError(f"{path}: is empty")


def _card_data(path: Path, text: bytes | str) -> dict[str, Any]:
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("no keys and values")
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: its model card is damaged ({error})") from error
    version = data.get("format")
    if version != FORMAT:
        raise TraceError(f"{path}: model format {version}, this version reads {FORMAT}: export it again")
    return data
