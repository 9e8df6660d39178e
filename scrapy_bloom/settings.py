"""The settings of the dupefilter, read from Scrapy's and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.utils.job import job_dir

from . import sizing

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

ON_FULL = ("grow", "close")


@dataclass(frozen=True)
class BloomSettings:
    """What the user asked for. README.md says what each setting means."""

    capacity: int = 1_000_000
    error_rate: float = 1e-6
    on_full: str = "grow"
    job_directory: Path | None = None
    debug: bool = False

    @classmethod
    def read(cls, settings: BaseSettings) -> BloomSettings:
        """Return the settings in `settings`, where numbers may be text (`-s`).

        Makes JOBDIR, as Scrapy does. Raises ValueError with the name, the value and
        the allowed range of the first bad one.
        """
        job_directory = job_dir(settings)
        capacity = _number(int, settings.get("BLOOM_CAPACITY", cls.capacity))
        error_rate = _number(float, settings.get("BLOOM_ERROR_RATE", cls.error_rate))
        on_full = settings.get("BLOOM_ON_FULL", cls.on_full)
        sizing.check_capacity(capacity, "BLOOM_CAPACITY")
        sizing.check_error_rate(error_rate, "BLOOM_ERROR_RATE")
        if on_full not in ON_FULL:
            raise ValueError(f"BLOOM_ON_FULL is {on_full!r}: it must be one of {ON_FULL}")
        return cls(
            capacity=capacity,
            error_rate=error_rate,
            on_full=on_full,
            job_directory=Path(job_directory) if job_directory else None,
            debug=settings.getbool("DUPEFILTER_DEBUG"),
        )


def _number(kind: type, value: Any) -> Any:
    """Return text as a number; what is no number stays for the range check to name."""
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            pass
    return value
