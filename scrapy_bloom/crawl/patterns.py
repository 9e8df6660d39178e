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
_NOWHERE = re.compile(r"/|[^*?[/]*[*?]?://|[^[]*#|[^*?[:/]+:\d*(/|$)", re.DOTALL)
"""What is in no host, path and query: no host, a scheme, a port, a fragment."""
_WILDCARD = re.compile(r"\[!?.[^]]*]|[*?]", re.DOTALL)


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

    Raises ValueError for a glob that cannot be used, or matches no page of a site, and for two with
    equally many literal characters that may match the same URL.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        rules = []
        for glob in globs:
            if _NOWHERE.match(glob):
                raise ValueError(
                    f"BLOOM_BUDGET has {glob!r}, which matches no page of a site: write host, path"
                    " and query alone, such as 'shop.example/list/*'"
                )
            host, slash, path = glob.partition("/")
            pieces = _WILDCARD.split(lowered := host.lower() + slash + path)
            rules.append((sum(map(len, pieces)), glob, lowered, pieces))
        for one, other in combinations(rules, 2):
            if one[0] == other[0] and _may_meet(one[2], one[3], other[2], other[3]):
                raise ValueError(
                    f"BLOOM_BUDGET has {one[1]!r} and {other[1]!r}, which may match the same URL"
                    " and have equally many characters beside wildcards: lengthen or remove one"
                )
        try:
            self._rules = [
                (max(pieces, key=len), pattern(lowered).match, "/" in glob, glob)
                for _, glob, lowered, pieces in sorted(rules, reverse=True)
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


def _may_meet(one: str, pieces: list[str], other: str, its_pieces: list[str]) -> bool:
    """Return False if no URL matches both globs, which have equally many characters in these pieces
    between wildcards: exact for `*`, which stands for slashes, too, so that their beginnings and
    ends decide."""

    def agree(first: str, second: str) -> bool:
        return first.startswith(second) or second.startswith(first)

    if ("/" in one) == ("/" in other):
        return agree(pieces[0], its_pieces[0]) and agree(pieces[-1][::-1], its_pieces[-1][::-1])
    if "/" in one:
        return _may_meet(other, its_pieces, one, pieces)
    host, slash, _ = its_pieces[0].partition("/")
    # a whole host has as many characters as a glob that matches it, and the slash
    return not slash and agree(pieces[0], host)
