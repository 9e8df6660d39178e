"""The documents say what the code does: names, links, snippets and commands are held against it."""

import argparse
import ast
import json
import operator
import os
import re
import shlex
from collections import defaultdict
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from scrapy.settings import Settings

import scrapy_bloom
from scrapy_bloom import signals
from scrapy_bloom.all_settings import SETTINGS
from scrapy_bloom.bloom import file as header
from scrapy_bloom.commands import BloomCommand
from scrapy_bloom.commands.arguments import add_subcommands
from scrapy_bloom.delta import file_store, redis_store
from scrapy_bloom.redis import layout
from scrapy_bloom.sqlite import schema
from tests import processes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SITE = "https://github.com/scrapy-bloom/scrapy-bloom/blob/main/"
RAW = "https://raw.githubusercontent.com/scrapy-bloom/scrapy-bloom/main/"
API = ROOT / "docs" / "api.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
ALL = [*PAGES, ROOT / "example_project" / "README.md", *sorted(ROOT.glob("*.md"))]
TEXT = {path: path.read_text(encoding="utf-8") for path in ALL}
DOCS = "\n".join(TEXT[path] for path in PAGES)
CODE = {path: path.read_text(encoding="utf-8") for path in (ROOT / "scrapy_bloom").rglob("*.py")}


@cache
def constants():
    """Return the constants in the package, texts among them that are no part of an f-string."""
    nodes = (node for text in CODE.values() for node in ast.walk(ast.parse(text)))
    return [node.value for node in nodes if isinstance(node, ast.Constant)]


def in_code(pattern):
    """Return the texts in the package that are a name of this kind and nothing else."""
    texts = {value for value in constants() if isinstance(value, str)}
    return {text for text in texts if re.fullmatch(pattern, text)}


def in_documents(pattern):
    """Return {name: pages} for names of this kind in all documents but the changelog."""
    found = defaultdict(set)
    for path, text in TEXT.items():
        if path.name == "CHANGELOG.md":
            continue
        for name in re.findall(rf"(?<![\w/.{{:#-])({pattern})(?![\w/.(*…]|\.\w)", text):
            found[name].add(path.name)
    return dict(found)


@pytest.fixture(scope="module")
def started(tmp_path_factory, redis_server):
    """What becomes of crawls with the pages' settings and spiders, in a process of their own."""
    folder = tmp_path_factory.mktemp("settings")
    given = {"redis": redis_server.url, "settings": settings_snippets(), "spiders": spiders()}
    done = python(["-m", "tests.documents_crawls"], folder, input=json.dumps(given))
    return json.loads(done.stdout.splitlines()[-1])


def python(arguments, folder, **options):
    """Run Python in a folder, to an end without an error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = processes.run(arguments, cwd=folder, env=environment, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def fences(path, *languages):
    """Yield (number, text, whether `<!-- run -->` stands before it) of a page's snippets."""
    pattern = r"^( *)(<!-- run -->\s+)?```(\w+)\n(.*?)^ *```$"
    for number, match in enumerate(re.finditer(pattern, TEXT[path], re.MULTILINE | re.DOTALL), 1):
        indent, run, language, text = match.groups()
        if language in languages:
            lines = [line.removeprefix(indent) for line in text.splitlines(keepends=True)]
            yield number, "".join(lines), bool(run)


def python_snippets():
    for path in ALL:
        for number, text, run in fences(path, "python"):
            yield f"{path.name}, snippet {number}", text, run


def settings_snippets():
    """Return {name: text} of the snippets that assign settings, and do nothing else."""

    def assigns(node):
        return isinstance(node, ast.Assign) and node.targets[0].id.isupper()

    return {
        name: text for name, text, _ in python_snippets() if all(map(assigns, ast.parse(text).body))
    }


def spiders():
    """Return {name: text} of the snippets that are a whole spider."""
    whole = ("Spider):", "https://books.toscrape.com/")
    return {
        name: text for name, text, _ in python_snippets() if all(word in text for word in whole)
    }


# --- names ------------------------------------------------------------------------------


def test_public_names_are_in_the_documents():
    """The API page shows all of them; each is also told of where somebody would look for it."""
    named = in_documents(r"(?:scrapy_bloom\.)?[A-Za-z_]+")
    prose = {name.removeprefix("scrapy_bloom.") for name in named}
    errors = {n for n in scrapy_bloom.__all__ if n.endswith("Error")}  # the API page has those
    assert set(scrapy_bloom.__all__) - errors - prose == set()
    shown = re.findall(r"^\.\. auto(?:class|exception|function):: (\w+)$", TEXT[API], re.MULTILINE)
    assert sorted(shown) == sorted(scrapy_bloom.__all__)


