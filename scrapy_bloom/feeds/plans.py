"""How each feed of an exporter is to be written, and what it was begun with."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FeedExporter, StdoutFeedStorage
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name

from ..errors import FeedError
from ..scrapy_compat import FeedExporterView
from .feeds import Plan
from .formats import Pickled, Text, grows
from .storing import is_local, local_path, overwrites

if TYPE_CHECKING:
    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedSlot

    from .feeds import Working
    from .outbox import Batch, Feed


class Plans:
    """Plans the feeds of `exporter` by its settings. Raises JobDirectoryError that names what this
    release of Scrapy lacks."""

    def __init__(self, exporter: FeedExporter) -> None:
        self._exporter = exporter
        self._crawler = exporter.crawler
        self._view = FeedExporterView(exporter)
        self._storages: dict[str, Any] = {}

    def is_durable(self, template: str) -> bool:
        """Return False for a feed that cannot be cut: standard output, a device, a pipe."""
        storage = self._storage_of(template, self._exporter.feeds[template])
        if not is_local(storage):
            return not isinstance(storage, StdoutFeedStorage)
        path = local_path(storage)
        return path.is_file() or not path.exists()

    def plan(self, feed: Feed, options: dict[str, Any], directory: Path) -> Plan:
        """Return how `feed` is to be written, with part files in `directory`."""
        template = feed.template
        storage = self._storage_of(template, options)
        build = partial(self._build, options)
        in_place = is_local(storage) and "postprocessing" not in options
        in_place = in_place and grows(self._exporter.exporters[options["format"]])
        return Plan(
            format=Text(build, feed.head, feed.columns) if in_place else Pickled(build),
            limit=options["batch_item_count"] or None,
            in_place=in_place,
            job=directory.parent.resolve(),
            overwrites=overwrites(storage, options) if in_place else True,
            options=options,
            build=build,
            evaluate=partial(self._evaluate, template, options),
            place=partial(self._place, options, None if in_place else directory),
        )

    def slot(self, working: Working, batch: Batch) -> FeedSlot:
        """Return Scrapy's object for `batch`, with its storage."""
        template, options = working.feed.template, working.plan.options
        self._exporter.filters.setdefault(template, self._view.filter(options))
        return self._view.slot(self._crawler.spider, template, options, batch.number, batch.uri)

    def describe(self, template: str) -> dict[str, Any]:
        """Return the options of a feed in the form of JSON, and the classes that it uses."""
        options = self._exporter.feeds[template]
        return {
            **{name: _plain(value) for name, value in options.items()},
            "exporter": global_object_name(self._exporter.exporters[options["format"]]),
            "storage": global_object_name(type(self._storage_of(template, options))),
        }

    def require_same(self, feed: Feed) -> None:
        """Raise FeedError if `feed` has options now other than those that it was begun with."""
        now = self.describe(feed.template)
        for name in sorted({*now, *feed.options}):
            if feed.options.get(name) != now.get(name):
                raise FeedError(
                    f"feed {feed.template!r} was begun with {name} {feed.options.get(name)!r}, and"
                    f" now has {now.get(name)!r}: change it back until the job is finished, or"
                    " give the feed another name, or use a new JOBDIR"
                )

    def _build(self, options: dict[str, Any], file: Any) -> BaseItemExporter:
        exporter: BaseItemExporter = build_from_crawler(
            self._exporter.exporters[options["format"]],
            self._crawler,
            file,
            fields_to_export=options["fields"],
            encoding=options["encoding"],
            indent=options["indent"],
            **options["item_export_kwargs"],
        )
        return exporter

    def _evaluate(self, template: str, options: dict[str, Any], number: int) -> str:
        before = SimpleNamespace(batch_id=number - 1) if number > 1 else None
        return self._view.evaluate(self._crawler.spider, template, options["uri_params"], before)

    def _place(self, options: dict[str, Any], directory: Path | None, batch: Batch) -> Path:
        if directory is not None:
            return directory / f"{batch.id}.part"
        return Path(batch.path or local_path(self._view.storage(batch.uri, options)))

    def _storage_of(self, template: str, options: dict[str, Any]) -> Any:
        """Return a storage of the feed's kind, built once: that may be expensive."""
        if template not in self._storages:
            self._storages[template] = self._view.storage(template, options)
        return self._storages[template]


_AS_IT_IS = (str, int, float, bool, type(None))


def _plain(value: Any) -> Any:
    """Return the value of an option in the form of JSON, the same in each process. Sets are sorted;
    classes and functions become their names, other objects those of their types."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, _AS_IT_IS):
        return value
    if isinstance(value, partial):
        return f"functools.partial of {_plain(value.func)}"
    if isinstance(value, (bytes, PurePath)):
        return str(value)
    return global_object_name(value if hasattr(value, "__qualname__") else type(value))
