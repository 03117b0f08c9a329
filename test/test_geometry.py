"""Rotations against scipy, finite differences and identities."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.transform import Rotation

from trace_ros import geometry

vectors = arrays(float, 3, elements=st.floats(-1.5, 1.5))
tiny_vectors = arrays(float, 3, elements=st.floats(-1e-7, 1e-7))


@given(vectors, vectors)
def test_skew_is_the_cross_product(a, b):
    np.testing.assert_allclose(geometry.skew(a) @ b, np.cross(a, b), atol=1e-12)


@given(st.one_of(vectors, tiny_vectors))
def test_exp_and_log_are_inverse(vector):
    np.testing.assert_allclose(geometry.so3_log(geometry.so3_exp(vector)), vector, atol=1e-9)


@given(st.one_of(vectors, tiny_vectors))
def test_torch_exp_equals_scipy(vector):
    expected = Rotation.from_rotvec(vector).as_matrix()
    double = geometry.so3_exp_torch(torch.tensor(vector))
    single = geometry.so3_exp_torch(torch.tensor(vector, dtype=torch.float32))
    np.testing.assert_allclose(double.numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-5)


def test_torch_exp_has_the_right_gradient_at_zero():
    vector = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    geometry.so3_exp_torch(vector)[2, 1].backward()
    np.testing.assert_allclose(vector.grad.numpy(), [1.0, 0.0, 0.0])


@given(vectors, arrays(float, 3, elements=st.floats(-1e-6, 1e-6)))
def test_left_jacobian_is_the_derivative_of_exp(phi, delta):
    moved = geometry.so3_exp(phi + delta)
    predicted = geometry.so3_exp(geometry.so3_left_jacobian(phi) @ delta) @ geometry.so3_exp(phi)
    np.testing.assert_allclose(moved, predicted, atol=1e-10)


@pytest.mark.parametrize("scale", [0.99e-4, 1.01e-4])
def test_left_jacobian_has_no_step_where_series_and_closed_form_meet(scale):
    axis = np.array([0.6, -0.64, 0.48])
    phi = scale * axis
    expected = np.mean([geometry.so3_exp(s * phi) for s in (np.arange(2000) + 0.5) / 2000], axis=0)
    np.testing.assert_allclose(geometry.so3_left_jacobian(phi), expected, atol=1e-12)


@given(st.floats(-3, 3), st.floats(-1.5, 1.5), st.floats(-3, 3))
def test_roll_pitch_yaw_are_those_of_scipy(roll, pitch, yaw):
    quaternion = Rotation.from_euler("ZYX", [yaw, pitch, roll]).as_quat()
    np.testing.assert_allclose(geometry.roll_pitch_yaw(quaternion), [roll, pitch, yaw], atol=1e-6)


@given(st.floats(-3, 3), st.floats(-1.5, 1.5), st.floats(-3, 3))
def test_tilt_from_gravity_is_roll_and_pitch_whatever_the_heading(roll, pitch, yaw):
    rotation = Rotation.from_euler("ZYX", [yaw, pitch, roll])
    specific_force = rotation.inv().apply([0.0, 0.0, geometry.GRAVITY])
    np.testing.assert_allclose(geometry.tilt_from_gravity(specific_force), [roll, pitch], atol=1e-6)


def test_functions_take_any_batch_shape():
    phi = np.random.default_rng(0).normal(size=(2, 5, 3))
    for function in (geometry.so3_exp, geometry.so3_left_jacobian, geometry.skew):
        assert function(phi).shape == (2, 5, 3, 3)
    assert geometry.so3_exp_torch(torch.tensor(phi)).shape == (2, 5, 3, 3)
