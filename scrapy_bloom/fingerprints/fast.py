"""Scrapy's default fingerprints, byte for byte, in a fraction of the time.

Scrapy's fingerprint is the SHA-1 of a JSON text with the method, the body and the canonical URL;
nearly all of its time goes into making the URL canonical. Most URLs of a real crawl are canonical
already, and a regular expression can tell. It accepts only URLs that every release of w3lib since
2.2 treats alike; all others are left to Scrapy's own function.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from ..startup import is_ours, is_own_method

if TYPE_CHECKING:
    from collections.abc import Callable


META_KEY = "bloom_fingerprint"
"""The meta key whose value stands for a request instead of its method, URL and body."""
REDIRECT_URLS = "redirect_urls"
"""Scrapy's meta key: the URLs that led to a redirect, oldest first."""
KEYS_READ = frozenset(("verbatim_url", META_KEY))
"""The meta keys that Scrapy's default fingerprinter and those of this package read."""

# No user, no upper case, no port that needs a look at its value. Default ports are
# accepted: w3lib keeps them.
_ORIGIN = r"https?://[a-z0-9_.-]+(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"

# What w3lib neither escapes nor unescapes in a path. Left out are the semicolon (it
# drops empty parameters) and, of the escapes, those of characters that it writes
# plainly, and of the percent sign and the semicolon, where releases differ.
_PATH = r"[A-Za-z0-9/_.~:@!$&'()*+,=-]*"
_PATH_ESCAPE = r"%(?:[01][0-9A-F]|2[023F]|3[CEF]|5[CE]|60|7[BDF]|[89A-F][0-9A-F])"

# The same for names and values in a query, where w3lib escapes more. `_RESERVED` is
# what it escapes and links often do not.
_RESERVED = "!$'()*,/:?@"
_QUERY = rf"[A-Za-z0-9_.~+&={_RESERVED}-]*"
_QUERY_ESCAPE = r"%(?:[01][0-9A-F]|2[0-9A-CF]|3[A-F]|40|5[B-E]|60|7[BCDF]|[89A-F][0-9A-F])"
_ESCAPES = {character: f"%{ord(character):02X}" for character in _RESERVED}

# Run, escape, run, escape: a repeated repetition would take exponential time to fail.
_FRAGMENT = r"(?:#[!-~]*)?"
_match = re.compile(
    rf"({_ORIGIN}/{_PATH}(?:{_PATH_ESCAPE}{_PATH})*)"
    rf"(?:\?({_QUERY}(?:{_QUERY_ESCAPE}{_QUERY})*))?{_FRAGMENT}"
).fullmatch
_match_origin = re.compile(rf"({_ORIGIN}){_FRAGMENT}").fullmatch
_reserved = re.compile(f"[{_RESERVED}]")
_regular = re.compile(r"[^=&]*=[^=&]*(?:&[^=&]*=[^=&]*)*").fullmatch
_dot_segment = re.compile(r"/\.\.?(?:/|\Z)").search

# json.dumps(…, sort_keys=True) puts the URL last, so the hash of all before it can be
# kept. Nothing that the expressions accept needs escaping in JSON.
_BEFORE_URL = b'{"body": "", "headers": {}, "method": "GET", "url": "'
_GET = sha1(_BEFORE_URL, usedforsecurity=False)


def canonical_url(url: str) -> str | None:
    """Return what `w3lib.url.canonicalize_url(url)` returns, or None if only w3lib can tell.

    Cost: 0.4 µs for most URLs, 1 to 4 µs for one with several query parameters.
    """
    if match := _match(url):
        return _canonical(match)
    return match[1] + "/" if (match := _match_origin(url)) else None


def _canonical(match: re.Match[str]) -> str | None:
    page, query = match.groups()
    if "/." in page and _dot_segment(page):
        return None
    if query:
        query = _reserved.sub(lambda match: _ESCAPES[match[0]], query)
        if "%20" in query:
            query = query.replace("%20", "+")
        if "&" in query or query.count("=") != 1:
            query = _sorted(query)
    return f"{page}?{query}" if query else page


def _sorted(query: str) -> str:
    """Return the parameters of `query` in order of their decoded names and values,
    each with one equals sign, the empty ones left out."""
    if "%" not in query and "+" not in query and _regular(query):
        # a NUL sorts below all others, so that whole parameters sort as pairs do
        return "&".join(sorted(query.replace("=", "\0").split("&"))).replace("\0", "=")
    pairs = [field.partition("=")[::2] for field in query.split("&") if field]
    names = [_decoded(name) if "%" in name or "+" in name else name for name, _ in pairs]
    if len(set(names)) == len(names):
        pairs = [pair for _, pair in sorted(zip(names, pairs, strict=True))]
    else:
        pairs.sort(key=lambda pair: (_decoded(pair[0]), _decoded(pair[1])))
    return "&".join([f"{name}={value.replace('=', '%3D')}" for name, value in pairs])


