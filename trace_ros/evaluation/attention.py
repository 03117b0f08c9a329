"""Does the attention on a leg follow its contact? The paper's section "Attention Analysis", on simulated rollouts.

Attention is the head mean on a leg's token, as in the foot velocity loss; contacts and speeds are the simulator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from trace_ros.errors import TraceError
from trace_ros.estimator.feet import foot_channels
from trace_ros.estimator.network import LEG_TOKENS, VELOCITY, TraceNetwork
from trace_ros.logs import LEGS
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import closed_loop
from trace_ros.training.dataset import CONTACT_VELOCITY, MOTION, PREFIX, SimulatedRollout, pack, told_at_feet

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Keeps the seeds of this analysis apart from those of training and validation, whatever --seed was.
_HELD_OUT = 0x617474
# Rollouts of the smallest round: one alone may fall at once and would then seem to be a broken simulator.
_SMALLEST_ROUND = 8


class AttentionSettings(BaseModel):
    """How to analyse.

    Attributes:
        samples: per-foot samples to collect at least; four an instant (the paper: 2,000,000).
        batch: rollouts that the network runs over side by side.
        speed_edges: m/s; bounds of the bins of contact-point speed, from 0 on. The last bin is open.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    samples: Annotated[int, Field(ge=1)] = 2_000_000
    batch: Annotated[int, Field(ge=1)] = 64
    speed_edges: tuple[float, ...] = (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3)

    @field_validator("speed_edges")
    @classmethod
    def _ascending(cls, edges: tuple[float, ...]) -> tuple[float, ...]:
        if not edges or edges[0] != 0 or any(low >= high for low, high in pairwise(edges)):
            raise ValueError("must ascend from 0")
        return edges


class AnalysedRollout(SimulatedRollout, Protocol):
    """What the analysis needs of `trace_ros.sim.rollout.Rollout`."""

    @property
    def info(self) -> Mapping[str, float | str]:
        """What was drawn; ``terrain`` names the ground."""


class HeldOutSource(Protocol):
    """Where the rollouts come from, as `trace_ros.training.simulation.SimulationSource`."""

    def __call__(self, robot: RobotDescription, seed: int, count: int) -> Iterable[AnalysedRollout]:
        """Some rollouts, at most ``count``."""


@dataclass(frozen=True)
class AttentionSamples:
    """What was collected, 37 bytes an instant.

    Attributes:
        attention: (N, 4) float32, on the legs.
        contact: (N, 4) labels.
        speed: (N, 4) float32, m/s, of the contact point over the ground; without contact that of the foot's centre.
        terrain: (N,) index into ``terrains``.
        terrains: names.
        rollouts: that gave samples.
        simulated: rollouts asked of the simulator; those that fell at once give none.
    """

    attention: NDArray[np.float32]
    contact: BoolArray
    speed: NDArray[np.float32]
    terrain: NDArray[np.int8]
    terrains: tuple[str, ...]
    rollouts: int
    simulated: int


