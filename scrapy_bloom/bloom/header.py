"""The two pages that describe a filter file, as bytes; their making, and their check.

Page 0, written once: 8 bytes of magic, a JSON object padded with zero bytes, and the SHA-256 of
all that in the last 32 bytes. Page 1, rewritten at each flush: number of keys, clean mark and the
writer's process id, with a SHA-256. A crash may tear page 1; then the file counts as not closed
cleanly. The second half of page 1 is for the owner of the filter, with a SHA-256 of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from struct import Struct
from typing import NamedTuple

from ..errors import FilterFileError
from . import sizing

PAGE = 4096
MAGIC = b"\x89BLOOM\r\n"
FORMAT = 1
SCHEME = "mmh3-x64-128/block-32768/lanes-16/1"
"""Name and version of the scheme in hashing.py."""
TABLE_SCHEME = "blake2b-64/bucket-63/1"
"""Name and version of the layout of exact_table.py."""
SECRET_BYTES = 16
REMEDY = "restore it from a backup, or start a new filter (a job: a new JOBDIR)"

CHECKSUM_BYTES = 32
_HEADER_ROOM = PAGE - len(MAGIC) - CHECKSUM_BYTES
_STATE = Struct("<QQQ")
OWNER_AT = PAGE // 2
"""Offset of the owner in page 1: no sector has part of both state and owner."""


class Header(NamedTuple):
    """The constants of a filter: its shape, its hash and the identity of its keys."""

    capacity: int
    error_rate: float
    blocks: int
    probes: int
    secret: bytes
    identity: str = ""
    created: str = ""
    software: str = ""
    table_pages: int = 0

    @property
    def exact(self) -> bool:
        """True if the filter is exact."""
        return self.table_pages > 0

    def difference(self, other: Header, names: Iterable[str]) -> str:
        """Return the first of these `names` whose values differ, and the values but for a secret;
        empty if none do."""
        for name in names:
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return name if name == "secret" else f"{name} ({ours!r} and {theirs!r})"
        return ""

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return PAGE * (2 + self.blocks + self.table_pages)

    def to_page(self) -> bytes:
        """Return page 0. Raises ValueError if `identity` does not fit into it."""
        versions = {"format": FORMAT, "scheme": _scheme(self.table_pages)}
        text = json.dumps({**versions, **self._asdict(), "secret": self.secret.hex()}).encode()
        if len(text) > _HEADER_ROOM:
            raise ValueError(
                f"identity has {len(self.identity)} characters: with the rest of the header it"
                f" must fit into {_HEADER_ROOM} bytes"
            )
        page = MAGIC + text.ljust(_HEADER_ROOM, b"\0")
        return page + sha256(page).digest()

    @classmethod
    def from_page(cls, page: bytes, path: Path) -> Header:
        """Return the header in page 0 of the file at `path`, which the errors name."""
        if not page.startswith(MAGIC):
            raise FilterFileError(
                f"{path} is not a filter file of scrapy-bloom: it starts with"
                f" {page[: len(MAGIC)]!r}, not {MAGIC!r}; move it away, or choose another path"
            )
        if sha256(page[:-CHECKSUM_BYTES]).digest() != page[-CHECKSUM_BYTES:]:
            raise FilterFileError(
                f"{path} has a damaged header: the checksum of page 0 is wrong; {REMEDY}"
            )
        fields = json.loads(page[len(MAGIC) : -CHECKSUM_BYTES].rstrip(b"\0"))
        scheme = _scheme(fields.get("table_pages"))
        for name, known in (("format", FORMAT), ("scheme", scheme)):
            if (found := fields.pop(name, None)) != known:
                raise FilterFileError(
                    f"{path} has {name} {found!r}, this version of scrapy-bloom reads {known!r};"
                    f" open it with the version that made it ({fields.get('software')!r})"
                )
        return cls(**{**fields, "secret": bytes.fromhex(fields["secret"])})


def _scheme(table_pages: int | None) -> str:
    return f"{SCHEME} {TABLE_SCHEME}" if table_pages else SCHEME


class State(NamedTuple):
    """The variables of a filter file, as of the last flush."""

    keys: int = 0
    clean: bool = False
    pid: int = 0

    def to_page(self) -> bytes:
        """Return the second page of the file: the values, and their SHA-256."""
        state = _STATE.pack(self.keys, self.clean, self.pid)
        return (state + sha256(state).digest()).ljust(PAGE, b"\0")

    @classmethod
    def from_page(cls, page: bytes) -> State:
        """Return the state in page 1; an empty, unclean one if its checksum is wrong."""
        state = page[: _STATE.size]
        if page[_STATE.size : _STATE.size + CHECKSUM_BYTES] != sha256(state).digest():
            return cls()
        keys, clean, pid = _STATE.unpack(state)
        return cls(keys, bool(clean), pid)


def new_header(
    capacity: int, error_rate: float, secret: bytes | None, identity: str, *, exact: bool = False
) -> Header:
    """Return the header of a new filter. Raises ValueError for bad arguments."""
    blocks, probes = sizing.shape(capacity, error_rate)
    if secret is None:
        secret = token_bytes(SECRET_BYTES)
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise ValueError(
            f"secret is {secret!r}: it must be {SECRET_BYTES} bytes, or None for a random one"
        )
    return Header(
        capacity=capacity,
        error_rate=error_rate,
        blocks=blocks,
        probes=probes,
        secret=secret,
        identity=identity,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        software=f"scrapy-bloom {sys.modules['scrapy_bloom'].__version__}",
        table_pages=sizing.pages_in_table(capacity) if exact else 0,
    )
