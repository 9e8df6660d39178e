"""Feeds of every kind: the spider that fills them, a storage, and what they hold."""

import bz2
import csv
import gzip
import io
import json
import marshal
import pickle
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

import scrapy
from itemadapter import ItemAdapter
from scrapy import Request
from scrapy.exporters import JsonLinesItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage

from scrapy_bloom.crawl.ledger import Ledger
from tests.crawl.engine import query
from tests.world.tree import TreeSpider

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "pipelines.md"


class Page(scrapy.Item):
    """An item of a class of its own."""

    number = scrapy.Field()
    part = scrapy.Field()
    text = scrapy.Field()


def documented_pipeline():
    """Return the pipeline of the document."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names = {"__name__": __name__}
    exec(code, names)
    return names["BooksPipeline"]


class Books(documented_pipeline()):
    """Has each item as a book."""

    def open_spider(self):
        super().open_spider()
        Ledger.preparing_share = 1  # a busy machine is no slow pipeline

    def process_item(self, item):
        found = ItemAdapter(item)
        super().process_item({"url": f"{found['number']} {found['part']}", "title": ""})
        return item


class ItemSpider(TreeSpider):
    """Yields two items from each callback and errback, before and after its requests. Its state has
    the numbers of its pages."""

    custom_settings = {  # noqa: RUF012
        **TreeSpider.custom_settings,
        "ITEM_PIPELINES": {"tests.world.tree.Pipeline": 1, Books: 2},
    }

    async def start(self):
        for number in (0, 1):
            yield {"number": 1000, "part": "start", "text": ""}
            yield Request(f"{self.site}/plain/{number}", dont_filter=True)

    def children(self, number):
        vars(self).setdefault("state", {}).setdefault("numbers", set()).add(str(number))
        yield {"number": number, "part": "first", "text": f'<{number}>, "é"\n'}
        yield from super().children(number)
        yield Page(number=number, part="last", text="")

    found = children

    def failed(self, failure):
        for thing in super().failed(failure):
            is_seen_by_middlewares = hasattr(failure.value, "response")
            if isinstance(thing, Request) and not is_seen_by_middlewares:
                thing = thing.replace(dont_filter=False)
            yield thing


class OddPages:
    """An item filter."""

    def __init__(self, feed_options):
        pass

    def accepts(self, item):
        return ItemAdapter(item)["number"] % 2 == 1


class Shelf(BlockingFeedStorage):
    """A storage for `shelf:/path`, which stores a whole file or appends it."""

    def __init__(self, uri, *, feed_options=None):
        self.path = Path(uri.removeprefix("shelf:"))
        self.mode = "wb" if feed_options.get("overwrite") else "ab"

    def _store_in_thread(self, file):
        file.seek(0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open(self.mode) as stored:
            stored.write(file.read())
        file.close()


class OwnExporter(JsonLinesItemExporter):
    """An exporter of the user's."""


SETTINGS = {
    "FEED_STORAGES": {"shelf": "tests.world.feeds.Shelf"},
    "FEED_EXPORTERS": {"own": "tests.world.feeds.OwnExporter"},
}
GZIP = "scrapy.extensions.postprocessing.GzipPlugin"
BZ2 = "scrapy.extensions.postprocessing.Bz2Plugin"
FEEDS = {
    # name: options; what is in it and how it is read goes by them
    "all.jl": {"format": "jsonlines"},
    "all.csv": {"format": "csv"},
    "all.json": {"format": "json"},
    "all.xml": {"format": "xml", "indent": 2},
    "all.pickle": {"format": "pickle"},
    "all.marshal": {"format": "marshal"},
    "over.json": {"format": "json", "indent": 1, "overwrite": True},
    "over.jl": {"format": "jsonlines", "overwrite": True},
    "odd.csv": {"format": "csv", "item_filter": "tests.world.feeds.OddPages"},
    "pages.jl": {
        "format": "jsonlines",
        "item_classes": ["tests.world.feeds.Page"],
        "fields": ["number", "part"],
    },
    "all.json.gz": {"format": "json", "postprocessing": [GZIP]},
    "over.csv.bz2": {"format": "csv", "postprocessing": [BZ2], "overwrite": True},
    "own.jl": {"format": "own"},
    "shelf:whole.json": {"format": "json", "overwrite": True},
    "batch-%(batch_id)d.json": {"format": "json", "batch_item_count": 13},
    "few-%(batch_id)d.csv": {"format": "csv", "batch_item_count": 5},
    "shelf:batch-%(batch_id)d.csv": {"format": "csv", "batch_item_count": 29, "overwrite": True},
}
BOOKS = "books"
"""What stands beside them for the pipeline, which is checked as a feed is."""
SMALL_BATCHES = "few-%(batch_id)d.csv"


def feeds_in(folder, names=FEEDS):
    """Return the FEEDS setting for feeds of these names in `folder`."""
    return {
        f"shelf:{folder}/{name.removeprefix('shelf:')}-stored"
        if name.startswith("shelf:")
        else f"{folder}/{name}": dict(FEEDS[name])
        for name in names
    }


def items_of(folder, name):
    """Return the items of a feed, with how often each is there, if it is well-formed."""
    if name == BOOKS:
        return books_of(folder)
    found, pattern = Counter(), name.removeprefix("shelf:").replace("%(batch_id)d", "*")
    for path in folder.glob(pattern + ("-stored" if name.startswith("shelf:") else "")):
        for item in items_in(path.read_bytes(), name):
            found[json.dumps({key: str(value) for key, value in item.items()}, sort_keys=True)] += 1
    return found


def books_of(folder):
    """Return what the pipeline has stored, and which pages the spider's state of a job lacks."""
    urls = [url for (url,) in query(folder / "books.sqlite", "SELECT url FROM books")]
    job = folder / "job"
    numbers = {url.split()[0] for url in urls if not url.endswith("start")}
    known = state_of(job).get("numbers", set()) if job.exists() else numbers
    return Counter([*urls, *(numbers - known)])


def state_of(job):
    """Return the spider's state that the next start of a job has: what is committed, unless the
    file is not the one that this replaces."""
    path = job / "spider.state"
    saved = path.read_bytes() if path.exists() else None
    digest = saved and sha256(saved).digest()
    for state, replaced in query(job, "SELECT state, replaces FROM spider_state"):
        saved = state if replaced == digest else saved
    return pickle.loads(saved) if saved else {}


def items_in(data, name):
    """Return the items of a file."""
    if name.endswith(".gz"):
        data, name = gzip.decompress(data), name.removesuffix(".gz")
    if name.endswith(".bz2"):
        data, name = bz2.decompress(data), name.removesuffix(".bz2")
    return READERS[name.rpartition(".")[2]](data)


def lines(data):
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def rows(data):
    text = data.decode()
    assert text.endswith("\r\n") or not text
    return [*csv.DictReader(io.StringIO(text, newline=""), strict=True)]


def elements(data):
    return [{part.tag: part.text or "" for part in item} for item in ElementTree.fromstring(data)]


def loads(load):
    def read(data):
        file, items = io.BytesIO(data), []
        while file.tell() < len(data):
            items.append(load(file))
        return items

    return read


READERS = {
    "jl": lines,
    "csv": rows,
    "json": json.loads,
    "xml": elements,
    "pickle": loads(pickle.load),
    "marshal": loads(marshal.load),
}
