"""The attention analysis: figures against brute force, and samples against the network run by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from scipy.stats import rankdata
from trajectories import sensor_log, walk

from trace_ros.errors import TraceError
from trace_ros.estimator.feet import FootChannels
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.evaluation.attention import (
    PAPER,
    AttentionSettings,
    area_under_curve,
    attention_figures,
    average_ranks,
    collect_attention,
    figures_by_terrain,
    held_out_seed,
    speed_bins,
)
from trace_ros.evaluation.attention_plot import plot_attention_analysis
from trace_ros.logs import SensorLog
from trace_ros.robot import RobotDescription
from trace_ros.training.closed_loop import closed_loop
from trace_ros.training.dataset import pack, told_at_feet
from trace_ros.training.replay import chunk_seed

# Few different values, so that most of them tie.
SCORES = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        arrays(np.float32, n, elements=st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0])), arrays(np.bool_, n)
    )
)


def brute_force_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
    return float(np.mean(pairs)) if pairs else math.nan


@given(SCORES)
def test_auc_is_the_share_of_pairs_in_order(drawn):
    scores, labels = drawn
    assert area_under_curve(labels, scores) == pytest.approx(brute_force_auc(labels, scores), abs=1e-12, nan_ok=True)


@given(SCORES)
def test_ranks_agree_with_scipy(drawn):
    np.testing.assert_array_equal(average_ranks(drawn[0]), rankdata(drawn[0]))


def test_auc_stays_exact_with_many_samples():
    """Two millions, where single precision would lose the ranks: half of the contacts tie with all of the swing."""
    labels = np.arange(2_000_000) % 2 == 0
    scores = np.where(np.arange(2_000_000) % 4 == 0, 0.5, 0.25).astype(np.float32)
    assert area_under_curve(labels, scores) == 0.75


def test_figures_by_hand():
    attention = np.array([[0.4, 0.1, 0.1, 0.2], [0.0, 0.5, 0.1, 0.0], [0.3, 0.3, 0.0, 0.0], [0.1, 0.2, 0.1, 0.1]])
    contact = np.array([[1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=bool)
    figures = attention_figures(attention.astype(np.float32), contact)
    assert (figures.samples, figures.contact_samples, figures.swing_samples) == (16, 6, 10)
    assert figures.mean_contact == pytest.approx(0.9 / 6)
    assert figures.median_contact == pytest.approx(0.1)
    assert figures.mean_swing == pytest.approx(1.6 / 10)
    assert figures.median_swing == pytest.approx(0.1)
    # Hit, miss, a tie of one foot in contact with one in swing; the last instant has no contact.
    assert figures.top1_contact == pytest.approx((1 + 0 + 0.5) / 3)
    assert figures.top1_chance == 0.5
    assert figures.flight_instants == 1
    assert figures.total_leg == pytest.approx(2.5 / 4)
    assert figures.auc == pytest.approx(brute_force_auc(contact.ravel(), attention.ravel().astype(np.float32)))


def test_where_nothing_swings_the_figures_are_absent_not_wrong():
    figures = attention_figures(np.full((3, 4), 0.1), np.ones((3, 4), dtype=bool))
    written = figures.to_dict()
    assert written["mean_swing"] is written["median_swing"] is written["auc"] is None
    assert written["top1_contact"] == written["top1_chance"] == 1.0
    assert written["swing_samples"] == 0


def test_an_attention_that_knows_nothing_has_the_figures_of_chance():
    rng = np.random.default_rng(0)
    contact = rng.random((20_000, 4)) < 0.56
    figures = attention_figures(rng.random((20_000, 4)), contact)
    assert figures.auc == pytest.approx(0.5, abs=0.01)
    assert figures.top1_contact == pytest.approx(figures.top1_chance, abs=0.01)


def test_the_paper_s_figures_imply_half_of_the_attention_on_legs():
    assert PAPER.total_leg == pytest.approx(0.486, abs=5e-4)
    assert PAPER.contact_samples + PAPER.swing_samples == PAPER.samples
    assert AttentionSettings().samples == PAPER.samples


def test_bins_hold_the_feet_in_contact_only():
    attention = np.array([[0.1, 0.3, 0.5, 0.9]])
    contact = np.array([[True, True, True, False]])
    speed = np.array([[0.0, 0.1, 7.0, 0.05]])
    bins = speed_bins(attention, contact, speed, (0, 0.1, 0.2, 1))
    assert [entry.count for entry in bins] == [1, 1, 0, 1]
    assert [entry.mean_attention for entry in bins] == pytest.approx([0.1, 0.3, math.nan, 0.5], nan_ok=True)
    # Of 0.3, the mean of the three feet in contact.
    assert [entry.mean_relative for entry in bins] == pytest.approx([1 / 3, 1, math.nan, 5 / 3], nan_ok=True)
    assert (bins[0].low_mps, bins[0].high_mps, bins[-1].low_mps, bins[-1].high_mps) == (0, 0.1, 1, None)
    assert bins[-1].mean_speed_mps == 7.0
    assert bins[2].to_dict() == {
        "low_mps": 0.2,
        "high_mps": 1.0,
        "count": 0,
        **dict.fromkeys(("mean_speed_mps", "mean_attention", "mean_relative")),
    }


def test_a_fair_share_does_not_depend_on_how_many_feet_share():
    attention = np.array([[0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    contact = np.array([[True] * 4, [True, True, False, False], [True, True, False, False]])
    (entry,) = speed_bins(attention, contact, np.zeros((3, 4)), (0,))
    assert entry.mean_relative == pytest.approx(1)
    assert entry.mean_attention == pytest.approx(0.1)


def test_a_foot_that_stands_alone_has_no_share():
    attention = np.array([[0.1, 0.3, 0.0, 0.0], [0.2, 0.0, 0.0, 0.0]])
    contact = np.array([[True, True, False, False], [True, False, False, False]])
    (slow,) = speed_bins(attention[1:], contact[1:], np.zeros((1, 4)), (0,))
    assert (slow.count, slow.mean_attention) == (1, 0.2)
    assert math.isnan(slow.mean_relative)
    slow, fast = speed_bins(attention, contact, np.array([[2.0, 0, 0, 0], [2.0, 0, 0, 0]]), (0, 1))
    assert (slow.mean_relative, fast.mean_relative) == pytest.approx((1.5, 0.5))
    assert fast.mean_attention == pytest.approx(0.15)


@pytest.mark.parametrize("edges", [(), (0.1, 0.2), (0, 0.2, 0.2), (0, math.inf)])
def test_bad_bins_are_refused(edges):
    with pytest.raises(ValidationError):
        AttentionSettings(speed_edges=edges)


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 2**40), st.integers(-1, 50))
@settings(max_examples=200)
def test_seeds_are_never_those_of_training(seed, attempt, training_seed, chunk):
    assert held_out_seed(seed, attempt) != chunk_seed(training_seed, chunk)
    assert held_out_seed(seed, attempt) != chunk_seed(seed, attempt - 1)
    assert held_out_seed(seed, attempt) != held_out_seed(seed, attempt + 1)


@dataclass(frozen=True)
class MadeUpRollout:
    measured: SensorLog
    clean: SensorLog
    info: dict[str, float | str] = field(default_factory=lambda: {"terrain": "flat"})


def made_up(samples: int, seed: int, terrain: str = "flat") -> MadeUpRollout:
    truth = walk(samples / 500)
    clean = sensor_log(truth, seed, simulated=True)
    return MadeUpRollout(sensor_log(truth, seed + 1000, simulated=True), clean, {"terrain": terrain})


class MadeUpSource:
    """Gives one after another the rollouts of a list in each round, and remembers what it was asked."""

    def __init__(self, *rollouts: MadeUpRollout) -> None:
        self.rollouts = rollouts
        self.asked: list[tuple[int, int]] = []

    def __call__(self, _robot, seed, count):
        self.asked.append((seed, count))
        return iter(self.rollouts)


@pytest.fixture(scope="module")
def go2() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture(scope="module")
def network() -> TraceNetwork:
    torch.manual_seed(0)
    return TraceNetwork()


@pytest.fixture(scope="module")
def network_of_feet() -> TraceNetwork:
    torch.manual_seed(0)
    return TraceNetwork(NetworkConfig(joints="feet"))


def test_a_network_of_feet_is_told_of_feet(network_of_feet, go2):
    rollout = made_up(60, 0)
    collected = collect_attention(
        network_of_feet, MadeUpSource(rollout), go2, 7, 60, AttentionSettings(samples=1)
    )  # fmt: skip
    rows = torch.from_numpy(pack(rollout, go2, 59))[None]
    with torch.no_grad():
        told = closed_loop(network_of_feet, told_at_feet(rows, FootChannels(go2))).attention[0, :, 2:]
        untold = closed_loop(network_of_feet, rows).attention[0, :, 2:]
    np.testing.assert_allclose(collected.attention, told, atol=1e-6)
    assert np.abs(collected.attention - untold.numpy()).max() > 1e-3


def test_samples_are_those_of_each_rollout_after_its_window(network, go2):
    rollouts = (made_up(60, 0), made_up(20, 1), made_up(45, 2, "stairs"), made_up(52, 3))
    source, told = MadeUpSource(*rollouts), []
    collected = collect_attention(
        network, source, go2, 7, 60, AttentionSettings(samples=1, batch=3), told.append
    )  # fmt: skip
    assert source.asked == [(held_out_seed(7, 0), 8)]
    assert told == [4 * (30 + 15), 4 * (30 + 15 + 22)]
    assert (collected.rollouts, collected.simulated, collected.terrains) == (4, 8, ("flat", "stairs"))
    assert collected.terrain.tolist() == [0] * 30 + [1] * 15 + [0] * 22
    parts = figures_by_terrain(collected)
    assert list(parts) == ["flat", "stairs"]
    assert parts["stairs"].mean_contact == pytest.approx(collected.attention[30:45][collected.contact[30:45]].mean())
    assert parts["flat"].samples == 4 * 52
    assert sum(array.nbytes for array in (collected.attention, collected.contact, collected.speed)) == 36 * 67
    start = 0
    for rollout in (rollouts[0], *rollouts[2:]):
        clean, count = rollout.clean, len(rollout.clean) - 30
        part = slice(start, start + count)
        rows = torch.from_numpy(pack(rollout, go2, len(clean) - 1))[None]
        with torch.no_grad():
            expected = closed_loop(network, rows).attention[0, :, 2:]
        np.testing.assert_allclose(collected.attention[part], expected, atol=1e-6)
        np.testing.assert_array_equal(collected.contact[part], clean.contact[30:])
        assert clean.contact_normal is not None and clean.reference is not None and clean.joint_velocity is not None
        foot, linear, angular = go2.kinematics.forward_and_jacobians(clean.joint_position)
        joints = clean.joint_velocity.reshape(-1, 4, 3, 1)
        omega = clean.angular_velocity[:, None]
        normal = clean.contact_normal / np.linalg.norm(clean.contact_normal, axis=-1, keepdims=True)
        turn = omega + (angular @ joints)[..., 0]
        velocity = clean.reference.velocity[:, None] + np.cross(omega, foot) + (linear @ joints)[..., 0]
        velocity -= go2.foot_radius * np.cross(turn, normal)
        np.testing.assert_allclose(collected.speed[part], np.linalg.norm(velocity, axis=-1)[30:], rtol=1e-4)
        start += count
    assert start == len(collected.attention)


def test_rounds_go_on_until_there_are_enough_and_are_used_up(network, go2):
    source = MadeUpSource(made_up(40, 0), made_up(40, 1))
    collected = collect_attention(network, source, go2, 0, 40, AttentionSettings(samples=410))
    # 80 samples a round; a rollout of 40 samples gives 40.
    assert [count for _, count in source.asked] == [11, 9, 8, 8, 8, 8]
    assert len({seed for seed, _ in source.asked}) == 6
    assert collected.attention.size == 480
    assert collected.simulated == sum(count for _, count in source.asked)


@pytest.mark.parametrize(
    ("rollout", "samples", "said"),
    [
        (made_up(30, 0), 30, "raise duration"),
        (made_up(25, 0), 60, "none of 8 rollouts lasted"),
        (replace(made_up(40, 0), clean=sensor_log(walk(0.08))), 40, "no contact labels"),
    ],
)
def test_what_cannot_be_analysed_is_told(network, go2, rollout, samples, said):
    with pytest.raises(TraceError, match=said):
        collect_attention(network, MadeUpSource(rollout), go2, 0, samples, AttentionSettings(samples=100))


def test_a_broken_model_is_told(go2):
    network = TraceNetwork()
    with torch.no_grad():
        network.head[0].weight.fill_(math.nan)
    with pytest.raises(TraceError, match="not finite"):
        collect_attention(network, MadeUpSource(made_up(60, 0)), go2, 0, 60, AttentionSettings(samples=1))


def test_the_picture_is_drawn_also_where_nothing_swings(network, go2, tmp_path):
    collected = collect_attention(
        network, MadeUpSource(made_up(60, 0)), go2, 0, 60, AttentionSettings(samples=1)
    )  # fmt: skip
    for contact in (collected.contact, np.ones_like(collected.contact), np.zeros_like(collected.contact)):
        samples = replace(collected, contact=contact)
        bins = speed_bins(samples.attention, contact, samples.speed, AttentionSettings().speed_edges)
        plot_attention_analysis(tmp_path / "a.png", samples, bins, "title")
        assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written"):
        plot_attention_analysis(tmp_path / "file" / "a.png", collected, bins)
