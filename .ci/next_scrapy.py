"""Runs our tests against pull requests that may be in the next Scrapy, each by its commit.

`NEXT_SCRAPY` takes another tree instead: a path, or the address of an archive.
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMITS = {
    # pull request: its commit
    "7455-fast-stop": "c0012f331419345f12eb0a8ff69506fd7566577e",
    "6931-throttling": "0929c9cf2ddb2fa6d2f0d889f49dff848e5a99eb",
}
ARCHIVE = "https://github.com/scrapy/scrapy/archive/{}.tar.gz"
TESTS = [
    "tests/contracts",
    "tests/crawl",
    "tests/delta",
    "tests/redis/test_scheduler.py",
    *(
        f"tests/test_{name}.py"
        for name in (
            *("crawls", "dupefilter", "early", "early_crawls", "private_names", "redirects"),
            *("refused_start", "start_line"),
        )
    ),
]


def main() -> None:
    """Test with each of them. Exits with 1 if one cannot be had, or a test fails."""
    other = os.environ.get("NEXT_SCRAPY")
    sources = {name: ARCHIVE.format(commit) for name, commit in COMMITS.items()}
    if other:
        sources = {"other": other}
    failed = [name for name, source in sources.items() if not passes(name, source)]
    if failed:
        raise SystemExit(f"next Scrapy: failed with {', '.join(failed)}")


def passes(name: str, source: str) -> bool:
    """Install Scrapy from `source` into an environment of that name, and run the tests."""
    folder = ROOT / f".venv-next-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    # a tree may have changed since the last time, with the same version
    subprocess.run([*python_pip(python), "uninstall", "--quiet", "--yes", "scrapy"], check=False)
    wanted = [source, "-e", f"{ROOT}[test]"]
    if subprocess.run([*python_pip(python), "install", "--quiet", *wanted], check=False).returncode:
        print(f"next Scrapy: cannot install {source}: without a network set NEXT_SCRAPY to a tree")
        return False
    print(f"next Scrapy: {name}, from {source}", flush=True)
    tests = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", *TESTS]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode == 0


def python_pip(python: Path) -> list[str | Path]:
    """Return the command line of pip for an environment."""
    return [python, "-m", "pip", "--disable-pip-version-check"]


if __name__ == "__main__":
    main()
