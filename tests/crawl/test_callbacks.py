"""The names of callbacks, which Scrapy looks for among all attributes of a spider."""

import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.settings import Settings

from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.crawl.request_text import DEFAULTS
from scrapy_bloom.redis.codec import RedisCodec

URL = "http://a.example/"


class CountingSpider(Spider):
    """Notes when somebody looks at all that it has."""

    name = "counting"
    looks = 0

    @property
    def looked_at(self):
        type(self).looks += 1

    def parse(self, response):
        pass

    def parse_item(self, response):
        pass

    parse_alias = parse_item

    def failed(self, failure):
        pass


class OwnRequest(Request):
    """Has something to say about its spider."""

    def to_dict(self, *, spider=None):
        return {**super().to_dict(spider=spider), "flags": [spider.name, type(spider).__name__]}


@pytest.fixture
def spider():
    CountingSpider.looks = 0
    return CountingSpider()


def requests(spider):
    return [
        Request(URL),
        Request(URL, callback=spider.parse),
        Request(URL, spider.parse, "HEAD", {"Referer": URL}, b"b", meta={"depth": True}),
        Request(URL, spider.parse, flags=["a"], encoding="latin-1", priority=False, dont_filter=0),
        Request(URL, callback=spider.parse_item, errback=spider.failed),
        Request(URL, callback=spider.parse_alias, meta={"a": 1}, headers={"B": "c"}),
        Request(URL, errback=spider.failed, cookies={"a": "b"}, cb_kwargs={"d": 1}),
        FormRequest(URL, formdata={"a": "b"}, callback=spider.parse),
        OwnRequest(URL, callback=spider.parse, errback=spider.failed),
        # a method of another spider of the class counts by its function
        Request(URL, callback=CountingSpider().parse),
    ]


def test_same_dicts(spider):
    """What is stored of a request is what Scrapy would store, with the types, the first time and
    later, and without a spider, as in a script."""
    codec = Codec(spider, 1000)
    for request in requests(spider) * 3:
        fields, expected = {**DEFAULTS, **codec.fields(request)}, request.to_dict(spider=spider)
        assert fields == expected
        assert {n: type(fields[n]) for n in fields} == {n: type(expected[n]) for n in fields}
    assert {**DEFAULTS, **Codec(None, 1000).fields(Request(URL))} == Request(URL).to_dict()


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_both_backends_look_for_each_method_once(spider, backend):
    """Whatever else the spider has, and however many plain requests have the method."""
    is_redis = backend == "redis"
    dump = RedisCodec(Settings(), spider).dump if is_redis else Codec(spider, 1000).fields
    for request in requests(spider) * 5:
        if type(request) is not OwnRequest:
            dump(request)
    # parse; parse_item and failed, which came together
    assert spider.looks == 3


def test_a_method_that_was_replaced_is_looked_for_again(spider):
    """A name is of use while it leads to the function, and for no other function."""
    codec = Codec(spider, 1000)
    old = Request(URL, callback=spider.parse)
    assert codec.fields(old)["callback"] == codec.fields(old)["callback"] == "parse"
    spider.parse = spider.failed
    new = Request(URL, callback=spider.parse)
    assert {**DEFAULTS, **codec.fields(new)} == new.to_dict(spider=spider)
    with pytest.raises(ValueError, match="is not an instance method in") as expected:
        old.to_dict(spider=spider)
    with pytest.raises(ValueError, match="is not an instance method in") as raised:
        codec.fields(old)
    assert str(raised.value) == str(expected.value)
