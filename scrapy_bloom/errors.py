"""The exceptions of this package; it also raises `ValueError` and `OSError`.

Every message names the thing, the value and the remedy.
"""

from __future__ import annotations


def message_of(error: BaseException) -> str:
    """Return the message of `error`, or its name if it has none, as text that can be encoded."""
    return encodable(str(error) or repr(error))


def encodable(text: str) -> str:
    """Return `text` as a plain str, with escapes for lone surrogates, which UTF-8 cannot encode."""
    return str.__str__(text) if text.isascii() else text.encode(errors="backslashreplace").decode()


class BloomError(Exception):
    """Base of the errors below."""


def unforeseen(error: BaseException, *known: type[BaseException]) -> BaseException | None:
    """Return `error` if its log needs a traceback: None for ours, the system's and the `known`."""
    return None if isinstance(error, (BloomError, OSError, *known)) else error


class FeedError(BloomError):
    """A feed that was changed from outside, or is not the expected one; it is left as it is."""


class FilterFileError(BloomError):
    """A file that is not a sound filter file; it is left as it is."""


class FilterLockedError(BloomError):
    """A filter that another process, or another object of this process, has open."""


class IncompatibleFilterError(BloomError, ValueError):
    """A filter whose parameters differ from those requested, or from those of another filter."""


class JobDirectoryError(BloomError):
    """A job directory in which a crawl would silently lose pages."""


class RequestFileError(BloomError):
    """A `requests.sqlite`, or a request in it, that cannot be used; it is left as it is."""


class SharedFilterError(BloomError):
    """A filter in Redis that cannot be reached, or was removed."""
