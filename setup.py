"""The package as colcon (ament_python) and pip install it."""

from collections import defaultdict
from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = "trace_ros"
ROOT = Path(__file__).resolve().parent


def data_files() -> list[tuple[str, list[str]]]:
    """The package marker, package.xml, and everything under config/, launch/ and models/, folder by folder."""
    share = Path("share") / PACKAGE
    folders: dict[Path, list[str]] = defaultdict(list)
    for top in ("config", "launch", "models"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(ROOT)
                folders[share / relative.parent].append(relative.as_posix())
    return [
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        (share.as_posix(), ["package.xml"]),
        *((folder.as_posix(), files) for folder, files in sorted(folders.items())),
    ]


def requirements(name: str) -> list[str]:
    """The packages that a list names; the same lists set up the development environment."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


setup(
    name=PACKAGE,
    version="0.1.0",
    description="Learned proprioceptive odometry for legged robots (TRACE) in ROS 2",
    license="Apache-2.0",
    maintainer="trace_ros maintainers",
    maintainer_email="trace_ros@example.org",
    packages=find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
    package_data={PACKAGE: ["py.typed", "evaluation/templates/*"]},
    data_files=data_files(),
    python_requires=">=3.10",
    install_requires=["setuptools", *requirements("requirements.txt")],
    extras_require={
        "train": requirements("requirements-train.txt"),
        "policy": requirements("requirements-train.txt") + requirements("requirements-policy.txt"),
        "onnxruntime": ["onnx", "onnxruntime"],  # the second engine of the estimator
        "test": ["pytest", "pytest-timeout", "hypothesis"],  # colcon test looks for pytest here
    },
    zip_safe=False,
    entry_points={
        "console_scripts": [
            "trace = trace_ros.cli:main",
            "estimator = trace_ros.nodes.entry:estimator",
            "recorder = trace_ros.nodes.entry:recorder",
            "replay = trace_ros.nodes.entry:replay",
            "path = trace_ros.nodes.entry:path",
        ],
    },
)
