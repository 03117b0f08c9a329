"""What the estimator adds to the network, by a model's card: changed from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import ModelCard
from trace_ros.robot import describe_validation_error
from trace_ros.training.config import set_key

ADDITIONS = ("height", "input_limit")
"""Keys of `ModelCard`."""


def changed_additions(card: ModelCard, changes: Sequence[str]) -> dict[str, Any]:
    """The keys of a card that changes (``height.time=1``, ``input_limit=null``) give another value.

    Raises:
        TraceError: not of that form, another key, or a value that makes no sense.
    """
    data = card.model_dump(include=set(ADDITIONS))
    for change in changes:
        key = change.partition("=")[0].strip().partition(".")[0]
        if key not in ADDITIONS:
            raise TraceError(f"--set {change}: expected one of {', '.join(ADDITIONS)}")
        set_key(data, change)
    kept = card.model_dump(exclude=set(ADDITIONS))
    try:
        made = type(card).model_validate(kept | data)
    except ValidationError as error:
        raise TraceError(f"--set {' '.join(changes)}: {describe_validation_error(error)}") from error
    return {key: getattr(made, key) for key in ADDITIONS if getattr(made, key) != getattr(card, key)}
