"""The parts of Scrapy's feed exporter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scrapy.extensions import feedexport

from . import get, require

if TYPE_CHECKING:
    from scrapy.extensions.feedexport import FeedSlot, FeedStorageProtocol


class FeedExporterView:
    """The parts of a feed that `exporter`, a feed exporter of Scrapy, makes. Raises
    JobDirectoryError that names what this release of Scrapy lacks."""

    def __init__(self, exporter: object) -> None:
        self._exporter: Any = exporter
        by, way_out = "DurableFeedExporter", "BLOOM_DURABLE_FEEDS to False"
        for name in ("_start_new_batch", "_get_storage", "_get_uri_params"):
            require(f"FeedExporter.{name}", callable(get(exporter, name)), by, way_out)

    def storage(self, uri: str, options: dict[str, Any]) -> FeedStorageProtocol:
        """Return the storage of `uri`. Raises what its constructor raises."""
        return self._exporter._get_storage(uri, options)  # type: ignore[no-any-return]

    def slot(self, template: str, options: dict[str, Any], number: int, uri: str) -> FeedSlot:
        """Return Scrapy's object for a batch, as signals carry it, with its storage."""
        spider = self._exporter.crawler.spider
        return self._exporter._start_new_batch(  # type: ignore[no-any-return]
            batch_id=number, uri=uri, feed_options=options, spider=spider, uri_template=template
        )

    def evaluate(self, template: str, options: dict[str, Any], number: int) -> str:
        """Return the URI of batch `number`, 1 for the first one. Raises what the spider does."""
        spider, before = self._exporter.crawler.spider, SimpleNamespace(batch_id=number - 1)
        parameters = self._exporter._get_uri_params(spider, options["uri_params"], before)
        apply = getattr(feedexport, "apply_uri_params", None)  # since Scrapy 2.15 or so
        return str(template % parameters if apply is None else apply(template, parameters))
