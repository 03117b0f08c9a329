"""Everything about training that someone may want to change (``config/training/*.yaml``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from trace_ros.errors import TraceError
from trace_ros.estimator.height import HeightSettings
from trace_ros.estimator.network import NetworkConfig
from trace_ros.resources import config_directory, read_yaml_on_base
from trace_ros.robot import describe_validation_error
from trace_ros.training.dataset import PREFIX, FeedbackNoise
from trace_ros.training.losses import LossConfig

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OptimiserConfig(BaseModel):
    """Adam and its schedule.

    Attributes:
        learning_rate: at its highest.
        schedule: ``cosine`` falls to ``final_fraction`` of it over the budget; ``constant`` is the paper's.
        final_fraction: of the learning rate at the end of a cosine.
        warmup_steps: gradient steps of linear warm-up.
        gradient_clip: largest norm of the gradient; 0 switches clipping off.
        ema_decay: of the exponential moving average of the weights that is evaluated and exported; 0 switches it off.
    """

    model_config = _STRICT
    learning_rate: Positive = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] = 200
    gradient_clip: NonNegative = 1.0
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999


class ClosedLoopConfig(BaseModel):
    """The part of a run in which the network is fed its own roll, pitch, vx and vy, as on the robot (our extension).

    Before, the fed-back channels are the truth with noise, which is faster; but errors then never answer to what the
    network does about them.

    Attributes:
        start: share of the budget at which it begins; 1 switches it off.
        offset_scale: factor on the offsets of `FeedbackNoise` that a rollout begins with.
    """

    model_config = _STRICT
    start: Annotated[float, Field(ge=0, le=1)] = 1.0
    offset_scale: NonNegative = 0.3


class ReplayConfig(BaseModel):
    """How simulation feeds training.

    Attributes:
        capacity: rollouts that training draws from; older ones are forgotten.
        minimum: rollouts to wait for before the first gradient step.
        chunk: rollouts simulated together and handed over at once.
        visits_per_sample: how often, on average, a rollout is trained on; throttles the simulator to what is needed.
        synchronous: wait for the simulator wherever it is behind, so that a run depends on its seed alone and not on
            the machine's speed. Without it training goes on with what there is, and visits samples more often.
    """

    model_config = _STRICT
    capacity: Count = 1500
    minimum: Count = 300
    chunk: Count = 64
    visits_per_sample: Positive = 8.0
    synchronous: bool = False


class ValidationConfig(BaseModel):
    """Held-out rollouts, simulated with another seed than training.

    Attributes:
        rollouts: how many.
        interval: s between validations.
    """

    model_config = _STRICT
    rollouts: Count = 64
    interval: Positive = 300.0


class CommonTraining(BaseModel):
    """What a training run of any method is told, but for robot, seed and budget.

    Attributes:
        method: whose network is trained, as `trace_ros.baselines.registry` names it.
        optimiser: Adam and its schedule.
        feedback: noise on the fed-back inputs, of methods that have some.
        precision: of the matrix products outside the GRU and the last layer. ``auto``: bfloat16 where the CPU has
            instructions for it, which makes training about 1.4 times as fast, else float32.
        batch: rollouts side by side in a gradient step.
        segment: samples that the gradient runs back through (TBPTT; paper: 100).
        rollout_samples: outputs at most per rollout (paper: 4 s at 500 Hz).
        replay: how simulation feeds training.
        validation: held-out rollouts.
        checkpoint_interval: s between checkpoints.
        simulation: YAML file of `trace_ros.sim.rollout.SimulationConfig`, relative to the training config's own file.
    """

    model_config = _STRICT
    method: str
    feedback: FeedbackNoise = FeedbackNoise()
    optimiser: OptimiserConfig = OptimiserConfig()
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    batch: Count = 64
    segment: Count = 100
    rollout_samples: Count = 2000
    replay: ReplayConfig = ReplayConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint_interval: Positive = 60.0
    simulation: Path = Path("simulation.yaml")

    @property
    def bfloat16(self) -> bool:
        """Whether ``precision`` means bfloat16 on this machine."""
        if self.precision == "auto":
            has = torch.cpu.get_capabilities()
            return bool(has.get("avx512_bf16") or has.get("amx_bf16"))
        return self.precision == "bfloat16"

    @property
    def rows(self) -> int:
        """Rows of a packed rollout: whole segments and the window before the first output."""
        return -(-self.rollout_samples // self.segment) * self.segment + PREFIX

    @classmethod
    def load(cls, config: str | Path, changes: Sequence[str] = ()) -> Self:
        """Load by name (``config/training/<name>.yaml``) or from the path of a YAML file.

        A file may stand on another one: ``base: trace.yaml``, and only what differs.

        Args:
            config: name or path.
            changes: ``key=value``, with dots into nested keys (``loss.foot=0``), that replace what the file says.

        Raises:
            TraceError: no such file, not YAML, or an unknown or bad key.
        """
        data, path = read_config(config, changes)
        return cls.parse(data, " ".join((str(path), *changes))).beside(path)

    def beside(self, path: Path) -> Self:
        """The same, read from a file: paths in it are relative to that."""
        return self.model_copy(update={"simulation": (path.parent / self.simulation).resolve()})

    @classmethod
    def parse(cls, data: Any, source: str) -> Self:
        """Check keys and values; ``source`` is named in the error.

        Raises:
            TraceError: an unknown or bad key.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise TraceError(f"{source}: {describe_validation_error(error)}") from error


