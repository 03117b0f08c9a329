#!/bin/sh
# Builds interfaces/tf2_msgs into a virtual environment whose ROS 2 comes from PyPI wheels (they lack tf2_msgs).
# Usage: tools/build_interfaces.sh VENV [--force]
# Does nothing where tf2_msgs can already be imported (a sourced ROS 2, or an earlier run); --force builds all the same.
set -eu

fail() { echo "build_interfaces: $*" >&2; exit 2; }

[ $# -ge 1 ] || fail "usage: $0 VENV [--force]"
[ -x "$1/bin/python" ] || fail "$1 is no virtual environment (no bin/python there): make one first"
venv=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../interfaces/tf2_msgs" && pwd)
python=$venv/bin/python

if [ "${2:-}" != "--force" ] && "$python" -c 'from tf2_msgs.msg import TFMessage; TFMessage.__class__.__import_type_support__()' \
    2>/dev/null; then
  exit 0
fi
"$python" -c 'import rosidl_generator_py, catkin_pkg, ament_package' 2>/dev/null ||
  fail "the ROS 2 interface generators are missing in $venv: install the pinned requirements first"
for tool in cmake make cc; do
  command -v "$tool" >/dev/null || fail "$tool is missing: install it with your system's package manager"
done

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT INT TERM
log=$build/build.log
echo "building tf2_msgs into $venv (about 15 s)"
# The prefix of the wheels is the venv itself: installed there, nothing needs sourcing.
{
  env AMENT_PREFIX_PATH="$venv" CMAKE_PREFIX_PATH="$venv" PATH="$venv/bin:$PATH" \
    cmake -S "$source" -B "$build/tf2_msgs" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$venv" \
    -DPython3_EXECUTABLE="$python" -DPython3_FIND_VIRTUALENV=ONLY &&
    env AMENT_PREFIX_PATH="$venv" PATH="$venv/bin:$PATH" cmake --build "$build/tf2_msgs" -j2 &&
    cmake --install "$build/tf2_msgs"
} >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "tf2_msgs did not build (the end of its output is above)"; }
"$python" -c 'from tf2_msgs.msg import TFMessage; TFMessage.__class__.__import_type_support__()' ||
  fail "tf2_msgs was built but cannot be imported"
