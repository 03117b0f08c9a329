"""Starting a training from the weights of an earlier model."""

from __future__ import annotations

from typing import Any

import torch

from trace_ros.errors import TraceError
from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import LoadedModel
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.training.dataset import Normalisation
from trace_ros.training.learner import StartModel

BLEND = "blend"
"""Key in the training of a card: what was mixed into the weights afterwards (`trace_ros.training.blending`)."""

_START_ONLY = ("memory", "output_layer_scale")
"""Keys of a network's config that matter to weights drawn at random alone."""


def describe_start(model: StartModel) -> dict[str, Any]:
    """What the card of a model that starts from this one says of it: where it came from and what it has seen."""
    card = model.card
    start = {
        "robot": card.robot,
        "command": card.command,
        "seeds": dict(card.seeds),
        "steps": card.steps,
        "samples": card.samples,
        "training_hours": card.training_hours,
    }
    if BLEND in card.training:
        start[BLEND] = card.training[BLEND]
    return start


def check_start(model: LoadedModel, config: NetworkConfig) -> None:
    """Refuse a model whose network is another.

    Raises:
        TraceError: sizes or parametrisation differ.
    """
    theirs, ours = model.card.network.model_dump(mode="json"), config.model_dump(mode="json")
    if differing := _differing(theirs, ours):
        needed = " ".join(f"--set network.{key}={theirs[key]}" for key in differing)
        raise TraceError(
            f"{model.path}: cannot start from it, it has {network_differences(model, config)}: "
            f"change the training config ({needed.replace(', ', ',')}), or the model"
        )


def network_differences(model: LoadedModel, config: NetworkConfig) -> str:
    """In which keys the network of a model is another; empty if in none."""
    theirs, ours = model.card.network.model_dump(), config.model_dump()
    return ", ".join(f"network.{key} {theirs[key]!r} instead of {ours[key]!r}" for key in _differing(theirs, ours))


def _differing(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    return [key for key in ours if key not in _START_ONLY and theirs[key] != ours[key]]


@torch.no_grad()
def adopt(network: TraceNetwork, model: LoadedModel, normalisation: Normalisation) -> None:
    """Give a network the weights of a model, and its normalisation, which they belong to.

    Only the sampling interval is normalised as the new data want it: to a model of one rate, another rate would be a
    huge input. The weights on it change along, so that the network stays the function that it was: with
    ``x = (u - m) / s`` and ``x' = (u - m') / s'`` it is ``w x + b = (w s'/s) x' + b + w (m' - m) / s``.

    Args:
        network: of the same config as the model's, see `check_start`.
        model: whose weights.
        normalisation: measured on the new data.
    """
    network.load_state_dict(model.weights)
    ratio = (normalisation.scale / network.observation_scale)[obs.DT]
    shift = ((normalisation.mean - network.observation_mean) / network.observation_scale)[obs.DT]
    convolution, head = network.convolution_1, dict(network.named_parameters())
    assert convolution.bias is not None
    for weight, bias in (
        (convolution.weight[:, -1:], convolution.bias),
        (head["head.0.weight"][:, -1:, None], head["head.0.bias"]),
    ):
        bias += weight.sum(-1) @ shift
        weight *= ratio
    network.observation_mean[obs.DT] = normalisation.mean[obs.DT]
    network.observation_scale[obs.DT] = normalisation.scale[obs.DT]
