"""Each loss against values worked out by hand, and the tilt correction against the rotations it stands for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from trace_ros.geometry import roll_pitch_yaw
from trace_ros.training.losses import (
    LossConfig,
    Targets,
    attention_losses,
    contact_loss,
    contact_point_velocity,
    drift_loss,
    estimation_loss,
    foot_loss,
    keep_loss,
    masked_mean,
    model_loss,
    smooth_l1,
    tilt_correction,
    total_loss,
)

DT = 0.002


def one_sample(motion: list[float], **changes: torch.Tensor) -> Targets:
    """Targets of a single sample."""
    values = {
        "motion": torch.tensor([[motion]]),
        "previous_velocity": torch.zeros(1, 1, 3),
        "contact_velocity": torch.zeros(1, 1, 4, 3),
        "contact": torch.ones(1, 1, 4),
        "dt": torch.full((1, 1, 1), DT),
        "valid": torch.ones(1, 1),
    }
    return Targets(**{**values, **changes})


def random_targets(batch: int, samples: int) -> Targets:
    return Targets(
        torch.randn(batch, samples, 9) * DT,
        torch.randn(batch, samples, 3),
        torch.randn(batch, samples, 4, 3),
        (torch.rand(batch, samples, 4) < 0.5).float(),
        torch.full((batch, samples, 1), DT),
        torch.ones(batch, samples),
    )


def test_smooth_l1_is_quadratic_then_linear():
    # |e| = 0.05 < 0.1: 0.5 * 0.05^2 / 0.1 = 0.0125; |e| = 0.3: 0.3 - 0.05 = 0.25; mean of three with a zero.
    assert smooth_l1(torch.tensor([0.05, -0.3, 0.0]), 0.1).item() == pytest.approx((0.0125 + 0.25) / 3)


def test_masked_mean_ignores_what_does_not_count():
    values, valid = torch.tensor([[1.0, 5.0, 100.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert masked_mean(values, valid).item() == 3.0
    assert masked_mean(values, torch.zeros(1, 3)).item() == 0.0


def test_estimation_loss_by_hand():
    # Displacement off by 0.0001 m in x: 0.05 m/s in units of dt, quadratic: 0.0125 / 3.
    # Rotation off by 0.0006 rad about z: 0.3 rad/s, linear: 0.25 / 3. Velocity off by 0.02 m/s: 0.002 / 3.
    prediction = torch.tensor([[[0.0001, 0, 0, 0, 0, 0.0006, 0, 0.02, 0]]])
    displacement, rotation, velocity = estimation_loss(prediction, one_sample([0.0] * 9), beta=0.1)
    assert displacement.item() == pytest.approx(0.0125 / 3, rel=1e-5)
    assert rotation.item() == pytest.approx(0.25 / 3, rel=1e-5)
    assert velocity.item() == pytest.approx(0.002 / 3, rel=1e-5)


def test_model_loss_by_hand():
    # A quarter turn about z takes v^ = (1, 0, 0) to (0, 1, 0); with v_{t-1} = (1, 0, 0) the trapezoid is (0.5, 0.5, 0).
    # A displacement of dt (0.5, 0.45, 0) is off by 0.05 m/s in y: 0.0125 / 3.
    motion = torch.tensor([[[0.5 * DT, 0.45 * DT, 0, 0, 0, math.pi / 2, 1, 0, 0]]])
    loss = model_loss(motion, torch.tensor([[[1.0, 0, 0]]]), torch.full((1, 1, 1), DT), torch.ones(1, 1), 0.1)
    assert loss.item() == pytest.approx(0.0125 / 3, rel=1e-4)


def test_model_loss_pulls_on_all_three_outputs():
    motion = torch.tensor([[[0.0, 0, 0, 0.1, 0.2, 0.3, 1, 0.5, 0.2]]], requires_grad=True)
    model_loss(motion, torch.ones(1, 1, 3), torch.full((1, 1, 1), DT), torch.ones(1, 1), 0.1).backward()
    assert motion.grad is not None
    assert (motion.grad[0, 0, :3].abs() > 0).all() and (motion.grad[0, 0, 3:].abs() > 0).any()


def test_foot_loss_by_hand():
    # Leg attention 0.3, 0.1, 0, 0 and contact speeds |(1,0,0) + (-1,0,0)| = 0, |(1,0,0) + (2,4,0)| = 5:
    # A = 0.4, loss = A (0.3/A * 0 + 0.1/A * 5) = 0.5.
    attention = torch.tensor([[[0.4, 0.2, 0.3, 0.1, 0.0, 0.0]]])
    contact = torch.zeros(1, 1, 4, 3)
    contact[0, 0, 0] = torch.tensor([-1.0, 0, 0])
    contact[0, 0, 1] = torch.tensor([2.0, 4, 0])
    loss, total = foot_loss(torch.tensor([[[1.0, 0, 0]]]), attention, contact, torch.ones(1, 1))
    assert loss.item() == pytest.approx(0.5, rel=1e-4)
    assert total.item() == pytest.approx(0.4)


def test_foot_loss_cannot_be_lowered_by_attending_less_to_legs():
    """Scaling all leg weights moves the loss's value but, through the stop-gradient, gives no gradient."""
    legs = torch.tensor([0.3, 0.1, 0.15, 0.05])
    scale = torch.tensor(1.0, requires_grad=True)
    attention = torch.cat((torch.tensor([0.2, 0.2]), legs * scale))[None, None]
    contact = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    loss, _ = foot_loss(torch.zeros(1, 1, 3), attention, contact, torch.ones(1, 1))
    (gradient,) = torch.autograd.grad(loss, scale)
    assert loss.item() > 0.1
    assert abs(gradient.item()) < 1e-5


