"""Figures: size, compare, plot."""

import gzip
import os
import re
from itertools import count

import pytest

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import URLS, bloom, files_in, in_shell


@pytest.mark.parametrize(("kind", "rate"), [("filters", 1e-4), ("exact_filters", 0.5)])
def test_size_agrees_with_real_filters(run, tmp_path, kind, rate):
    """Bits, tables, files and expected losses, to the byte, set at once and grown."""
    arguments = ["size", "--urls", "20k", "--from", "1000", "--error-rate", rate]
    found = run(tmp_path, *arguments, "--json").json[kind]
    for figures, capacity in zip(found, (20_000, 1000), strict=True):
        place, number = tmp_path / str(capacity), count()
        with ScalableBloomFilter(capacity, rate, place, exact=kind != "filters") as made:
            while len(made) < 20_000:
                made.add(str(next(number)))
            assert figures["bytes"] == made.nbytes
            assert figures["layers"] == len(made.layers)
            assert figures["pages_lost"] == pytest.approx(made.expected_false_positives, rel=1e-9)
            assert kind != "filters" or figures["bits"] == 8 * made.nbytes
            assert kind == "filters" or figures["table_bytes"] == made.table_nbytes
        assert figures["file_bytes"] == sum(path.stat().st_size for path in place.glob("*.bloom"))
    text = run(tmp_path, *arguments)
    assert "RFPDupeFilter" in text.out
    assert kind != "filters" or re.search(r" 5  6 to 14  ", text.lines[4])
    assert [text.lines[3].split()[0], *text.lines[4].split()[:2]] == ["20_000", "1_000", "(grows)"]
    assert text.lines[-3].split()[:4] == ["with", "BLOOM_EXACT", "memory", "table,"]
    refusal = run(tmp_path, "size", "--urls", "5", "--error-rate", "2").refusal
    assert "--error-rate is 2.0" in refusal


def test_compare_prints_the_running_share(run, tmp_path):
    """A row for each so many lines, then what each method has cost, in text and JSON."""
    text = run(tmp_path, "compare", URLS)
    assert (text.status, text.width <= 80) == (0, True)
    assert [line.split()[0] for line in text.lines[1:4]] == ["lines", "10,000", "20,000"]
    tables = ["--slots", "50k", "--bits", "100k", "--hashes", "4"]
    figures = run(tmp_path, "compare", URLS, "--every", "5k", *tables, "--json").json
    assert [row["lines"] for row in figures["rows"]] == [5000, 10_000, 15_000, 20_000]
    exact, digests, one, classic, eight, ours, with_table = figures["methods"]
    for each in (exact, digests, ours, with_table):
        assert each["false_positives"] == 0
    assert with_table["bytes"] > ours["bytes"] + 9.4 * 20_000
    assert one["share"] == pytest.approx(one["expected"] / 20_000, rel=0.05)
    assert classic["share"] == pytest.approx(classic["expected"] / 20_000, rel=0.1)
    assert eight["false_positives"] > 0
    assert eight["bytes"] == 2**28
    assert "none.txt: No such file" in run(tmp_path, "compare", "none.txt").refusal
    for option, most in (("--slots", 10**11), ("--bits", 10**11), ("--hashes", 100)):
        refusal = run(tmp_path, "compare", URLS, option, most + 1).refusal
        assert f"from 1 to {most:,}" in refusal


@pytest.mark.slow
def test_plot_writes_pictures(run, tmp_path):
    """Slow, since it draws often: PNG of 900 to 920, and SVG without a date that follows light and
    dark; another suffix is refused. A full disk leaves the old one, and a pipe stays one."""
    pytest.importorskip("matplotlib")
    mask = os.umask(0o27)
    result = run(tmp_path, "plot", "memory", "memory.svg")
    assert os.umask(mask) == 0o27
    assert (tmp_path / "memory.svg").stat().st_mode & 0o777 == 0o640
    assert (result.status, result.lines) == (0, ["wrote memory.svg"])
    picture = (tmp_path / "memory.svg").read_text()
    assert "prefers-color-scheme: dark" in picture
    assert "<dc:date>" not in picture
    inks = {"#000000", "#ffffff", "#d9d9d9", "#cccccc"}  # the last, around the legend, is for both
    assert {*re.findall(r'style="[^"]*(#\w{6})', picture)} <= inks
    full = in_shell(tmp_path, "ulimit -f 9; scrapy bloom plot error-by-bits memory.svg")
    assert "memory.svg: File too large" in full.refusal
    assert files_in(tmp_path) == {tmp_path / "memory.svg": picture.encode()}
    read = "mkfifo p.svg; timeout 99 cat p.svg & scrapy bloom plot memory p.svg > /dev/null; wait"
    assert in_shell(tmp_path, read).out == picture
    bits = ["--bits", 1e-9, 16]  # of the first all bits are set
    assert run(tmp_path, "plot", "error-by-probes", "bits.png", *bits).status == 0
    size = (tmp_path / "bits.png").read_bytes()[16:24]
    assert size == b"\0\0\x03\x84\0\0\x03\x98"
    assert ".png or .svg" in run(tmp_path, "plot", "memory", "memory.pdf").refusal
    assert "no/x.png: No such file" in run(tmp_path, "plot", "memory", "no/x.png").refusal


def test_tables_fit_a_terminal(run, tmp_path):
    """Eighty columns are enough, whatever the figures."""
    for words in ("1", "1e6 --error-rate 1e-250", "1e15 --from 9e14", "1e15 --error-rate 1e-6"):
        assert run(tmp_path, "size", "--urls", *words.split()).width <= 80
    lines = b"http://a.example/\n"
    assert run(tmp_path, "compare", "-", "--slots", 1, "--bits", 9, stdin=lines).width <= 80


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="pipes have names on Unix only")
@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_compare_loses_nothing_of_a_pipe(run, tmp_path, packed):
    """`scrapy bloom compare <(zcat list.gz)` reads all of it, from the first byte on; what an
    editor leaves makes no other URL, and what holds no URL is refused."""
    lines = packed(b"\xef\xbb\xbfhttp://a.example/1\r\nhttp://a.example/1\n")
    (row,) = bloom(tmp_path, "compare", "/dev/stdin", "--json", stdin=lines).json["rows"]
    assert (row["lines"], row["urls"]) == (2, 1)
    nothing = run(tmp_path, "compare", "-", stdin=packed(b"nonsense\n"))
    assert "standard input holds no URL" in nothing.refusal