def test_documents_name_nothing_that_is_not_public():
    """Whoever copies `scrapy_bloom.X` out of a page gets it."""
    names = set(re.findall(r"\bscrapy_bloom\.([A-Za-z]\w*)(?![\w/])", DOCS))
    logged = set(re.findall(r"\[scrapy_bloom\.(\w+)[.\w]*\] (?:INFO|WARNING|ERROR)", DOCS))
    assert names - {*scrapy_bloom.__all__, "signals", "__version__"} - logged == set()
    imported = re.findall(r"from scrapy_bloom import ([\w, ]+)", DOCS)
    assert {n.strip() for line in imported for n in line.split(",")} <= {*scrapy_bloom.__all__}


def test_settings_meta_keys_reasons_and_signals():
    """The table of settings is complete, and so are the documents; as of all that a request or a
    closing spider says in our words."""
    names = {setting.name for setting in SETTINGS}
    assert names == in_code("BLOOM_[A-Z_]+[A-Z]") == in_documents("BLOOM_[A-Z_]+[A-Z]").keys()
    assert in_code("bloom_[a-z_]+") == in_documents("bloom_[a-z_]+").keys()
    own = {name for name in vars(signals) if not name.startswith("_")}
    assert own == set(re.findall(r"`scrapy_bloom\.signals\.(\w+)`", DOCS))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_reference_of_settings(setting):
    """Each has its heading, with the default and the meaning that the code has; to set what the
    page calls the default changes nothing."""
    name, page = setting.name, " ".join(TEXT[ROOT / "docs" / "settings.md"].split())
    meaning = re.escape(setting.meaning)
    told = re.search(rf"### `{name}` Default: (.+?)\. {meaning}(?!\w)", page)
    assert told, f"docs/settings.md does not say of {name}: {setting.meaning}"
    if told[1] == "none":
        assert not setting.default
        return
    found = []
    for value in re.findall("`([^`]+)`", told[1]):
        with suppress(SyntaxError, ValueError):  # a URL, or none that it takes
            value = ast.literal_eval(value)
        with suppress(ValueError):
            found.append(setting.read(Settings({name: value})))
    assert setting.default in found


def test_stats(started):
    """Those that the package sets, by name or in a crawl, are the documented ones."""
    pattern = r"(?:bloom|scheduler|dupefilter)/[a-z_]+(?:/[a-z_]+)?"
    code = in_code(pattern) | set(re.findall(pattern, " ".join(started["stats"])))
    ways = tuple(f"/{way}" for way in ("disk", "memory", "redis"))  # in which requests wait
    assert {name for name in code if not name.endswith(ways)} == in_documents(pattern).keys()


def test_formats():
    """The table of formats is what this version writes."""
    rows = re.findall(r"^\| .* \| (\d+) \|$", TEXT[ROOT / "docs" / "formats.md"], re.MULTILINE)
    written = [header.FORMAT, schema.VERSION, file_store.VERSION]
    written += [layout.FORMAT, layout.CRAWL_FORMAT, redis_store.FORMAT]
    assert [*map(int, rows)] == written


def test_each_key_and_field_in_redis_is_named():
    """Of a crawl, as its scripts write them: keys on a page, fields beside the code."""
    scripts = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "scrapy_bloom" / "redis" / "lua").rglob("*.lua")
    )
    keys = set(re.findall(r"(?:key\('|KEYS\[1\] \.\. ':)(\w+)", scripts))
    assert keys - set(re.findall(r"{KEY}:(\w+)", layout.__doc__ or "")) == set()
    calls = re.findall(r"'(?:HSET|HINCRBY|HMGET|HGET)', (?:key\('crawl'\)|name), ([^)]*)", scripts)
    fields = {name for call in calls for name in re.findall(r"'(\w+):?'", call)}
    assert len(fields) > 15
    listed = (layout.__doc__ or "").partition("The fields of {KEY}:crawl")[2]
    assert fields - set(re.findall(r"\w+", listed)) == set()


# --- commands ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def subcommands():
    """{name: parser} of `scrapy bloom`, without Scrapy's own options."""
    parser = argparse.ArgumentParser()
    add_subcommands(parser, "scrapy bloom", lambda _: None)
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices


