"""Scrapy's feed exporter, with feeds that survive the end of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydispatch.robustapply import robustApply
from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.defer import ensure_awaitable

from ..amounts import counted
from ..crawl.failed_request import item_refused
from ..crawl.origins import StartItems
from ..jobdir import session_of
from ..startup import announce
from ..texts import feeds_named

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from ..crawl.ledger import Ledger
    from ..sqlite.rounds import Round
    from .durable_feeds import DurableFeeds
    from .open_feed import Plans


class DurableFeedExporter(FeedExporter):
    """Extension in the place of Scrapy's, with the same settings, whose feeds hold each item once
    when the crawl is finished, regardless of how often the process died.

    That needs DurableScheduler and JOBDIR; without them it works as Scrapy's, and so does a feed to
    standard output. With RedisDurableScheduler and a JOBDIR for each worker the feeds hold each
    item at least once. Where a feed refuses an item Scrapy logs it, and `item_refused` is sent.
    """

    def __init__(self, crawler: Crawler) -> None:
        try:
            super().__init__(crawler)
        except NotConfigured:
            from .left import goes_on_without_feeds

            if self.feeds or not goes_on_without_feeds(self):
                raise
        session_of(crawler).feeds = self
        self.start_items = StartItems(crawler)
        self._plans: Plans | None = None
        self.durable: DurableFeeds | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Connect the exporter. Its use of the job ends when the spider is closed, even if the
        `close_spider` of a subclass does not call this one."""
        self = super().from_crawler(crawler)
        crawler.signals.disconnect(self.close_spider, signals.spider_closed)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)
        return self

    # -- called by Scrapy ----------------------------------------------------------

    def open_spider(self, spider: Spider) -> Any:
        """Continue the feeds of the round, or begin them."""
        if self.durable is None:
            return super().open_spider(spider)
        feeds, ours = self.feeds, self.durable.templates
        self.feeds = {uri: options for uri, options in feeds.items() if uri not in ours}
        super().open_spider(spider)
        self.feeds = feeds
        return self.durable.open()

    def item_scraped(self, item: Any, spider: Spider, response: Any = None) -> None:
        """Export `item`."""
        try:
            super().item_scraped(item, spider)
            if self.durable is not None:
                is_start_item = response is None and self.start_items.take(item)
                self.durable.add(item, response, is_start_item=is_start_item)
        except Exception as error:
            self.crawler.signals.send_catch_log(item_refused, response=response, error=error)
            raise

    async def close_spider(self, spider: Spider) -> None:
        """Complete the feeds that were written in place, and store the others."""
        if self.durable is not None:
            await self.durable.finish()
        await super().close_spider(spider)

    async def _spider_closed(self, **named: Any) -> None:
        try:
            # a subclass may take the reason, too, or nothing
            await ensure_awaitable(robustApply(self.close_spider, **named))
        finally:
            session_of(self.crawler).end(self)

    # -- called by the scheduler ---------------------------------------------------

    def look(self, round_: Round | None) -> DurableFeeds | None:
        """Return DurableFeeds of the round, if any. Raises what they and Plans raise."""
        from .durable_feeds import DurableFeeds
        from .open_feed import Plans

        plans = self._plans = self._plans or Plans(self)
        found = DurableFeeds(plans, round_) if round_ is not None else None
        plans.require_places(found.new if found else plans.templates)
        return found

    def attach(self, ledger: Ledger, round_: Round) -> None:
        """Write in the commits of `ledger` as soon as the spider is open. Raises FeedError; changes
        no feed."""
        self.durable = durable = self.look(round_)
        assert durable is not None
        durable.ledger = durable.outbox.ledger = ledger
        round_.at_end.append(durable.outbox.empty)
        # Redis acknowledges the requests of a crawl later than their items are final
        count, how_often = len(durable.templates), "at least once" if round_.crawl else "once"
        how = [f"{counted(count, 'feed')} with each item {how_often}"] if count else []
        if scrapys := self.feeds.keys() - durable.templates:
            how.append(f"not durable in {feeds_named(sorted(scrapys))}")
        way_out = bool(scrapys) * "write to a file of its own"
        announce(self.crawler, "items", ", ".join(how), way_out)
        if durable.has_any:
            round_.awaits_feeds = True
            session_of(self.crawler).begin(self)