class TrainingConfig(CommonTraining):
    """A training run of TRACE.

    Attributes:
        network: sizes and parametrisation.
        loss: weights.
        closed_loop: when the network's own output takes the place of the noisy truth.
        tilt_correction_rate: 1/s; the rotation target also removes the fed-back roll and pitch offset at this rate, so
            that a drifting tilt is pulled back to gravity (our extension; 0 switches it off).
        height: when an estimator of the model takes the height that the feet show instead of the network's own (our
            extension; None: never). Nothing of the training changes.
        input_limit: standard deviations beyond which an estimator of the model tells the network of a reading as of
            that many (our extension; None: never). Nothing of the training changes.
    """

    method: Literal["trace"] = "trace"
    network: NetworkConfig = NetworkConfig()
    loss: LossConfig = LossConfig()
    closed_loop: ClosedLoopConfig = ClosedLoopConfig()
    tilt_correction_rate: NonNegative = 0.5
    height: HeightSettings | None = HeightSettings()
    input_limit: Positive | None = 5.0


def read_config(
    config: str | Path, changes: Sequence[str] = (), folder: str = "training"
) -> tuple[dict[str, Any], Path]:
    """What a config holds, and its file; see `CommonTraining.load`.

    Args:
        config, changes: see there.
        folder: within ``config/``, of the configs with a name.

    Raises:
        TraceError: no such file, not YAML, or a change that cannot be made.
    """
    path = Path(config)
    if path.suffix not in (".yaml", ".yml"):
        path = config_directory() / folder / f"{config}.yaml"
    if not path.is_file():
        names = sorted(file.stem for file in path.parent.glob("*.yaml") if not file.stem.startswith("simulation"))
        known = ", ".join(names) or "none"
        raise TraceError(f"{path}: no such file; {path.parent} has {known}")
    data = read_yaml_on_base(path)
    data = {} if data is None else data
    for change in changes:
        set_key(data, change)
    return data, path


def set_key(data: Any, change: str) -> None:
    """Set one value of nested plain data, in place: ``"loss.foot=0"``. The value is YAML.

    Raises:
        TraceError: not of that form, or a key on the way holds no keys.
    """
    name, equals, text = change.partition("=")
    *way, last = name.strip().split(".")
    if not equals or not all((*way, last)):
        raise TraceError(f"--set {change}: expected key=value, as in loss.foot=0")
    for key in way:
        # What is switched off (null) holds no keys as yet.
        if isinstance(data, dict) and data.get(key) is None:
            data[key] = {}
        if not isinstance(data, dict) or not isinstance(data[key], dict):
            raise TraceError(f"--set {change}: {key} holds a value, not keys")
        data = data[key]
    if not isinstance(data, dict):
        raise TraceError(f"--set {change}: the config holds no keys")
    try:
        data[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TraceError(f"--set {change}: {text!r} is not a YAML value") from error