def test_foot_loss_moves_attention_to_the_foot_at_rest():
    attention = torch.full((1, 1, 6), 1 / 6, requires_grad=True)
    contact = torch.zeros(1, 1, 4, 3)
    contact[0, 0, 2] = torch.tensor([0.0, 1.0, 0.0])
    loss, _ = foot_loss(torch.zeros(1, 1, 3), attention, contact, torch.ones(1, 1))
    loss.backward()
    assert attention.grad is not None
    assert attention.grad[0, 0, 4] > 0 > attention.grad[0, 0, 2]
    assert torch.isfinite(attention.grad).all()


def test_attention_losses_by_hand():
    # Legs get 0.3, 0.1, 0, 0.1, and the first and the third stand: 0.1 + 0.1 is on feet in swing.
    # Shares 0.6, 0.2, 0, 0.2 of A = 0.5: 0.5 (0.36 + 0.04 + 0.04) = 0.22. The second sample does not count.
    attention = torch.tensor([[[0.3, 0.2, 0.3, 0.1, 0.0, 0.1], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]]])
    contact = torch.tensor([[[1.0, 0, 1, 0], [0.0, 0, 0, 0]]])
    swing, spread = attention_losses(attention, contact, torch.tensor([[1.0, 0.0]]))
    assert swing.item() == pytest.approx(0.2)
    assert spread.item() == pytest.approx(0.22, rel=1e-4)


@pytest.mark.parametrize(("standing", "pull"), [(0, 1), (4, 0)], ids=["in flight", "on all feet"])
def test_attention_leaves_the_legs_only_where_none_stands(standing, pull):
    scale = torch.tensor(1.0, requires_grad=True)
    legs = torch.tensor([0.1, 0.2, 0.05, 0.15]) * scale
    attention = torch.cat((0.5 * (1 - legs.sum()).expand(2), legs))[None, None]
    contact = torch.full((1, 1, 4), float(standing > 0))
    swing, spread = attention_losses(attention, contact, torch.ones(1, 1))
    (gradient,) = torch.autograd.grad(swing + spread, scale)
    # The scale times 0.5 is the legs' attention; spread alone has no say in it.
    assert gradient.item() == pytest.approx(0.5 * pull, abs=1e-5)


def test_spread_moves_attention_to_the_foot_that_gets_least():
    legs = torch.tensor([0.3, 0.1, 0.05, 0.05])
    attention = torch.cat((torch.full((2,), 0.25), legs))[None, None].requires_grad_()
    _, spread = attention_losses(attention, torch.ones(1, 1, 4), torch.ones(1, 1))
    spread.backward()
    assert attention.grad is not None
    of_legs = attention.grad[0, 0, 2:]
    assert of_legs[0] > of_legs[1] > of_legs[2]
    even = torch.full((1, 1, 6), 1 / 6)
    assert attention_losses(even, torch.ones(1, 1, 4), torch.ones(1, 1))[1].item() == pytest.approx(1 / 6, rel=1e-4)


