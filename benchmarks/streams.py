"""The request streams of the benchmarks: lists of URLs, and two that are made of them."""

import gzip
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from sidebyside import ROOT

SAMPLES = ROOT / "tests" / "data"
DATA = Path(os.environ.get("SCRAPY_BLOOM_DATA", SAMPLES))


def read(path: Path) -> list[str]:
    """The lines of a list of URLs, plain or gzip."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [line for line in text.decode("utf-8", "surrogateescape").split("\n") if line]


def streams(files: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The files given, or those of SCRAPY_BLOOM_DATA, or samples; then two made from them."""
    paths = [Path(file) for file in files] or sorted(
        [*DATA.glob("stream_*.txt.gz"), *DATA.glob("urls_[kt]*.txt.gz")]
    )
    for path in paths:
        yield path.name.removesuffix(".gz").removesuffix(".txt"), read(path)
    if not files:
        real = [url for path in paths if path.name.startswith("urls_") for url in read(path)]
        yield "made: links with queries", crawl_of([url for url in real if "?" in url], real)
        yield "made: shop", crawl_of(list(shop()), [f"http://shop.example/{n}" for n in range(40)])


def crawl_of(queries: list[str], others: list[str], pages: int = 6_000) -> list[str]:
    """A crawl of a site of `pages` pages, 95 % of them with a query: each links to two
    dozen, the popular ones much more often than the others, some with a fragment."""
    chance = random.Random(95)
    urls = list(dict.fromkeys(queries))
    chance.shuffle(urls)
    urls = urls[: pages * 95 // 100]
    urls += chance.sample(others, min(len(others), len(urls) // 19))
    chance.shuffle(urls)
    weights = [1 / (rank + 5) for rank in range(len(urls))]
    stream = []
    for page in urls:
        stream += [page, *chance.choices(urls, weights, k=15)]
        at = chance.randrange(len(urls))
        stream += urls[at : at + 8]
    return [
        f"{url}#p{n % 9}" if n % 5 == 0 and "#" not in url else url for n, url in enumerate(stream)
    ]


def shop() -> Iterator[str]:
    """The URLs of a shop: lists with filters in any order, items, sessions and searches."""
    chance = random.Random(7)
    while True:
        fields = [
            f"category={chance.randrange(60)}",
            f"page={chance.randrange(30)}",
            chance.choice(["sort=price_asc", "sort=name", "order=desc"]),
            chance.choice(["filter%5Bcolor%5D=red", "q=blue+shoes", "q=caf%C3%A9", "view=grid"]),
            chance.choice(["ref=/home", "date=2024-01-01T10:00", "per_page=48", "in_stock"]),
        ]
        chance.shuffle(fields)
        query = "&".join(fields[: chance.randrange(1, 6)])
        yield f"http://shop.example/{chance.choice(['list', 'search', 'item.php'])}?{query}"
        if chance.random() < 1 / 20_000:
            return
