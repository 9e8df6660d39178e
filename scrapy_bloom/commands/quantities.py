"""Numbers as people write them."""

from __future__ import annotations

import argparse
from math import isfinite


def number(text: str) -> int:
    """Return a positive whole number written as 5000000, 5_000_000, 5e6, 5M or 0.5G."""
    factors = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "b": 1_000_000_000}
    factor = factors.get(text[-1:].lower(), 1)
    try:
        if factor == 1:
            try:
                value: float = int(text.replace(",", ""))
            except ValueError:
                value = float(text)
        else:
            value = float(text[:-1]) * factor
    except ValueError:
        value = -1
    if not isfinite(value) or value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a positive whole number, such as 5000000, 5M or 5e6"
        )
    return int(value)