def test_contact_loss_by_hand():
    # Shares 0.6, 0.2, 0, 0.2 where the first and the second stand: 0.5 ln(0.5 / 0.6) + 0.5 ln(0.5 / 0.2). Where none
    # stands, or a sample does not count, there is nothing to say; shared evenly by those that stand, nothing to mend.
    attention = torch.tensor([0.3, 0.2, 0.3, 0.1, 0.0, 0.1]).expand(1, 3, 6)
    contact = torch.tensor([[[1.0, 1, 0, 0], [0.0, 0, 0, 0], [1.0, 0, 0, 0]]])
    loss = contact_loss(attention, contact, torch.tensor([[1.0, 1.0, 0.0]]))
    assert 2 * loss.item() == pytest.approx(0.5 * math.log(0.5 / 0.6) + 0.5 * math.log(0.5 / 0.2), rel=1e-4)
    even = torch.tensor([[[0.4, 0.4, 0.1, 0.1, 0.0, 0.0]]])
    assert contact_loss(even, contact[:, :1], torch.ones(1, 1)).item() == pytest.approx(0, abs=1e-4)


def test_contact_loss_finds_the_foot_that_has_just_come_down_and_leaves_the_total():
    legs = torch.tensor([0.3, 0.01, 0.1, 0.1], requires_grad=True)
    attention = torch.cat((torch.full((2,), 0.245), legs))[None, None]
    (gradient,) = torch.autograd.grad(contact_loss(attention, torch.tensor([[[1.0, 1, 0, 0]]]), torch.ones(1, 1)), legs)
    # The one with least of those that stand is pulled most; those in swing are let go.
    assert gradient[1] < gradient[0] < gradient[2] and gradient[2] > 0
    assert (gradient * legs).sum().item() == pytest.approx(0, abs=1e-4)
    nothing = torch.tensor([[[0.5, 0.5, 0, 0, 0, 0]]], requires_grad=True)
    contact_loss(nothing, torch.ones(1, 1, 4), torch.ones(1, 1)).backward()
    assert nothing.grad is not None and torch.isfinite(nothing.grad).all()


@pytest.mark.parametrize("gap", [1.0, 12.0, 20.0, 25.0])
def test_contact_loss_mends_a_foot_that_is_missed_however_surely(gap):
    logits = torch.tensor([0.0, 0, 0, -gap, 0, 0], requires_grad=True)
    only = torch.tensor([[[0.0, 1, 0, 0]]])
    (gradient,) = torch.autograd.grad(
        contact_loss(torch.softmax(logits, 0)[None, None], only, torch.ones(1, 1)), logits
    )
    assert gradient[3].item() == pytest.approx(-1, abs=0.3)
    assert gradient.sum().item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("total", [1e-9, 1e-4, 0.5])
def test_contact_loss_minds_no_total(total):
    legs = torch.full((1, 1, 4), total / 4)
    attention = torch.cat((torch.full((1, 1, 2), (1 - total) / 2), legs), -1)
    assert contact_loss(attention, torch.ones(1, 1, 4), torch.ones(1, 1)).item() == pytest.approx(0, abs=1e-5)


def test_drift_loss_by_hand():
    # Errors of 0.5 and -0.4 m/s in x average to 0.05 (beta 0.1: 0.0125 / 3); a third sample does not count.
    # Errors of 0.3 and 0.3 rad/s about z average to 0.3 (linear: 0.25 / 3).
    motion = torch.zeros(1, 3, 9)
    motion[0, :, 0] = torch.tensor([0.5, -0.4, 9.0]) * DT
    motion[0, :, 5] = torch.tensor([0.3, 0.3, 9.0]) * DT
    targets = Targets(
        torch.zeros(1, 3, 9),
        torch.zeros(1, 3, 3),
        torch.zeros(1, 3, 4, 3),
        torch.ones(1, 3, 4),
        torch.full((1, 3, 1), DT),
        torch.tensor([[1.0, 1, 0]]),
    )
    displacement, rotation = drift_loss(motion, targets, beta=0.1)
    assert displacement.item() == pytest.approx(0.0125 / 3, rel=1e-4)
    assert rotation.item() == pytest.approx(0.25 / 3, rel=1e-4)


