"""Legolas in fine-tuning: the pose and variance heads alone, as the paper's Legolas-FT.

CNN, trunk and the head of the mask stay as they are. Legolas feeds nothing back, so what they make of a log is computed
once: to the heads, a window is a sequence of features. The objective is TRACE's, without L_model, since Legolas gives
no velocity. The variances, added up over the horizon, are held to the errors of the displacement by a Gaussian
likelihood; increments do not learn from it, lest they be called unsure rather than put right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trace_ros.baselines.cards import LegolasCard
from trace_ros.baselines.learned import LearnedModel
from trace_ros.baselines.legolas_at_once import log_features, log_intervals, log_observations, network_of
from trace_ros.baselines.legolas_network import (
    ROTATION,
    TRANSLATION,
    LegolasNetwork,
    StreamingLegolas,
    rotation_vector,
)
from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.batch_plan import Steps
from trace_ros.estimator.checkpoint import export_script
from trace_ros.estimator.observation import MAX_GAP_S
from trace_ros.geometry import so3_exp_torch
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import attitude
from trace_ros.training.finetuning_config import FineTuningConfig, FineTuningLoss, FineTuningOptimiser, Mode
from trace_ros.training.finetuning_data import ReferencedLog, Track, WindowBatch, make_track
from trace_ros.training.finetuning_method import FineTunedMethod
from trace_ros.training.finetuning_rollout import LoopInputs, Objective, Rollout

__all__ = ["FineTunedLegolas", "LegolasCard"]


class LegolasState(NamedTuple):
    """Where B windows stand: attitude (B, 3, 3), and what they began with (B, 4): roll, pitch, vx, vy."""

    rotation: Tensor
    feedback: Tensor


class FineTunedLegolas(FineTunedMethod[LegolasNetwork]):
    """See the module. A track's observations are the usual 47, and behind them the features."""

    states_variances = True
    updated = ("heads.0.", "heads.1.", "last.0.", "last.1.")

    def __init__(self, model: LearnedModel[LegolasCard]) -> None:
        super().__init__(model)
        self._legolas = model

    def check_mode(self, mode: Mode) -> None:
        """See the base class."""
        if mode != "partial":
            raise TraceError(f"{self.path}: Legolas is fine-tuned by its pose and variance heads alone: --mode partial")

    def objective(self, loss: FineTuningLoss) -> FineTuningLoss:
        """See the base class."""
        return loss.model_copy(update={"model": 0.0})

    def network(self) -> LegolasNetwork:
        """See the base class."""
        return network_of(self._legolas)

    @torch.no_grad()
    def track(self, name: str, referenced: ReferencedLog, _robot: RobotDescription, config: FineTuningConfig) -> Track:
        """See the base class."""
        log, network = referenced.log, self.network()
        observations = log_observations(log, self._legolas.card)
        features = log_features(network, observations)
        elapsed, told = log_intervals(log, self._legolas.card)
        steps = Steps(
            stamp_ns=log.stamp_ns,
            dt=elapsed,
            told_dt=told,
            observation=torch.cat((observations, features), dim=1).numpy(),
            gyro=log.angular_velocity,
            still=(network.answer(features, observations).moving <= 0).numpy(),
            begins=(0, *np.flatnonzero(elapsed > MAX_GAP_S).tolist()),
            bridged={},
            sample=np.arange(len(log)),
        )
        return make_track(name, referenced, steps, config)

    def begin(self, _network: LegolasNetwork, batch: WindowBatch) -> Any:
        """See the base class."""
        _, feedback = batch.prefix()
        return LegolasState(attitude(feedback[:, :2]), feedback)

    def roll_out(self, network: LegolasNetwork, inputs: LoopInputs, state: Any) -> tuple[Rollout, Any]:
        """See the base class; with gradients, where they are wanted."""
        observations = inputs.observations[..., : obs.OBSERVATION_SIZE]
        output = network.answer(inputs.observations[..., obs.OBSERVATION_SIZE :], observations)
        dt = observations[..., obs.DT]
        velocity = output.increment[..., TRANSLATION]
        columns = output.increment[..., ROTATION] * dt + torch.eye(3)[:2].flatten()
        motion = torch.cat((velocity * dt, rotation_vector(columns), velocity), dim=-1) * inputs.factor
        variance = output.log_variance[..., TRANSLATION].exp() * (dt * inputs.factor[..., :1]).square()
        rotation, rotations = state.rotation, []
        for turn in so3_exp_torch(motion[..., 3:6]).unbind(1):
            rotation = rotation @ turn
            rotations.append(rotation)
        made = Rollout(torch.cat((motion, variance), dim=-1), torch.stack(rotations, dim=1))
        return made, LegolasState(rotation, state.feedback)

    def backpropagate(
        self,
        network: LegolasNetwork,
        inputs: LoopInputs,
        state: Any,
        objective: Objective,
        _optimiser: FineTuningOptimiser,
    ) -> tuple[Rollout, Any]:
        """See the base class; small enough for one piece."""
        made, after = self.roll_out(network, inputs, state)
        objective(made).backward()
        return Rollout(made.motion.detach(), made.rotation.detach()), LegolasState(*(p.detach() for p in after))

    def export(self, network: LegolasNetwork, card: Any, path: Path) -> Path:
        """See the base class."""
        return export_script(StreamingLegolas(network), network.state_dict(), card, path)
