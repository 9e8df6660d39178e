"""The exact table behind a filter: what the filter takes for known, it confirms or denies.

A key's home is one bucket of 512 bytes, an eighth of a page, chosen as the filter chooses
a block. There its remainder is kept, the BLAKE2b digest of the filter's secret and the key,
8 bytes: MurmurHash3 has collisions for any seed, so what tells keys apart must not come
of it. (A secret of fixed length in front keys BLAKE2b as its key parameter does, which
fills a block of its own and takes longer.) A bucket that is full overflows into the
next one, the last into the first.

A bucket holds the number of its keys (a byte, and seven that are 0) and the slots of 63
remainders, filled in the order in which keys come. A slot is written before the number
that counts it, and none behind that number is looked at. So whatever a crash keeps from
the disk, a key that is lost is one to be added again, and what was not added is not
found: a remainder never changes, and one that was torn is nobody's.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from hashlib import blake2b

from ..errors import BloomError
from . import sizing

_BUCKET_SHIFT = 9  # a bucket has 2**9 bytes
_SLOT = 8  # bytes of a remainder, and of the number of keys in a bucket


def new_digest(secret: bytes) -> Callable[[], blake2b]:
    """Return a function that makes a digest: updated with a key, its `digest()` is the
    remainder of that."""
    return blake2b(secret, digest_size=_SLOT).copy


class ExactTable:
    """The table in `pages` pages of `memory`, from `offset` on.

    A key is known by its selector, the number from 0 to 2**32 - 1 that chooses its home,
    and its remainder. Whoever adds one makes sure that it is not there, and that there is
    room.
    """

    def __init__(self, memory: mmap.mmap, offset: int, pages: int) -> None:
        self.pages = pages
        self.buckets = pages * sizing.BUCKETS_IN_PAGE
        self._memory = memory
        self._offset = offset
        self._slots = sizing.BUCKET_SLOTS

    def holds(self, selector: int, remainder: bytes) -> bool:
        """Return True if that key was added. Cost: 1.03 pages."""
        memory = self._memory
        start = self._offset + (selector * self.buckets >> 32 << _BUCKET_SHIFT)
        count = memory[start]
        end = start + _SLOT + _SLOT * count
        at = memory.find(remainder, start + _SLOT, end)
        while at % _SLOT and at >= 0:  # not one slot, but parts of two
            at = memory.find(remainder, at + 1, end)
        if at >= 0:
            return True
        return count >= self._slots and self.holds(self._next(selector), remainder)

    def add(self, selector: int, remainder: bytes) -> None:
        """Add a key. Cost: 1.03 pages."""
        memory = self._memory
        start = self._offset + (selector * self.buckets >> 32 << _BUCKET_SHIFT)
        count = memory[start] + 1
        if count > self._slots:
            self.add(self._next(selector), remainder)
            return
        slot = start + _SLOT * count
        memory[slot : slot + _SLOT] = remainder
        memory[start] = count

    def _next(self, selector: int) -> int:
        """Return a selector of the bucket behind the one of `selector`."""
        return self._selector((selector * self.buckets >> 32) + 1)

    def _selector(self, bucket: int) -> int:
        """Return the lowest selector of a bucket; behind the last one comes the first."""
        return -(-(bucket % self.buckets << 32) // self.buckets)

    def expect_no_order(self) -> None:
        """Have the system read single pages of it from the disk from now on, and not those
        around them, since which one comes next is random."""
        if hasattr(mmap, "MADV_RANDOM"):
            start = -(-self._offset // mmap.PAGESIZE) * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_RANDOM, start)

    def counts(self) -> bytes:
        """Return the number of keys in each bucket. Reads a part of each page."""
        end = self._offset + (self.buckets << _BUCKET_SHIFT)
        return self._memory[self._offset : end : 1 << _BUCKET_SHIFT]

    def check(self, keys: int) -> None:
        """Raise BloomError unless the table holds so many `keys`, and no bucket more than
        it has slots."""
        held = 0
        for bucket, count in enumerate(self.counts()):
            if count > self._slots:
                raise BloomError(
                    f"bucket {bucket:,} of the exact table counts {count} keys, and has"
                    f" {self._slots} slots"
                )
            held += count
        if held != keys:
            raise BloomError(f"the exact table holds {held:,} keys, and {keys:,} are counted")
