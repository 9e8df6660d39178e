"""`request_seen` on streams of requests, against RFPDupeFilter and dupefilters made of
other Bloom filters in the obvious way. All use Scrapy's default fingerprinter.

    python benchmarks/bench_request_seen.py [--requests N] [--rounds N]
"""

import tempfile
import tracemalloc
from contextlib import suppress

from peers import filters
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.test import get_crawler
from sidebyside import Clock, mean, parser_of, table
from streams import streams

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.speed import RecentKeys

CAPACITY, ERROR_RATE = 1_000_000, 1e-6


class PeerDupeFilter(RFPDupeFilter):
    """RFPDupeFilter with a Bloom filter in place of its set."""

    def request_seen(self, request: Request) -> bool:
        """Return what the Bloom filter says."""
        return bool(self.add(self.fingerprinter.fingerprint(request)))


def dupefilter(kind: object, job: str | None) -> object:
    crawler = get_crawler(settings_dict={"JOBDIR": job, "BLOOM_CAPACITY": CAPACITY})
    crawler.spider = None
    if isinstance(kind, type):
        made = kind.from_crawler(crawler)
    else:
        made = PeerDupeFilter.from_crawler(crawler)
        made.add = kind(CAPACITY, ERROR_RATE).add
    made.open()
    return made


def requests(urls: list[str]) -> list[Request]:
    """Fresh requests, without the lines that are no URLs."""
    made = []
    for url in urls:
        with suppress(ValueError):
            made.append(Request(url))
    return made


def memory(urls: list[str]) -> tuple[float, float]:
    """The share of requests that the recent URLs answer, and their memory in bytes."""
    found = 0
    offered = [request.url for request in requests(urls)]
    tracemalloc.start()
    recent = RecentKeys(65_536)
    for url in offered:
        cut = url.partition("#")[0]
        if cut in recent.urls:
            found += 1
        else:
            recent.add(cut.encode().decode())  # a string of its own
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found / len(offered), taken


def main() -> None:
    arguments = parser_of(__doc__, requests=(60_000, "of each at most"), rounds=3).parse_args()
    kinds = {
        "RFPDupeFilter": (RFPDupeFilter, False),
        "ours": (BloomDupeFilter, False),
        "RFP+JOBDIR": (RFPDupeFilter, True),
        "ours+JOBDIR": (BloomDupeFilter, True),
        **{name: (kind, False) for name, kind in filters().items()},
    }
    ratios, times, ours = [], [], []
    for name, urls in streams():
        stream = urls[: arguments.requests]
        clock, verdicts = Clock(), {}
        for _ in range(arguments.rounds):
            for kind, (made, has_job) in kinds.items():
                with tempfile.TemporaryDirectory() as job:
                    tested = dupefilter(made, job if has_job else None)
                    verdicts[kind] = clock.run(kind, tested.request_seen, requests(stream))
                    tested.close("finished")
        wrong = sum(map(bool.__ne__, verdicts["ours"], verdicts["RFPDupeFilter"]))
        each = {kind: clock.each(kind) for kind in kinds}
        hits, taken = memory(urls)
        known = sum(verdicts["ours"]) / len(verdicts["ours"])
        ours.append(each["RFPDupeFilter"] / each["ours"])
        ratios.append([name, *(f"{each['RFPDupeFilter'] / each[kind]:.2f}" for kind in kinds)])
        shares = [f"{known:.1%}", f"{hits:.1%}", f"{taken / 1e6:.1f} MB", wrong]
        times.append([name, *(f"{each[kind]:.2f}" for kind in kinds), *shares])
    print("times as fast as RFPDupeFilter without JOBDIR")
    table(["stream", *kinds], ratios)
    print(f"ours: {mean(ours):.1f} times as the geometric mean, {min(ours):.1f} at least")
    print("\nmicroseconds; duplicates; recent URLs: share answered, memory; verdicts wrong")
    table(["stream", *kinds, "dupl.", "recent", "memory", "wrong"], times)


if __name__ == "__main__":
    main()
