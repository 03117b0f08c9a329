"""Robot files: kinematics against Pinocchio, names, and every way a file can be wrong."""

from pathlib import Path

import numpy as np
import pinocchio
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trace_ros.errors import TraceError
from trace_ros.resources import config_directory
from trace_ros.robot import LEG_NAMES, RobotDescription, available_robots

GO2 = config_directory() / "robots" / "go2.yaml"


@pytest.fixture(scope="module")
def go2() -> RobotDescription:
    return RobotDescription.load("go2")


@pytest.fixture
def robot_files(tmp_path: Path):
    """Writes a changed copy of the Go2's files and returns the YAML's path."""

    def write(change_yaml=None, change_urdf=None) -> Path:
        data = yaml.safe_load(GO2.read_text())
        if change_yaml is not None:
            change_yaml(data)
        urdf = (GO2.parent / "go2.urdf").read_text()
        (tmp_path / "go2.urdf").write_text(urdf if change_urdf is None else change_urdf(urdf))
        path = tmp_path / "changed.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    return write


def test_joint_order_is_fl_fr_rl_rr_and_hip_thigh_calf(go2):
    assert go2.joint_names[:4] == ("FL_hip_joint", "FL_thigh_joint", "FL_calf_joint", "FR_hip_joint")
    assert go2.foot_links == tuple(f"{leg}_foot" for leg in LEG_NAMES)


@pytest.mark.parametrize("name", ["go2", "a1"])
@settings(max_examples=50)
@given(q=arrays(float, 12, elements=st.floats(-3, 3)))
def test_kinematics_equal_pinocchio(name, q):
    robot = RobotDescription.load(name)
    model = pinocchio.buildModelFromUrdf(str(robot.urdf))
    data = model.createData()
    configuration = np.zeros(model.nq)
    columns = []
    for name, value in zip(robot.joint_names, q, strict=True):
        joint = model.joints[model.getJointId(name)]
        configuration[joint.idx_q] = value
        columns.append(joint.idx_v)
    pinocchio.computeJointJacobians(model, data, configuration)
    pinocchio.updateFramePlacements(model, data)
    position, linear, angular = robot.kinematics.forward_and_jacobians(q[None])
    for leg, foot in enumerate(robot.foot_links):
        frame = model.getFrameId(foot)
        jacobian = pinocchio.getFrameJacobian(model, data, frame, pinocchio.LOCAL_WORLD_ALIGNED)
        own = columns[3 * leg : 3 * leg + 3]
        np.testing.assert_allclose(position[0, leg], data.oMf[frame].translation, atol=1e-9)
        np.testing.assert_allclose(linear[0, leg], jacobian[:3, own], atol=1e-9)
        np.testing.assert_allclose(angular[0, leg], jacobian[3:, own], atol=1e-9)


def test_kinematics_are_vectorised(go2):
    q = np.random.default_rng(0).uniform(-1, 1, (7, 12))
    together = go2.kinematics.forward_and_jacobians(q)
    for index in range(7):
        for whole, single in zip(together, go2.kinematics.forward_and_jacobians(q[index]), strict=True):
            np.testing.assert_allclose(whole[index], single[0], atol=1e-15)


def test_standing_feet_are_below_their_hips(go2):
    feet = go2.kinematics.forward(go2.nominal_joint_positions[None])[0]
    assert (np.sign(feet[:, 0]) == [1, 1, -1, -1]).all()
    assert (np.sign(feet[:, 1]) == [1, -1, 1, -1]).all()
    assert (feet[:, 2] < -0.25).all()
    assert np.ptp(feet[:, 2]) < 1e-12


def test_fingerprint_sees_geometry_and_not_gains(go2, robot_files):
    tuned = RobotDescription.load(robot_files(lambda data: data["control"].update(kp=30.0)))
    assert tuned.fingerprint == go2.fingerprint
    longer = RobotDescription.load(robot_files(change_urdf=lambda urdf: urdf.replace("0 0 -0.213", "0 0 -0.214")))
    assert longer.fingerprint != go2.fingerprint


def test_mass_and_height_are_the_urdfs(go2):
    assert go2.mass == pytest.approx(15.206, abs=1e-3)
    feet = go2.kinematics.forward(go2.nominal_joint_positions)[0]
    assert go2.standing_height == pytest.approx(0.022 - feet[:, 2].mean())


