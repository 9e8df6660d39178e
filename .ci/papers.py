"""Writes what goes with the distributions in dist/ into build/: the recipe for conda, the notes.

`TAG=v1.2.3` refuses another version, and one that the changelog does not date.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNKNOWN = "0" * 64


def main() -> None:
    """Check the tag, if there is one, and write both."""
    code = (ROOT / "scrapy_bloom" / "__init__.py").read_text(encoding="utf-8")
    version = re.search('^__version__ = "(.*)"$', code, re.MULTILINE)[1]
    tag = os.environ.get("TAG", "")
    if tag not in {"", f"v{version}"}:
        raise SystemExit(f"TAG is {tag!r}, and the version {version!r}")
    notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not notes and tag:
        raise SystemExit(f"CHANGELOG.md has no section [{version}] with a date")
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "notes.md").write_text(notes, encoding="utf-8")
    source = (ROOT / "dist" / f"scrapy_bloom-{version}.tar.gz").read_bytes()
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    filled = recipe.replace(UNKNOWN, sha256(source).hexdigest())
    (build / "recipe.yaml").write_text(filled, encoding="utf-8")


def section(changelog: str, version: str) -> str:
    """Return what the changelog says of a dated version, for the page of a release: a line for each
    paragraph or item, and links that work there."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if not found:
        return ""
    blob = f"https://github.com/scrapy-bloom/scrapy-bloom/blob/v{version}/"
    linked = re.sub(r"\]\((?!https?:|#)", f"]({blob}", found[1].strip())
    return re.sub(r"(?<!\n)\n *(?=[^\n *|#-])", " ", linked) + "\n"


if __name__ == "__main__":
    main()
