"""Texts for people, with what a terminal obeys escaped, and passwords hidden."""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf

from .amounts import counted

_BRIEF = 100


def escaped(text: str) -> str:
    """Return `text` with escapes for characters that a terminal obeys or hides: control characters,
    line separators, zero-width characters, and changes of the writing direction."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def in_brief(text: str) -> str:
    """Return `escaped(text)`, cut off after 100 characters."""
    text = escaped(text)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def without_user(uri: str) -> str:
    """Return a URI without what may be a user and a password."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}…{rest.rpartition('@')[2]}" if "@" in rest else uri


def feeds_named(uris: Iterable[object]) -> str:
    """Return the names of feeds in brief, without what may be a password."""
    return in_brief(", ".join(without_user(str(uri)) for uri in sorted(uris, key=str)))


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units: `2 h 5 min`."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, part, rest in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            return f"{seconds // size:,.0f} {unit} {seconds % size // rest:.0f} {part}"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def waiting_text(later: int, next_due: float | None, held: int) -> str:
    """Return what waits for its time: `12,000 later, the next in 41 s; 3 hosts held`, empty if
    nothing does."""
    parts = []
    if later:
        is_known = next_due is not None and not isinf(next_due)  # infinite until a release
        soon = f", the next in {duration(next_due)}" if is_known else ""
        parts.append(f"{later:,} later{soon}")
    if held:
        parts.append(f"{counted(held, 'host')} held")
    return "; ".join(parts)