def test_unknown_robot_lists_the_known_ones():
    with pytest.raises(TraceError, match=r"unknown robot 'go3'.*go2"):
        RobotDescription.load("go3")
    assert "go2" in available_robots()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(foot_radios=1), "unknown key 'foot_radios'"),
        (lambda d: d["control"].update(kp=-1), "control.kp: .*greater than 0"),
        (lambda d: d.update(foot_radius=float("inf")), "foot_radius: .*finite"),
        (lambda d: d.update(imu={"rpy": [0, float("nan"), 0]}), "imu.rpy.1: .*finite"),
        (lambda d: d.pop("legs"), "legs: "),
        (lambda d: d["legs"].pop("RR"), "legs RR are missing"),
        (lambda d: d["legs"]["FL"].update(joints=["a", "b"]), "legs.FL.joints"),
        (lambda d: d["legs"]["FL"].update(foot_link="FR_foot"), "named more than once: FR_foot"),
        (lambda d: d["legs"]["FL"].update(foot_link="toe"), "links toe are missing"),
        (
            lambda d: d["legs"]["RL"]["joints"].__setitem__(0, "RL_abad"),
            "joints RL_abad are missing; it has FL_calf_joint",
        ),
        (lambda d: d["legs"]["FL"]["joints"].reverse(), "moves by .*expected"),
        (lambda d: d.update(base_link="torso"), "links torso are missing"),
        (lambda d: d.update(urdf="none.urdf"), "none.urdf: cannot be read"),
        (lambda d: d.update(nominal_joint_position={"FL": [0, 1, -2]}), "legs FR, RL, RR are missing"),
        (lambda d: d.update(joint_messages={"sign": {"FL_knee": -1}}), "joint_messages.sign: no joint .*: FL_knee"),
        (lambda d: d.update(joint_messages={"sign": {"FL_hip_joint": 2}}), "joint_messages.sign.FL_hip_joint"),
        (lambda d: d.update(joint_messages={"offset": {"FL_hip_joint": 10}}), "joint_messages.offset.FL_hip_joint"),
        (
            lambda d: d.update(joint_messages={"names": {"FL_hip_joint": "FR_hip_joint"}}),
            "joint_messages.names: two joints are called FR_hip_joint",
        ),
    ],
)
def test_a_wrong_yaml_is_refused_by_name(robot_files, change, message):
    with pytest.raises(TraceError, match=message) as refusal:
        RobotDescription.load(robot_files(change))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:200], "not valid XML"),
        (lambda text: text.replace('xyz="0 0 -0.213"/><axis', 'xyz="0 0"/><axis', 1), "expected three finite numbers"),
        (lambda text: text.replace('<axis xyz="0 1 0"/>', '<axis xyz="0 0 0"/>', 1), "zero axis"),
        (
            lambda text: text.replace('name="FL_hip_joint" type="revolute"', 'name="FL_hip_joint" type="prismatic"'),
            "prismatic",
        ),
        (lambda text: text.replace('lower="-1.0472"', 'lower="low"', 1), "FL_hip_joint: its lower limit is 'low'"),
        (lambda text: text.replace('upper="1.0472"', 'upper="nan"', 1), "FL_hip_joint: its upper limit is 'nan'"),
        (
            lambda text: text.replace(
                '<parent link="base_link"/><child link="FL_hip"/>', '<parent link="FL_foot"/><child link="FL_hip"/>'
            ),
            "no chain of joints leads from base_link to FL_foot",
        ),
    ],
)
def test_a_wrong_urdf_is_refused_by_name(robot_files, change, message):
    with pytest.raises(TraceError, match=message) as refusal:
        RobotDescription.load(robot_files(change_urdf=change))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"), [("[1, 2]", "expected keys"), ("a: [", "not valid YAML"), ("", "expected keys")]
)
def test_a_file_that_is_no_description_is_refused(tmp_path, content, message):
    path = tmp_path / "robot.yaml"
    path.write_text(content)
    with pytest.raises(TraceError, match=message) as refusal:
        RobotDescription.load(path)
    assert "\n" not in str(refusal.value)


def test_a_robot_stands_on_another(tmp_path, go2):
    (tmp_path / "policies").mkdir()
    (tmp_path / "mine.yaml").write_text("base: go2\nstationary: {dwell: 0.3}\npolicy: policies/trot.yaml\n")
    (tmp_path / "policies" / "his.yaml").write_text("base: ../mine.yaml\nname: his\nfoot_radius: 0.03\n")
    mine, his = (RobotDescription.load(tmp_path / name) for name in ("mine.yaml", "policies/his.yaml"))
    assert (mine.name, mine.fingerprint, mine.urdf) == ("go2", go2.fingerprint, go2.urdf)  # the Go2's models fit
    assert mine.stationary == go2.stationary.model_copy(update={"dwell": 0.3})
    assert his.name == "his" and his.fingerprint != go2.fingerprint
    assert mine.policy == his.policy == (tmp_path / "policies" / "trot.yaml").resolve()  # beside the file that names it
    (tmp_path / "unwalked.yaml").write_text("base: go2\npolicy: null\n")
    assert RobotDescription.load(tmp_path / "unwalked.yaml").policy is None


def test_a_linked_robot_file_has_the_links_name_and_its_neighbours(robot_files, tmp_path):
    target = robot_files(lambda d: d.update(urdf="near.urdf"))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.yaml").symlink_to(target)
    (folder / "near.urdf").write_text((tmp_path / "go2.urdf").read_text())
    robot = RobotDescription.load(folder / "mine.yaml")
    assert (robot.name, robot.urdf) == ("mine", (folder / "near.urdf").resolve())


