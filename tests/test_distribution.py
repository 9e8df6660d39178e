"""What is built for a package index holds what it has to, and nothing else."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

import scrapy_bloom
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
NAME = f"scrapy_bloom-{scrapy_bloom.__version__}"
REPOSITORY = "https://github.com/scrapy-bloom/scrapy-bloom"


def run(folder, *command, **environment):
    """Run Python there; return its status and its errors."""
    options = {"capture_output": True, "text": True, "timeout": PATIENCE}
    command, environment = [sys.executable, *command], os.environ | environment
    ended = subprocess.run(command, cwd=folder, env=environment, **options)
    return ended.returncode, ended.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the source distribution of this tree."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    assert run(ROOT, "-m", "hatchling", "build", "-d", str(folder))[0] == 0
    return folder


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    """The tree that the source distribution holds."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built / f"{NAME}.tar.gz") as file:
        file.extractall(folder)
    return folder / NAME


def test_the_wheel(built):
    """It holds the tree's modules and scripts, the mark of types and the licence; no tests, no
    documents. The version is the package's, only extras bring more than what it needs, the command
    is found. The recipe for conda has the same, under conda's names."""
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as file:
        held, info = {*file.namelist()}, f"{NAME}.dist-info/"
        metadata = message_from_bytes(file.read(f"{info}METADATA"))
        entries = file.read(f"{info}entry_points.txt").decode()
    kinds = ("*.py", "*.pyi", "*.lua")
    code = (path for kind in kinds for path in (ROOT / "scrapy_bloom").rglob(kind))
    wanted = {path.relative_to(ROOT).as_posix() for path in code} | {"scrapy_bloom/py.typed"}
    names = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert held == wanted | {f"{info}{name}" for name in names}
    assert metadata["Version"] == scrapy_bloom.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.10"  # which python_min is at conda-forge
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    names = {line.partition(">")[0] for line in needed}
    assert names == {"scrapy", "mmh3", "bitarray", "msgpack", "w3lib"}
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    assert "bloom = scrapy_bloom.commands:BloomCommand" in entries
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == metadata["Version"].removesuffix(".dev0")
    assert recipe["about"]["license"] == metadata["License-Expression"]
    assert recipe["about"]["summary"] == metadata["Summary"]
    of_conda = {re.sub("^msgpack>", "msgpack-python>", line).replace(">", " >") for line in needed}
    of_conda |= {"__unix", "python >=${{ python_min }}"}
    assert {*recipe["requirements"]["run"]} == of_conda


def test_the_source_distribution_can_test_itself(unpacked):
    """It holds all that the targets of `make` need, and nothing that was made of it."""
    folders = ("scrapy_bloom", "tests", "benchmarks", "docs", "example_project", "conda")
    made = r"/(\.|__pycache__|_build/)"
    wanted = {
        path.relative_to(ROOT)
        for folder in (*folders, ".ci", ".github")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not re.search(made, f"/{path.relative_to(ROOT / folder).as_posix()}")
    }
    top = ["Makefile", "pyproject.toml", "README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"]
    held = {path.relative_to(unpacked) for path in unpacked.rglob("*")}
    assert {*wanted, *map(Path, top)} - held == set()
    assert [path for path in held if {"__pycache__", "_build", ".venv"} & {*path.parts}] == []


def test_the_same_tree_gives_the_same_bytes(built, unpacked, tmp_path):
    """Whoever builds it later, from the source distribution, gets the sha256 of the index."""
    command = ["-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    assert run(unpacked, *command)[0] == 0
    again, first = (folder / f"{NAME}.tar.gz" for folder in (tmp_path, built))
    assert again.read_bytes() == first.read_bytes()


def test_papers(built, unpacked, tmp_path):
    """The recipe gets the sha256 of the source distribution, the notes are the changelog's section;
    another tag, or a version that is not in the changelog, is refused."""
    unpacked = shutil.copytree(unpacked, tmp_path / "tree")
    shutil.copytree(built, unpacked / "dist")
    version = scrapy_bloom.__version__
    changelog = f"## [{version}] - 2026-01-01\n\n- [A](docs/a.md)\n  b.\n- More.\n\n## [0] -\n"
    (unpacked / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    assert run(unpacked, ".ci/papers.py", TAG=f"v{version}") == (0, "")
    filled = yaml.safe_load((unpacked / "build" / "recipe.yaml").read_text(encoding="utf-8"))
    archive = (built / f"{NAME}.tar.gz").read_bytes()
    assert filled["source"]["sha256"] == hashlib.sha256(archive).hexdigest()
    notes = (unpacked / "build" / "notes.md").read_text(encoding="utf-8")
    assert notes == f"- [A]({REPOSITORY}/blob/v{version}/docs/a.md) b.\n- More.\n"
    refused = (1, f"TAG is 'v9.9.9', and the version {version!r}\n")
    assert run(unpacked, ".ci/papers.py", TAG="v9.9.9") == refused
    (unpacked / "CHANGELOG.md").write_text(f"## [{version}]\n", encoding="utf-8")
    refused = (1, f"CHANGELOG.md has no section [{version}] with a date\n")
    assert run(unpacked, ".ci/papers.py", TAG=f"v{version}") == refused
