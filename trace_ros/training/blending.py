"""The mean of two models' weights, for a model and one that was trained on from it.

What a network gains by further training on one kind of data it often loses on another. Between the weights before and
after, what it does changes smoothly, and the mean keeps much of both: Wortsman et al., "Robust fine-tuning of zero-shot
models", CVPR 2022. Of models that were trained independently a mean is no model at all.
"""

from __future__ import annotations

import torch

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import LoadedModel, ModelCard
from trace_ros.estimator.network import TraceNetwork
from trace_ros.training.initialisation import BLEND, describe_start, network_differences

_LEAST_COSINE = 0.5
"""Between the matrices of two models: after hours of further training 0.98, of independent trainings 0.1."""


def blend(model: LoadedModel, other: LoadedModel, share: float) -> tuple[TraceNetwork, ModelCard]:
    """The mean of two models.

    Args:
        model: its card is kept, with the other's origin and share under ``training.blend`` (an earlier blend under
            ``earlier`` in it) and without figures, which have to be measured anew. So has the error model, which is the
            first model's.
        other: of the same robot and the same network.
        share: of the other's weights, 0 to 1.

    Returns:
        The network and its card.

    Raises:
        TraceError: a share outside 0 to 1, another robot, another network, or weights that nothing connects.
    """
    if not 0 <= share <= 1:
        raise TraceError(f"share {share:g}: must lie between 0 and 1")
    card = model.card
    if other.card.robot_fingerprint != card.robot_fingerprint or other.card.robot != card.robot:
        raise TraceError(f"{other.path}: not a model for the {card.robot} of {model.path}, or one of other dimensions")
    if what := network_differences(other, card.network):
        raise TraceError(f"{other.path}: has {what}, unlike {model.path}: the two have no mean")
    network = model.network()
    theirs = other.network().state_dict()
    ours = network.state_dict()
    for one_of, values in ((model, ours), (other, theirs)):
        if not all(bool(torch.isfinite(value).all()) for value in values.values()):
            raise TraceError(f"{one_of.path}: damaged: it has weights that are not numbers")
    # Biases are alike in all networks: those of the gates start with the same time constants.
    matrices = [name for name, value in network.named_parameters() if value.dim() >= 2]
    one, two = (torch.cat([values[name].flatten() for name in matrices]) for values in (ours, theirs))
    cosine = float(torch.nn.functional.cosine_similarity(one, two, dim=0))
    if cosine < _LEAST_COSINE:
        raise TraceError(
            f"{model.path} and {other.path}: their weights have nothing in common (cosine {cosine:.2f}): only a model "
            "and one that was trained on from it have a mean that means something"
        )
    network.load_state_dict({name: torch.lerp(value, theirs[name], share) for name, value in ours.items()})
    origin = {"share": share, **describe_start(other)}
    if BLEND in card.training:
        origin["earlier"] = card.training[BLEND]
    return network, card.model_copy(update={"training": {**card.training, BLEND: origin}, "figures": {}})
