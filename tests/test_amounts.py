"""Quantities as people write them."""

import pytest

from scrapy_bloom.amounts import MOST, whole_number
from scrapy_bloom.amounts import seconds as seconds_of
from scrapy_bloom.texts import duration, without_user

QUANTITIES = {
    7: 7, 1e7: 10**7, "0": 0, " 7 ": 7, "5_000": 5000, "1,000,000": 10**6, "1E+8": 10**8,
    "1.5e3": 1500, "2.3m": 2_300_000, "2.5k": 2500, "1G": 10**9, "0.5b": 500_000_000, "1e3k": 10**6,
    "123456789012345": 123456789012345, MOST: MOST, "5 M": 5 * 10**6,
}  # fmt: skip
NO_QUANTITIES = [
    "", "-5", "1.5", "M", "1e", "snan", "inf", "1e9999999999", "1,5", "1,5M", "1,00", "_1",
    "5MM", "0x10", "²", "1.0005k", MOST + 1, "1e16", -1, 1.5, float("nan"), 1e300, True, None, b"5",
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "number"), [*QUANTITIES.items(), *((value, None) for value in NO_QUANTITIES)]
)
def test_quantities_may_be_written_as_people_do(value, number):
    """Underscores, commas, exponents and suffixes, exactly; whole ones from 0 on."""
    read = whole_number(value)
    assert (read, type(read)) == (number, type(number))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1s", 1), ("1.5 m", 90), ("12h", 43_200), ("30d", 2_592_000), ("1W", 604_800),
        (2, 172_800), (0.5, 43_200), (0, 0), ("0s", 0), ("-1d", None), ("1y", None),
        ("", None), (True, None), (None, None), (1e9, None), (float("nan"), None),
    ],
)  # fmt: skip
def test_times_have_units(value, expected):
    """Days without one; forever is no time."""
    assert seconds_of(value) == (expected if expected is None else pytest.approx(expected))


def test_durations():
    """In the two largest units."""
    texts = {
        None: "-",
        0.04: "0.0 s",
        59: "59 s",
        60: "1 min 0 s",
        7500: "2 h 5 min",
        90_000: "1 d 1 h",
    }
    assert {seconds: duration(seconds) for seconds in texts} == texts


@pytest.mark.parametrize("secret", ["", "me@", "me:hu@sh@", "me:hush//@"])
def test_no_part_of_a_password_is_named(secret):
    """Also of one with the characters that end it."""
    shown = "…" if secret else ""
    assert without_user(f"ftp://{secret}a.example/items.csv") == f"ftp://{shown}a.example/items.csv"