def test_what_lies_beside_the_target_of_a_link_is_found_there(robot_files, tmp_path):
    """Its base always was; the files that it names must not be another matter."""
    target = robot_files(lambda d: d.update(urdf="go2.urdf"))
    (tmp_path / "upper.yaml").write_text(f"base: {target.name}\n")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in (target.name, "upper.yaml"):
        (folder / f"linked_{name}").symlink_to(tmp_path / name)
        assert RobotDescription.load(folder / f"linked_{name}").urdf == (tmp_path / "go2.urdf").resolve()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("base: go3", r"base 'go3': there is no .*go3\.yaml"),
        ("base: go2.yaml", "go2.yaml; those of .* are named without .yaml"),
        ("base: robot.yaml", "leads back to itself"),
        ("base: go2\nfoot_radios: 1", "unknown key 'foot_radios'"),
        ("base: [go2]", "base must name one file"),
        ("base: go2\nurdf: [1]", "urdf: "),
        ("base: go2\nurdf: none.urdf", r"none\.urdf: cannot be read"),
        ("base: go2\nname: [a]", "name: "),
        ("base: go2\nname: ../go2", "name: '../go2' cannot name files"),
        ("base: go2\nname: ''", "name: '' cannot name files"),
        ('base: go2\nname: "a\\nb"', r"name: 'a\\nb' cannot name files"),
        ("base: go2\nother_policies: {a.yaml: 0.6, b.yaml: 0.4}", "shares must leave some to policy, and add up to 1"),
        ("base: go2\nother_policies: {a.yaml: 0}", r"other_policies\..*a\.yaml: .* greater than 0"),
        ("base: go2\nother_policies: {a.yaml: .nan}", r"other_policies\..*a\.yaml: "),
        ("base: go2\nother_policies: [a.yaml]", "other_policies: "),
        ("base: go2\npolicy: null\nother_policies: {a.yaml: 0.5}", "no policy that walks the rest"),
        ("base: go2\nother_policies: {a.yaml: 0.3, ./a.yaml: 0.3}", "other_policies names one file twice"),
        (
            "base: go2\npolicy: a.yaml\nother_policies: {a.yaml: 0.5}",
            r"a\.yaml is policy already, which walks what the others leave",
        ),
        ('base: go2\nurdf: "a\\0b"', "names a file that cannot be"),
        ('base: go2\nother_policies: {"a\\0b": 0.5}', "names a file that cannot be"),
        ("base: go2\nstationary: {dwell: 1.0e308}", r"stationary\.dwell: .* less than or equal to 3600"),
        ("base: .yaml", r"\.yaml"),
        ("base: ''", r"base ''"),
        ("base: /", r"base '/'"),
    ],
)
def test_a_bad_robot_on_a_base_is_refused(tmp_path, content, message):
    (tmp_path / "robot.yaml").write_text(content)
    with pytest.raises(TraceError, match=message) as refusal:
        RobotDescription.load(tmp_path / "robot.yaml")
    assert "\n" not in str(refusal.value)


def test_yaml_cannot_run_code(tmp_path):
    path = tmp_path / "robot.yaml"
    path.write_text("urdf: !!python/object/apply:os.system ['echo run']")
    with pytest.raises(TraceError, match="not valid YAML"):
        RobotDescription.load(path)


def test_joint_messages_say_how_the_joint_states_differ(robot_files, go2):
    messages = {"names": {"FL_hip_joint": "hx"}, "sign": {"FL_calf_joint": -1}, "offset": {"FL_calf_joint": 0.05}}
    robot = RobotDescription.load(robot_files(lambda d: d.update(joint_messages=messages)))
    assert robot.reported_joint_names == ("hx", *go2.joint_names[1:])
    assert robot.joint_signs.tolist() == [1, 1, -1, *[1] * 9]
    assert robot.joint_offsets.tolist() == [0, 0, 0.05, *[0] * 9]
    assert [robot.reported_joint(slot) for slot in range(3)] == ["hx", "FL_thigh_joint", "-FL_calf_joint +0.05 rad"]
    assert robot.fingerprint == go2.fingerprint  # a matter of the messages, not of the legs
    assert go2.reported_joint_names == go2.joint_names


def test_other_policies_lie_beside_the_file_that_names_them(tmp_path, go2):
    (tmp_path / "walks").mkdir()
    (tmp_path / "walks" / "mine.yaml").write_text("base: go2\nother_policies: {a.yaml: 0.25}\n")
    (tmp_path / "his.yaml").write_text("base: walks/mine.yaml\nother_policies: {walks/a.yaml: 0.5, b.yaml: 0.125}\n")
    assert RobotDescription.load(tmp_path / "walks" / "mine.yaml").other_policies == {tmp_path / "walks/a.yaml": 0.25}
    robot = RobotDescription.load(tmp_path / "his.yaml")
    assert robot.policy == go2.policy
    assert robot.other_policies == {tmp_path / "walks" / "a.yaml": 0.5, tmp_path / "b.yaml": 0.125}
