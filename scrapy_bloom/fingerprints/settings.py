"""The settings of CanonicalRequestFingerprinter."""

from __future__ import annotations

from typing import Any

from ..settings import Group, Setting, Values, require, switch


def _patterns(value: Any) -> tuple[str, ...]:
    """Return names and globs, sorted, from a list or from text with commas."""
    if value in (True, "True", "true"):
        return ("*",)
    if value in (False, "False", "false", ""):
        return ()
    if isinstance(value, str):
        require((value.strip()[:1], value.strip()[-1:]) != ("[", "]"))  # JSON
        value = value.split(",")
    found = set(map(str.strip, value))
    require("" not in found)
    return tuple(sorted(found))


PATTERNS = Values(
    "a list of names and globs that are not empty, such as ['gclid', 'utm_*'], as text gclid,utm_*,"
    " or True for all",
    _patterns,
)
IGNORE_QUERY_PARAMS: Setting[tuple[str, ...]] = Setting(
    "BLOOM_IGNORE_QUERY_PARAMS", (), PATTERNS, "Names and globs of query parameters to leave out"
)
IGNORE_PATH_PARAMS: Setting[tuple[str, ...]] = Setting(
    "BLOOM_IGNORE_PATH_PARAMS", (), PATTERNS, "Names and globs of path parameters to leave out"
)
IGNORE_SCHEME = switch("BLOOM_IGNORE_SCHEME", False, "Whether `https` is the same as `http`")


class IdentitySettings(Group):
    """The parts of a URL that CanonicalRequestFingerprinter leaves out."""

    query_params = IGNORE_QUERY_PARAMS
    path_params = IGNORE_PATH_PARAMS
    scheme = IGNORE_SCHEME
