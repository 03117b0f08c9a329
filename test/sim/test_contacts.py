"""Contact labels by hand and by property."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_ros.sim.contacts import ContactLabelConfig, contact_labels, contact_normals

CONFIG = ContactLabelConfig(on_force=15.0, off_force=5.0, dwell=0.0)


def labels(force, config=CONFIG, period=0.002):
    return contact_labels(np.array(force, dtype=float)[:, None], config, period)[:, 0].tolist()


def test_hysteresis():
    #           off  between  on    between  off   between
    assert labels([0, 10, 20, 10, 6, 4, 10, 14, 16]) == [0, 0, 1, 1, 1, 0, 0, 0, 1]


def test_before_the_first_decision_the_lower_threshold_counts():
    assert labels([10, 10, 3]) == [1, 1, 0]
    assert labels([10, 10, 20]) == [1, 1, 1]


def test_dwell_closes_gaps_then_drops_contacts():
    dwell = ContactLabelConfig(on_force=15.0, off_force=5.0, dwell=0.006)  # 3 samples
    on, off = 50, 0
    assert labels([on] * 4 + [off] * 2 + [on] * 4, dwell) == [1] * 10
    assert labels([off] * 4 + [on] * 2 + [off] * 4, dwell) == [0] * 10
    assert labels([off] * 4 + [on] * 3 + [off] * 4, dwell) == [0] * 4 + [1] * 3 + [0] * 4
    # Two touches with a short gap are one contact, long enough to stay.
    assert labels([off] * 3 + [on] * 2 + [off] + [on] * 2 + [off] * 3, dwell) == [0] * 3 + [1] * 5 + [0] * 3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 60), min_size=1, max_size=80), st.integers(1, 8))
def test_no_inner_run_is_shorter_than_the_dwell(force, samples):
    config = ContactLabelConfig(on_force=15.0, off_force=5.0, dwell=samples * 0.002)
    values = np.array(labels(force, config))
    edges = np.flatnonzero(np.diff(values)) + 1
    runs = np.diff(np.concatenate(([0], edges, [len(values)])))
    contacts = [run for run, start in zip(runs, np.concatenate(([0], edges)), strict=True) if values[start]]
    assert all(run >= samples for run in contacts[1:-1])


def test_normals_are_held_through_a_contact():
    up, side = [0.0, 0.0, 2.0], [0.0, 1.0, 0.0]
    none = [0.0, 0.0, 0.0]
    raw = np.array([none, up, none, side, none])[:, None]
    contact = np.array([True, True, True, True, False])[:, None]
    expected = [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert contact_normals(raw, contact)[:, 0].tolist() == expected


def test_thresholds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="must not exceed"):
        ContactLabelConfig(on_force=5.0, off_force=15.0)