def held_out_seed(seed: int, attempt: int) -> int:
    """Simulation seed of a round; different from all that training and its validation use with any seed."""
    return int(np.random.SeedSequence((seed, attempt, _HELD_OUT)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def collect_attention(
    network: TraceNetwork,
    source: HeldOutSource,
    robot: RobotDescription,
    seed: int,
    rollout_samples: int,
    settings: AttentionSettings | None = None,
    progress: Callable[[int], None] | None = None,
) -> AttentionSamples:
    """Run the network in closed loop over held-out rollouts until there are enough samples; the window is left out.

    Rollouts are simulated in rounds, each of which is used to its end: stopping within one would favour some ground.

    Args:
        network: of `LoadedModel.network`.
        source: simulates.
        robot: whom.
        seed: of the rollouts.
        rollout_samples: sensor samples of a rollout without a fall, to know how many rollouts to ask for.
        settings: how much.
        progress: told the per-foot samples so far.

    Raises:
        TraceError: rollouts are too short, all fall at once, have no contact labels, or the network gives no numbers.
    """
    settings = settings or AttentionSettings()
    instants = rollout_samples - 1 - PREFIX
    if instants < 1:
        raise TraceError(
            f"attention analysis: rollouts of {rollout_samples} samples only fill the window of {PREFIX + 1}: "
            "raise duration in the simulation config"
        )
    pieces: list[tuple[NDArray[Any], ...]] = []
    terrains: list[str] = []
    samples = rollouts = simulated = attempt = 0
    while samples < settings.samples:
        count = max(_SMALLEST_ROUND, math.ceil((settings.samples - samples) / (LEGS * instants)))
        before = samples
        for batch in _batches(source(robot, held_out_seed(seed, attempt), count), settings.batch):
            rollouts += len(batch)
            for piece, rollout in zip(_run(network, batch, robot), batch, strict=True):
                name = str(rollout.info["terrain"])
                if name not in terrains:
                    terrains.append(name)
                pieces.append((*piece, np.full(len(piece[0]), terrains.index(name), dtype=np.int8)))
                samples += piece[0].size
            if progress is not None:
                progress(samples)
        if samples == before:
            raise TraceError(
                f"attention analysis: none of {count} rollouts lasted longer than the window; check robot and policy"
            )
        simulated += count
        attempt += 1
    attention, contact, speed, terrain = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return AttentionSamples(attention, contact, speed, terrain, tuple(terrains), rollouts, simulated)


def _batches(rollouts: Iterable[AnalysedRollout], size: int) -> Iterator[list[AnalysedRollout]]:
    iterator = iter(rollouts)
    while batch := list(islice(iterator, size)):
        yield batch


def _run(
    network: TraceNetwork, batch: list[AnalysedRollout], robot: RobotDescription
) -> Iterator[tuple[NDArray[np.float32], BoolArray, NDArray[np.float32]]]:
    """Attention, contact and contact-point speed, (T, 4) each, of each rollout after its window."""
    # A window and one sample at least, so that the loop runs even when all of a batch fell at once.
    longest = max(PREFIX + 1, *(len(rollout.measured) - 1 for rollout in batch))
    rows = torch.from_numpy(np.stack([pack(rollout, robot, longest) for rollout in batch]))
    with torch.inference_mode():
        told = told_at_feet(rows, foot_channels(network.config, robot))
        attention = closed_loop(network, told).attention[..., LEG_TOKENS].numpy()
    current = rows[:, PREFIX:].numpy()
    relative = current[..., CONTACT_VELOCITY].reshape(*current.shape[:2], LEGS, 3)
    speed = np.linalg.norm(current[..., MOTION][..., None, VELOCITY] + relative, axis=-1)
    for index, rollout in enumerate(batch):
        labels = rollout.clean.contact
        if labels is None:
            raise TraceError("attention analysis: a rollout has no contact labels")
        # The first sample gives no row, the next 29 only fill the window.
        contact = labels[1 + PREFIX :]
        kept = attention[index, : len(contact)]
        if not np.isfinite(kept).all():
            raise TraceError("attention analysis: the model gives numbers that are not finite; train it again")
        yield kept, contact, speed[index, : len(contact)]


@dataclass(frozen=True)
class AttentionFigures:
    """The paper's table, and what explains it. NaN where there is nothing to take a figure of.

    Attributes:
        samples, contact_samples, swing_samples: per-foot samples.
        mean_contact, mean_swing, median_contact, median_swing: attention on a foot.
        top1_contact: share of the instants with a foot in contact in which the foot with the highest attention is; feet
            that tie for it count with the share of them that are in contact.
        top1_chance: the same for a foot picked at random.
        flight_instants: instants without any contact, left out of top 1.
        auc: probability that a foot in contact has more attention than one in swing, half for a tie.
        total_leg: mean attention on all four legs together; the rest is on accelerometer and gyroscope.
    """

    samples: int
    contact_samples: int
    swing_samples: int
    mean_contact: float
    mean_swing: float
    median_contact: float
    median_swing: float
    top1_contact: float
    top1_chance: float
    flight_instants: int
    auc: float
    total_leg: float

    def to_dict(self) -> dict[str, int | float | None]:
        """Plain numbers; None instead of NaN, which JSON lacks."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


PAPER = AttentionFigures(
    samples=2_000_000,
    contact_samples=1_129_612,
    swing_samples=870_388,
    mean_contact=0.2106,
    mean_swing=0.0060,
    median_contact=0.1984,
    median_swing=0.0000,
    top1_contact=0.9621,
    top1_chance=math.nan,
    flight_instants=0,
    auc=0.9637,
    # Not printed in the paper; its means and counts imply it.
    total_leg=LEGS * (0.2106 * 1_129_612 + 0.0060 * 870_388) / 2_000_000,
)
"""The paper's table "Attention Analysis"."""


@dataclass(frozen=True)
class SpeedBin:
    """Feet in contact whose contact point moves at a certain speed; means are NaN where there are none.

    Attributes:
        low_mps, high_mps: m/s; None: any faster.
        count: of feet and instants.
        mean_speed_mps: m/s.
        mean_attention: on such a foot, as the paper has it.
        mean_relative: the same over the mean of the feet in contact at that instant: 1 is a fair share. Unlike the
            attention itself it does not depend on how many feet stand and share. A foot that stands alone has nothing
            to be compared with and is left out of it.
    """

    low_mps: float
    high_mps: float | None
    count: int
    mean_speed_mps: float
    mean_attention: float
    mean_relative: float

    def to_dict(self) -> dict[str, int | float | None]:
        """Plain numbers; None instead of NaN."""
        return {name: None if value is None or math.isnan(value) else value for name, value in asdict(self).items()}


def attention_figures(attention: NDArray[Any], contact: BoolArray) -> AttentionFigures:
    """Figures of some instants: attention (N, 4) on the feet, their contact (N, 4)."""
    on, off = attention[contact], attention[~contact]
    standing = contact.any(axis=1)
    highest = attention == attention.max(axis=1, keepdims=True, initial=-np.inf)
    hits = (highest & contact).sum(axis=1) / highest.sum(axis=1)
    return AttentionFigures(
        samples=int(attention.size),
        contact_samples=int(on.size),
        swing_samples=int(off.size),
        mean_contact=_mean(on),
        mean_swing=_mean(off),
        median_contact=float(np.median(on)) if on.size else math.nan,
        median_swing=float(np.median(off)) if off.size else math.nan,
        top1_contact=_mean(hits[standing]),
        top1_chance=_mean(contact[standing]),
        flight_instants=int((~standing).sum()),
        auc=area_under_curve(contact.ravel(), attention.ravel()),
        total_leg=LEGS * _mean(attention),
    )


def figures_by_terrain(samples: AttentionSamples) -> dict[str, AttentionFigures]:
    """The figures on each kind of ground, by name."""
    parts = {name: samples.terrain == index for index, name in enumerate(samples.terrains)}
    return {
        name: attention_figures(samples.attention[part], samples.contact[part]) for name, part in sorted(parts.items())
    }


def speed_bins(
    attention: NDArray[Any], contact: BoolArray, speed: NDArray[Any], edges: tuple[float, ...]
) -> list[SpeedBin]:
    """Mean attention against contact-point speed over the feet in contact: all (N, 4), speed in m/s."""
    standing = contact.sum(axis=1, keepdims=True)
    fair = np.where(contact, attention, 0).sum(axis=1, keepdims=True, dtype=np.float64) / np.maximum(standing, 1)
    # Feet without any attention at all share it equally.
    relative = np.divide(attention, fair, out=np.ones(attention.shape), where=fair > 0)
    index = np.searchsorted(np.asarray(edges), speed, side="right") - 1

    def mean(values: NDArray[Any], feet: BoolArray) -> FloatArray:
        count = np.bincount(index[feet], minlength=len(edges))
        total = np.bincount(index[feet], values[feet], len(edges))
        return np.divide(total, count, out=np.full(len(edges), math.nan), where=count > 0)

    counts = np.bincount(index[contact], minlength=len(edges))
    columns = (mean(speed, contact), mean(attention, contact), mean(relative, contact & (standing > 1)))
    bounds = zip(edges, (*edges[1:], None), strict=True)
    return [
        SpeedBin(float(low), None if high is None else float(high), int(count), *map(float, means))
        for (low, high), count, *means in zip(bounds, counts, *columns, strict=True)
    ]


def area_under_curve(labels: BoolArray, scores: NDArray[Any]) -> float:
    """Area under the ROC curve, exactly: the rank sum of Mann and Whitney, with mean ranks for ties.

    Args:
        labels: (N,).
        scores: (N,), higher for true labels.

    Returns:
        0 to 1; NaN unless there are labels of both kinds.
    """
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not positive or not negative:
        return math.nan
    # Ranks are multiples of a half: their sum is exact in double precision up to 1e8 samples.
    above = average_ranks(scores)[labels].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def average_ranks(values: NDArray[Any]) -> FloatArray:
    """Ranks from 1 on, equal values sharing their mean rank. ``(N,) -> (N,)``."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    first = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1]))[: len(values)])
    size = np.diff(np.append(first, len(values)))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(first + (size + 1) / 2, size)
    return ranks


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean(dtype=np.float64)) if values.size else math.nan
