import copy
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.spatial.transform import Rotation
from trajectories import START_NS, disturb, moved, stamps, walk

from trace_ros.errors import TraceError
from trace_ros.evaluation.metrics import (
    MetricSettings,
    Statistics,
    compare,
    error_growth,
    evaluate,
    relative_errors,
)
from trace_ros.logs import Trajectory

TRUTH = walk(20.0)
ALL = MetricSettings(warm_up_samples=0)


@given(yaw=st.floats(-3.1, 3.1), shift=st.tuples(*[st.floats(-100, 100)] * 3))
@settings(max_examples=15, deadline=None)
def test_zero_under_any_yaw_and_translation(yaw, shift):
    truth = walk(12.0, 50.0)
    metrics = evaluate(moved(truth, Rotation.from_euler("z", yaw), np.array(shift)), truth, ALL).to_dict()
    for key, value in metrics.items():
        if key.startswith("ate_"):
            assert value < 1e-9, key
        elif key.startswith("re10_"):
            assert max(value.values()) < 1e-9, key


def test_relative_errors_do_not_depend_on_where_or_how_the_world_lies():
    estimate = disturb(TRUTH)
    elsewhere = moved(estimate, Rotation.from_rotvec([0.3, -1.0, 2.0]), np.array([5.0, -3.0, 8.0]))
    ours, theirs = relative_errors(estimate, TRUTH, 10.0), relative_errors(elsewhere, TRUTH, 10.0)
    for name in ("position", "velocity", "velocity_end", "orientation"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-9)
        assert getattr(ours, name).mean() > 1e-3


def test_constant_yaw_rate_error_gives_the_closed_form():
    """Straight at speed v, estimated as an arc of yaw rate w: after T the chord of the arc against the straight."""
    v, w, horizon = 0.8, 0.03, 10.0
    stamp = stamps(15.0)
    t = (stamp - stamp[0]) * 1e-9
    zero = np.zeros_like(t)
    forward = np.tile([v, 0.0, 0.0], (t.size, 1))
    truth = Trajectory(stamp, np.stack((v * t, zero, zero), axis=1), np.tile([0.0, 0, 0, 1], (t.size, 1)), forward)
    arc = v / w * np.stack((np.sin(w * t), 1 - np.cos(w * t), zero), axis=1)
    estimate = Trajectory(stamp, arc, Rotation.from_euler("z", (w * t)[:, None]).as_quat(), forward)
    metrics = evaluate(estimate, truth, ALL)
    angle = w * horizon
    end = np.array([v / w * np.sin(angle) - v * horizon, v / w * (1 - np.cos(angle))])
    assert metrics.re_position_m.mean == pytest.approx(np.linalg.norm(end), abs=1e-9)
    assert metrics.re_position_m.std == pytest.approx(0.0, abs=1e-9)
    assert metrics.re_orientation_rad.mean == pytest.approx(angle, abs=1e-9)
    # The estimated velocity turns by the same angle: a chord of the circle of radius v.
    assert metrics.re_velocity_mps.mean == pytest.approx(2 * v * np.sin(angle / 2), abs=1e-9)
    assert metrics.re_velocity_end_mps.mean == pytest.approx(2 * v * np.sin(angle / 2), abs=1e-9)
    assert metrics.ate_velocity_body_mps == pytest.approx(0.0, abs=1e-12)
    assert metrics.pairs == 15 * 500 - 5000


def test_velocity_increment_and_end_state_differ_by_the_error_at_the_start():
    """A constant velocity bias cancels in the increment while the body keeps its heading, and stays at the end."""
    stamp = stamps(12.0)
    t = (stamp - stamp[0]) * 1e-9
    position = np.stack((0.5 * t, 0 * t, 0 * t), axis=1)
    upright = np.tile([0.0, 0, 0, 1], (t.size, 1))
    truth = Trajectory(stamp, position, upright, np.tile([0.5, 0, 0], (t.size, 1)))
    estimate = Trajectory(stamp, position, upright, np.tile([0.5, 0.03, 0.04], (t.size, 1)))
    metrics = evaluate(estimate, truth, ALL)
    assert metrics.re_velocity_mps.mean == pytest.approx(0.0, abs=1e-12)
    assert metrics.re_velocity_end_mps.mean == pytest.approx(0.05)
    assert metrics.ate_velocity_mps == pytest.approx(0.05)
    assert metrics.ate_velocity_body_mps == pytest.approx(0.05)


def test_height_apart():
    higher = Trajectory(TRUTH.stamp_ns, TRUTH.position + np.array([0.3, 0.0, 0.4]), TRUTH.orientation, TRUTH.velocity)
    metrics = evaluate(higher, TRUTH, MetricSettings(alignment="none"))
    assert metrics.ate_z_m == pytest.approx(0.4)
    assert metrics.ate_position_m == pytest.approx(0.5)


