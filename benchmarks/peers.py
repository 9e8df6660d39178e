"""The other Bloom filters, each in its obvious use, with `add` that answers whether the
key was there, and `__contains__`. What is not installed is left out, with a line that says so."""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace


def filters() -> dict[str, Callable[[int, float], object]]:
    """Return makers of filters from a capacity and an error rate, by name."""
    makers = {
        "pybloom_live": answering("pybloom_live"),
        "pybloomfiltermmap3": answering("pybloomfilter"),
        "rbloom": rust_bloom,
        "fastbloom-rs": fastbloom,
    }
    return {name: make for name, make in makers.items() if is_there(name, make)}


def is_there(name: str, make: Callable[[int, float], object]) -> bool:
    """Return whether what `make` needs is installed."""
    try:
        make(10, 0.1)
    except ImportError:
        print(f"{name} is not installed, and left out")
        return False
    return True


def answering(module: str) -> Callable[[int, float], object]:
    """Return a maker of filters of a class whose `add` answers."""
    return lambda capacity, rate: import_module(module).BloomFilter(capacity, rate)


def rust_bloom(capacity: int, error_rate: float) -> object:
    """rbloom: `add` does not answer. Its own hash changes with the process: the first
    16 bytes of a fingerprint, which is a hash already, are what is the least work."""
    from rbloom import Bloom

    made = Bloom(capacity, error_rate, stable_hash)
    new = made.add

    def add(key: bytes) -> bool:
        if key in made:
            return True
        new(key)
        return False

    return SimpleNamespace(add=add, __contains__=made.__contains__)


def stable_hash(key: bytes) -> int:
    """A signed 128-bit number, as rbloom asks for."""
    return int.from_bytes(key[:16], "little", signed=True)


def fastbloom(capacity: int, error_rate: float) -> object:
    """fastbloom-rs: `add_if_not_contains` answers."""
    from fastbloom_rs import FilterBuilder

    made = FilterBuilder(capacity, error_rate).build_bloom_filter()
    return SimpleNamespace(add=made.add_if_not_contains, __contains__=made.contains_bytes)