def test_drift_loss_does_not_see_noise_that_averages_out():
    noise = torch.randn(1, 400, 9, generator=torch.Generator().manual_seed(0)) * 0.1 * DT
    noise -= noise.mean(1, keepdim=True)
    zeros = torch.zeros(1, 400, 9)
    feet, dt, ones = torch.zeros(1, 400, 4, 3), torch.full((1, 400, 1), DT), torch.ones(1, 400, 4)
    targets = Targets(zeros, zeros[..., :3], feet, ones, dt, ones[..., 0])
    assert max(drift_loss(noise, targets, 0.02)).item() < 1e-9
    assert min(estimation_loss(noise, targets, 0.1)[:2]).item() > 1e-3


def test_total_is_the_weighted_sum():
    torch.manual_seed(0)
    motion, attention = torch.randn(2, 5, 9) * DT, torch.softmax(torch.randn(2, 5, 6), -1)
    targets = random_targets(2, 5)
    config = LossConfig(
        estimation=2,
        model=3,
        foot=5,
        displacement=7,
        rotation=11,
        velocity=13,
        drift=17,
        swing=19,
        spread=23,
        contact=29,
    )
    terms = total_loss(motion, attention, targets, config)
    assert terms.keep == 0
    estimation = 7 * terms.displacement + 11 * terms.rotation + 13 * terms.velocity
    drift = 7 * terms.drift_displacement + 11 * terms.drift_rotation
    of_attention = 5 * terms.foot + 19 * terms.swing + 23 * terms.spread + 29 * terms.contact
    torch.testing.assert_close(terms.total, 2 * estimation + 3 * terms.model + of_attention + 17 * drift)


def test_to_keep_outputs_costs_what_they_differ_by():
    targets = random_targets(2, 50)
    start = torch.randn(2, 50, 9) * DT
    assert keep_loss(start, start, targets).item() == 0
    # 0.1 m/s of displacement rate off throughout, along all three axes: far on the linear part of both.
    off = start.clone()
    off[..., :3] += 0.1 * targets.dt
    assert keep_loss(off, start, targets).item() == pytest.approx((0.1 - 0.01) + 0.5 * (0.1 - 0.002), rel=1e-4)
    # What averages out costs once, what does not twice.
    sign = torch.tensor([1.0, -1.0]).repeat(25)[:, None]
    even = start.clone()
    even[..., :3] += 0.1 * targets.dt * sign
    assert keep_loss(even, start, targets._replace(valid=torch.ones(2, 50))).item() == pytest.approx(0.09, rel=1e-4)
    config = LossConfig(keep=7)
    attention = torch.softmax(torch.randn(2, 50, 6), -1)
    free, held = (total_loss(off, attention, targets, config, given) for given in (None, start))
    torch.testing.assert_close(held.total - free.total, 7 * keep_loss(off, start, targets))


def test_padding_changes_nothing():
    torch.manual_seed(0)
    motion, attention = torch.randn(1, 6, 9) * DT, torch.softmax(torch.randn(1, 6, 6), -1)
    targets = random_targets(1, 6)
    whole = total_loss(motion[:, :4], attention[:, :4], Targets(*(part[:, :4] for part in targets)), LossConfig())
    valid = torch.tensor([[1.0, 1, 1, 1, 0, 0]])
    padded = total_loss(motion, attention, targets._replace(valid=valid), LossConfig())
    for one, two in zip(whole, padded, strict=True):
        torch.testing.assert_close(one, two)