def test_compensated_form_is_the_papers_equation():
    estimate = disturb(TRUTH)
    metrics = evaluate(estimate, TRUTH, MetricSettings(alignment="none", warm_up_samples=0, compensate_rotation=True))
    error = [
        p - (r * s.inv()).apply(q)
        for p, q, r, s in zip(
            TRUTH.position, estimate.position, TRUTH.rotation_world_body, estimate.rotation_world_body, strict=True
        )
    ]
    assert metrics.ate_position_m == pytest.approx(np.sqrt(np.mean(np.sum(np.square(error), axis=1))))


def test_statistics_are_numpys():
    error = relative_errors(disturb(TRUTH), TRUTH, 5.0).position
    statistics = Statistics.of(error)
    assert statistics.p90 == np.percentile(error, 90)
    assert statistics.mean == pytest.approx(sum(error) / error.size)
    assert statistics.std == pytest.approx(np.sqrt(np.mean((error - error.mean()) ** 2)))


def test_short_log_has_absolute_errors_and_says_why_not_relative_ones():
    truth = walk(6.0)
    metrics = evaluate(disturb(truth), truth)
    assert metrics.re_position_m is None
    assert metrics.pairs == 0
    assert metrics.ate_position_m > 0
    assert any("10 s" in note and "5.9" in note for note in metrics.notes)
    assert metrics.to_dict()["re10_position_m"] is None


def test_no_common_time_is_one_clear_line():
    later = walk(5.0)
    earlier = Trajectory(later.stamp_ns - 10**12, later.position, later.orientation, later.velocity)
    with pytest.raises(TraceError, match=r"nothing to compare: the estimate spans .* with no pose in common"):
        evaluate(later, earlier)
    with pytest.raises(TraceError, match="warm-up"):
        evaluate(later.select(slice(0, 30)), later)
    with pytest.raises(TraceError, match="no relative error over 10 s"):
        relative_errors(later, later, 10.0)


def test_reference_is_interpolated_but_never_over_long_gaps():
    slow = walk(20.0, 10.0)
    exact = walk(20.0)
    hole = (slow.stamp_ns < START_NS + 8 * 10**9) | (slow.stamp_ns > START_NS + 9 * 10**9)
    comparison = compare(exact, slow.select(hole), ALL)
    seconds = (comparison.reference.stamp_ns - START_NS) * 1e-9
    assert not ((seconds > 8.0) & (seconds < 9.0)).any()
    assert len(comparison.reference) < len(exact) - 500
    assert np.abs(comparison.reference.position - comparison.estimate.position).max() < 2e-3
    # Path length leaves the hole out too.
    metrics = evaluate(exact, slow.select(hole), ALL)
    assert metrics.path_length_m == pytest.approx(
        comparison.reference.select(seconds <= 8).path_length_m
        + comparison.reference.select(seconds >= 9).path_length_m
    )


def test_relative_errors_are_by_time_with_missing_samples():
    estimate = disturb(TRUTH)
    keep = np.ones(len(TRUTH), dtype=bool)
    keep[np.random.default_rng(0).integers(1, len(TRUTH), 1500)] = False
    errors = relative_errors(estimate.select(keep), TRUTH.select(keep), 10.0)
    elapsed = TRUTH.select(keep).stamp_ns[errors.end] - TRUTH.select(keep).stamp_ns[errors.start]
    assert np.abs(elapsed - 10**10).max() <= 10**7


def test_growth_leaves_out_horizons_without_pairs():
    growth = error_growth(compare(disturb(TRUTH), TRUTH), (1.0, 5.0, 60.0))
    assert list(growth) == [1.0, 5.0]
    assert growth[5.0].position.mean() > growth[1.0].position.mean()


def test_warm_up_is_left_out():
    spoiled = copy.deepcopy(TRUTH.position)
    spoiled[:30] += 100.0
    estimate = Trajectory(TRUTH.stamp_ns, spoiled, TRUTH.orientation, TRUTH.velocity)
    assert evaluate(estimate, TRUTH).ate_position_m < 1e-9
    assert evaluate(estimate, TRUTH, ALL).ate_position_m > 1.0


def test_dictionary_has_the_agreed_keys():
    assert set(evaluate(disturb(TRUTH), TRUTH).to_dict()) == {
        "path_length_m",
        "duration_s",
        "alignment",
        "ate_position_m",
        "ate_z_m",
        "ate_velocity_mps",
        "ate_velocity_body_mps",
        "ate_orientation_rad",
        "re10_position_m",
        "re10_velocity_mps",
        "re10_velocity_end_mps",
        "re10_orientation_rad",
        "pairs",
        "compared_samples",
        "horizon_s",
        "notes",
    }


def test_settings_refuse_unknown_keys_and_modes():
    with pytest.raises(ValidationError, match="alignement"):
        MetricSettings(alignement="posyaw")
    with pytest.raises(ValidationError, match="sim3"):
        MetricSettings(alignment="sim3")


def test_sixty_seconds_at_500_hz_take_under_a_second():
    truth = walk(60.0)
    estimate = disturb(truth)
    begin = time.process_time()
    evaluate(estimate, truth)
    assert time.process_time() - begin < 1.0