def test_subcommands_and_their_options(subcommands):
    """Each stands on the page of the commands, or on one that it points to."""
    page = TEXT[ROOT / "docs" / "commands.md"]
    assert [n for n in subcommands if not re.search(rf"\b{n}\b", page)] == []
    actions = [action for parser in subcommands.values() for action in parser._actions]
    known = {option for action in actions for option in action.option_strings} - {"-h", "--help"}
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+|-o)(?![\w-])", DOCS))
    assert sorted(known - named) == []
    inline = " ".join(re.findall(r"`([^`]+)`", page))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", inline)) - known == {"--help"}


def shell_lines():
    """Yield (page, words) of each command in a shell snippet, and in `ticks` if it is whole."""
    for path in PAGES:
        for _, text, _ in fences(path, "console", "sh", "shell"):
            joined = text.replace("\\\n", " ")
            for line in re.findall(r"^\$ (.*)$", joined, re.MULTILINE):
                for part in re.split(r"(?<!\S)(?:\||&&|;|&)(?!\S)|;", line):
                    if words := shlex.split(part, comments=True):
                        yield path.name, words
        for code in re.findall(r"`(scrapy bloom [^`]+)`", TEXT[path].replace("\n", " ")):
            if not re.search(r"[|…<*]|[a-z]\|", code):
                yield path.name, shlex.split(code)


def test_commands_in_snippets_parse(subcommands, capsys):
    """Each `scrapy bloom …` in the pages is one that the real parser takes."""
    parser = argparse.ArgumentParser()
    command = BloomCommand()
    command.settings = Settings()
    command.add_options(parser)
    wrong, seen = [], 0
    for page, words in shell_lines():
        if words[:2] != ["scrapy", "bloom"]:
            continue
        seen += 1
        arguments = [{"N": "5", "P": "0.5"}.get(word, word) for word in words[2:]]
        if len(arguments) <= 1:  # its name alone, in a sentence
            known = not arguments or arguments[0] in subcommands
        else:
            try:
                known = parser.parse_args(arguments) is not None
            except SystemExit:
                known = False
        if not known:
            wrong.append(f"{page}: {shlex.join(words)}: {capsys.readouterr().err.strip()}")
    assert wrong == []
    assert seen > 40


def test_benchmarks_import_what_there_is():
    """`make bench` takes an hour, so none of them is to stop at a name that has gone."""
    for script in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(
                ("scrapy_bloom", "tests")
            ):
                exec(ast.unparse(node), {})


