"""What this package raises beyond `ValueError` and `OSError`.

Every message names the thing, the value and the remedy.
"""

from __future__ import annotations


def describe(error: BaseException) -> str:
    """Return the message of `error`, or its name if it has none, as text that can be encoded."""
    return encodable(str(error) or repr(error))


def encodable(text: str) -> str:
    """Return `text` with escapes for what UTF-8 cannot hold: bytes of a path that are none, and
    halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode()


class BloomError(Exception):
    """Base of the errors below."""


class FeedError(BloomError):
    """A feed that somebody else has changed, or that is not the one that was begun; it
    was left as it was."""


class FilterFileError(BloomError):
    """A file that is not a sound filter file; it was left as it was."""


class FilterLockedError(BloomError):
    """A filter that another process (or another object in this one) holds open."""


class IncompatibleFilterError(BloomError, ValueError):
    """A filter that does not fit what was asked of it, or another filter."""


class JobDirectoryError(BloomError):
    """A job directory in which a crawl would silently lose pages."""


class RequestFileError(BloomError):
    """A `requests.sqlite` that cannot be used, or a request in it; it was left as it
    was."""


class SharedFilterError(BloomError):
    """A filter in Redis that cannot be reached, or is gone."""
