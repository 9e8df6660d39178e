"""What is built for a package index holds what it has to, and nothing else."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import scrapy_bloom
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
NAME = f"scrapy_bloom-{scrapy_bloom.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the source distribution of this tree."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as file:
        yield file


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """No tests, no documents: the tree's modules and scripts, the mark of types, the licence."""
    files = {name for name in wheel.namelist() if not name.startswith(f"{NAME}.dist-info/")}
    package = ROOT / "scrapy_bloom"
    code = {path for kind in ("*.py", "*.pyi", "*.lua") for path in package.rglob(kind)}
    wanted = {path.relative_to(ROOT).as_posix() for path in code}
    assert files == wanted | {"scrapy_bloom/py.typed"}
    metadata = {name.partition("/")[2] for name in set(wheel.namelist()) - files}
    assert metadata == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_metadata(wheel):
    """The version is the package's; only extras bring more than what it needs; the command is
    found."""
    metadata = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    assert metadata["Version"] == scrapy_bloom.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    names = {line.partition(">")[0] for line in needed}
    assert names == {"scrapy", "mmh3", "bitarray", "msgpack", "w3lib"}
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    entries = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert "bloom = scrapy_bloom.commands:BloomCommand" in entries


def test_the_source_distribution_can_test_itself(built):
    """It holds all that `make test` and `make docs` need, and nothing that was made of it."""
    with tarfile.open(built / f"{NAME}.tar.gz") as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = [
        path.relative_to(ROOT).as_posix()
        for folder in ("scrapy_bloom", "tests", "benchmarks", "docs", "example_project")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and not re.search(r"/(\.|__pycache__|_build/)", f"/{path.relative_to(ROOT).as_posix()}")
    ]
    top = ["Makefile", "pyproject.toml", "README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"]
    assert {*wanted, *top} - names == set()
    assert [n for n in names if "__pycache__" in n or "_build" in n or ".venv" in n] == []