@lru_cache(1024)  # names come again and again
def _decoded(text: str) -> str:
    """Return a string that sorts as the decoded bytes of `text`."""
    return unquote_to_bytes(text.replace("+", " ")).decode("latin-1")


def fingerprint_of_url(url: str) -> bytes | None:
    """Return the fingerprint of a GET request for `url` without a body, or None if
    only Scrapy can tell. Cost: 0.8 µs for most URLs."""
    match = _match(url)
    if match and match.lastindex == 1 and "/." not in url:
        return hash_get(match[1])  # canonical_url in line for most URLs
    canonical = _canonical(match) if match else canonical_url(url)
    return None if canonical is None else hash_get(canonical)


def hash_get(canonical: str) -> bytes:
    """Return the fingerprint of a GET request whose canonical URL needs no escaping in JSON, as no
    result of `canonical_url` does, nor a part of one."""
    digest = _GET.copy()
    digest.update(f'{canonical}"}}'.encode())
    return digest.digest()


def fingerprint(request: Request) -> bytes:
    """Return what `scrapy.utils.request.fingerprint(request)` returns.

    Raises what Scrapy's function raises. Unlike that one, it caches nothing.
    """
    found = None
    # what this key means depends on the release of Scrapy
    if request.method == "GET" and not request.body and "verbatim_url" not in request.meta:
        found = fingerprint_of_url(request.url)
    return scrapy_fingerprint(request) if found is None else found


def fast_functions(
    fingerprinter: object,
) -> tuple[Callable[[Request], bytes] | None, Callable[[str], bytes | None] | None]:
    """Return faster functions for the fingerprints of `fingerprinter`: of a request, and of the
    URL of a GET request without a body and without meta keys that matter. None twice if there are
    none.

    They exist for Scrapy's default fingerprinter and those of this package, but not for their
    subclasses, nor for objects with a replaced method.
    """
    if is_default(fingerprinter):
        return fingerprint, fingerprint_of_url
    if (
        is_ours(type(fingerprinter), "CanonicalRequestFingerprinter")
        and is_own_method(fingerprinter, "fingerprint", "scrapy_bloom")
        and agrees_with_scrapy()
    ):
        ours: Any = fingerprinter
        return ours.fingerprint, ours.fingerprint_of_url
    return None, None


def is_default(fingerprinter: object) -> bool:
    """Return True if `fingerprinter` is known to give the same results as `fingerprint`."""
    kind = type(fingerprinter)
    return (
        (kind is RequestFingerprinter or is_ours(kind, "FastRequestFingerprinter"))
        and is_own_method(fingerprinter, "fingerprint", "scrapy", "scrapy_bloom")
        and all(each in (fingerprint, scrapy_fingerprint) for each in vars(fingerprinter).values())
        and agrees_with_scrapy()
    )


@cache
def agrees_with_scrapy() -> bool:
    """Return True if the functions above agree with the installed Scrapy and w3lib, of which a
    later release may change the fingerprints. Cost: 1 ms, once."""
    try:
        return all(
            fingerprint(request) == scrapy_fingerprint(request) for request in map(Request, _PROBES)
        )
    except Exception:  # noqa: BLE001 - whatever may have changed
        return False


# One for each thing that the code above takes for granted.
_PROBES = (
    "http://example.com",
    "https://www.example.com/#part",
    "http://example.com:80/",
    "https://127.0.0.1:8443/a//b/",
    "http://127.0.0.1:59999/",
    "http://a_b-c.example.com./~.well-known/..a/b../...",
    "http://example.com/AZaz09_.~:@!$&'()*+,=-",
    "http://example.com/%00%20%22%23%2F%3C%3E%3F%5C%5E%60%7B%7D%7F%80%FF",
    "http://example.com/?",
    "http://example.com/?a=1#part?b=2",
    "http://example.com/?b=2&a=1&&a-b=3&c&=d&a=0&c=d=e",
    "http://example.com/?b=%2F&b=0&a=+x&a=%20w&%40-=1",
    "http://example.com/?q=%00%21%25%2B%3B%3D%40%5B%60%7B%7F%FF&q=AZaz09_.~-",
    "http://example.com/?u=http://a@b/c,d?(e)*$!",
)
