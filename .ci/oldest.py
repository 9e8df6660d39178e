"""Installs this project with the oldest releases of its dependencies that it supports.

Those are the lower bounds in pyproject.toml; for a Python that is younger than they are,
the oldest later release that has a wheel for it, since no compiler may be needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
DRY_RUN = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:"]


def main() -> None:
    """Choose the releases, print them and install them."""
    dependencies = PYPROJECT.read_text().partition("\ndependencies = [")[2].partition("]")[0]
    bounds = re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies)
    chosen = [f"{name}=={oldest(name, bound)}" for name, bound in bounds]
    print("oldest:", *chosen, flush=True)
    subprocess.run(
        [*PIP, "install", "--quiet", "-e", f"{PYPROJECT.parent}[test]", *chosen], check=True
    )


def oldest(name: str, bound: str) -> str:
    """Return the oldest release of `name`, from `bound` on, that has a wheel for this Python."""
    index = subprocess.run(
        [*PIP, "index", "versions", name], check=True, capture_output=True, text=True
    )
    releases = re.search("Available versions: (.*)", index.stdout)[1].split(", ")
    for release in sorted(releases, key=numbers):
        if numbers(release) < numbers(bound):
            continue
        if has_wheel(f"{name}=={release}"):
            return release
        print(f"{name} {release} has no wheel for Python {sys.version.split()[0]}", flush=True)
    raise SystemExit(f"No release of {name} from {bound} on has a wheel for this Python.")


def has_wheel(requirement: str) -> bool:
    """Return True if pip could install `requirement` without a compiler."""
    install = [*PIP, *DRY_RUN, requirement]
    return subprocess.run(install, capture_output=True, check=False).returncode == 0


def numbers(release: str) -> list[int]:
    """Return what releases are ordered by; those that are not final are not listed."""
    return [int(number) for number in release.split(".")]


if __name__ == "__main__":
    main()
