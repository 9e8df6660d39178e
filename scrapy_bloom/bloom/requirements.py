"""Make the header of a new filter; validate a stored filter against the requested parameters."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import IncompatibleFilterError
from . import sizing
from .hashing import check_secret, new_secret
from .header import Header


def new_header(
    capacity: int, error_rate: float, secret: bytes | None, identity: str, *, exact: bool = False
) -> Header:
    """Return the header of a new filter. Raises ValueError for bad arguments."""
    blocks, probes = sizing.shape(capacity, error_rate)
    if secret is None:
        secret = new_secret()
    check_secret(secret)
    packages = ("scrapy-bloom", "mmh3", "bitarray")
    return Header(
        capacity=capacity,
        error_rate=error_rate,
        blocks=blocks,
        probes=probes,
        secret=secret,
        identity=identity,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        software=", ".join(f"{package} {_version(package)}" for package in packages),
        table_pages=sizing.pages_in_table(capacity) if exact else 0,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def require_secret(path: Path, found: Header, secret: bytes | None) -> None:
    """Raise IncompatibleFilterError if a secret is given and is not the file's."""
    if secret is not None and found.secret != secret:
        raise IncompatibleFilterError(
            f"{path} has another secret than the one given; leave the secret out, or use"
            " another path"
        )


def require_table(path: Path, found: Header, *, exact: bool) -> None:
    """Raise IncompatibleFilterError if a table is requested and the file has none."""
    if exact and not found.table_pages:
        raise IncompatibleFilterError(
            f"{path} has no exact table, and gets none: of the keys in it only their bits are"
            " left. Leave BLOOM_EXACT (exact=True) out to go on with it as it is, or start a new"
            " job or filter"
        )


def too_imprecise(path: Path, stored: float, asked: float) -> IncompatibleFilterError:
    """Return the error for a filter whose error rate is above the requested one."""
    return IncompatibleFilterError(
        f"{path} was made for error rate {stored:g} and cannot keep the lower {asked:g} asked for;"
        f" ask for {stored:g} or more, or start a new filter"
    )
