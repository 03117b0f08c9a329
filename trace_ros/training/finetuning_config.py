"""Everything about fine-tuning that someone may want to change (``config/finetuning/*.yaml``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trace_ros.errors import TraceError
from trace_ros.references import ReferenceSettings
from trace_ros.robot import describe_validation_error
from trace_ros.training.config import read_config

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Mode = Literal["partial", "full"]

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FineTuningLoss(BaseModel):
    """Weights and scales of the objective; the paper states the horizon alone.

    Attributes:
        horizon: s between a frame and its anchor.
        relative: w_RE.
        position, rotation: w_pos and w_rot inside the relative error.
        position_beta, rotation_beta: where their Smooth L1 turns from quadratic to linear, m and rad.
        model: w_model.
        model_beta: m/s.
        start: w_SP, on half the squared distance from the pretrained weights.
        likelihood: weight of the displacement's likelihood by the variances that a method states (Legolas), which its
            variances alone learn from; our choice.
        least_variance: m^2, of the displacement over the horizon in that likelihood.
    """

    model_config = _STRICT
    horizon: Positive = 1.0
    relative: NonNegative = 1.0
    position: NonNegative = 10.0
    rotation: NonNegative = 30.0
    position_beta: Positive = 0.1
    rotation_beta: Positive = 0.1
    model: NonNegative = 1.0
    model_beta: Positive = 0.1
    start: NonNegative = 0.001
    likelihood: NonNegative = 0.01
    least_variance: Positive = 1e-6


class FineTuningOptimiser(BaseModel):
    """Adam, and how long windows are made digestible.

    Attributes:
        learning_rate: constant.
        epochs: rounds over all windows.
        gradient_clip: largest norm of the gradient; 0 switches clipping off.
        average: what is validated and kept is the mean of the weights over the last so many updates, about (Polyak and
            Juditsky, "Acceleration of stochastic approximation by averaging", 1992; our extension): at a constant rate
            the last weights bear the noise of the last references. 0 or 1: the weights of the last update.
        batch: windows side by side.
        segment: samples between two updates. A window is run through in segments, each from the state that the one
            before left; gradients end where a segment begins (truncated backpropagation). No longer than a window.
        through_feedback: whether gradients run through the fed-back roll, pitch, vx and vy too; without, as in
            pretraining, they run through the memory alone, in a fraction of the time.
        piece: with them, samples whose activations are in memory at a time. A segment of several pieces is run through
            once without gradients and once more, piece by piece, from its end; the gradient is the same.
    """

    model_config = _STRICT
    learning_rate: Positive = 1e-5
    epochs: Count = 20
    gradient_clip: NonNegative = 1.0
    average: Annotated[int, Field(ge=0)] = 300
    batch: Count = 84
    segment: Count = 100
    through_feedback: bool = False
    piece: Count = 500


class ReferenceConfig(BaseModel):
    """What is done about references as they come, and what is asked of them.

    Attributes:
        clean: whether clock, mounting, gaps, jumps and the world's tilt are seen to (`trace_ros.references`); without,
            the reference is taken as it is.
        cleaning: how, and what is known beforehand; its ``max_gap`` holds in any case.
        minimum_share: of a window's frames that have a relative motion to be held to; windows with less are left out.
    """

    model_config = _STRICT
    clean: bool = True
    cleaning: ReferenceSettings = ReferenceSettings()
    minimum_share: Annotated[float, Field(gt=0, le=1)] = 0.5


class FineTuningValidation(BaseModel):
    """What decides which epoch is best: the mean relative error of the position in closed loop on the validation logs.

    Attributes:
        horizon: s of the relative error; no longer than a window.
        spacing: s between its starts, from 0.01.
        patience: epochs without a better one before the run ends; 0: it goes on to its last epoch.
    """

    model_config = _STRICT
    horizon: Positive = 10.0
    spacing: Annotated[float, Field(ge=0.01)] = 1.0
    patience: Annotated[int, Field(ge=0)] = 5


class FineTuningConfig(BaseModel):
    """A fine-tuning run, but for robot, model and logs.

    Attributes:
        mode: ``partial`` updates the GRU and the head alone; ``full`` every weight.
        window, stride: s; nearer strides than 0.1 s would make windows without number.
        loss: the objective.
        optimiser: Adam, epochs, batches.
        reference: what is asked of it.
        validation: what decides which epoch is best.
        joint_delay: whether it is found out how late this robot's joint readings are, and put right
            (`trace_ros.checks.joint_timing`, our extension).
        level: whether the height by the feet, where the model has it, is levelled by the references of the training
            logs (`trace_ros.training.level_fit`, our extension).
        seed: of the order of the windows.
    """

    model_config = _STRICT
    mode: Mode = "partial"
    window: Positive = 20.0
    stride: Annotated[float, Field(ge=0.1)] = 10.0
    loss: FineTuningLoss = FineTuningLoss()
    optimiser: FineTuningOptimiser = FineTuningOptimiser()
    reference: ReferenceConfig = ReferenceConfig()
    validation: FineTuningValidation = FineTuningValidation()
    joint_delay: bool = True
    level: bool = True
    seed: Seed = 0

    @model_validator(mode="after")
    def _horizons_fit_into_a_window(self) -> FineTuningConfig:
        for name, horizon in (("loss", self.loss.horizon), ("validation", self.validation.horizon)):
            if horizon >= self.window:
                raise ValueError(f"{name}.horizon of {horizon:g} s does not fit into a window of {self.window:g} s")
        return self

    @classmethod
    def load(cls, config: str | Path, changes: Sequence[str] = ()) -> FineTuningConfig:
        """Load by name (``config/finetuning/<name>.yaml``) or from the path of a YAML file.

        A file may stand on another one: ``base: paper.yaml``, and only what differs.

        Args:
            config: name or path.
            changes: ``key=value``, with dots into nested keys (``loss.start=0``), that replace what the file says.

        Raises:
            TraceError: no such file, not YAML, or an unknown or bad key.
        """
        data, path = read_config(config, changes, "finetuning")
        return cls.parse(data, " ".join((str(path), *changes)))

    @classmethod
    def parse(cls, data: Any, source: str) -> FineTuningConfig:
        """Check keys and values; ``source`` is named in the error.

        Raises:
            TraceError: an unknown or bad key.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise TraceError(f"{source}: {describe_validation_error(error)}") from error
