"""The documents name only what is there: links, files, commands and their options, and what the package needs."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from trace_ros.bags.files import write_log
from trace_ros.cli.commands import app
from trace_ros.robot import RobotDescription
from trace_ros.sim.course import Course, simulate_course

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMAND = typer.main.get_command(app)
FOLDERS = "config|docs|trace_ros|test|tools|launch|benchmarks|interfaces"
OPTIONS_OF_OTHERS = {"--help", "--nnodes", "--packages-select", "--user"}
"""Of every command, torchrun, colcon and pip."""

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@every_document
def test_links_lead_to_files_and_headings(document: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = document.parent / name if name else document
        if "://" not in link and not (target.exists() and (not heading or heading in headings(target))):
            wrong.append(link)
    assert wrong == []


@every_document
def test_files_that_are_named_are_there(document: Path) -> None:
    names = re.findall(rf"(?<![\w/.<>-])(?:{FOLDERS})/[\w./*-]+", document.read_text(encoding="utf-8"))
    assert [name for name in names if not any(ROOT.glob(name.rstrip("./")))] == []


@every_document
def test_commands_are_there_and_take_the_options_beside_them(document: Path) -> None:
    wrong = []
    for line in commands_in(document.read_text(encoding="utf-8")):
        command, rest = COMMAND, line.split()[1:]
        while rest and rest[0] in getattr(command, "commands", {}):
            command = getattr(command, "commands")[rest.pop(0)]  # noqa: B009 - only groups have it
        options = options_of(command) | OPTIONS_OF_OTHERS
        if len(rest) == len(line.split()) - 1 and rest[0] not in OPTIONS_OF_OTHERS:
            wrong.append(line)
        wrong += [f"{word} in {line}" for word in rest if word.startswith("-") and word.split("=")[0] not in options]
    assert wrong == []


@every_document
def test_options_named_in_the_text_are_of_some_command(document: Path) -> None:
    known, groups = set(OPTIONS_OF_OTHERS), [COMMAND]
    while groups:
        command = groups.pop()
        known |= options_of(command)
        groups += getattr(command, "commands", {}).values()
    known |= {option for tool in (ROOT / "tools").glob("*.py") for option in options_of_tool(tool)}
    named = set(re.findall(r"`(--[a-z][a-z-]*)", document.read_text(encoding="utf-8")))
    assert named - known == set()


@every_document
def test_tools_take_the_options_beside_them(document: Path) -> None:
    for tool, rest in re.findall(r"(tools/\w+\.py)((?:\\\n|[^\n`])*)", document.read_text(encoding="utf-8")):
        named = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
        assert named - options_of_tool(ROOT / tool) == set(), tool


@every_document
def test_names_of_the_package_are_there(document: Path) -> None:
    for name in set(re.findall(r"(?<![\w/])trace_ros(?:\.\w+)+", document.read_text(encoding="utf-8"))):
        if name.startswith("trace_ros.nodes"):
            pytest.importorskip("rclpy")
        assert pkgutil.resolve_name(name), name


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if "```python" in path.read_text(encoding="utf-8")])
def test_python_in_the_documents_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = RobotDescription.load("go2")
    write_log(tmp_path / "my_bag", simulate_course(Course.load("demo").standing(0.2), robot, 0).measured, robot)
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, {})


def test_rosdep_installs_what_pip_installs() -> None:
    package = (ROOT / "package.xml").read_text(encoding="utf-8").lower()
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    needed = [re.split(r"[>=<#; ]", line, maxsplit=1)[0].lower() for line in lines]
    keys = {"torch": "pytorch", "pyyaml": "yaml"}
    assert [name for name in needed if name and keys.get(name, name) not in package] == []


def headings(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in found}


def commands_in(text: str) -> Iterator[str]:
    """Command lines that begin with ``trace``, without what follows a pipe or a comment."""
    blocks = re.findall(r"^(?:for .*? do )?\s*(?:-m trace_ros\.cli|trace)( [a-z][^\n#|;]*)", text, re.MULTILINE)
    inline = re.findall(r"`trace( [a-z][^`|;#]*)`", text)
    for found in (*blocks, *inline):
        yield "trace " + re.sub(r"[\[\]]", "", found).strip()


def options_of(command: object) -> set[str]:
    """Long and short names."""
    parameters = getattr(command, "params", [])
    return {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def options_of_tool(path: Path) -> set[str]:
    return set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', path.read_text(encoding="utf-8"))) | {"--help"}
