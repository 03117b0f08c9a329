"""Logs cut to windows for fine-tuning: what the network is given, and what its reference says of it.

The reference is interpolated to the network's steps, never over gaps or jumps. Nothing but relative motion is taken
from it, so its frame does not matter; only where windows begin, roll, pitch and velocity are the reference's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trace_ros.errors import TraceError
from trace_ros.estimator.batch_plan import Rate, Steps, plan_steps
from trace_ros.estimator.checkpoint import LoadedModel
from trace_ros.estimator.estimator import known_intervals
from trace_ros.estimator.feet import foot_channels
from trace_ros.estimator.network import OUTPUT_SIZE, VELOCITY
from trace_ros.geometry import FloatArray, roll_pitch_yaw
from trace_ros.logs import IntArray, SensorLog, Trajectory
from trace_ros.references import clean_reference, disagrees
from trace_ros.robot import RobotDescription
from trace_ros.streams.intervals import GapSettings
from trace_ros.training.dataset import FEEDBACK, PREFIX
from trace_ros.training.finetuning_config import FineTuningConfig, ReferenceConfig
from trace_ros.training.finetuning_loss import Frames
from trace_ros.training.finetuning_rollout import LoopInputs

SHORT_WINDOW = 0.95
"""A log's last window may be shorter than the others, but no shorter than this part of it."""

MOST_DISAGREEING = 0.2
"""Part of a reference that may turn otherwise than the gyro, and is cut; with more, none of it is believed."""


class ReferencedLog(NamedTuple):
    """A log with a reference that fits it.

    Attributes:
        log: its reference on the log's clock, of its base frame, in a level world.
        piece: (M,) which piece each pose of the reference is of; relative motion holds within a piece alone.
        notes: what was found and done, one line each.
        world: (M,) which world each pose is in: another one after a jump; None: all in one.
    """

    log: SensorLog
    piece: NDArray[np.int64]
    notes: tuple[str, ...]
    world: NDArray[np.int64] | None = None

    def in_one_world(self) -> tuple[SensorLog, tuple[str, ...]]:
        """The log with the longest part of its reference between two jumps, and a note where that is not all of it.

        An absolute error aligns the whole, and would take a jump for an error of the estimator.
        """
        if self.world is None or not np.ptp(self.world):
            return self.log, ()
        assert self.log.reference is not None
        counts = np.bincount(self.world)
        kept = self.world == counts.argmax()
        note = (
            f"reference: judged on the longest of {np.count_nonzero(counts)} parts between jumps alone, "
            f"{100 * kept.mean():.0f} % of it"
        )
        return replace(self.log, reference=self.log.reference.select(kept)), (note,)


def with_reference(name: str, log: SensorLog, robot: RobotDescription, config: ReferenceConfig) -> ReferencedLog:
    """The log with its reference made fit for it (`trace_ros.references`), or as it is where that is not wanted.

    Raises:
        TraceError: no reference, or one that does not go with the log, or turns otherwise than the gyro.
    """
    if log.reference is None:
        raise TraceError(
            f"{name}: has no reference to learn from or judge by (topic reference/odom, or --reference-topic)"
        )
    if not config.clean:
        return ReferencedLog(log, np.zeros(len(log.reference), dtype=np.int64), ())
    try:
        cleaned = clean_reference(log.reference, log, robot.imu.position, config.cleaning)
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from error
    if not cleaned.valid.any():
        raise TraceError(f"{name}: nothing is left of its reference: {'; '.join(cleaned.notes)}")
    notes = [f"reference: {note}" for note in cleaned.notes]
    off = disagrees(cleaned, log) & cleaned.valid
    if (share := off.sum() / cleaned.valid.sum()) > MOST_DISAGREEING:
        raise TraceError(
            f"{name}: its reference turns otherwise than the gyro in {100 * share:.0f} % of the time: another robot's "
            "or body's pose, mirrored axes, or another time; look at it with trace bag check"
        )
    # What is left before and after is of two pieces.
    piece = cleaned.segment + (cleaned.segment.max() + 1) * np.cumsum(np.diff(off, prepend=False))
    kept = cleaned.valid & ~off
    if off.any():
        notes.append(f"reference: turns otherwise than the gyro in {100 * share:.1f} % of the time: cut there")
    reference = Trajectory(
        cleaned.stamp_ns[kept], cleaned.position[kept], cleaned.orientation[kept], cleaned.velocity[kept]
    )
    fitting = replace(log, reference=reference)
    return ReferencedLog(fitting, piece[kept], tuple(notes), cleaned.between_jumps[kept])


