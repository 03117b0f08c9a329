"""TRACE in training: what its network is told of the legs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pretraining import describe
from synthetic import PartlyBlindSource

from trace_ros.estimator import observation as obs
from trace_ros.estimator.feet import FootChannels
from trace_ros.estimator.network import NetworkConfig
from trace_ros.training.dataset import pack
from trace_ros.training.trace_learner import TraceLearner


def test_trace_may_be_told_of_the_feet_as_the_estimator_is():
    robot = describe(steps=1).robot
    config = describe(steps=1, network=NetworkConfig(joints="feet")).config
    rows = torch.from_numpy(np.stack([pack(walk, robot, config.rows) for walk in PartlyBlindSource(90)(robot, 0, 4)]))
    learner = TraceLearner(config, robot)
    prepared = learner.prepare(rows)
    expected = FootChannels(robot).at(rows[..., obs.JOINTS].double().numpy(), rows[..., obs.GYRO].double().numpy())
    torch.testing.assert_close(prepared[..., obs.JOINTS].double(), torch.from_numpy(expected), equal_nan=True)
    others = torch.tensor([column for column in range(68) if column not in range(6, 42)])
    assert (prepared[..., others] == rows[..., others]).all()
    assert prepared[..., obs.JOINT_TORQUE].isnan().any()
    # What a network's inputs are centred on is that of the feet.
    mean, _, _ = learner.measure(rows)
    assert mean[obs.JOINT_POSITION][2::3].max() < -0.1  # all feet are below the body
    network = learner.make_network()
    learner.normalise(network, learner.measure(rows))
    assert all(map(math.isfinite, learner.evaluate(network, rows).values()))
    with pytest.raises(TypeError, match="robot"):
        TraceLearner(config).prepare(rows)
    assert TraceLearner(describe(steps=1).config).prepare(rows) is rows
