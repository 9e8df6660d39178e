"""Deflates payloads of stored requests, with dictionaries made of texts of the same crawl."""

from __future__ import annotations

import re
import zlib
from collections import deque
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Any

from .codec import PLAIN
from .request_text import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .codec import Stored

DEFLATED = b"\2"
"""The first byte of a deflated payload: the id of a dictionary, a checksum and a text follow."""
SIZE = 7_900
"""Most bytes of a dictionary: what a window of 13 bits reaches from the first byte of a text."""
PROPOSED_AT = (16, 1_000, 30_000, 1_000_000)
"""A process proposes the first, second, … dictionary of a crawl after so many requests."""
LONGEST = 65_536
"""Payloads above this many bytes are not deflated."""

_FEWEST, _SAMPLES = 8, 256
"""A dictionary is made of so many samples."""
_SAMPLE_BYTES = 500
_WINDOW = -13  # raw
_LEVEL, _MEMORY = 6, 5
_HEAD, _DEFLATED_HEAD = 3, 5  # the form, the id, and the checksum, which is that of the text
# the last ones end a name: before "=" in a URL, before the head of a value in a text or a pickle
_SECRET = re.compile(
    rb"authoriz|auth(?!or)|cookie|passw|passphrase|pwd|secret|token|api.?key|access.?key|"
    rb"private|credential|sess(?:ion|id)|signature|bearer|basic |jwt|csrf|xsrf|"
    rb"(?:key|sid|sig|pass)[=\x80-\xff]",
    re.IGNORECASE,
)
# at the beginning of a value, too: a proxy may have no scheme
_USERINFO = re.compile(rb"(?:\A|//)[^/?#\0]*@")


class Dictionaries:
    """The dictionaries of a crawl that this process knows, by their ids: `texts`, oldest first. It
    begins with those that a store has kept.

    A `proposal` is a dictionary that a store is asked to keep, or None: only then may it `learn`
    it. Cost: 6 µs to deflate a text, 1 to inflate it; 60 kB of memory a dictionary.
    """

    def __init__(self, texts: Iterable[bytes] = ()) -> None:
        self.texts: dict[str, bytes] = {}
        self.proposal: bytes | None = None
        self._inflaters: dict[bytes, Any] = {}
        self._deflater: Any = None
        self._newest = b""
        self._samples: deque[bytes] = deque(maxlen=_SAMPLES)
        self._count = 0
        self._due = 0.0
        for text in texts:
            self.learn(text)

    def learn(self, text: bytes) -> None:
        """Use a dictionary that the store has kept: for all texts that name it, and as the newest
        for those to be deflated. A known one changes nothing."""
        name = id_of(text)
        if name in self.texts:
            return
        self.texts[name] = text
        self._newest = bytes.fromhex(name)
        self._inflaters[self._newest] = zlib.decompressobj(_WINDOW, zdict=text)
        self._deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=text)
        self.proposal = None
        self._samples.clear()

    def deflate(self, payload: bytes) -> bytes:
        """Return a payload deflated with the newest dictionary, if that makes it shorter, or as it
        is: without a dictionary, one above LONGEST, and a damaged one."""
        if self._deflater is None or len(payload) > LONGEST or payload[:1] != PLAIN:
            return payload
        deflater = self._deflater.copy()
        stream: bytes = deflater.compress(payload[_HEAD:]) + deflater.flush()
        deflated = DEFLATED + self._newest + payload[1:_HEAD] + stream
        return deflated if len(deflated) < len(payload) else payload

    def inflate(self, payload: bytes) -> bytes:
        """Return the payload that was deflated to this one, which may be as it was. Raises
        ValueError for an unknown dictionary, and for a stream that is damaged or too long."""
        if payload[:1] != DEFLATED:
            return payload
        inflater = self._inflaters.get(payload[1:3])
        if inflater is None:
            raise ValueError(f"its dictionary {payload[1:3].hex()} is not there")
        inflater = inflater.copy()
        try:
            text: bytes = inflater.decompress(payload[_DEFLATED_HEAD:], LONGEST)
        except zlib.error as error:
            raise ValueError(f"it is damaged ({error})") from error
        if not inflater.eof or inflater.unused_data:
            raise ValueError("it is damaged (it does not end where it should)")
        return PLAIN + payload[3:_DEFLATED_HEAD] + text

    def sample(self, stored: Stored) -> None:
        """Count a stored request, which is not deflated, and take the texts of some for the next
        `proposal`: spread over all since the last dictionary, none that may hold a secret. Looks at
        one in 256 where most may, and at none after the last of PROPOSED_AT."""
        self._count += 1
        stage = len(self.texts)
        if self._count < self._due or self.proposal is not None or stage >= len(PROPOSED_AT):
            return
        end = PROPOSED_AT[stage]
        is_last = self._count >= PROPOSED_AT[-1]
        pause = max(end, self._count) // _SAMPLES
        self._due = inf if is_last else self._count + max(1, pause)
        text = stored.payload[_HEAD:]
        if _may_be_secret(unpack(text, stored.slot), text):
            return
        self._samples.append(text[:_SAMPLE_BYTES])
        if self._count >= end and len(self._samples) >= _FEWEST:
            proposed = b"".join(self._samples)[-SIZE:]
            while id_of(proposed) in self.texts:
                proposed = proposed[1:]
            self.proposal = proposed


def id_of(text: bytes) -> str:
    """Return the id of a dictionary: four hexadecimal digits of a hash of its text."""
    return blake2b(text, digest_size=2).hexdigest()


def _may_be_secret(fields: Mapping[str, Any], text: bytes) -> bool:
    """Return True for a body, cookies, a user in a URL or of the proxy, and where a name in the
    text smells of secrets."""
    return bool(
        fields.get("body")
        or fields.get("cookies")
        or _SECRET.search(text)
        # the text has values without their beginning, and numbers
        or any(map(_USERINFO.search, _texts_in(fields)))
        # whose password may have a slash
        or "@" in str(fields.get("meta", {}).get("proxy"))
    )


def _texts_in(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield each text in the values of `fields`, also in containers, however deep or cyclic."""
    found: list[Any] = [*fields.values()]
    seen: set[int] = set()
    for each in found:
        if type(each) is str:
            yield each.encode("utf-8", "surrogatepass")
        elif type(each) is bytes:
            yield each
        elif type(each) in {dict, list, tuple, set, frozenset} and id(each) not in seen:
            seen.add(id(each))
            found += each.items() if type(each) is dict else each
