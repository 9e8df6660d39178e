"""What a filter records of the fingerprinter that filled it, for people."""

from __future__ import annotations

from . import FingerprinterIdentity


def fingerprinter_in(identity: str) -> tuple[str | None, str | None]:
    """Return the name of the fingerprinter that a filter records, and its own `identity`."""
    if not identity:
        return None, None
    try:
        known = FingerprinterIdentity.from_text(identity)
    except ValueError:
        return None, identity
    return known.name, known.identity
