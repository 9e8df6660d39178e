"""The plan of the package: who may import whom, what is public."""

import ast
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import scrapy_bloom

# Rooms that work without Scrapy, and what they may import that is not Python's own.
WITHOUT_SCRAPY = {
    "bloom": {"bitarray", "mmh3", "typing_extensions"},  # the last for types alone
    "errors": set(),
    "files": set(),
    "atomic": set(),
}

# Filters and alerts of users name the loggers: one keeps its name when its module moves.
LOGGERS = """
    addon audit delta.crawl delta.digests delta.middleware delta.pages delta.skipping
    distributed.seed_list distributed.start_requests distributed.worker dupefilter
    durable.base durable.failing durable.feeds.exporter durable.feeds.storing durable.ledger
    durable.orders durable.scheduler durable.spider_state durable.sqlite_store
    durable.start_requests
    fingerprints.safe holds job_dupefilter later redirects shared.dupefilter startup
"""

# What a docstring may have beside the words of a name and still says nothing.
EMPTY_WORDS = """
    a an and are as at be by for from gives has have in is it its of on or return say that the this
    to whether which with yield
"""

PACKAGE = Path(scrapy_bloom.__file__).parent
ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def room_of(module):
    """Return the room of a file, or of a dotted name below the package."""
    return module.removesuffix(".py").replace("/", ".").partition(".")[0]


def imports(module):
    """Yield (line, dotted name) for what a file imports, wherever in it and for whatever:
    an import for types alone ties two rooms together, too."""
    package = ["scrapy_bloom", *Path(module).parent.parts]
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *filter(None, [node.module])]
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def inner_imports():
    """Yield (module, line, name) for what the package imports of itself, the name without
    the package's own."""
    for module in MODULES:
        for line, name in imports(module):
            package, _, rest = name.partition(".")
            if package == "scrapy_bloom":
                yield module, line, rest


@pytest.fixture(scope="module")
def floors():
    """{room: number of its floor, 1 at the top}, from the table in CONTRIBUTING.md."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| \S.* \|$", table, re.MULTILINE)
    return {room: int(number) for number, room in rows}


def test_each_room_has_a_floor(floors):
    """CONTRIBUTING.md lists each room, once, and no other, from the top down."""
    assert {room_of(module) for module in MODULES} == set(floors)
    assert [*floors.values()] == sorted(floors.values())


def test_rooms_import_downwards(floors):
    """Whoever reads a room needs to know what is below it, and nothing above it."""
    crossing = [(m, line, room_of(m), room_of(name)) for m, line, name in inner_imports()]
    assert [
        f"{module}:{line} imports {target}"
        for module, line, room, target in crossing
        if target != room and floors.get(target, 0) <= floors.get(room, 0)
    ] == []


def test_the_drawing_of_the_rooms(floors, monkeypatch):
    """docs/architecture.md draws these floors and imports, and each step passes a room;
    test_documents.py holds the drawing against its source."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures

    needs = {room: {room} for room in floors}
    for module, _, name in inner_imports():
        needs[room_of(module)].add(room_of(name))
    assert pictures.floors() == floors
    assert {room: pictures.rooms_imported(room) | {room} for room in floors} == needs
    assert len(pictures.steps()) == 8
    assert all(rooms for _, rooms in pictures.steps())


def test_no_circle_of_files():
    """One of two files can be read, and changed, without the other."""
    dotted = {module.removesuffix(".py").replace("/", "."): module for module in MODULES}
    dotted |= {name.removesuffix(".__init__"): module for name, module in dotted.items()}
    needs: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, _, name in inner_imports():
        if found := dotted.get(name) or dotted.get(name.rpartition(".")[0]):
            needs[module].add(found)
    while free := {module for module, others in needs.items() if not others & needs.keys()}:
        needs = {module: others for module, others in needs.items() if module not in free}
    assert needs == {}


def test_no_file_name_stands_three_times():
    """The name of a file says what is in it, with its room at most; each room has its settings."""
    counts = Counter(Path(module).name for module in MODULES)
    assert {name for name, number in counts.items() if number > 2} == {"__init__.py", "settings.py"}


def loggers():
    """Yield the name of each logger that the package makes for itself."""
    for module in MODULES:
        for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                (name,) = node.args
                if isinstance(name, ast.Constant):
                    yield name.value
                elif ast.unparse(name) == "__name__":
                    yield f"scrapy_bloom.{module.removesuffix('.py').replace('/', '.')}"


def test_loggers_keep_their_names():
    """Filters and alerts of users name them, and so do the documents."""
    names = [f"scrapy_bloom.{name}" for name in LOGGERS.split()]
    assert sorted({*loggers()}) == names
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert set(re.findall(r"\[(scrapy_bloom\.[\w.]+)\] [A-Z]+:", pages)) <= set(names)


def test_plain_words():
    """The subject of a sentence is a component or a user, not a pronoun for one."""
    banned = re.compile(
        r"\b(?:nobody|somebody|whoever|anybody|how-manieth|let go|what of it)\b", re.IGNORECASE
    )
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua"), *(ROOT / "docs").glob("*.md")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if banned.search(path.read_text(encoding="utf-8"))
    }
    assert sorted(found) == []


def test_what_scrapy_will_remove_is_named_in_one_place():
    """https://github.com/scrapy/scrapy/pull/6931 deprecates names of download slots."""
    names = re.compile(r"get_slot_key|DOWNLOAD_SLOT\b|[\"']download_slot[\"']|downloader\.slots")
    found = {module for module in MODULES if names.search((PACKAGE / module).read_text())}
    assert {room_of(module) for module in found} == {"scrapy_private"}


