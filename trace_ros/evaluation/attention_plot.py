"""The picture of the attention analysis (matplotlib)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from trace_ros.evaluation.attention import AttentionSamples, SpeedBin
from trace_ros.evaluation.figures import ESTIMATE_COLOUR, REFERENCE_COLOUR
from trace_ros.evaluation.plots import dress_axes, new_figure, save_figure

_HISTOGRAM_BINS = 60


def plot_attention_analysis(path: Path, samples: AttentionSamples, bins: list[SpeedBin], title: str = "") -> None:
    """Binned mean attention over contact-point speed with counts, and the distribution in contact and swing.

    Raises:
        TraceError: the file cannot be written.
    """
    figure = new_figure(10.5, 5.2)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 1))
    against_speed = figure.add_subplot(grid[0, 0])
    counts = figure.add_subplot(grid[1, 0], sharex=against_speed)
    distribution = figure.add_subplot(grid[:, 1])
    _speed_axes(against_speed, counts, bins)
    edges = np.linspace(0, max(float(samples.attention.max()), 0.1), _HISTOGRAM_BINS + 1)
    for label, mask, colour in (
        ("contact", samples.contact, ESTIMATE_COLOUR),
        ("swing", ~samples.contact, REFERENCE_COLOUR),
    ):
        values = samples.attention[mask]
        if values.size:
            share = np.histogram(values, edges)[0] / values.size
            text = f"{label} ({values.size:,} samples)"
            distribution.stairs(share, edges, fill=True, color=colour, alpha=0.6, label=text)
    # Nearly all of the swing feet are in the first bin.
    distribution.set_yscale("log")
    distribution.legend(frameon=False)
    dress_axes(distribution, "attention on a foot", "share of samples")
    if title:
        figure.suptitle(title)
    save_figure(figure, path)


def _speed_axes(against_speed: Axes, counts: Axes, bins: list[SpeedBin]) -> None:
    filled = [entry for entry in bins if entry.count]
    speed = [entry.mean_speed_mps for entry in filled]
    mean = [entry.mean_attention for entry in filled]
    against_speed.plot(speed, mean, "o-", color=ESTIMATE_COLOUR, ms=4, clip_on=False)
    against_speed.set_ylim(bottom=0)
    against_speed.tick_params(labelbottom=False)
    dress_axes(against_speed, "", "mean attention on a foot in contact")
    for entry in filled:
        # The open bin is drawn to as far beyond its mean as its mean is beyond its bound.
        high = 2 * entry.mean_speed_mps - entry.low_mps if entry.high_mps is None else entry.high_mps
        counts.bar(entry.low_mps, entry.count, high - entry.low_mps, align="edge", color="#bbbbbb", edgecolor="white")
    counts.set_yscale("log")
    dress_axes(counts, "contact-point speed during contact (m/s)", "samples")
