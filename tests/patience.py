"""How tests wait: for a condition, and not for a time."""

import time

PATIENCE = 600.0
"""Seconds after which a test gives up: a busy machine does not take so long, what hangs does."""


def wait_until(condition, what="what was to come"):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE} s for {what}")
        time.sleep(0.02)
