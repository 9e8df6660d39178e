"""Lists of URLs, one a line, plain or gzip."""

from __future__ import annotations

import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from io import BufferedIOBase
from pathlib import Path

from scrapy import Request
from scrapy.utils.request import RequestFingerprinterProtocol

from ..amounts import in_brief
from ..errors import BloomError
from ..fingerprints.fast import fingerprint_of_url, is_default

_BATCH_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


class UrlList:
    """The URLs in the file at `path`, as GET requests.

    A source of fingerprints (see `sources.Source`). Raises BloomError if there is no URL
    in it, or if it is damaged.
    """

    unit = "line"
    noun = "line"

    def __init__(self, path: Path, fingerprinter: RequestFingerprinterProtocol) -> None:
        self.name = str(path)
        self._path = path
        self._fingerprinter = fingerprinter
        with open_list(path) as file:
            self.size = self.keys = sum(1 for _ in file)
        if not any(fingerprints for fingerprints, _ in self.batches()):
            what = self.first_skipped or (
                "there are empty lines only" if self.size else "it is empty"
            )
            raise BloomError(
                f"{path} holds no URL ({what}): give a list of URLs, one a line, or a requests.seen"
            )

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield the fingerprints of the lines that are URLs, and how many lines are done. Empty
        lines are not counted as skipped."""
        self.skipped, self.first_skipped = 0, ""
        done = 0
        with open_list(self._path) as file:
            while lines := file.readlines(_BATCH_BYTES):
                fingerprints = list(self._fingerprints(lines, done))
                done += len(lines)
                yield fingerprints, done

    def _fingerprints(self, lines: list[bytes], number: int) -> Iterator[bytes]:
        # a URL that needs no encoding is what Request makes of it
        quick = fingerprint_of_url if is_default(self._fingerprinter) else lambda _: None
        for line in lines:
            number += 1
            try:
                if url := url_in(line):
                    yield quick(url) or self._fingerprinter.fingerprint(Request(url))
            except Exception as error:  # noqa: BLE001 - foreign fingerprinters, w3lib
                self.skipped += 1
                self.first_skipped = self.first_skipped or (
                    f"line {number:,}, {in_brief(repr(line.rstrip()))}: {in_brief(str(error))}"
                )


@contextmanager
def open_list(path: Path | None) -> Iterator[BufferedIOBase]:
    """Open a list that may be compressed, without a path the standard input, for the length
    of a context. Raises OSError, and BloomError when what is read is damaged."""
    if path is None and sys.stdin is None:
        raise BloomError("there is no standard input to read a list from")
    with path.open("rb") if path else open(sys.stdin.fileno(), "rb", closefd=False) as file:
        try:
            # not read and put back: what comes out of a pipe comes once
            yield GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
        except (EOFError, BadGzipFile, zlib.error) as error:
            raise BloomError(
                f"{path or 'standard input'} is no whole gzip file ({error}): get or make it again"
            ) from None


def url_in(line: bytes, errors: str = "strict") -> str:
    """Return the URL in a line of a list, without the white space around it and without
    the byte order mark that some editors put at the start of a file."""
    return line.removeprefix(BOM_UTF8).decode(errors=errors).strip()
