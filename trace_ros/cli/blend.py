"""``trace blend``: between a model and what further training made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trace_ros.cli.common import check_model_output, console
from trace_ros.errors import TraceError


def blend(
    model: Annotated[Path, typer.Argument(help="Model whose card is kept: as a rule the one trained further.")],
    other: Annotated[Path, typer.Argument(help="Model to mix in: as a rule the one that training began from.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model to write; its card goes beside it.")],
    share: Annotated[float, typer.Option(help="Of the other's weights; 0 is the first model.", min=0.0, max=1.0)] = 0.5,
) -> None:
    """Mix the weights of a model and of one that was trained on from it.

    Further training, on other contacts or on your robot's own logs, gains there and may lose elsewhere. A mean of both
    keeps much of either; which share is best, tell logs that neither was trained on: trace evaluate --model one.pt
    --model mean.pt. The mean's covariance has to be fitted anew: trace calibrate --write.
    """
    check_model_output(output)
    for given in (model, other):
        # The cards stand beside the models: of one stem, they would be one file.
        for new, old in ((output, given), (output.with_suffix(".yaml"), given.with_suffix(".yaml"))):
            if new.exists() and old.exists() and new.samefile(old):
                raise TraceError(
                    f"{output}: would replace {old}, which belongs to a model to mix: give another --output"
                )
    # Imported here, so that --help and the other commands need not wait for torch.
    from trace_ros.estimator.additions import ADDITIONS
    from trace_ros.estimator.checkpoint import export_model, load_model
    from trace_ros.training.blending import blend as mean_of

    first, second = load_model(model), load_model(other)
    network, card = mean_of(first, second, share)
    card_path = export_model(network, card, output)
    console.print(f"model: {output}", highlight=False, soft_wrap=True)
    console.print(f"card:  {card_path}", highlight=False, soft_wrap=True)
    console.print("its covariance is the first model's: fit it anew with trace calibrate --write", highlight=False)
    if differing := [
        key for key in (*ADDITIONS, "joint_delay") if getattr(first.card, key) != getattr(second.card, key)
    ]:
        keys = " and ".join(differing)
        console.print(f"so is what is added to the network ({keys}): trace calibrate changes it", highlight=False)
