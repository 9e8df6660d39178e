"""The plan of the package: who may import whom, what is public."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

import scrapy_bloom
from tests.commands.command_line import environment

# Rooms that work without Scrapy, and what they may import that is not Python's own.
WITHOUT_SCRAPY = {
    "bloom": {"bitarray", "mmh3", "typing_extensions"},  # the last for types alone
    "errors": set(),
    "files": set(),
}

# What a docstring may have beside the words of a name and still says nothing.
EMPTY_WORDS = """
    a an and are as at be by for from gives has have in is it its of on or return say that the this
    to whether which with yield
"""

PACKAGE = Path(scrapy_bloom.__file__).parent
ROOT = Path(__file__).parents[1]
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}


def dotted(module):
    """Return the name of a file in an import, below the package."""
    return module.removesuffix(".py").replace("/", ".")


def room_of(module):
    """Return the room of a file, or of a dotted name below the package."""
    return dotted(module).partition(".")[0]


def imports():
    """Yield (module, line, dotted name) for what each file imports, wherever in it and for
    whatever: an import for types alone ties two rooms together, too."""
    for module, tree in TREES.items():
        package = ["scrapy_bloom", *Path(module).parent.parts]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((module, node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) + 1 - node.level] if node.level else []
                base = [*base, *filter(None, [node.module])]
                for alias in node.names:
                    yield module, node.lineno, ".".join([*base, alias.name])


# what the package imports of itself, without its name
INNER = [
    (module, line, name.partition(".")[2])
    for module, line, name in imports()
    if name.partition(".")[0] == "scrapy_bloom"
]


# {room: number of its floor, 1 at the top}
TABLE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FLOORS = {
    room: int(number)
    for number, room in re.findall(r"^\| (\d+) \| `(\w+)` \| \S.* \|$", TABLE, re.MULTILINE)
}


def test_rooms_import_downwards():
    """CONTRIBUTING.md lists each room, once, and no other, from the top down. Whoever reads a room
    needs to know what is below it, and nothing above it."""
    assert {*map(room_of, TREES)} == {*FLOORS}
    assert [*FLOORS.values()] == sorted(FLOORS.values())
    assert [
        f"{module}:{line} imports {room_of(name)}"
        for module, line, name in INNER
        if room_of(name) != room_of(module)
        and FLOORS.get(room_of(name), 0) <= FLOORS.get(room_of(module), 0)
    ] == []


def test_the_drawing_of_the_rooms(monkeypatch):
    """docs/architecture.md draws these floors and imports, and each step passes a room;
    test_documents.py holds the drawing against its source."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures

    needs = {room: {room} for room in FLOORS}
    for module, _, name in INNER:
        needs[room_of(module)].add(room_of(name))
    assert pictures.floors() == FLOORS
    assert {room: pictures.rooms_imported(room) | {room} for room in FLOORS} == needs
    assert len(pictures.steps()) == 8
    assert all(rooms for _, rooms in pictures.steps())


def test_no_circle_of_files():
    """One of two files can be read, and changed, without the other. The name of a file says what
    is in it, with its room at most: none stands three times, but for the settings of each room."""
    counts = Counter(Path(module).name for module in TREES)
    assert {name for name, number in counts.items() if number > 2} == {"__init__.py", "settings.py"}
    files = {dotted(module): module for module in TREES}
    files |= {name.removesuffix(".__init__"): module for name, module in files.items()}
    needs: dict[str, set[str]] = {module: set() for module in TREES}
    for module, _, name in INNER:
        if found := files.get(name) or files.get(name.rpartition(".")[0]):
            needs[module].add(found)
    while free := {module for module, others in needs.items() if not others & needs.keys()}:
        needs = {module: others for module, others in needs.items() if module not in free}
    assert needs == {}


def test_a_logger_has_the_name_of_its_file():
    """So a line of the log leads to it, as those that the documents show; one is Scrapy's own."""
    line = re.compile(r"^logger = logging.getLogger\((.*)\)$", re.MULTILINE)
    found = {each: line.findall((PACKAGE / each).read_text(encoding="utf-8")) for each in TREES}
    assert {*chain.from_iterable(found.values())} == {"__name__", "feedexport.__name__"}
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    names = {f"scrapy_bloom.{dotted(module)}" for module in found if found[module]}
    assert {*re.findall(r"\[(scrapy_bloom\.[\w.]+)\] [A-Z]+:", pages)} <= names


