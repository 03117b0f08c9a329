"""Bringing an estimated trajectory into the reference's frame before the two are compared.

An IMU and legs observe roll, pitch and gravity, but neither position nor heading, so the honest alignment has four
degrees of freedom: translation and rotation about gravity (Zhang and Scaramuzza, IROS 2018, section III). Names of the
modes are those of OpenVINS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.spatial.transform import Rotation

from trace_ros.errors import TraceError
from trace_ros.geometry import FloatArray
from trace_ros.logs import Trajectory

AlignmentMode = Literal["none", "posyaw", "posyawsingle", "se3", "se3single"]

MODE_DESCRIPTIONS: dict[AlignmentMode, str] = {
    "none": "not aligned",
    "posyaw": "position and yaw, all poses",
    "posyawsingle": "position and yaw, first pose",
    "se3": "position and rotation, all poses",
    "se3single": "position and rotation, first pose",
}


@dataclass(frozen=True)
class Alignment:
    """A rigid motion of the world: ``p -> rotation p + translation``.

    Attributes:
        rotation: (3, 3), estimate's frame to the reference's.
        translation: (3,) m.
        note: how it deviates from the mode that was asked for; empty if it does not.
    """

    rotation: FloatArray
    translation: FloatArray
    note: str = ""

    def apply(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory in the reference's frame; body velocities stay what they are, the covariance is dropped."""
        rotation = Rotation.from_matrix(self.rotation)
        return replace(
            trajectory,
            position=trajectory.position @ self.rotation.T + self.translation,
            orientation=(rotation * trajectory.rotation_world_body).as_quat(),
            covariance=None,
        )


def align(
    estimate: Trajectory, reference: Trajectory, mode: AlignmentMode = "posyaw", minimum_extent_m: float = 0.05
) -> Alignment:
    """Find the motion that best brings the estimate onto the reference.

    Args:
        estimate: N poses.
        reference: N poses at the same stamps.
        mode: degrees of freedom, and whether all poses or only the first count.
        minimum_extent_m: with ``posyaw``, when the reference stays within this root mean square distance of its own
            horizontal centre, positions say nothing about heading, and the yaw comes from the orientations instead.

    Raises:
        TraceError: no poses, or (``se3``) positions that lie on a line or a point and leave the rotation open.
    """
    if len(estimate) != len(reference) or len(estimate) == 0:
        raise TraceError(
            f"alignment: needs as many estimated as reference poses, got {len(estimate)} and {len(reference)}"
        )
    note = ""
    if mode == "none":
        return Alignment(np.eye(3), np.zeros(3))
    if mode in ("posyawsingle", "se3single"):
        first = reference.rotation_world_body[0].as_matrix() @ estimate.rotation_world_body[0].as_matrix().T
        rotation = first if mode == "se3single" else _nearest_yaw(first)
        return Alignment(rotation, reference.position[0] - rotation @ estimate.position[0])
    a = reference.position - reference.position.mean(axis=0)
    b = estimate.position - estimate.position.mean(axis=0)
    if mode == "posyaw":
        extent = float(np.sqrt(np.mean(np.sum(a[:, :2] ** 2, axis=1))))
        if extent < minimum_extent_m:
            turns = (reference.rotation_world_body * estimate.rotation_world_body.inv()).as_matrix()
            rotation = _nearest_yaw(turns.sum(axis=0))
            note = f"the reference moves only {extent:.3f} m: yaw aligned by the orientations"
        else:
            # C = sum b a^T; the yaw that maximises trace(Rz C) in closed form.
            rotation = _nearest_yaw(a.T @ b)
    else:
        rotation = _umeyama_rotation(a, b)
    return Alignment(rotation, reference.position.mean(axis=0) - rotation @ estimate.position.mean(axis=0), note)


def _nearest_yaw(matrix: FloatArray) -> FloatArray:
    """Rotation about z that maximises ``trace(Rz^T matrix)``; ``matrix`` takes estimated to reference vectors."""
    angle = np.arctan2(matrix[1, 0] - matrix[0, 1], matrix[0, 0] + matrix[1, 1])
    return Rotation.from_euler("z", angle).as_matrix()


def _umeyama_rotation(reference: FloatArray, estimate: FloatArray) -> FloatArray:
    """Rotation of least squares between centred point sets (Umeyama, PAMI 1991, equation 40, without scale)."""
    u, singular, vt = np.linalg.svd(reference.T @ estimate)
    if singular[1] < 1e-9 * max(singular[0], 1e-12):
        raise TraceError("se3 alignment is not determined: the path is a straight line or a point; use posyaw")
    sign = np.eye(3)
    if np.linalg.det(u) * np.linalg.det(vt) < 0:
        sign[2, 2] = -1
    return u @ sign @ vt
