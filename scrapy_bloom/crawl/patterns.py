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
        rules: list[tuple[int, str, str, str]] = []
        for glob in globs:
            host, slash, path = glob.partition("/")
            lowered = host.lower() + slash + path
            literals = sum(map(_is_literal, _PART.findall(lowered)))
            rules.append((literals, glob, lowered, lowered if slash else f"{lowered}/*"))
        for (one, first, _, whole), (other, second, _, its_whole) in combinations(rules, 2):
            if one == other and _may_meet(_PART.findall(whole), _PART.findall(its_whole)):
                raise ValueError(
                    f"BLOOM_BUDGET has {first!r} and {second!r}, which may match the same URL and"
                    " have equally many characters beside their wildcards: lengthen or remove one"
                )
        try:
            self._may_match = pattern(*(whole for *_, whole in rules)).match
            self._rules = [
                (pattern(lowered).match, "/" in glob, glob)
                for _, glob, lowered, _ in sorted(rules, reverse=True)
            ]
        except ValueError as error:
            raise ValueError(f"BLOOM_BUDGET has a pattern without a meaning: {error}") from error

    def of(self, url: str) -> str:
        """Return the glob that counts `url`, an empty text if none matches. Cost: a microsecond or
        two."""
        host, path = place_of(url)
        whole = host + path
        if self._may_match(whole) is not None:
            for match, is_whole, glob in self._rules:
                if match(whole if is_whole else host) is not None:
                    return glob
        return ""


def _is_literal(part: str) -> bool:
    return len(part) == 1 and part not in "*?"


def _may_meet(one: list[str], other: list[str]) -> bool:
    """Return True if a text may match both globs, in which a set is as good as any character."""
    meets = [True]  # whether a text may match the first parts of both, by the length of the other's
    for theirs in other:
        meets.append(meets[-1] and theirs == "*")
    for mine in one:
        before, meets = meets, [meets[0] and mine == "*"]
        for at, theirs in enumerate(other):
            if "*" in (mine, theirs):
                meets.append(before[at + 1] or meets[at])
            else:
                is_any = not (_is_literal(mine) and _is_literal(theirs))
                meets.append(before[at] and (is_any or mine == theirs))
        if not any(meets):
            return False
    return meets[-1]