def test_commands_of_the_repository_exist():
    """What has printed a figure can be run again: scripts, their options, targets of make."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wrong = []
    for path in ALL:
        text = TEXT[path].replace("\n", " ")
        wrong += [
            f"{path.name}: make {target}"
            for target in re.findall(r"`make ([a-z][a-z-]*)`", text)
            if not re.search(rf"^{target}:", makefile, re.MULTILINE)
        ]
        commands = re.findall(r"`(?:python )?((?:tests|benchmarks)/[\w/]+\.py)([^`]*)`", text)
        modules = re.findall(r"`python -m (tests[.\w]+)([^`]*)`", text)
        commands += [(f"{name.replace('.', '/')}.py", rest) for name, rest in modules]
        for script, rest in commands:
            source = ROOT / script
            text_of = source.read_text(encoding="utf-8") if source.exists() else ""
            if "tell_stories(" in text_of:  # and what all crawls with kills take
                text_of += (HERE / "world" / "runner.py").read_text(encoding="utf-8")
            wrong += [
                f"{path.name}: {script} {option}"
                for option in [*re.findall(r"--[a-z-]+", rest), ""]
                if not source.exists() or option not in text_of
            ]
    assert wrong == []


# --- links ------------------------------------------------------------------------------


def prose(path):
    """Return the text of a page without its snippets."""
    return re.sub(r"^ *```.*?^ *```$", "", TEXT[path], flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """Return the anchors of a page, as GitHub and the site make them of headings."""
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(path), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


def links(path):
    text = re.sub(r"`[^`\n]*`", "``", prose(path))
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"^\[[^]]+\]: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_no_link_is_dead(path):
    """Each one inside the repository leads to a file, and to a heading of it."""
    dead = []
    for link in links(path):
        if link.startswith((SITE, RAW)):
            place, _, anchor = link.removeprefix(SITE).removeprefix(RAW).partition("#")
            target = ROOT / place
        elif re.match(r"[a-z]+:", link):
            continue
        else:
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
        headings = anchors(target) if target in TEXT else set()
        if not target.is_file() or (anchor and anchor not in headings):
            dead.append(link)
    assert dead == []


def test_links_of_the_readme_work_anywhere():
    """A package index shows it, and its picture, without the repository around it."""
    readme = TEXT[ROOT / "README.md"]
    named = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", readme, re.MULTILINE))
    assert [link for link in links(ROOT / "README.md") if not link.startswith("https://")] == []
    pictures = re.findall(r"^!\[.+\]\((.+)\)$", readme, re.MULTILINE)
    assert [(ROOT / picture.removeprefix(RAW)).is_file() for picture in pictures] == [True]
    text = readme.lower()
    assert [name for name in named if text.count(f"[{name.lower()}]") < 2] == []


def test_each_page_is_in_the_index():
    """A page that nobody lists is one that nobody reads. It names the version that is installed."""
    assert f"Version {scrapy_bloom.__version__}." in TEXT[ROOT / "docs" / "index.md"]
    listed = re.findall(r"^([a-z-]+)$", TEXT[ROOT / "docs" / "index.md"], re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in PAGES if path.stem != "index")


def test_the_glossary_has_the_words_of_other_pages():
    """Each has a line that begins with it."""
    defined = "\n".join(re.findall("^- (.+?: )", TEXT[ROOT / "docs" / "glossary.md"], re.MULTILINE))
    words = ("pending", "dispatched", "in flight", "acknowledged", "failed", "held")
    assert [word for word in words if word not in defined] == []


# --- snippets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "run"),
    [pytest.param(text, run, id=name) for name, text, run in python_snippets()],
)
def test_python_snippets(text, run, tmp_path):
    """Each compiles; those marked with `<!-- run -->` run as they stand."""
    compile(text, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if run:
        script = tmp_path / "snippet.py"  # Scrapy looks at the source of callbacks
        script.write_text(text, encoding="utf-8")
        python([script], tmp_path)


def test_settings_give_a_crawler_that_starts(started):
    """Whoever copies the settings of a page gets a crawl that opens and ends."""
    outcomes = {name: started["outcomes"][name] for name in settings_snippets()}
    assert len(outcomes) > 8
    installed = {outcome for outcome in outcomes.values() if not outcome.startswith("without ")}
    assert installed == {"finished, 1 items"}, outcomes


def test_spiders_crawl(started):
    """Whoever copies a spider gets its items: three pages, the start page perhaps twice."""
    outcomes = {name: started["outcomes"][name] for name in spiders()}
    assert outcomes
    assert {*outcomes.values()} <= {f"finished, {n} items" for n in (2, 3, 4)}, outcomes


def test_yaml_snippets_are_yaml():
    """Compose files, manifests and rules are documents that a parser takes."""
    yaml = pytest.importorskip("yaml")
    snippets = [text for path in PAGES for _, text, _ in fences(path, "yaml")]
    snippets.append((ROOT / "example_project" / "compose.yaml").read_text(encoding="utf-8"))
    assert all(list(yaml.safe_load_all(text)) for text in snippets)


# --- pictures ---------------------------------------------------------------------------


def test_pictures_are_those_of_their_source(monkeypatch):
    """What docs/pictures.py draws of the pages' figures is what lies in docs/images."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures

    for name, draw in pictures.PICTURES.items():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == str(draw()), (
            f"run: python docs/pictures.py ({name})"
        )


def test_pictures_can_be_read_in_light_and_dark(monkeypatch):
    """Words have a contrast of 4.5 with the ground under them, bars one of 3."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures

    def light(colour):
        """Return the relative luminance of WCAG 2.2."""
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(map(operator.mul, parts, (0.2126, 0.7152, 0.0722)))

    words = "ink ground/grey ground/lost ground/ink pale/grey pale/ink safe/ink killed"
    bars = "ours ground/ours-too ground/exact ground/stock ground/line ground"
    for least, pairs in ((4.5, words), (3, bars)):
        for name, ground in map(str.split, pairs.split("/")):
            for colours in zip(pictures.COLOURS[name], pictures.COLOURS[ground], strict=True):
                low, high = sorted(map(light, colours))
                assert (high + 0.05) / (low + 0.05) >= least, (name, ground)
