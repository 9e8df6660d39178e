"""What fingerprints depend on: the word of a fingerprinter, and the table about those of others."""

import importlib
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from scrapy_bloom import CanonicalRequestFingerprinter, FastRequestFingerprinter
from scrapy_bloom.fingerprints import depends_on
from scrapy_bloom.fingerprints.depends_on import READ_BY_OURS, reads_of
from tests.fingerprinters import (
    DiscardingFingerprinter,
    HeaderFingerprinter,
    InheritingFingerprinter,
    PageFingerprinter,
)

PAGE = {"callback", "meta:page_params", "meta:inject"}


def build(cls, **settings):
    """Return a fingerprinter as Scrapy builds it."""
    settings["REQUEST_FINGERPRINTER_CLASS"] = cls
    return get_crawler(settings_dict=settings).request_fingerprinter


class Word:
    """Says that it reads nothing."""

    bloom_reads = ()

    def fingerprint(self, request):
        return b""


class Slotted(Word):
    """Has no `__dict__` of its own class."""

    __slots__ = ("part",)
    bloom_reads = ()


def holding(part, cls=Word):
    """Return a fingerprinter that holds `part`."""
    found = cls()
    found.part = part
    return found


class Asking:
    """Has what it is asked for from another one."""

    def __init__(self, part):
        self.__dict__["part"] = part

    def __getattr__(self, name):
        return getattr(self.part, name)


CHANGED_DEFAULT, LOOPED = RequestFingerprinter(), Word()
CHANGED_DEFAULT._fingerprint = HeaderFingerprinter().fingerprint
LOOPED.part = LOOPED


def test_a_word_is_taken():
    """It is that of the class, and of all that it holds, in whatever order they ask one another."""
    silent = (Word(), holding(HeaderFingerprinter), holding("text"), LOOPED)
    assert [reads_of(each) for each in silent] == [set()] * 4  # the class asks nothing
    assert reads_of(holding(FastRequestFingerprinter())) == READ_BY_OURS
    chain = build(PageFingerprinter, PAGE_BASE=DiscardingFingerprinter)
    assert reads_of(chain) == PAGE | {"meta:dud"} | READ_BY_OURS
    chain = build(DiscardingFingerprinter, DISCARDING_FALLBACK=CanonicalRequestFingerprinter)
    assert reads_of(chain) == {"meta:dud"} | READ_BY_OURS


@pytest.mark.parametrize(
    "hold",
    [
        holding,
        lambda part: holding(part, Slotted),
        lambda part: type("Shared", (Word,), {"bloom_reads": (), "part": part})(),
        lambda part: holding(part.fingerprint),
        lambda part: holding(partial(part.fingerprint)),
        lambda part: holding([part]),
        lambda part: holding({"a.example": part}),
        lambda part: holding(holding(part)),
    ],
)
def test_one_that_says_nothing_is_enough(hold):
    """Wherever one keeps another that it may ask, be it Scrapy's own in a changed object."""
    subclass = InheritingFingerprinter.__new__(InheritingFingerprinter)
    for part in (HeaderFingerprinter(), subclass, CHANGED_DEFAULT):
        with pytest.raises(ValueError, match=rf"the fingerprinter is .*{type(part).__name__}"):
            reads_of(hold(part))


def test_an_object_with_a_fingerprint_that_its_class_lacks():
    """It may be asked like any other fingerprinter, and says nothing."""
    lent = SimpleNamespace(fingerprint=lambda request: b"")
    for found in (Asking(HeaderFingerprinter()), lent):
        with pytest.raises(ValueError, match=rf"the fingerprinter is .*{type(found).__name__}"):
            reads_of(holding(found))


@pytest.mark.parametrize("word", ["callback", ("headers",), ("meta:",), (b"callback",), 5, [["a"]]])
def test_a_word_that_is_none(word):
    """The reason names it, and what it must be."""
    with pytest.raises(ValueError, match=r"Odd.bloom_reads is .*: it must be a tuple of"):
        reads_of(type("Odd", (Word,), {"bloom_reads": word})())


