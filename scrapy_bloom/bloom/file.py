"""One filter, its bits, and its exact table if it has one, in memory or in a mapped file.

A file consists of these pages, all little-endian. Page 0, written once: 8 bytes of magic, a JSON
object padded with zero bytes, and the SHA-256 of all that in the last 32 bytes. Page 1, rewritten
at each flush: number of keys, clean mark and the writer's process id, with a SHA-256; if a crash
tears it, the file counts as not closed cleanly. The second half of page 1 is for the owner of the
filter, with a SHA-256 of its own. The bits, a block of the filter in each page. The table.

Bits change from 0 to 1 only, so a page that reaches the disk late or in part costs keys, never
the file. SIGKILL costs nothing: stored bits are in the page cache.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from struct import Struct
from typing import IO, NamedTuple, NoReturn

from bitarray import bitarray

from ..errors import BloomError, FilterFileError
from ..files import allocate, left_to_parent, open_locked, open_regular, replacing, unlock
from . import sizing
from .sizing import BLOCK_BITS, LayerLoad, digests

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
_STATE = Struct("<Q?Q")
OWNER_AT = PAGE // 2
"""Offset of the owner in page 1: no sector has part of both state and owner."""
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


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
    def file_bytes(self) -> int:
        """Size of the file."""
        return PAGE * (2 + self.blocks + self.table_pages)

    def without_room(self, error: Exception) -> str:
        """Return the message of the `error` where there is no room for the file."""
        return (
            f"cannot allocate {self.file_bytes:,} bytes for capacity {self.capacity:,} ({error});"
            " make some room, or set a smaller capacity"
        )

    def to_page(self) -> bytes:
        """Return page 0. Raises ValueError if `identity` does not fit into it."""
        versions = {"format": FORMAT, "scheme": _scheme(self.table_pages)}
        text = json.dumps({**versions, **self._asdict(), "secret": self.secret.hex()}).encode()
        if len(text) > _HEADER_ROOM:
            raise ValueError(
                f"identity has {len(self.identity)} characters: with the rest of the header it"
                f" must fit into {_HEADER_ROOM} bytes"
            )
        return sealed(MAGIC + text.ljust(_HEADER_ROOM, b"\0"))

    @classmethod
    def read(cls, file: IO[bytes], path: Path) -> Header:
        """Return the header of an open file, whose `path` the errors name. Raises FilterFileError
        unless it is sound, and the file has its size."""
        page = os.pread(file.fileno(), PAGE, 0)
        if not page.startswith(MAGIC):
            raise FilterFileError(
                f"{path} is not a filter file of scrapy-bloom: it starts with"
                f" {page[: len(MAGIC)]!r}, not {MAGIC!r}; move it away, or choose another path"
            )
        text = unsealed(page, PAGE - CHECKSUM_BYTES)
        if text is None:
            raise FilterFileError(
                f"{path} has a damaged header: the checksum of page 0 is wrong; {REMEDY}"
            )
        fields = json.loads(text[len(MAGIC) :].rstrip(b"\0"))
        scheme = _scheme(fields.get("table_pages"))
        for name, known in (("format", FORMAT), ("scheme", scheme)):
            if (found := fields.pop(name, None)) != known:
                raise FilterFileError(
                    f"{path} has {name} {found!r}, this version of scrapy-bloom reads {known!r};"
                    f" open it with the version that made it ({fields.get('software')!r})"
                )
        header = cls(**{**fields, "secret": bytes.fromhex(fields["secret"])})
        size = os.fstat(file.fileno()).st_size
        if size != header.file_bytes:
            what = "truncated" if size < header.file_bytes else "longer than it was made"
            raise FilterFileError(
                f"{path} is {what}: {size:,} bytes, and its header says {header.file_bytes:,};"
                f" {REMEDY}"
            )
        return header


def _scheme(table_pages: int | None) -> str:
    return f"{SCHEME} {TABLE_SCHEME}" if table_pages else SCHEME


def sealed(content: bytes) -> bytes:
    """Return `content` with its SHA-256."""
    return content + sha256(content).digest()


def unsealed(page: bytes, size: int) -> bytes | None:
    """Return the first `size` bytes of `page`, None if their SHA-256 does not follow."""
    content = page[:size]
    return content if page[: size + CHECKSUM_BYTES] == sealed(content) else None


class State(NamedTuple):
    """The variables of a filter file, as of the last flush."""

    keys: int = 0
    clean: bool = False
    pid: int = 0

    def to_page(self) -> bytes:
        """Return the second page of the file."""
        return sealed(_STATE.pack(*self)).ljust(PAGE, b"\0")

    @classmethod
    def from_page(cls, page: bytes) -> State:
        """Return the state in page 1; an empty, unclean one if its checksum is wrong."""
        state = unsealed(page, _STATE.size)
        return cls() if state is None else cls(*_STATE.unpack(state))

    @classmethod
    def read(cls, file: IO[bytes]) -> State:
        """Return the state of an open file."""
        return cls.from_page(os.pread(file.fileno(), PAGE, PAGE))


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
    pages = 0
    if exact:
        from .exact_table import pages_in_table

        pages = pages_in_table(capacity)
    return Header(
        capacity=capacity,
        error_rate=error_rate,
        blocks=blocks,
        probes=probes,
        secret=secret,
        identity=identity,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        software=f"scrapy-bloom {sys.modules['scrapy_bloom'].__version__}",
        table_pages=pages,
    )


class BitStore:
    """The bit array of one filter, with its header and its changing state.

    `bits` is a little-endian bitarray over the memory or the mapped file, `table` the exact table
    behind the bits, or None. `flush` and `close` write `count` to the file. `found` is the state
    page of an opened file that had not been closed, so that its keys were recounted, else empty.

    A file belongs to the process that opened it: a forked one finds the store closed, and keeps no
    lock.
    """

    def __init__(
        self,
        header: Header,
        memory: mmap.mmap,
        path: Path | None = None,
        file: IO[bytes] | None = None,
    ) -> None:
        self.header = header
        self.blocks = header.blocks
        self.capacity = header.capacity
        self.seeds = tuple(range(1, digests(header.probes)))
        self.path = path
        self.owns_file = False
        """True while this process may change the file, from `begin` to `close`."""
        self.count = 0
        self.found = self.ends_as = b""
        self._memory = memory
        self._file = file
        end = PAGE * (2 + header.blocks)
        self._view = memoryview(memory)[2 * PAGE : end]
        self.bits = bitarray(buffer=self._view, endian="little")
        self.table = None
        if header.table_pages:
            from .exact_table import ExactTable

            self.table = ExactTable(memory, end, header.table_pages, header.secret)

    @classmethod
    def in_memory(cls, header: Header) -> BitStore:
        """Return an empty store, laid out as a file. Memory: its blocks and its table, once all
        pages were touched. Raises MemoryError if that is not available."""
        try:
            return cls(header, mmap.mmap(-1, header.file_bytes, **_PRIVATE))
        except (OSError, OverflowError) as error:
            raise MemoryError(header.without_room(error)) from error

    @classmethod
    def create(cls, header: Header, path: Path) -> BitStore:
        """Make a new file, and open it.

        The file is allocated in full and synced under a temporary name, then renamed, so after a
        crash it is complete or absent. Raises FileExistsError if `path` exists, OSError if the
        disk is too small.
        """
        pages = header.to_page() + State(clean=True).to_page()
        with replacing(path, name=f"{token_bytes(4).hex()}.{path.stem}", is_new=True) as file:
            try:
                allocate(file, header.file_bytes)
                file.flush()  # before the pages, which a buffer of zeros would overwrite
            except (OSError, OverflowError) as error:
                number = getattr(error, "errno", errno.EFBIG)
                raise OSError(number, header.without_room(error), str(path)) from error
            os.pwrite(file.fileno(), pages, 0)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> BitStore:
        """Map the file at `path` and lock it, but with `read_only`: another process may have it
        open then, and may go on setting bits. The file is not changed before `begin`.

        Cost: reads two pages, or the whole file if it is not clean. Raises FileNotFoundError,
        FilterLockedError if another process has it open, FilterFileError if it is not a sound
        filter file.
        """
        file = open_regular(path, read_only=True) if read_only else lock_file(path)
        try:
            header = Header.read(file, path)
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
            # by another descriptor than the lock's: a forked process may have to keep the map
            with open_regular(path, read_only=read_only) as mapped:
                memory = mmap.mmap(mapped.fileno(), header.file_bytes, access=access)
        except BaseException:
            file.close()
            raise
        store = cls(header, memory, path, file)
        if read_only:
            file.close()
        else:
            left_to_parent[store] = BitStore._free
        page = memory[PAGE : 2 * PAGE]
        state = State.from_page(page)
        store.count = state.keys
        if not state.clean:
            store.found, store.count = page, store.recount()
        return store

    def begin(self) -> None:
        """Mark the file as not cleanly closed: it may be changed now. Cost: syncs a page."""
        self.owns_file = True
        self._write_state(clean=False)

    @property
    def load(self) -> LayerLoad:
        """Shape and number of keys, for the sums over the layers of a growing filter."""
        header = self.header
        return LayerLoad(self.blocks, header.probes, self.count, table_pages=header.table_pages)

    def recount(self) -> int:
        """Return the number of keys, exact with a table, else estimated from the bits. Cost: reads
        the whole filter."""
        if self.table is not None:
            return sum(self.table.counts())
        return sizing.estimate_keys(self.header.probes, self.block_counts())

    def require_room(self, *, is_bound: bool) -> None:
        """Raise BloomError if the exact table is full, or, if the error rate `is_bound`, where that
        is reached, at a cost of 0.1 ms."""
        is_full = self.table is not None and self.count >= self.table.limit
        if is_full or (is_bound and self.load.error_rate >= self.header.error_rate):
            raise BloomError(
                f"{self.path or 'this filter'} holds {self.count:,} keys, all that a filter for"
                f" {self.capacity:,} takes: let it grow (ScalableBloomFilter, BLOOM_ON_FULL ="
                " 'grow'), or make one with a larger capacity"
            )

    def block_counts(self) -> Iterator[int]:
        """Yield the number of set bits in each block. Cost: reads all blocks."""
        bits = self.bits
        for start in range(0, len(bits), BLOCK_BITS):
            yield bits.count(1, start, start + BLOCK_BITS)

    def flush(self, *, clean: bool = False) -> None:
        """Sync bits and state to the disk. Cost: 10 to 100 ms for 1,000 to 10,000 changed pages."""
        if self.owns_file:
            self._memory.flush()
            self._write_state(clean=clean)

    def close(self) -> None:
        """Sync, mark as cleanly closed or as what it `ends_as`, unlock; a second call does nothing.

        `bits` is unusable afterwards, also if the disk fails; then the file counts as not closed.
        """
        try:
            self.flush(clean=True)
        finally:
            self._free()
            if self._file is not None:
                unlock(self._file)

    def _free(self) -> None:
        self.owns_file = False
        # In this order, since mmap refuses to close under a view. After Ctrl-C a traceback may
        # reference the bits; then the map is freed with the traceback.
        self.bits = _ClosedBits()
        with suppress(BufferError):
            self._view.release()
            self._memory.close()

    def _write_state(self, *, clean: bool) -> None:
        pid = 0 if clean else os.getpid()
        page = State(self.count, clean, pid).to_page()
        self._memory[PAGE : PAGE + OWNER_AT] = (self.ends_as or page)[:OWNER_AT]
        self._memory.flush(PAGE, PAGE)


class _ClosedBits(bitarray):
    """Stands in for the bits of a closed filter; any use raises ValueError."""

    def _refuse(self, *_: object) -> NoReturn:
        raise ValueError("this filter is closed; open it again to use it")

    __getitem__ = __setitem__ = __ior__ = _refuse


def lock_file(path: Path) -> IO[bytes]:
    """Open and lock the file of a filter. Raises as `open_locked` does."""
    return open_locked(path, path, lambda file: State.read(file).pid)


def read_header(path: Path) -> Header:
    """Return the header of the file at `path` without locking or changing the file. Raises
    FileNotFoundError, or FilterFileError if it is not a sound filter file."""
    with open_regular(path, read_only=True) as file:
        return Header.read(file, path)
