"""The exact table of a filter: it checks each key whose bits are all set.

A key's home is one bucket of 512 bytes, an eighth of a page, chosen as the filter chooses a block.
The bucket stores the key's remainder, 8 bytes: the BLAKE2b digest of the filter's secret and the
key. MurmurHash3 has collisions for any seed, so the remainder must not depend on it. (A secret of
fixed length in front keys BLAKE2b as well as its key parameter, which takes longer: it fills a
block of its own.) A full bucket overflows into the next one, the last into the first.

A bucket consists of the number of its keys (a byte, and seven zero bytes) and 63 slots for
remainders, filled in order. A slot is written before the number that counts it, and slots beyond
that number are ignored. So a crash may lose keys, which are added again, and never adds one: a
remainder never changes, and a torn one matches no key.
"""

from __future__ import annotations

import mmap
from hashlib import blake2b
from math import ceil

from ..errors import BloomError
from . import sizing

_BUCKET_SHIFT = 9  # a bucket has 2**9 bytes
_SLOT = 8  # bytes of a remainder, and of the number of keys in a bucket
SLOTS = 63  # in a bucket
_LOAD = 0.85  # at the capacity: 13 % of the buckets are full
_LIMIT = 0.95  # beyond it hundreds of buckets in a row are full, and searched one by one


def pages_in_table(capacity: int) -> int:
    """Return the pages of the table for `capacity` keys."""
    return ceil(capacity / (sizing.BUCKETS_IN_PAGE * SLOTS * _LOAD))


class ExactTable:
    """The table in `pages` pages of `memory`, from `offset` on, of the filter with this `secret`.

    A key comes with its selector, the number from 0 to 2**32 - 1 that chooses its home. Before
    `add`, the caller checks that the key is new and that there is room.
    """

    def __init__(self, memory: mmap.mmap, offset: int, pages: int, secret: bytes) -> None:
        self.buckets = pages * sizing.BUCKETS_IN_PAGE
        self._memory = memory
        self._offset = offset
        self._slots = SLOTS
        self.limit = int(self.buckets * SLOTS * _LIMIT)
        """The number of keys at which the table is full."""
        self._new_digest = blake2b(secret, digest_size=_SLOT).copy
        if hasattr(mmap, "MADV_RANDOM"):  # no read-ahead: its pages are read in random order
            start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
            memory.madvise(mmap.MADV_RANDOM, start)

    def holds(self, selector: int, key: bytes) -> bool:
        """Return True if that key was added. Cost: reads 1.03 pages."""
        memory, remainder = self._memory, self._remainder(key)
        home = selector * self.buckets >> 32
        for bucket in range(home, home + self.buckets):
            start = self._offset + (bucket % self.buckets << _BUCKET_SHIFT)
            count = memory[start]
            end = start + _SLOT + _SLOT * count
            at = memory.find(remainder, start + _SLOT, end)
            while at % _SLOT and at >= 0:  # parts of two slots
                at = memory.find(remainder, at + 1, end)
            if at >= 0 or count < self._slots:
                return at >= 0
        return False

    def add(self, selector: int, key: bytes) -> None:
        """Add a key. Cost: reads 1.03 pages."""
        memory = self._memory
        home = selector * self.buckets >> 32
        for bucket in range(home, home + self.buckets):
            start = self._offset + (bucket % self.buckets << _BUCKET_SHIFT)
            count = memory[start] + 1
            if count <= self._slots:
                break
        slot = start + _SLOT * count
        memory[slot : slot + _SLOT] = self._remainder(key)
        memory[start] = count

    def _remainder(self, key: bytes) -> bytes:
        digest = self._new_digest()
        digest.update(key)
        return digest.digest()

    def counts(self) -> bytes:
        """Return the number of keys in each bucket. Cost: reads a part of each page."""
        end = self._offset + (self.buckets << _BUCKET_SHIFT)
        return self._memory[self._offset : end : 1 << _BUCKET_SHIFT]

    def check(self, keys: int) -> None:
        """Raise BloomError unless the table has this number of `keys`, and no bucket more than it
        has slots."""
        counts = self.counts()
        for bucket, count in enumerate(counts):
            if count > self._slots:
                raise BloomError(
                    f"bucket {bucket:,} of the exact table counts {count} keys, and has"
                    f" {self._slots} slots"
                )
        if (found := sum(counts)) != keys:
            raise BloomError(f"the exact table holds {found:,} keys, and {keys:,} are counted")
