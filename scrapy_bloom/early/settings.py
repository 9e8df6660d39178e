"""The setting of DropEarlyMiddleware."""

from __future__ import annotations

from typing import Any

from ..settings import BOOLEAN, Setting, Values, require


def _switch_or_paths(value: Any) -> bool | tuple[str, ...]:
    """Return a boolean, or the paths in a list or in text with commas."""
    if isinstance(value, str) and "." in value:
        value = value.split(",")
    if not isinstance(value, (list, tuple, set, frozenset)):
        return bool(BOOLEAN.convert(value))
    require(all(isinstance(path, str) and "." in path.strip(" .") for path in value))
    return tuple(path.strip() for path in value)


DROP_EARLY: Setting[bool | tuple[str, ...] | None] = Setting(
    "BLOOM_DROP_EARLY",
    None,
    Values("True, False, or a list of paths of spider middlewares", _switch_or_paths),
    "Whether duplicates are dropped next to the spider",
)
