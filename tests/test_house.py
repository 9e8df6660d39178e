"""The plan of the package: who may import whom, what is public."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import scrapy_bloom

# From the top down. A room imports itself and what stands on a lower line.
FLOORS = """
    __init__ __main__
    addon commands
    delta
    early
    redis_backend
    feeds
    sqlite_backend
    job
    dupefilter
    migration study
    fingerprints
    settings startup scrapy_compat
    reporting
    bloom
    jobdir quantities
    files signals
    errors
"""

# Rooms that know nothing of Scrapy, and what they may import that is not Python's own.
# Imports upwards that are still to go.
UPWARDS = {("job/failures.py", "feeds"), ("sqlite_backend/scheduler.py", "feeds")}

WITHOUT_SCRAPY = {
    "bloom": {"bitarray", "mmh3", "typing_extensions"},  # the last for types alone
    "errors": set(),
    "files": set(),
}

PACKAGE = Path(scrapy_bloom.__file__).parent
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
    """The number of each room's floor, 0 at the top."""
    return {
        room: number
        for number, rooms in enumerate(FLOORS.strip().splitlines())
        for room in rooms.split()
    }


def test_each_room_has_a_floor(floors):
    """A new room is put in its place above, and one that is gone is taken out."""
    assert {room_of(module) for module in MODULES} == set(floors)


def test_rooms_import_downwards(floors):
    """Whoever reads a room needs to know what is below it, and nothing above it."""
    crossing = [(m, line, room_of(m), room_of(name)) for m, line, name in inner_imports()]
    assert [
        f"{module}:{line} imports {target}"
        for module, line, room, target in crossing
        if target != room
        and (module, target) not in UPWARDS
        and floors.get(target, 0) <= floors.get(room, 0)
    ] == []


def test_nobody_imports_from_the_package_root():
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
from scrapy import Spider
from scrapy.crawler import CrawlerProcess

class Idle(Spider):
    name = "idle"
    async def start(self):
        for nothing in ():
            yield nothing

process = CrawlerProcess({
    "ADDONS": {"scrapy_bloom.Addon": 300}, "JOBDIR": sys.argv[1], "LOG_LEVEL": "ERROR",
    "FEEDS": {sys.argv[1] + "/items.jsonl": {"format": "jsonlines"}},
})
process.crawl(Idle)
process.start()
print(*(name for name in sys.modules if name.startswith("scrapy_bloom.")))
"""


def test_a_crawl_loads_what_it_uses(tmp_path):
    """A job with feeds needs neither Redis, nor the memory between crawls, nor what other filters
    have left."""
    command = [sys.executable, "-c", LOADED, str(tmp_path / "job")]
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    loaded = [name.removeprefix("scrapy_bloom.") for name in run.stdout.split()]
    assert not {"commands", "delta", "migration", "redis_backend", "study"} & {
        room_of(name) for name in loaded
    }
    assert len(loaded) <= 70
