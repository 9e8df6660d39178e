"""The request streams of the benchmarks: lists of URLs, and requests that are made up."""

import gzip
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from sidebyside import ROOT

SAMPLES = ROOT / "tests" / "data"
DATA = Path(os.environ.get("SCRAPY_BLOOM_DATA", SAMPLES))


def read(path: Path) -> list[str]:
    """The lines of a list of URLs."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")
    return [line for line in text.split("\n") if line]


def streams() -> Iterator[tuple[str, list[str]]]:
    """The lists of SCRAPY_BLOOM_DATA, or samples, by name."""
    for path in sorted([*DATA.glob("stream_*.txt.gz"), *DATA.glob("urls_[kt]*.txt.gz")]):
        yield path.name.removesuffix(".txt.gz"), read(path)


URLS = read(SAMPLES / "urls_kasztp_20000.txt.gz")
PATHS = [urlsplit(url).path for url in URLS if url.isascii() and '"' not in url and " " not in url]
WORDS = re.findall("[a-z]{3,12}", " ".join(PATHS))[::5]
"""Words of real paths, the frequent ones more often."""
SITE_WORDS = WORDS[:400]
_CHANCE = random.Random(20)
FOLDERS = ["/".join(_CHANCE.choices(SITE_WORDS, k=1 + n % 4)) for n in range(150)]


def shop(number: int, slot: int) -> tuple[str, str | None]:
    """Return the URL and the referer of an item; the shops are all alike."""
    folder = f"http://shop-{slot:05}.example.com/catalogue/part-{number % 30:02}/"
    return f"{folder}item-{number}.html", folder


def one_site(number: int, slot: int) -> tuple[str, str | None]:
    """The same of one large site, with folders of very different sizes; other slots are mirrors."""
    chance = random.Random(number)
    folder = FOLDERS[int(len(FOLDERS) * chance.random() ** 3)]
    kind = chance.choice(["struct", "trait", "fn", "page", "enum", "page"])
    site = f"https://docs{slot}.example.org/{folder}/"
    return f"{site}{kind}.{chance.choice(SITE_WORDS)}{number}.html", f"{site}index.html"


def the_web(number: int, slot: int) -> tuple[str, str | None]:
    """The same of many sites that have nothing in common; links between them have no referer."""
    chance = random.Random(slot)
    host = f"www.{chance.choice(WORDS)}{slot}.{chance.choice(['com', 'org', 'co.uk'])}"
    chance = random.Random(number)
    folder, slash, _ = chance.choice(PATHS).rpartition("/")
    name = chance.choice(PATHS).rpartition("/")[2] or number
    return f"https://{host}{folder}{slash}{name}", f"https://{host}/" if number % 2 else None


CORPORA = {"shop": shop, "one site": one_site, "the web": the_web}
