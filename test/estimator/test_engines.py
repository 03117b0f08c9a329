"""TorchScript and ONNX Runtime give the same, and say so where one is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from trace_ros.errors import TraceError
from trace_ros.estimator.checkpoint import LoadedModel, ModelCard, export_model, load_model
from trace_ros.estimator.engines import make_engine
from trace_ros.estimator.estimator import TraceEstimator
from trace_ros.estimator.network import NetworkConfig, TraceNetwork
from trace_ros.estimator.observation import JOINT_TORQUE, OBSERVATION_SIZE, WINDOW
from trace_ros.evaluation.latency import walking_samples
from trace_ros.robot import RobotDescription

ROBOT = RobotDescription.load("go2")


def exported(folder, **changes: object) -> LoadedModel:
    torch.manual_seed(0)
    made = TraceNetwork(NetworkConfig(output_layer_scale=1.0, **changes))  # type: ignore[arg-type]
    made.set_normalisation(torch.randn(47), torch.rand(47) + 0.5, torch.rand(9) + 0.5)
    with torch.no_grad():
        made.absent_torque.normal_()
    card = ModelCard(robot=ROBOT.name, robot_fingerprint=ROBOT.fingerprint, rate_hz=500.0, network=made.config)
    export_model(made, card, folder / "trace.pt")
    return load_model(folder / "trace.pt")


def rows(count: int, absent: float) -> np.ndarray:
    generator = np.random.default_rng(1)
    drawn = generator.normal(size=(count, OBSERVATION_SIZE)).astype(np.float32)
    torque = drawn[:, JOINT_TORQUE]
    torque[generator.random(torque.shape) < absent] = np.nan
    return drawn


@pytest.mark.parametrize("absent", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes",
    [{}, {"increments": "direct", "acceleration": "measured"}, {"kernel": 3, "heads": 4, "hidden": 32, "head": (8, 9)}],
)
def test_engines_agree(tmp_path, changes, absent):
    model, drawn = exported(tmp_path, **changes), rows(120, absent)
    script, onnx = make_engine("torchscript", model), make_engine("onnxruntime", model)
    for _ in range(2):  # priming again starts anew
        script.prime(drawn[: WINDOW - 1])
        onnx.prime(drawn[: WINDOW - 1])
        kept = []
        for row in drawn[WINDOW - 1 :]:
            script.observation[:] = onnx.observation[:] = row
            motion, attention = script.step()
            motion_2, attention_2 = onnx.step()
            assert np.isfinite(motion).all()
            np.testing.assert_allclose(motion_2, motion, atol=1e-5, rtol=1e-5)
            np.testing.assert_allclose(attention_2, attention, atol=1e-5, rtol=1e-5)
            kept.append((attention_2, attention_2.copy()))
        assert all((given == copy).all() for given, copy in kept)  # an estimate keeps its attention


@pytest.mark.parametrize("engine", ["torchscript", "onnxruntime"])
def test_only_torque_may_be_absent(tmp_path, engine):
    made, drawn = make_engine(engine, exported(tmp_path)), rows(WINDOW, 0.0)
    made.prime(drawn[:-1])
    made.observation[:] = drawn[-1]
    made.observation[3] = np.nan
    assert np.isnan(made.step()[0]).any()


def test_the_estimator_gives_the_same_poses_with_either(tmp_path):
    exported(tmp_path)
    path = tmp_path / "trace.pt"
    script = TraceEstimator.load(path, ROBOT)
    onnx = TraceEstimator.load(path, ROBOT, engine="onnxruntime")
    compared = 0
    for sample in walking_samples(80):
        one, two = script.step(sample), onnx.step(sample)
        if one is not None and two is not None:
            compared += 1
            np.testing.assert_allclose(two.position, one.position, atol=1e-4)
            np.testing.assert_allclose(two.velocity, one.velocity, atol=1e-4)
    assert compared == 80 - WINDOW + 1


def test_unknown_engines_are_refused(tmp_path):
    exported(tmp_path)
    with pytest.raises(TraceError, match="engine 'tensorrt' is none of torchscript, onnxruntime"):
        TraceEstimator.load(tmp_path / "trace.pt", ROBOT, engine="tensorrt")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_engine_is_told_in_one_line(tmp_path, monkeypatch, missing):
    model = exported(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "trace_ros.estimator.onnx_graph", raising=False)
    with pytest.raises(TraceError, match=f"engine onnxruntime: {missing} is not installed") as caught:
        make_engine("onnxruntime", model)
    assert "\n" not in str(caught.value)