def test_what_is_set_behind_the_spider():
    """Next to the spider it is not there yet."""
    for word in ("meta:depth", "meta:_bloom_delta_list"):
        with pytest.raises(ValueError, match=f"reads '{word}', which is set behind the spider"):
            reads_of(type("Late", (Word,), {"bloom_reads": (word,)})())


# the table

SOURCE = """
from tests.fingerprinters import PageFingerprinter

class Foreign:
    def __init__(self, inner=None):
        self.inner = inner

    def help(self):
        return b"fingerprint"

    def fingerprint(self, request):
        return self.help()
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """Return a function that imports a fingerprinter of `source`; the table knows SOURCE."""
    names = ("foreign_package", "foreign_package.fingerprinter")

    def load(source=SOURCE):
        for name in names:
            sys.modules.pop(name, None)
        folder = tmp_path / "foreign_package"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "fingerprinter.py").write_text(SOURCE)
        (folder / "data.json").write_text("{}")
        digest = depends_on.digest_of(folder, ("fingerprinter.py", "data.json"))
        entry = depends_on._Release(("meta:a",), ("fingerprinter.py", "data.json"), (digest,))
        monkeypatch.setitem(depends_on._TABLE, "foreign_package.fingerprinter.Foreign", entry)
        (folder / "fingerprinter.py").write_text(source)
        importlib.invalidate_caches()
        return folder, importlib.import_module("foreign_package.fingerprinter").Foreign

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield load
    for name in names:
        sys.modules.pop(name, None)


CHANGED = "the source of the fingerprinter foreign_package.fingerprinter.Foreign is that of no"


def test_source_that_has_changed_says_nothing(foreign):
    """A comment is enough, in any of the files; so is a file that is not there. The table speaks
    for nothing that a fingerprinter holds."""
    for change in (lambda path: path.write_text("[]"), Path.unlink, None):
        folder, cls = foreign() if change else foreign(SOURCE + "# changed\n")
        if change:
            assert reads_of(cls()) == {"meta:a"}
            with pytest.raises(ValueError, match="the fingerprinter is tests"):
                reads_of(cls(HeaderFingerprinter()))
            change(folder / "data.json")
        with pytest.raises(ValueError, match=CHANGED):
            reads_of(cls())


@pytest.mark.parametrize("name", ["fingerprint", "help"])
@pytest.mark.parametrize("where", ["object", "class"])
def test_a_method_that_was_replaced_says_nothing(foreign, where, name):
    """The source does not tell what a project has put into the class, or into the object."""
    _, cls = foreign()
    found = cls()
    setattr(found if where == "object" else cls, name, lambda *_: b"other")
    with pytest.raises(ValueError, match=CHANGED):
        reads_of(found)


@pytest.mark.parametrize("name", ["Foreign", "__file__"])
def test_what_only_looks_like_one_in_the_table_says_nothing(foreign, monkeypatch, name):
    """A subclass, another class with its name, and a module that was made by hand, or removed."""
    _, cls = foreign()
    with pytest.raises(ValueError, match="the fingerprinter is tests"):
        reads_of(type("Foreign", (cls,), {"__module__": __name__})())
    with pytest.raises(ValueError, match=CHANGED):
        reads_of(type("Foreign", (cls,), {"__module__": cls.__module__})())
    monkeypatch.delattr(sys.modules[cls.__module__], name)
    with pytest.raises(ValueError, match=CHANGED):
        reads_of(cls())


@pytest.mark.parametrize(
    "path",
    ["scrapy_poet.ScrapyPoetRequestFingerprinter", "duplicate_url_discarder.Fingerprinter"],
)
def test_the_table_knows_the_installed_release(path):
    """Of packages that are installed."""
    pytest.importorskip(path.partition(".")[0])
    assert reads_of(build(path)) > READ_BY_OURS
