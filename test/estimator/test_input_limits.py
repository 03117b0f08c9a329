"""Readings beyond what training showed are told as the nearest that it did; others, and the gyro's, as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trace_ros.estimator import observation as obs
from trace_ros.estimator.checkpoint import ModelCard
from trace_ros.estimator.input_limits import InputLimits, input_limits
from trace_ros.estimator.network import NetworkConfig
from trace_ros.geometry import GRAVITY

WEIGHTS = {"observation_mean": torch.full((47,), 0.5), "observation_scale": torch.full((47,), 2.0)}


@pytest.mark.parametrize(("acceleration", "up"), [("levelled", 0.5 + GRAVITY), ("measured", 0.5)])
def test_what_is_far_outside_is_bounded(acceleration, up):
    limits = InputLimits(WEIGHTS, NetworkConfig(acceleration=acceleration), 3.0)
    told = np.full((2, 47), 1000.0, dtype=np.float32)
    told[1] *= -1
    limits.apply(told)
    expected = np.full((2, 39), [[6.5], [-5.5]])
    expected[:, 2] = up + 6.0, up - 6.0
    np.testing.assert_allclose(told[:, 3:42], expected, rtol=1e-6)
    # The rotation is made of the gyro; what is fed back and the interval are the estimator's own.
    np.testing.assert_array_equal(np.abs(told[:, [0, 1, 2, 42, 43, 44, 45, 46]]), 1000.0)


def test_what_training_showed_stays_and_so_does_what_is_absent():
    limits = InputLimits(WEIGHTS, NetworkConfig(acceleration="levelled"), 3.0)
    told = np.random.default_rng(0).uniform(-5.0, 6.0, 47).astype(np.float32)
    told[obs.ACCEL] = 0.0, 0.0, GRAVITY
    told[obs.JOINT_TORQUE] = np.nan
    before = told.copy()
    limits.apply(told)
    np.testing.assert_array_equal(told, before)


def test_there_may_be_none():
    assert input_limits(WEIGHTS, NetworkConfig(), None) is None


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_makes_no_sense_is_refused(value):
    with pytest.raises(ValidationError):
        ModelCard(robot="go2", robot_fingerprint="x", rate_hz=500.0, input_limit=value)
