"""URDFs: poses, masses and the centre of mass against Pinocchio; numbers that are none."""

from pathlib import Path

import numpy as np
import pinocchio
import pytest

from trace_ros.errors import TraceError
from trace_ros.robot import RobotDescription
from trace_ros.urdf import Urdf

MIXED = """<robot name="r">
  <link name="base"><inertial><mass value="2"/><origin xyz="0.1 0 0"/></inertial></link>
  <link name="slide"><inertial><mass value="1"/></inertial></link>
  <link name="tip"><collision><geometry><mesh filename="a.stl"/></geometry></collision></link>
  <joint name="rail" type="prismatic"><parent link="base"/><child link="slide"/>
    <origin xyz="0 0 1" rpy="0 0 1.5707963"/><axis xyz="2 0 0"/><limit lower="-1" upper="1" effort="x"/></joint>
  <joint name="glue" type="fixed"><parent link="slide"/><child link="tip"/><origin xyz="0 0 0.5"/></joint>
</robot>"""


@pytest.fixture
def mixed(tmp_path: Path) -> Urdf:
    (tmp_path / "r.urdf").write_text(MIXED)
    return Urdf.read(tmp_path / "r.urdf")


@pytest.mark.parametrize("name", ["go2", "a1"])
def test_mass_and_its_centre_equal_pinocchio(name):
    robot = RobotDescription.load(name)
    model = pinocchio.buildModelFromUrdf(str(robot.urdf), pinocchio.JointModelFreeFlyer())
    data = model.createData()
    q = np.random.default_rng(0).uniform(-0.5, 0.5, 12)
    configuration = pinocchio.neutral(model)
    for joint, value in zip(robot.joint_names, q, strict=True):
        configuration[model.joints[model.getJointId(joint)].idx_q] = value
    centre = pinocchio.centerOfMass(model, data, configuration)
    assert robot.mass == pytest.approx(pinocchio.computeTotalMass(model))
    found = robot.model.centre_of_mass(robot.base_link, dict(zip(robot.joint_names, q, strict=True)))
    np.testing.assert_allclose(found, centre, atol=1e-9)


def test_sliding_joints_move_along_their_axis(mixed):
    rotation, position = mixed.pose("base", "tip", {"rail": 0.25})
    np.testing.assert_allclose(position, [0, 0.25, 1.5], atol=1e-6)
    np.testing.assert_allclose(rotation @ [1, 0, 0], [0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(mixed.centre_of_mass("base", {"rail": 0.25}), [0.2 / 3, 0.25 / 3, 1 / 3], atol=1e-6)


def test_what_a_file_holds(mixed):
    assert mixed.mass == 3.0
    assert mixed.roots == ["base"]
    assert list(mixed.below("slide")) == ["slide", "tip"]
    assert list(mixed.below("base")) == ["base"]
    assert [shape.kind for shape in mixed.links["tip"].collisions] == ["mesh"]
    assert mixed.joints["rail"].limit(mixed.path, "upper", 0.0) == 1.0
    assert mixed.joints["glue"].limit(mixed.path, "upper", 7.0) == 7.0
    with pytest.raises(TraceError, match="joint rail: its effort limit is 'x'"):
        mixed.joints["rail"].limit(mixed.path, "effort", 0.0)
    with pytest.raises(TraceError, match="no chain of joints leads from tip to base"):
        mixed.chain("tip", "base")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('mass value="2"', 'mass value="two"', "link base: expected a finite number, found 'two'"),
        ('xyz="0.1 0 0"', 'xyz="0.1 0"', "link base: expected three finite numbers"),
        ('rpy="0 0 1.5707963"', 'rpy="0 0 inf"', "joint rail: expected three finite numbers"),
        ('xyz="2 0 0"', 'xyz="0 0 0"', "joint rail has a zero axis"),
    ],
)
def test_numbers_that_are_none_are_named(tmp_path, old, new, message):
    (tmp_path / "r.urdf").write_text(MIXED.replace(old, new))
    with pytest.raises(TraceError, match=message):
        Urdf.read(tmp_path / "r.urdf")
