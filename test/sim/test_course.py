"""Courses: the follower, the demo, falls, and the command."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from trace_ros.bags import read_log
from trace_ros.cli.commands import app
from trace_ros.errors import FallError, TraceError
from trace_ros.logs import SensorLog
from trace_ros.sim.course import Course, PathFollower, simulate_course

LIMITS = np.array([1.0, 0.5, 1.0])


def course(**changes) -> Course:
    phases = [{"stand": 0.5}, {"walk_to": [1.0, 0.0], "speed": 0.6}, {"walk_to": [1.0, 1.0], "speed": 0.6}]
    return Course.model_validate({"name": "test", "duration": 6.0, "phases": phases} | changes)


def drive(follower: PathFollower, seconds: float, pose=(0.0, 0.0, 0.0)) -> np.ndarray:
    """A point that obeys commands perfectly."""
    x, y, yaw = pose
    path = []
    for _ in range(int(seconds * 100)):
        vx, vy, wz = follower.command(np.array([x, y]), yaw, 0.01)
        x += 0.01 * (vx * np.cos(yaw) - vy * np.sin(yaw))
        y += 0.01 * (vx * np.sin(yaw) + vy * np.cos(yaw))
        yaw += 0.01 * wz
        path.append((x, y))
    return np.array(path)


def test_follower_stands_then_visits_the_waypoints():
    follower = PathFollower(course(), LIMITS)
    path = drive(follower, 8.0, pose=(0.0, 0.1, 0.3))
    assert np.allclose(path[:50], [0.0, 0.1])
    assert follower.done
    for waypoint in ((1.0, 0.0), (1.0, 1.0)):
        assert np.linalg.norm(path - waypoint, axis=1).min() < 0.25
    assert np.allclose(path[-1], path[-50])  # stands at the end


def test_follower_repeats():
    follower = PathFollower(course(repeat=True), LIMITS)
    path = drive(follower, 30.0)
    assert not follower.done
    visits = np.linalg.norm(path - [1.0, 1.0], axis=1) < 0.3
    assert (np.diff(visits.astype(int)) > 0).sum() >= 2


def test_commands_stay_within_the_limits():
    follower = PathFollower(course(phases=[{"walk_to": [0.0, 5.0], "speed": 3.0}]), LIMITS)
    assert np.abs(follower.command(np.zeros(2), 0.0, 0.01)).tolist() == [0.0, 0.0, 1.0]
    assert follower.command(np.zeros(2), np.pi / 2, 0.01) == pytest.approx([1.0, 0.0, 0.0])


def test_facing_walks_sideways_and_backwards():
    phases = [{"walk_to": [0.0, 1.0], "facing": 0.0}, {"walk_to": [-1.0, 1.0], "facing": 0.0, "speed": 0.4}]
    follower = PathFollower(course(phases=phases), LIMITS)
    # Sideways at most as fast as the policy can: the command is shortened as a whole.
    assert follower.command(np.zeros(2), 0.0, 0.01) == pytest.approx([0.0, 0.5, 0.0])
    assert follower.command(np.array([0.0, 0.9]), 0.0, 0.01) == pytest.approx([-0.4, 0.0, 0.0], abs=0.15)
    follower = PathFollower(course(phases=phases), LIMITS)
    path = drive(follower, 8.0, pose=(0.0, 0.0, 0.5))
    assert follower.done
    assert np.linalg.norm(path - [0.0, 1.0], axis=1).min() < 0.25
    assert np.linalg.norm(path[-1] - [-1.0, 1.0]) < 0.25


def test_the_end_of_a_repeated_course_is_standing(go2):
    walk = course(phases=[{"walk_to": [4.0, 0.0]}, {"walk_to": [0.0, 0.0]}], repeat=True, duration=4.0, final_stand=1.5)
    speed = np.linalg.norm(simulate_course(walk, go2, 0).clean.reference.velocity, axis=1)
    assert speed[1000:1250].mean() > 0.3
    assert speed[-200:].max() < 0.12  # it comes to rest


def test_feet_sink_into_soft_ground(go2):
    def lowest_foot(**changes) -> float:
        log = simulate_course(course(phases=[{"walk_to": [4.0, 0.0]}], duration=3.0, **changes), go2, 0).clean
        reference = log.reference
        feet = go2.kinematics.forward(log.joint_position)
        heights = [reference.rotation_world_body.apply(feet[:, leg])[:, 2] for leg in range(4)]
        heights = np.stack(heights, axis=1) + reference.position[:, 2:] - go2.foot_radius
        return float(heights[log.contact].mean())

    hard = lowest_foot()
    soft = lowest_foot(ground={"time_constant": 0.04, "sinkage": 0.02})
    assert hard > -0.006
    assert -0.03 < soft < -0.008
    assert simulate_course(course(duration=0.5), go2, 0).info["friction"] == 0.8


def test_the_demo_course_is_what_it_promises():
    demo = Course.load("demo")
    assert demo.duration == 60.0
    assert demo.physics.sample_rate_hz == 500
    assert {patch.kind for patch in demo.patches} >= {"perlin", "stairs"}
    points = np.array([(0.0, 0.0)] + [phase.walk_to for phase in demo.phases if phase.walk_to is not None])
    assert np.linalg.norm(np.diff(points, axis=0), axis=1).sum() >= 20.0
    assert sum(phase.stand or 0.0 for phase in demo.phases) >= 5.0
    ground = demo.terrain(np.random.default_rng(0))
    along = np.column_stack((np.linspace(0.0, 8.0, 400), np.zeros(400)))
    assert ground.height_at(along).max() > 0.03
    assert ground.height_at(along + [0.0, 4.0]).max() == pytest.approx(0.24)


@pytest.mark.slow
def test_the_robot_follows_the_demo_course(go2):
    demo = Course.load("demo")
    done = []
    rollout = simulate_course(demo, go2, 0, done.append)
    reference = rollout.clean.reference
    assert len(rollout.measured) == 30_000
    assert reference.path_length_m >= 20.0
    assert rollout.info["finished"] == 1.0
    for phase in demo.phases:
        if phase.walk_to is not None:
            assert np.linalg.norm(reference.position[:, :2] - phase.walk_to, axis=1).min() < 0.3
    speed = np.linalg.norm(reference.velocity, axis=1)
    assert speed[:900].max() < 0.01  # the first 2 s stand
    assert (speed < 0.01).sum() > 4.0 * 500
    assert done[-1] == 1.0
    assert done == sorted(done)


def test_patches_are_felt(go2):
    steps = [{"kind": "stairs", "x": [0.6, 4.0], "y": [-1.0, 1.0], "rise": 0.05, "tread": 0.4, "steps": 2}]
    walk = [{"walk_to": [2.0, 0.0], "speed": 0.6}]
    flat = simulate_course(course(phases=walk, duration=5.0), go2, 0).clean.reference
    up = simulate_course(course(phases=walk, duration=5.0, patches=steps), go2, 0).clean.reference
    assert up.position[-1, 2] - flat.position[-1, 2] == pytest.approx(0.1, abs=0.03)


def test_the_same_seed_gives_the_same_course(go2):
    short = course(duration=1.0)
    first, second, other = (simulate_course(short, go2, seed).measured for seed in (3, 3, 4))
    assert np.array_equal(first.linear_acceleration, second.linear_acceleration)
    assert not np.array_equal(first.linear_acceleration, other.linear_acceleration)


def test_a_fall_is_one_line(go2):
    wall = [{"kind": "discrete", "x": [0.8, 2.0], "y": [-0.6, 0.6], "height": 0.5, "block": 0.3, "count": 60}]
    impossible = course(phases=[{"walk_to": [3.0, 0.0], "speed": 1.0}], duration=15.0, patches=wall, foot_friction=0.2)
    with pytest.raises(FallError, match=r"course 'test': the robot fell after \d+\.\d s with seed 0"):
        simulate_course(impossible, go2, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{name: a, duration: 1, phases: []}", "phases"),
        ("{name: a, duration: 1, phases: [{stand: 1, walk_to: [0, 0]}]}", "either stand"),
        ("{name: a, duration: 1, phases: [{stand: 1}], patches: [{kind: lava, x: [0, 1], y: [0, 1]}]}", "patches.0"),
        ("{name: a, duration: 1, phases: [{stand: 1}], patches: [{kind: flat, x: [1, 0], y: [0, 1]}]}", "low <= high"),
        ("{name: a, duration: 1, phases: [{stand: 1}], speed: 3}", "unknown key 'speed'"),
        ("{name: a, duration: .inf, phases: [{stand: 1}]}", "duration"),
        ("{name: a, duration: 1, phases: [{stand: 1}], sensors: {gyro_noise: .nan}}", "sensors.gyro_noise"),
    ],
)
def test_bad_courses_are_one_line(tmp_path, text, words):
    path = tmp_path / "course.yaml"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        Course.load(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_writes_a_bag_and_a_file(tmp_path, go2):
    bag, npz, summary = tmp_path / "bag", tmp_path / "log.npz", tmp_path / "out.json"
    arguments = [
        "simulate",
        "--stand",
        "1",
        "--seed",
        "2",
        "--bag",
        str(bag),
        "--npz",
        str(npz),
        "--json",
        str(summary),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    log = SensorLog.load(npz)
    assert len(log) == 500
    assert log.contact is not None
    assert np.ptp(log.reference.position, axis=0).max() < 1e-3
    read, _ = read_log(bag, go2)
    assert np.allclose(read.angular_velocity, log.angular_velocity)
    assert np.allclose(read.joint_torque, log.joint_torque)
    numbers = json.loads(summary.read_text())
    assert numbers["samples"] == 500
    assert numbers["written"] == [str(bag), str(npz)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to write"),
        (["--npz", "log.txt"], "must end in .npz"),
        (["--bag", "{tmp}", "--stand", "1"], "exists already"),
        (["--npz", "{tmp}/a.npz", "--course", "moon"], "unknown course 'moon'"),
        (["--npz", "{tmp}/a.npz", "--robot", "spot9"], "unknown robot 'spot9'"),
        (["--bag", "{tmp}/b", "--storage", "tape"], "--storage 'tape'"),
    ],
)
def test_what_the_command_refuses(tmp_path, arguments, words):
    result = CliRunner().invoke(app, ["simulate", *(part.format(tmp=tmp_path) for part in arguments)])
    assert isinstance(result.exception, TraceError)
    assert words in str(result.exception)
