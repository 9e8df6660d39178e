"""Globs, and those over host, path and query of a URL with which BLOOM_BUDGET counts pages."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import combinations

LONGEST_GLOB = 5000
"""Most characters of a glob: the time that the standard library takes grows with their square."""
_PLACE = re.compile(r"[^:/?#]+://(?:[^/?#]*@)?(?:\[([^]/?#]*)]|([^/?#:]*))(?::\d*)?([^#]*)")
_PART = re.compile(r"\[!?.[^]]*]|.", re.DOTALL)
"""A part of a glob: a set of characters, a wildcard or a character."""
_IN_HOST = "**"
"""In place of the wildcard of a glob that is matched with the host alone."""
_STARS = ("*", _IN_HOST)


@lru_cache
def pattern(*globs: str) -> re.Pattern[str]:
    """Return what matches one of the `globs` of the standard library's fnmatch. Raises ValueError
    for one that cannot be used."""
    if (length := max(map(len, globs))) > LONGEST_GLOB:
        raise ValueError(f"a glob is too long: {length:,} characters, at most {LONGEST_GLOB:,}")
    try:
        return re.compile("|".join(map(fnmatch.translate, globs)))
    except re.error as error:  # up to Python 3.10 for [b-a]
        raise ValueError(f"a glob cannot be used: {error}") from error


def place_of(url: str) -> tuple[str, str]:
    """Return the host of a URL in lower case, and its path and query, empty texts for one
    without a host, such as `data:`."""
    found = _PLACE.match(url)
    if found is None:
        return "", ""
    path = found[3] if found[3].startswith("/") else f"/{found[3]}"
    return (found[1] or found[2]).lower(), path


class Patterns:
    """Finds the one of `globs` that counts a URL: of those that match it the one with most literal
    characters. A glob with `/` is matched with host, path and query, any other with the host.

    Raises ValueError for a glob that cannot be used, and for two with equally many literal
    characters that may match the same URL.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        rules: list[tuple[int, str, str, list[str]]] = []
        for glob in globs:
            host, slash, path = glob.partition("/")
            lowered = host.lower() + slash + path
            parts = _PART.findall(lowered)
            literals = sum(map(_is_literal, parts))
            if not slash:
                parts = [*(_IN_HOST if part == "*" else part for part in parts), "/", "*"]
            rules.append((literals, glob, lowered, parts))
        for one, other in combinations(rules, 2):
            if one[0] == other[0] and _may_meet(one[-1], other[-1]):
                raise ValueError(
                    f"BLOOM_BUDGET has {one[1]!r} and {other[1]!r}, which may match the same URL"
                    " and have equally many characters beside wildcards: lengthen or remove one"
                )
        try:
            self._rules = [
                (_longest_literal(parts), pattern(lowered).match, "/" in glob, glob)
                for _, glob, lowered, parts in sorted(rules, reverse=True)
            ]
        except ValueError as error:
            raise ValueError(f"BLOOM_BUDGET has a pattern without a meaning: {error}") from error

    def of(self, url: str) -> str:
        """Return the glob that counts `url`, an empty text if none matches. Cost: a microsecond,
        and a tenth of one for each glob."""
        host, path = place_of(url)
        whole = host + path
        for literal, match, is_whole, glob in self._rules:
            if literal in whole and match(whole if is_whole else host) is not None:
                return glob
        return ""


def _is_literal(part: str) -> bool:
    return len(part) == 1 and part not in "*?"


def _longest_literal(parts: list[str]) -> str:
    """Return the longest part of each text that the glob matches, found soonest."""
    return max("".join(part if _is_literal(part) else "\0" for part in parts).split("\0"), key=len)


def _may_meet(one: list[str], other: list[str]) -> bool:
    """Return True if a text may match both globs, in which a set is as good as any character."""

    def takes(star: str, part: str) -> bool:
        return star == "*" or (star == _IN_HOST and part != "/")

    meets = [True]  # whether a text may match the first parts of both, by the length of the other's
    for theirs in other:
        meets.append(meets[-1] and theirs in _STARS)
    for mine in one:
        before, meets = meets, [meets[0] and mine in _STARS]
        for at, theirs in enumerate(other):
            is_same = mine == theirs or not (_is_literal(mine) and _is_literal(theirs))
            meets.append(
                (before[at + 1] and (mine in _STARS or takes(theirs, mine)))
                or (meets[at] and (theirs in _STARS or takes(mine, theirs)))
                or (before[at] and is_same and mine not in _STARS and theirs not in _STARS)
            )
        if not any(meets):
            return False
    return meets[-1]
