"""``trace robot``: what the package knows of a robot, and whether its files fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.table import Table

from trace_ros.cli.common import check_output, console, write_json
from trace_ros.robot import LEG_NAMES, RobotDescription, available_robots

app = typer.Typer(help="Look at robot descriptions (config/robots/<name>.yaml and its URDF).", no_args_is_help=True)


@app.command("list")
def list_robots() -> None:
    """List the robots that ship with the package."""
    for name in available_robots():
        console.print(name)


@app.command(short_help="Check that YAML and URDF agree; print the joint mapping.")
def check(
    robot: Annotated[str, typer.Argument(help="Name of a shipped robot, or the path of a robot's YAML file.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
) -> None:
    """Check that a robot's YAML and URDF agree, and print which joint fills which slot and where the feet stand."""
    check_output(json_file)
    description = RobotDescription.load(robot)
    kinematics = description.kinematics
    nominal = description.nominal_joint_positions
    feet = kinematics.forward(nominal[None])[0]
    table = Table(title=f"{description.name} (fingerprint {description.fingerprint})", box=box.SIMPLE, padding=0)
    for column in ("leg", "joint", "slot", "lower rad", "nominal rad", "upper rad", "torque limit N m"):
        # A joint's name is what one comes for: never shortened.
        table.add_column(column, justify="left" if column in ("leg", "joint") else "right", no_wrap=column == "joint")
    for slot, joint in enumerate(description.joint_names):
        table.add_row(
            LEG_NAMES[slot // 3] if slot % 3 == 0 else "",
            joint,
            str(slot),
            f"{kinematics.lower_limit[slot]:.3f}",
            f"{nominal[slot]:.3f}",
            f"{kinematics.upper_limit[slot]:.3f}",
            f"{description.torque_limits[slot]:.1f}",
            end_section=slot % 3 == 2,
        )
    console.print(table)
    outside = (nominal < kinematics.lower_limit) | (nominal > kinematics.upper_limit)
    for leg, foot in zip(LEG_NAMES, feet, strict=True):
        console.print(f"foot {leg}: {np.array2string(foot, precision=4)} m in {description.base_link} when standing")
    if outside.any():
        names = ", ".join(np.asarray(description.joint_names)[outside])
        console.print(f"warning: the nominal position of {names} lies outside the URDF's limits")
    if json_file is not None:
        write_json(
            json_file,
            {
                "robot": description.name,
                "fingerprint": description.fingerprint,
                "joints": list(description.joint_names),
                "standing_feet_m": dict(zip(LEG_NAMES, feet.tolist(), strict=True)),
                "nominal_outside_limits": np.asarray(description.joint_names)[outside].tolist(),
            },
        )
