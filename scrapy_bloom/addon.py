"""One line in ADDONS that turns everything on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import load_object

from .dupefilter import BloomDupeFilter
from .durable.scheduler import DurableScheduler
from .settings import wants_durable

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class Addon:
    """Add-on for `ADDONS = {"scrapy_bloom.Addon": 300}`.

    A setting that anybody has set, the Scrapy shell included, stays as it is.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set DUPEFILTER_CLASS and SCHEDULER, unless they have been set; the latter
        not for another dupefilter or with BLOOM_DURABLE = False."""
        if settings.getpriority("DUPEFILTER_CLASS") == 0:
            settings.set("DUPEFILTER_CLASS", BloomDupeFilter, "addon")
        if (
            settings.getpriority("SCHEDULER") == 0
            and wants_durable(settings)
            and _is_ours(settings["DUPEFILTER_CLASS"])
        ):
            settings.set("SCHEDULER", DurableScheduler, "addon")


def _is_ours(dupefilter: Any) -> bool:
    try:
        found = load_object(dupefilter)
    except Exception:  # noqa: BLE001 - Scrapy says what is wrong with it
        return False
    return isinstance(found, type) and issubclass(found, BloomDupeFilter) and found.can_hold_back
