"""Proximal policy optimisation of a walking policy, with rsl-rl-lib's learner and a loop that can be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trace_ros.errors import TraceError
from trace_ros.policy_training.config import LearnerConfig, PolicyTrainingConfig
from trace_ros.policy_training.environment import WalkingEnvironment
from trace_ros.policy_training.mirror import (
    check_mirrored,
    mirrored_actions,
    mirrored_observation,
    mirrored_privileged,
)
from trace_ros.robot import RobotDescription
from trace_ros.whole_files import whole_file

_OBSERVATION, _PRIVILEGED = "observation", "privileged"
_DIVERGED = "the training diverged: lower learner.learning_rate"
_GROUPS = {"actor": [_OBSERVATION], "critic": [_PRIVILEGED]}


@dataclass(frozen=True)
class Progress:
    """An update.

    Attributes:
        update: number of it, from 1.
        steps: of single robots, so far.
        reward: mean reward a second.
        missed: m/s, mean of how far the commanded velocity was missed.
        episode: s, mean length of the episodes that ended, or NaN.
        spread: standard deviation of the actions.
        rate: steps of single robots a second.
    """

    update: int
    steps: int
    reward: float
    missed: float
    episode: float
    spread: float
    rate: float


class PolicyLearner:
    """A policy and a value network that learn from a batch of robots."""

    def __init__(self, robot: RobotDescription, config: PolicyTrainingConfig, seed: int) -> None:
        """Build environment and networks.

        Raises:
            TraceError: rsl-rl-lib or the engine is not installed, or the robot is not the same on both sides and
                ``mirrored`` is set.
        """
        if config.learner.mirrored:
            check_mirrored(robot)
        try:
            from rsl_rl.algorithms import PPO
            from rsl_rl.models import MLPModel
            from rsl_rl.storage import RolloutStorage
            from tensordict import TensorDict
        except ModuleNotFoundError as error:
            raise TraceError(
                "training a policy needs rsl-rl-lib: pip install -c constraints.txt 'trace_ros[policy]'"
            ) from error
        torch.manual_seed(seed)
        self._config, self._learner = config, config.learner
        try:
            self._environment = WalkingEnvironment(robot, config, seed)
        except ModuleNotFoundError as error:
            raise TraceError("training a policy needs mujoco: pip install mujoco") from error
        self._bundle: Callable[..., Any] = TensorDict
        self._seen = self._observe()
        learner = config.learner
        spread = {"class_name": "GaussianDistribution", "init_std": learner.initial_spread}
        sizes: dict[str, Any] = {"hidden_dims": list(learner.hidden), "activation": "elu"}
        actor = MLPModel(self._seen, _GROUPS, "actor", 12, distribution_cfg=spread, **sizes)
        critic = MLPModel(self._seen, _GROUPS, "critic", 1, **sizes)
        storage = RolloutStorage("rl", self._environment.robots, learner.steps, self._seen, [12], "cpu")
        self._algorithm = PPO(
            actor,
            critic,
            storage,
            num_learning_epochs=learner.epochs,
            num_mini_batches=learner.mini_batches,
            clip_param=learner.clip,
            gamma=learner.gamma,
            lam=learner.lam,
            entropy_coef=learner.entropy,
            learning_rate=learner.learning_rate,
            desired_kl=learner.desired_kl,
            symmetry_cfg=_symmetry(learner, TensorDict, self._environment),
        )
        self.update = 0
        """Updates so far."""
        self.steps = 0
        """Of single robots so far."""

    def learn(self) -> Progress:
        """Walk ``steps`` steps and learn from them.

        Raises:
            TraceError: the training diverged; its networks are worth nothing.
        """
        begun, environment, algorithm = time.monotonic(), self._environment, self._algorithm
        rewards, missed, ended = 0.0, 0.0, 0
        algorithm.train_mode()
        with torch.inference_mode():
            for _ in range(self._learner.steps):
                actions = algorithm.act(self._seen)
                result = environment.step(actions.numpy().astype(float))
                self._seen = self._observe()
                algorithm.process_env_step(
                    self._seen,
                    torch.from_numpy(result.reward.astype(np.float32)),
                    torch.from_numpy(result.done),
                    {"time_outs": torch.from_numpy(result.timed_out)},
                )
                rewards += float(result.reward.mean())
                missed += result.following
                ended += int(result.done.sum())
            algorithm.compute_returns(self._seen)
        try:
            algorithm.update()
        except (RuntimeError, ValueError) as error:  # of a distribution without numbers, in a later mini-batch
            if self._sound():
                raise
            raise TraceError(_DIVERGED) from error
        if not self._sound():
            raise TraceError(_DIVERGED)
        walked = self._learner.steps * environment.robots
        self.update += 1
        self.steps += walked
        count, duration = self._learner.steps, environment.duration
        lived = count * environment.robots * duration / ended if ended else float("nan")
        spread = float(algorithm.get_policy().output_std.detach().mean())
        return Progress(
            self.update,
            self.steps,
            rewards / count / duration,
            missed / count,
            lived,
            spread,
            walked / (time.monotonic() - begun),
        )

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        with whole_file(path) as part:
            torch.save({**self._algorithm.save(), "update": self.update, "steps": self.steps}, part)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint; the robots start anew.

        Raises:
            TraceError: no such file, or of other networks.
        """
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            self._algorithm.load(kept, None, True)
            self.update = int(kept["update"])
            # Older checkpoints do not tell.
            self.steps = int(kept.get("steps", self.update * self._learner.steps * self._environment.robots))
        except Exception as error:  # the unpickler raises whatever the bytes make it trip over
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TraceError(f"{path}: no checkpoint of this training ({reason})") from error
        if not self._sound():
            raise TraceError(f"{path}: no checkpoint of this training (its networks give no numbers)")

    def export(self, path: Path) -> None:
        """Write the policy (45 inputs, 12 mean actions) as TorchScript, whole or not at all."""
        with whole_file(path) as part:
            torch.jit.script(self._algorithm.get_policy().as_jit().eval()).save(str(part))

    def _sound(self) -> bool:
        """Whether the networks hold, and give, finite numbers."""
        networks = (self._algorithm.actor, self._algorithm.critic)
        with torch.inference_mode():
            values = [value for network in networks for value in network.parameters()]
            values += [network(self._seen) for network in networks]
            return all(bool(value.isfinite().all()) for value in values)

    def _observe(self) -> Any:
        seen, known = self._environment.observe()
        parts = {_OBSERVATION: seen, _PRIVILEGED: known}
        return self._bundle(
            {name: torch.from_numpy(value.astype(np.float32)) for name, value in parts.items()},
            batch_size=[len(seen)],
        )


def _symmetry(
    learner: LearnerConfig, bundle: Callable[..., Any], environment: WalkingEnvironment
) -> dict[str, Any] | None:
    """The learner's settings for mirrored samples."""
    if not learner.mirrored:
        return None
    tables = {
        name: (torch.from_numpy(order), torch.from_numpy(signs.astype(np.float32)))
        for name, (order, signs) in (
            (_OBSERVATION, mirrored_observation()),
            (_PRIVILEGED, mirrored_privileged()),
            ("actions", mirrored_actions()),
        )
    }

    def doubled(values: torch.Tensor, name: str) -> torch.Tensor:
        order, signs = tables[name]
        return torch.cat((values, values[:, order] * signs))

    def augment(env: Any, obs: Any, actions: torch.Tensor | None) -> tuple[Any, torch.Tensor | None]:
        del env  # the learner hands it over by name
        both = obs
        if obs is not None:
            parts = {name: doubled(obs[name], name) for name in (_OBSERVATION, _PRIVILEGED)}
            both = bundle(parts, batch_size=[2 * obs.batch_size[0]])
        return both, None if actions is None else doubled(actions, "actions")

    return {"env": environment, "data_augmentation_func": augment, "use_data_augmentation": True}