@dataclass(frozen=True)
class Track:
    """A log of N steps, ready to be cut into windows.

    Attributes:
        name: of the log.
        stamp_ns: (N,) ns.
        observations: (N, 47), with the fed-back channels as the reference has them one step before.
        factor: (N, 9) of `LoopInputs`.
        interval: (N,) s.
        known: (N,) whether the reference is known there.
        position: (N, 3) of the reference, m; of the last known place where it is not.
        rotation: (N, 3, 3) of the reference; likewise.
        anchor: (N,) step that lies one horizon earlier; -1 where there is none, or no reference all the way.
        displacement, turn: (N, 3) m and (N, 3, 3), of the reference since the anchor.
        begins: (W,) first step of each window; it fills the network's window of 30 samples.
        ends: (W,) step after its last.
        left_out: windows that the reference covers too little.
    """

    name: str
    stamp_ns: IntArray
    observations: Tensor
    factor: Tensor
    interval: Tensor
    known: Tensor
    position: FloatArray
    rotation: Tensor
    anchor: Tensor
    displacement: Tensor
    turn: Tensor
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    left_out: int

    @property
    def lookback(self) -> int:
        """Steps from a frame back to its anchor, at most."""
        paired = self.anchor >= 0
        return int((torch.arange(len(self.anchor)) - self.anchor)[paired].max()) if paired.any() else 1


def network_steps(log: SensorLog, model: LoadedModel, robot: RobotDescription) -> Steps:
    """What the robot's estimator would give the model's network of a log, step by step."""
    card = model.card
    rate = Rate(1.0 / card.rate_hz, known_intervals(card), card.trained_intervals_s, GapSettings().max_gap)
    return plan_steps(log, rate, robot, model.absent_torque, foot_channels(model.card.network, robot))


def make_track(name: str, referenced: ReferencedLog, steps: Steps, config: FineTuningConfig) -> Track:
    """Lay a log's reference along the network's steps, and cut it to windows.

    Args:
        name: of the log.
        referenced: the log.
        steps: of `network_steps`.
        config: of the run.

    Raises:
        TraceError: no reference at the log's own time, or a log shorter than a window.
    """
    log = referenced.log
    assert log.reference is not None
    if log.duration_s < SHORT_WINDOW * config.window:
        raise TraceError(
            f"{name}: is {log.duration_s:.1f} s long, a window {config.window:g} s: record longer, or lower window "
            "and stride (--set window=...)"
        )
    at, piece = _reference_at(name, referenced, steps.stamp_ns, config.reference.cleaning.max_gap)
    position, rotation, known = at.position, at.rotation_world_body, piece >= 0
    anchor = _anchors(steps, piece, config.loss.horizon)
    paired = anchor >= 0
    there = np.where(paired, anchor, 0)
    back = rotation[there].inv()
    displacement = np.where(paired[:, None], back.apply(position - position[there]), 0.0)
    begins, ends, left_out = _windows(steps, known, anchor, config)
    observations = steps.observation.copy()
    observations[:, FEEDBACK] = _feedback(at)
    factor = np.ones((len(steps.stamp_ns), OUTPUT_SIZE))
    factor[:, : VELOCITY.start] = (steps.dt / steps.told_dt)[:, None]
    factor[steps.still] = 0.0
    return Track(
        name,
        steps.stamp_ns,
        torch.from_numpy(observations),
        _single(factor),
        _single(steps.dt),
        torch.from_numpy(known),
        position,
        _single(rotation.as_matrix()),
        torch.from_numpy(anchor),
        _single(displacement),
        _single((back * rotation).as_matrix()),
        begins,
        ends,
        left_out,
    )