def test_contact_velocity_by_hand():
    # One leg: foot 0.3 m below the body, body pitching at 2 rad/s: omega x p = (2 * -0.3, 0, 0) = (-0.6, 0, 0).
    # A joint about y moves the foot by J_v = (-0.2, 0, 0) a radian; at 1 rad/s: (-0.2, 0, 0).
    # The foot link turns at 3 rad/s about y; the contact is 0.02 m below its centre: (3 * -0.02, 0, 0) = (-0.06, 0, 0).
    position, linear, angular = np.zeros((1, 4, 3)), np.zeros((1, 4, 3, 3)), np.zeros((1, 4, 3, 3))
    position[0, 0] = 0, 0, -0.3
    linear[0, 0, :, 1] = -0.2, 0, 0
    angular[0, 0, :, 1] = 0, 1, 0
    speed, normal = np.zeros((1, 12)), np.zeros((1, 4, 3))
    speed[0, 1] = 1.0
    normal[0, 0] = 0, 0, 2.0  # any length
    omega = np.array([[0.0, 2.0, 0.0]])
    contact = contact_point_velocity(omega, speed, position, linear, angular, normal, 0.02)
    np.testing.assert_allclose(contact[0, 0], (-0.86, 0, 0), atol=1e-12)
    swing = contact_point_velocity(omega, speed, position, linear, angular, 0 * normal, 0.02)
    np.testing.assert_allclose(swing[0, 0], (-0.8, 0, 0), atol=1e-12)


def test_a_wheel_that_rolls_has_a_contact_point_at_rest():
    """The body moves at v above a foot that rolls without slip: v and the contact's own motion cancel."""
    radius, rate = 0.022, 1.5
    # The body stands still relative to the foot's centre but for the rolling: the foot turns about y at `rate` and its
    # centre moves at rate * radius along x, which is the body's velocity too when no joint moves.
    position, zero = np.zeros((1, 4, 3)), np.zeros((1, 4, 3, 3))
    angular = zero.copy()
    angular[0, 0, :, 2] = 0, 1, 0
    speed, normal = np.zeros((1, 12)), np.zeros((1, 4, 3))
    speed[0, 2], normal[0, 0] = rate, (0, 0, 1)
    contact = contact_point_velocity(np.zeros((1, 3)), speed, position, zero, angular, normal, radius)
    np.testing.assert_allclose(contact[0, 0] + (rate * radius, 0, 0), 0, atol=1e-12)


angle = st.floats(-1.2, 1.2)
offset = st.floats(-0.05, 0.05)


@settings(deadline=None, max_examples=50)
@given(angle, angle, st.floats(-3, 3), offset, offset)
def test_tilt_correction_is_the_rotation_that_removes_the_offset(roll, pitch, yaw, d_roll, d_pitch):
    true = Rotation.from_euler("xyz", (roll, pitch, yaw))
    estimate = Rotation.from_euler("xyz", (roll + d_roll, pitch + d_pitch, yaw))
    exact = (estimate.inv() * true).as_rotvec()
    ours = tilt_correction(torch.tensor([roll, pitch], dtype=torch.float64), torch.tensor([d_roll, d_pitch]).double())
    np.testing.assert_allclose(ours.numpy(), exact, atol=2 * (d_roll**2 + d_pitch**2) + 1e-12)


def test_following_the_target_makes_the_offset_decay_with_the_stated_rate():
    rate, dt, seconds = 0.5, 0.002, 2.0
    rng = np.random.default_rng(0)
    true = Rotation.from_euler("xyz", (0.3, -0.2, 0.5))
    estimate = Rotation.from_euler("xyz", (0.3 + 0.02, -0.2 - 0.015, 0.5))
    for _ in range(int(seconds / dt)):
        tilt = torch.tensor(roll_pitch_yaw(true.as_quat())[:2])
        off = torch.tensor(roll_pitch_yaw(estimate.as_quat())[:2]) - tilt
        turn = rng.normal(0, 1.0, 3) * dt
        estimate = estimate * Rotation.from_rotvec(turn + rate * dt * tilt_correction(tilt, off).numpy())
        true = true * Rotation.from_rotvec(turn)
    left = roll_pitch_yaw(estimate.as_quat()) - roll_pitch_yaw(true.as_quat())
    start = math.hypot(0.02, 0.015)
    assert np.linalg.norm(left[:2]) == pytest.approx(start * math.exp(-rate * seconds), rel=0.1)
    assert abs(left[2]) < 0.2 * start  # the heading is nobody's business here
