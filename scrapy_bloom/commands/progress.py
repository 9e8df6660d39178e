"""A progress bar for long work, where somebody can see it."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Progress:
    """A bar of tqdm's on standard error, if that is a terminal and tqdm is installed
    (the extra `cli`); nothing otherwise."""

    def __init__(self, label: str, total: int, unit: str) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            with suppress(ImportError):
                self._bar = import_module("tqdm").tqdm(
                    total=total or None, desc=label, unit=unit, unit_scale=True, leave=False
                )

    def show(self, done: int) -> None:
        """Show that `done` of the total are done."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
