"""What fingerprints depend on besides URL, method and body.

The class of a fingerprinter says it in its attribute `bloom_reads`; for two fingerprinters of other
packages a table does. A crawl loads this module only for a fingerprinter that is neither Scrapy's
nor one with functions of its own in this package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import FunctionType, MemberDescriptorType

from scrapy.utils.python import global_object_name

from ..startup import is_own_method
from .fast import KEYS_READ, fast_functions

CALLBACK = "callback"
META = "meta:"
"""What a fingerprint may depend on besides URL, method and body: CALLBACK, and META with a key."""
READ_BY_OURS = frozenset(META + key for key in KEYS_READ)


@dataclass(frozen=True)
class _Release:
    """A fingerprinter of another package: what it reads, the source files that decide this,
    beside its module, and the `digest_of` them in the releases that behave so."""

    reads: tuple[str, ...]
    files: tuple[str, ...]
    hashes: tuple[str, ...]


_TABLE = {
    "scrapy_poet._request_fingerprinter.ScrapyPoetRequestFingerprinter": _Release(
        ("callback", "meta:page_params", "meta:inject"),
        ("_request_fingerprinter.py", "injection.py"),
        (
            "d4868ea07c73d33983d4b481eab5377fc0123eed9c8f651b7b42892cb4d80d76",  # 0.27.2
            "6a33e78d0a46361506ea15ede6dfb380a780e84dc174a4bacdd620dfd45b901f",  # 0.27.1
            "629b7ebfa6f1be8be51fd8cd9bd7b086bbe125d2ec144e2bdc0097aeeec51458",  # 0.27.0
            "09b51757f810bda15919364990830df6ebb463608b9cc770ba98e080965765fe",  # 0.26.0, 0.25.0
        ),
    ),
    "duplicate_url_discarder._fingerprinter.Fingerprinter": _Release(
        ("meta:dud",),
        (
            "_fingerprinter.py",
            "rule.py",
            "url_canonicalizer.py",
            "processors/__init__.py",
            "processors/base.py",
            "processors/normalize.py",
            "processors/query_removal.py",
            "processors/query_removal_except.py",
            "processors/subpath_removal.py",
        ),
        ("3aeb7611a296af8d8e1ab27d3e271b03045cea980023a4617f0188a1be3c2109",),  # 0.3.0
    ),
}


def reads_of(fingerprinter: object) -> frozenset[str]:
    """Return what the fingerprints of `fingerprinter` depend on besides URL, method and body:
    "callback" for the callback, "meta:KEY" for each meta key.

    Each fingerprinter that it holds must say so, too. Raises ValueError with the reason if one
    does not. Cost: the reading of their source files, a millisecond.
    """
    found: set[str] = set()
    asked: list[object] = []
    waiting = [fingerprinter]
    while waiting:
        asking = waiting.pop()
        if not any(asking is each for each in asked):
            asked.append(asking)
            if fast_functions(asking) != (None, None):
                found |= READ_BY_OURS
            else:
                found |= _word_of(asking)
                waiting += filter(_is_fingerprinter, _parts(asking))
    return frozenset(found)


def _word_of(fingerprinter: object) -> frozenset[str]:
    """Return what `fingerprinter` itself reads. Raises ValueError with the reason if this is not
    known."""
    kind = type(fingerprinter)
    name = global_object_name(kind)
    word = vars(kind).get("bloom_reads")  # not of a base, whose word is about other code
    if word is None:
        release = _TABLE.get(name)
        if release is None:
            raise ValueError(f"the fingerprinter is {name}")
        if not _is_unchanged(fingerprinter, release):
            raise ValueError(f"the source of the fingerprinter {name} is that of no known release")
        word = release.reads
    if not isinstance(word, (tuple, list, set, frozenset)) or not all(map(_is_word, word)):
        raise ValueError(
            f"{name}.bloom_reads is {word!r}: it must be a tuple of 'callback' and 'meta:KEY'"
        )
    if late := sorted(filter(_is_set_late, word)):
        raise ValueError(f"{name} reads {late[0]!r}, which is set behind the spider")
    return frozenset(word)


def _is_word(word: object) -> bool:
    return isinstance(word, str) and (
        word == CALLBACK or (word.startswith(META) and len(word) > len(META))
    )


def _is_set_late(word: str) -> bool:
    """Return True for a meta key that a spider middleware of Scrapy or this package sets."""
    return word == META + "depth" or word.startswith(META + "_bloom_")


def _is_unchanged(fingerprinter: object, release: _Release) -> bool:
    """Return True if the code of `fingerprinter` is that of `release`: its methods were written in
    its package, and the files have a known hash."""
    kind = type(fingerprinter)
    module = sys.modules.get(kind.__module__)
    if getattr(module, kind.__name__, None) is not kind:  # another class with its name
        return False
    package = kind.__module__.partition(".")[0]
    methods = {name for name, found in vars(kind).items() if isinstance(found, FunctionType)}
    if not all(is_own_method(fingerprinter, name, package) for name in (*methods, "fingerprint")):
        return False
    try:
        folder = Path(str(getattr(module, "__file__", None))).parent
        return digest_of(folder, release.files) in release.hashes
    except OSError:  # no source, as in an archive
        return False


def digest_of(folder: Path, files: Iterable[str]) -> str:
    """Return the SHA-256 of the SHA-256 of `files` in `folder`, in hexadecimal digits."""
    return sha256(
        b"".join(sha256((folder / name).read_bytes()).digest() for name in files)
    ).hexdigest()


def _parts(fingerprinter: object) -> Iterator[object]:
    """Yield what `fingerprinter` holds in attributes of its own and of its classes, methods as
    the objects that they are bound to."""
    held = [*getattr(fingerprinter, "__dict__", {}).values()]
    for kind in type(fingerprinter).__mro__:
        for name, value in vars(kind).items():
            is_slot = isinstance(value, MemberDescriptorType)
            held.append(getattr(fingerprinter, name, None) if is_slot else value)
    for each in held:
        for part in _members(each):
            while isinstance(part, partial):
                part = part.func
            yield getattr(part, "__self__", part)


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (tuple, list, set, frozenset)) else (value,)


def _is_fingerprinter(part: object) -> bool:
    # asked of the object: its class may lack the method, as in a wrapper with __getattr__
    return not isinstance(part, type) and callable(getattr(part, "fingerprint", None))
