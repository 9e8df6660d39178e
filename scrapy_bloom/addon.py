"""One line in ADDONS that turns everything on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .dupefilter import BloomDupeFilter

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class Addon:
    """Add-on for `ADDONS = {"scrapy_bloom.Addon": 300}`.

    A setting that anybody has set, the Scrapy shell included, stays as it is.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set DUPEFILTER_CLASS, unless it has been set."""
        if settings.getpriority("DUPEFILTER_CLASS") == 0:
            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
