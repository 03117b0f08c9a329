"""A walk is chaotic: the last bit of one product of matrices makes it another one within seconds."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="switches x86 instructions")

WALK = """
import hashlib
import numpy as np
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import simulate_course
from trace_ros.sim.course_set import CourseSet

course = CourseSet.load("courses").course("rough").model_copy(update={"duration": 5.0})
log = simulate_course(course, RobotDescription.load("go2"), 401).measured
digest = hashlib.sha256()
for values in (log.stamp_ns, log.joint_position, log.joint_torque, log.reference.position, log.contact):
    digest.update(np.ascontiguousarray(values).tobytes())
print(digest.hexdigest(), float(np.linalg.norm(np.ptp(log.reference.position, axis=0))))
"""
PRODUCT = """
import hashlib
import numpy as np
import torch
print(hashlib.sha256(torch.from_numpy(np.random.default_rng(0).normal(size=(64, 64))).exp().numpy().tobytes()
      + (torch.ones(1, 999) / 3 @ torch.linspace(0, 1, 999 * 48).reshape(999, 48)).numpy().tobytes()).hexdigest())
"""


def run(program: str, other: bool) -> list[str]:
    """What a program prints, with this processor's instructions or only the oldest that the libraries know."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    if other:
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

        environment["NPY_DISABLE_CPU_FEATURES"] = " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name])
        environment |= {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Nehalem"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_walk_is_the_same_bit_for_bit_on_another_processor():
    here, there = run(WALK, other=False), run(WALK, other=True)
    assert float(here[1]) > 0.5
    assert there == here


def test_the_other_processor_is_another_one():
    assert run(PRODUCT, other=True) != run(PRODUCT, other=False)