def test_no_docstring_only_repeats_the_name():
    """It says something beyond the words of the name and of the class around it."""
    assert [
        f"{module}:{node.lineno} {node.name}: {docstring}"
        for module in MODULES
        for node, around in definitions(ast.parse((PACKAGE / module).read_text()), "")
        if (docstring := ast.get_docstring(node))
        and stems(docstring) <= stems(f"{EMPTY_WORDS} {around} {node.name}")
    ] == []


def definitions(tree, around):
    """Yield (class or function, names of the classes around it)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node, around
            yield from definitions(
                node, f"{around} {node.name}" if isinstance(node, ast.ClassDef) else around
            )


def stems(text):
    """Return the words of `text`, or of a name in it, without their endings."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)
    return {re.sub(r"(?<=...)(?:ing|ies|ed|es|s|d|e|y)$", "", word.lower()) for word in words}


def test_no_module_imports_from_the_package_root():
    """Its names are for users: to import them inside makes the order of imports matter."""
    rooms = {room_of(module) for module in MODULES}
    public = {"", "*", *dir(scrapy_bloom)} - rooms
    assert [
        f"{module}:{line} imports {name or 'the root'}"
        for module, line, name in inner_imports()
        if name in public
    ] == []


def test_the_filters_know_nothing_of_scrapy():
    """They are of use without it."""
    assert [
        f"{module}:{line} imports {name}"
        for module in MODULES
        for line, name in imports(module)
        if room_of(module) in WITHOUT_SCRAPY
        and (top := name.partition(".")[0]) not in WITHOUT_SCRAPY[room_of(module)]
        and top not in {"scrapy_bloom", *sys.stdlib_module_names}
    ] == []


def test_public_names():
    """`dir(scrapy_bloom)` shows what is public, in order, and nothing else."""
    assert sorted([*scrapy_bloom.__all__, "__version__"]) == dir(scrapy_bloom)
    assert sorted(scrapy_bloom.__all__) == scrapy_bloom.__all__


def test_type_checkers_see_the_public_names(tmp_path):
    """The stub has them all, each from the module that the package imports it from."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names}
    assert homes == scrapy_bloom._MODULES
    api = pytest.importorskip("mypy.api")
    names = ", ".join(scrapy_bloom.__all__)
    use = "add: bool = ScalableBloomFilter(1, 0.1).add('')\n"
    (tmp_path / "named.py").write_text(f"from scrapy_bloom import {names}\n{use}")
    (tmp_path / "starred.py").write_text(f"from scrapy_bloom import *\n{use}")
    assert (
        api.run(["--strict", "--cache-dir", os.devnull, *map(str, tmp_path.glob("*.py"))])[2] == 0
    )


@pytest.mark.parametrize("name", scrapy_bloom.__all__)
def test_public_names_are_documented(name):
    """`help` has something to say on each, and on each method that it has."""
    thing = getattr(scrapy_bloom, name)
    assert thing.__doc__
    if inspect.isclass(thing):
        methods = [n for n, m in vars(thing).items() if callable(m) and not n.startswith("_")]
        assert [n for n in methods if not inspect.getdoc(getattr(thing, n))] == []


LOADED = """
import sys
from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse

class Answers:
    lazy = False
    async def download_request(self, request, spider=None):
        return HtmlResponse(request.url, body=b"", request=request)
    async def close(self):
        pass

class Small(Spider):
    name = "small"
    async def start(self):
        for number in (1, 2, 1):
            yield Request(f"http://a.example/{number}")
    def parse(self, response):
        yield {"url": response.url}
        yield Request("http://a.example/1")

job = sys.argv[1]
settings = {"JOBDIR": job, "LOG_LEVEL": "ERROR", "DOWNLOAD_HANDLERS": {"http": Answers}}
process = CrawlerProcess(settings | {
    "plain": {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
    "add-on": {
        "ADDONS": {"scrapy_bloom.Addon": 300}, "FEEDS": {job + ".jsonl": {"format": "jsonlines"}}
    },
}[sys.argv[2]])
process.crawl(Small)
process.start()
print(*(each for each in sys.modules if each.partition(".")[0] == "scrapy_bloom"))
"""
UNUSED = {"plain": {"addon", "early", "feeds", "crawl", "sqlite"}, "add-on": set()}


@pytest.mark.parametrize(
    ("how", "modules", "lines"), [("plain", 20, 3_480), ("add-on", 72, 11_630)]
)
def test_a_crawl_loads_what_it_uses(tmp_path, how, modules, lines):
    """A resumed crawl with a duplicate, to its end: neither Redis, nor the delta store, nor what
    other filters have left; and no more files, and lines in them, than were agreed on."""
    command = [sys.executable, "-c", LOADED, str(tmp_path / "job"), how]
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    for _ in range(2):
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    rooms = {room_of(name.removeprefix("scrapy_bloom.")) for name in loaded}
    assert not {"commands", "delta", "migration", "redis", "study", *UNUSED[how]} & rooms
    files = [
        PACKAGE.parent / f"{name.replace('.', '/')}{end}"
        for name in loaded
        for end in (".py", "/__init__.py")
        if (PACKAGE.parent / f"{name.replace('.', '/')}{end}").is_file()
    ]
    assert len(files) <= modules
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= lines