def test_plain_words():
    """The subject of a sentence is a component or a user, not a pronoun for one."""
    banned = r"(?i)\b(?:nobody|somebody|whoever|anybody|how-manieth|let go|what of it)\b"
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua"), *(ROOT / "docs").glob("*.md")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert [path for path in files if re.search(banned, path.read_text(encoding="utf-8"))] == []


def test_what_scrapy_will_remove_is_named_in_one_place():
    """https://github.com/scrapy/scrapy/pull/6931 deprecates names of download slots."""
    names = re.compile(r"get_slot_key|DOWNLOAD_SLOT\b|[\"']download_slot[\"']|downloader\.slots")
    found = {module for module in TREES if names.search((PACKAGE / module).read_text())}
    assert {*map(room_of, found)} == {"scrapy_private"}


def test_no_docstring_only_repeats_the_name():
    """It says something beyond the words of the name."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    assert [
        f"{module}:{node.lineno} {node.name}: {docstring}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and (docstring := ast.get_docstring(node))
        and stems(docstring) <= stems(f"{EMPTY_WORDS} {node.name}")
    ] == []


def stems(text):
    """Return the words of `text`, or of a name in it, without their endings."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)
    return {re.sub(r"(?<=...)(?:ing|ies|ed|es|s|d|e|y)$", "", word.lower()) for word in words}


def test_what_modules_may_not_import():
    """Names of the package's root are for users: to import them inside makes the order of imports
    matter. The filters know nothing of Scrapy, without which they are of use."""
    public = {"", "*", *dir(scrapy_bloom)} - {*map(room_of, TREES)}
    assert [
        f"{module}:{line} imports {name or 'the root'}"
        for module, line, name in INNER
        if name in public
    ] == []
    assert [
        f"{module}:{line} imports {name}"
        for module, line, name in imports()
        if room_of(module) in WITHOUT_SCRAPY
        and (top := name.partition(".")[0]) not in WITHOUT_SCRAPY[room_of(module)]
        and top not in {"scrapy_bloom", *sys.stdlib_module_names}
    ] == []


def test_public_names():
    """`dir(scrapy_bloom)` shows what is public, in order, and nothing else, and `help` has
    something to say on each, and on each method that it has."""
    assert sorted([*scrapy_bloom.__all__, "__version__"]) == dir(scrapy_bloom)
    assert sorted(scrapy_bloom.__all__) == scrapy_bloom.__all__
    for name in scrapy_bloom.__all__:
        thing = getattr(scrapy_bloom, name)
        assert thing.__doc__
        if inspect.isclass(thing):
            methods = [n for n, m in vars(thing).items() if callable(m) and not n.startswith("_")]
            assert [n for n in methods if not inspect.getdoc(getattr(thing, n))] == []


def test_type_checkers_see_the_public_names():
    """The stub has them all, each from the module that the package imports it from, with `as`."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    found = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in found for alias in node.names}
    assert homes == scrapy_bloom._MODULES


LOADED = """
import sys
from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess

class Small(Spider):
    name = "small"
    async def start(self):
        for number in (1, 2, 1):
            yield Request(f"data:,{number}")
    def parse(self, response):
        yield {"url": response.url}
        yield Request("data:,1")

job = sys.argv[1]
process = CrawlerProcess({"JOBDIR": job, "LOG_LEVEL": "ERROR"} | {
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


@pytest.mark.slow
@pytest.mark.parametrize(("how", "modules", "lines"), [("plain", 16, 2_676), ("add-on", 67, 9_488)])
def test_a_crawl_loads_what_it_uses(tmp_path, how, modules, lines):
    """A resumed crawl with a duplicate, to its end (slow: starts Python twice): neither Redis, nor
    the delta store, nor what other filters have left; and no more files, and lines in them, than
    were agreed on."""
    command = [sys.executable, "-c", LOADED, str(tmp_path / "job"), how]
    options = {"env": environment(), "capture_output": True, "text": True, "check": True}
    for _ in range(2):
        run = subprocess.run(command, **options)
    loaded = [each.removeprefix("scrapy_bloom").removeprefix(".") for each in run.stdout.split()]
    rooms = {*map(room_of, loaded)}
    assert not {"commands", "delta", "migration", "redis", "study", *UNUSED[how]} & rooms
    files = [
        module for module in TREES if dotted(module).removesuffix("__init__").strip(".") in loaded
    ]
    assert len(files) <= modules
    assert sum(len((PACKAGE / each).read_text().splitlines()) for each in files) <= lines
