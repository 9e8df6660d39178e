"""The embedded site: every page and its answer, with no file, no clock and no chance in it."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache
from itertools import chain
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from zlib import crc32

PARTS, CHAPTERS_PER_PART = 30, 36
CHAPTERS = PARTS * CHAPTERS_PER_PART
MODULES, NAMES_PER_MODULE = 25, 20
NAMES = MODULES * NAMES_PER_MODULE
TERMS, ITEMS, MOVED, FLAKY, GONE = 100, 60, 20, 30, 25
TOPICS, RESULTS_PER_TOPIC = 24, 4
FIRST_DAY, DAYS = date(2021, 1, 1), 1826
SECTIONS = ("docs", "api", "calendar", "glossary", "shop", "search", "moved", "flaky")
NAVIGATION = ("/", *(f"/{section}" for section in SECTIONS))


class Page(NamedTuple):
    """A request in canonical form: arguments in order, escapes in upper case."""

    method: str
    url: str
    body: str = ""


class Answer(NamedTuple):
    """What a page answers, after `failures` times 500; `topics` are the choices of a form."""

    status: int
    title: str = ""
    links: Sequence[str] = ()
    location: str = ""
    failures: int = 0
    topics: Sequence[str] = ()


NOT_FOUND = Answer(404, "Not found")
Answers = Iterator[tuple[Page, Answer]]


def session_of(user_agent: str) -> str:
    """Return the session id of a visitor: the same on each visit, also to a restarted site."""
    return format(crc32(user_agent.encode()), "08x")


def canonical(method: str, target: str, body: str = "") -> Page:
    """Return the page that a request for `target`, a path with its query, asks for."""
    path, query = urlsplit(target)[2:4]
    url = quote(unquote(path))
    if query:
        url += "?" + urlencode(sorted(parse_qsl(query)))
    return Page(method, url, urlencode(sorted(parse_qsl(body))))


@lru_cache(maxsize=8)
def site(session: str) -> dict[Page, Answer]:
    """Return every page that the site links to and its answer to one visitor; the rest is a 404."""
    public = chain(home(), docs(), api(), calendar(), glossary(), search(), moved(), flaky())
    return dict(chain(public, shop(session)))


def pages(session: str) -> list[Page]:
    """List the pages that a complete crawl fetches with a 200, each of them once."""
    return [page for page, answer in site(session).items() if answer.status == 200]


def get(
    target: str, title: str, links: Sequence[str] = (), failures: int = 0
) -> tuple[Page, Answer]:
    return canonical("GET", target), Answer(200, title, links, failures=failures)


def redirect(target: str, status: int, location: str) -> tuple[Page, Answer]:
    return canonical("GET", target), Answer(status, location=location)


def chapter(n: int) -> str:
    part, number = divmod(n % CHAPTERS, CHAPTERS_PER_PART)
    return f"/docs/part-{part:02}/chapter-{number:02}.html"


def entry(n: int, *, reordered: bool = False) -> str:
    """Return the address of an API entry, its two arguments in either order."""
    module, number = divmod(n % NAMES, NAMES_PER_MODULE)
    arguments = [f"module=m{module:02}", f"name=n{number:02}"]
    return "/api?" + "&".join(arguments[::-1] if reordered else arguments)


def term(n: int, *, lower: bool = False) -> str:
    """Return the address of a glossary entry, its escapes in lower or in upper case."""
    address = f"/glossary/{quote(f'café {n % TERMS}')}"
    return address.replace("%C3%A9", "%c3%a9") if lower else address


def day_address(n: int) -> str:
    return f"/calendar/{FIRST_DAY + timedelta(n):%Y/%m/%d}"


def home() -> Answers:
    yield get("/", "Home", [chapter(n * 97) for n in range(12)] + [entry(n * 31) for n in range(6)])


def docs() -> Answers:
    """Chapters with what real documentation has most of: links to headings of other pages."""
    parts = [f"/docs/part-{part:02}/" for part in range(PARTS)]
    yield get("/docs", "Documentation", parts)
    for part, address in enumerate(parts):
        first = part * CHAPTERS_PER_PART
        yield get(address, f"Part {part}", [chapter(first + n) for n in range(CHAPTERS_PER_PART)])
    for n in range(CHAPTERS):
        near = [f"{chapter(n + step)}#part-{part}" for step in (-1, 1, 2) for part in (1, 2)]
        far = [chapter(n * 7 + step) for step in (3, 5)]
        entries = [entry(n), entry(n * 3), entry(n * 3, reordered=True)]
        terms = [term(n), term(n, lower=True)]
        links = [parts[n // CHAPTERS_PER_PART], *near, *far, *entries, *terms, day_address(n)]
        if n % 12 == 0:
            links.append(f"/old/{n}.htm")
            yield redirect(f"/old/{n}.htm", 301, chapter(n))
        if n < GONE:
            links.append(f"/gone/{n}")
            yield canonical("GET", f"/gone/{n}"), NOT_FOUND
        yield get(chapter(n), f"Chapter {n}", links)


def api() -> Answers:
    """Entries addressed by two arguments, which other pages give in either order."""
    modules = [f"/api?module=m{module:02}" for module in range(MODULES)]
    yield get("/api", "API", modules)
    for module, address in enumerate(modules):
        first = module * NAMES_PER_MODULE
        yield get(address, f"Module {module}", [entry(first + n) for n in range(NAMES_PER_MODULE)])
    for n in range(NAMES):
        others = [entry(n * 5 + step, reordered=step % 2 == 0) for step in range(8)]
        links = [modules[n // NAMES_PER_MODULE], *others, chapter(n), f"{chapter(n)}#api"]
        yield get(entry(n), f"Entry {n}", links)


def calendar() -> Answers:
    """Five years of days, each linked to the day before and after; months link only to weeks."""
    days = [FIRST_DAY + timedelta(n) for n in range(DAYS)]
    months = sorted({f"/calendar/{day:%Y/%m}" for day in days})
    years = sorted({f"/calendar/{day:%Y}" for day in days})
    yield get("/calendar", "Calendar", years)
    for year in years:
        yield get(year, f"Year {year[-4:]}", [month for month in months if month.startswith(year)])
    for at, month in enumerate(months):
        weeks = [f"{month}/{day:02}" for day in (1, 8, 15, 22)]
        yield get(month, f"Month {month[-7:]}", months[max(at - 1, 0) : at + 2] + weeks)
    for n, day in enumerate(days):
        beside = [day_address(other) for other in (n - 1, n + 1) if 0 <= other < DAYS]
        events = [f"{chapter(n)}#event-{number}" for number in range(4)]
        month = f"/calendar/{day:%Y/%m}"
        above = [month, f"{month}#week-{day:%V}", f"/calendar/{day:%Y}"]
        others = [entry(n), term(n, lower=n % 2 == 0)]
        yield get(day_address(n), f"Day {day}", beside + above + events + others)


def glossary() -> Answers:
    """Terms whose addresses need percent-escapes, which other pages give in either case."""
    yield get("/glossary", "Glossary", [term(n, lower=n % 3 == 0) for n in range(TERMS)])
    for n in range(TERMS):
        others = [term(n + step, lower=step % 2 == 0) for step in range(-4, 5)]
        yield get(term(n), f"Term {n}", [*others, *(chapter(n + step) for step in range(6))])


def shop(session: str) -> Answers:
    """A section that sends visitors without a session on to theirs, and keeps it in each link."""
    plain = ["/shop", *(f"/shop/item-{item}" for item in range(ITEMS))]
    kept = [f"{address}?session={session}" for address in plain]
    for number, (address, target) in enumerate(zip(plain, kept, strict=True)):
        yield redirect(address, 302, target)
        near = [kept[(number + step) % len(kept)] for step in range(10)]
        yield get(target, f"Shop {number}", [kept[0], *(near if number else kept), address])


def search() -> Answers:
    """One address that gives a form, or the results for a body; the pages found hang on these."""
    topics = [f"topic-{topic:02}" for topic in range(TOPICS)]
    yield canonical("GET", "/search"), Answer(200, "Search", topics=topics)
    for topic in topics:
        found = [f"/found/{topic}/{n}" for n in range(RESULTS_PER_TOPIC)]
        body = urlencode({"scope": "all", "topic": topic})
        results = Answer(200, f"Results for {topic}", found, topics=topics)
        yield canonical("POST", "/search", body), results
        for n, address in enumerate(found):
            links = [*found, *(chapter(n * 11 + step) for step in range(6))]
            yield get(address, f"Found {topic} {n}", links)


def moved() -> Answers:
    """Pages that can be reached only through a chain of three redirects."""
    yield get("/moved", "Moved", [f"/go/{n}/3" for n in range(MOVED)])
    for n in range(MOVED):
        yield redirect(f"/go/{n}/3", 302, f"/go/{n}/2")
        yield redirect(f"/go/{n}/2", 301, f"/go/{n}/1")
        yield redirect(f"/go/{n}/1", 302, f"/moved/{n}")
        links = [f"/go/{n}/3", *(chapter(n + step) for step in range(8))]
        yield get(f"/moved/{n}", f"Moved {n}", links)


def flaky() -> Answers:
    """Pages that answer 500 once or twice before they heal."""
    addresses = [f"/flaky/{n}" for n in range(FLAKY)]
    yield get("/flaky", "Flaky", addresses)
    for n, address in enumerate(addresses):
        links = [*addresses[n : n + 6], chapter(n)]
        yield get(address, f"Flaky {n}", links, failures=1 + n % 2)