def _single(values: FloatArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _reference_at(
    name: str, referenced: ReferencedLog, stamp_ns: IntArray, max_gap: float
) -> tuple[Trajectory, NDArray[np.int64]]:
    """The reference at stamps, the last known pose where it is not known; and its piece there, -1 where not known."""
    reference, piece = referenced.log.reference, referenced.piece
    assert reference is not None
    at, known = reference.resample(stamp_ns, max_gap)
    right = np.clip(np.searchsorted(reference.stamp_ns, stamp_ns), 1, len(reference) - 1)
    left = right - 1
    exact_left, exact_right = reference.stamp_ns[left] == stamp_ns, reference.stamp_ns[right] == stamp_ns
    known &= exact_left | exact_right | (piece[left] == piece[right])
    if not known.any():
        raise TraceError(
            f"{name}: its reference ({_span(reference.stamp_ns)}) and its samples ({_span(stamp_ns)}) share no time"
        )
    reached = np.isin(stamp_ns, at.stamp_ns)
    last = np.maximum.accumulate(np.where(reached, np.cumsum(reached) - 1, 0))
    filled = Trajectory(stamp_ns, at.position[last], at.orientation[last], at.velocity[last])
    return filled, np.where(known, np.where(exact_left, piece[left], piece[right]), -1)


def _span(stamp_ns: IntArray) -> str:
    return f"{stamp_ns[0] * 1e-9:.3f} to {stamp_ns[-1] * 1e-9:.3f} s"


def _anchors(steps: Steps, piece: NDArray[np.int64], horizon: float) -> NDArray[np.int64]:
    """The step nearest to one horizon earlier, for each step; -1 where a gap lies between, or the log's beginning."""
    stamps = steps.stamp_ns
    wanted = stamps - round(horizon * 1e9)
    right = np.clip(np.searchsorted(stamps, wanted), 1, len(stamps) - 1)
    nearest = np.where(wanted - stamps[right - 1] < stamps[right] - wanted, right - 1, right)
    unknown = np.concatenate(([0], np.cumsum(piece < 0)))
    whole = (unknown[np.arange(len(stamps)) + 1] == unknown[nearest]) & (piece[nearest] == piece)
    near = np.abs(stamps[nearest] - wanted) <= 0.6e9 * float(np.median(steps.dt))
    part = np.searchsorted(steps.begins, np.arange(len(stamps)), side="right")
    same = part[nearest] == part
    return np.where(whole & near & same, nearest, -1)


def _feedback(reference: Trajectory) -> FloatArray:
    """Roll, pitch, vx and vy of the reference one step before each step. ``(N, 4)`` rad, m/s."""
    fed = np.concatenate((roll_pitch_yaw(reference.orientation)[:, :2], reference.velocity[:, :2]), axis=1)
    return np.concatenate((fed[:1], fed[:-1]))


def _windows(
    steps: Steps, known: NDArray[np.bool_], anchor: NDArray[np.int64], config: FineTuningConfig
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """First step and step after the last of each window, and how many the reference covers too little."""
    begins, ends, left_out = [], [], 0
    for first, _, last in steps.runs:
        # A reference that comes a little late must not cost the whole first window.
        begun = np.flatnonzero(known[first:last])
        if not begun.size:
            continue
        first += int(begun[0])
        stamps = (steps.stamp_ns[first:last] - steps.stamp_ns[first]) * 1e-9
        start = 0.0
        while stamps[-1] - start >= SHORT_WINDOW * config.window:
            begin = first + int(np.searchsorted(stamps, start))
            end = first + int(np.searchsorted(stamps, start + config.window))
            start += config.stride
            if end - begin <= PREFIX + 1:
                continue
            pairs = (anchor[begin:end] >= begin + PREFIX).sum()
            possible = (steps.stamp_ns[begin:end] - steps.stamp_ns[begin + PREFIX] >= config.loss.horizon * 1e9).sum()
            if known[begin : begin + PREFIX + 1].all() and pairs >= config.reference.minimum_share * possible > 0:
                begins.append(begin)
                ends.append(end)
            else:
                left_out += 1
    return tuple(begins), tuple(ends), left_out


@dataclass(frozen=True)
class Window:
    """One of a track's windows: outputs are judged from step ``begin`` + 29 to before ``end``."""

    track: Track
    begin: int
    end: int

    @property
    def outputs(self) -> int:
        """Samples that the network answers."""
        return self.end - self.begin - PREFIX


def all_windows(tracks: Sequence[Track]) -> list[Window]:
    """The windows of all tracks, in their order."""
    return [Window(track, begin, end) for track in tracks for begin, end in zip(track.begins, track.ends, strict=True)]


class WindowBatch:
    """Windows side by side; those that are shorter than the longest are padded at their end, where nothing counts."""

    def __init__(self, windows: Sequence[Window], lookback: int) -> None:
        self._windows = windows
        self._lookback = lookback

    @property
    def outputs(self) -> int:
        """Samples of the longest window that the network answers."""
        return max(window.outputs for window in self._windows)

    def prefix(self) -> tuple[Tensor, Tensor]:
        """The 29 observations (B, 29, 47) before the first output, and roll, pitch, vx, vy (B, 4) to begin with."""
        rows = torch.stack([w.track.observations[w.begin : w.begin + PREFIX + 1] for w in self._windows])
        return rows[:, :PREFIX], rows[:, PREFIX, FEEDBACK]

    def segments(self, length: int) -> Iterator[tuple[LoopInputs, Frames]]:
        """The windows in segments of so many samples, with what they are held to."""
        for first in range(0, self.outputs, length):
            yield self._segment(first, min(first + length, self.outputs))

    def _segment(self, first: int, last: int) -> tuple[LoopInputs, Frames]:
        inputs, frames = zip(*(self._part(window, first, last) for window in self._windows), strict=True)
        return (
            LoopInputs(*(torch.stack(kind) for kind in zip(*inputs, strict=True))),
            Frames(*(torch.stack(kind) for kind in zip(*frames, strict=True))),
        )

    def _part(self, window: Window, first: int, last: int) -> tuple[LoopInputs, Frames]:
        """Without the batch dimension."""
        track, origin = window.track, window.begin + PREFIX
        step = torch.arange(origin + first, origin + last)
        own = step < window.end
        # Padding repeats the window's last sample, which keeps everything finite.
        step = step.clamp(max=window.end - 1)
        anchor = track.anchor[step]
        paired = own & (anchor >= origin)
        there = anchor.clamp(min=0)
        factor = track.factor[step]
        inside = own & (factor[:, VELOCITY.start] > 0)
        frames = Frames(
            track.rotation[step - 1],
            track.rotation[there],
            torch.where(paired, anchor - (origin + first - self._lookback), 0),
            track.displacement[step],
            track.turn[step],
            paired.float(),
            track.interval[step].unsqueeze(-1),
            inside.float(),
        )
        return LoopInputs(track.observations[step], factor), frames
