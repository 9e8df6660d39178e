"""Draws the pictures of the documents: `python docs/pictures.py` writes them to docs/images.

Their figures are those of tables in README.md, speed.md and exactness.md, which say what has
printed them; the rooms are those of CONTRIBUTING.md, and the way through them architecture.md's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from math import log10
from pathlib import Path
from textwrap import wrap

DOCS = Path(__file__).resolve().parent
PACKAGE = DOCS.parent / "scrapy_bloom"

WIDE = 400
"""A picture is drawn this wide, so that its text can be read on a telephone."""
SCALE = 1.3
"""As large as it is where there is room."""
COLOURS = {
    "ground": ("#ffffff", "#161b22"),
    "ink": ("#1f2933", "#e6edf3"),
    "grey": ("#52606d", "#aab4bf"),
    "line": ("#7b8794", "#7d8793"),
    "pale": ("#eef2f6", "#222b36"),
    "ours": ("#1b6e4f", "#56c596"),
    "ours-too": ("#3f9470", "#2f9269"),
    "exact": ("#2b6cb0", "#6cb6ff"),
    "stock": ("#c05621", "#f0883e"),
    "lost": ("#b42318", "#ff8f85"),
    "safe": ("#d9f0e3", "#143d2b"),
    "killed": ("#fdecea", "#42201d"),
}
"""{name: (in the light, in the dark)}"""


def style() -> str:
    """Return the rules by which a picture follows light and dark."""
    light, dark = (
        "".join(
            f".{name}{{fill:{colours[theme]}}}.{name}-edge{{stroke:{colours[theme]}}}"
            for name, colours in COLOURS.items()
        )
        for theme in (0, 1)
    )
    fit = "svg{max-width:100%;height:auto}"
    return f"<style>{fit}{light}@media (prefers-color-scheme: dark){{{dark}}}</style>"


class Picture:
    """An SVG with a ground of its own, which follows light and dark."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}"'
            f' width="{WIDE * SCALE:g}" height="{height * SCALE:g}" role="img"'
            ' aria-labelledby="title description" fill="none"'
            ' font-family="system-ui, Helvetica, Arial, sans-serif">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(" ".join(description.split()))}</desc>',
            style(),
        ]
        self.box(0, 0, WIDE, height, "ground", radius=8)
        self.text(12, 26, title, bold=True, size=16)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        edge: str = "",
        radius: float = 3,
        dashed: bool = False,
    ) -> None:
        names = f"{fill} {edge}-edge" if edge else fill
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
            f' class="{names}"{dash}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        *,
        anchor: str = "start",
        bold: bool = False,
        size: float = 13,
        code: bool = False,
    ) -> None:
        more = ' font-weight="bold"' if bold else ""
        more += ' font-family="ui-monospace, Menlo, Consolas, monospace"' if code else ""
        more += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{colour}" font-size="{size:g}"{more}>'
            f"{escape(words)}</text>"
        )

    def legend(self, y: float, entries: Iterable[tuple[float, str, str]]) -> None:
        """Draw what the colours mean: x, colour and words of each."""
        for x, colour, words in entries:
            self.box(x, y - 11, 12, 12, colour, radius=2)
            self.text(x + 17, y, words, "grey")

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" class="{colour}-edge" stroke-width="{width:g}"/>'
        )

    def bow(self, x: float, top: float, bottom: float, colour: str) -> None:
        """Join two points of a column past those between them."""
        self._parts.append(
            f'<path d="M{x:g} {top:g} Q{x - 16:g} {(top + bottom) / 2:g} {x:g} {bottom:g}"'
            f' class="{colour}-edge" stroke-width="2"/>'
        )

    def dot(self, x: float, y: float, colour: str, edge: str = "", size: float = 4) -> None:
        names = f"{colour} {edge}-edge" if edge else colour
        width = ' stroke-width="2"' if edge else ""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{size:g}" class="{names}"{width}/>')

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def rows_of(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table of a page whose first line begins with `head`."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("*") for cell in line.strip("|").split(" | ")])
    return rows


# Moments of a request's life, from above: what is where, and what a kill leaves at that moment.
# A state that ends in * is safe on the disk.
MOMENTS = (
    (
        "A page yields it",
        ("in memory", "none", "not set", "none"),
        "Its parent's row is there: the parent is fetched again, and yields it again.",
    ),
    (
        "Commit",
        ("pending", "written*", "noted, set*", "none"),
        "Row and note of the bit are one transaction: the next start sets the bit.",
    ),
    (
        "Dispatched",
        ("dispatched", "there*", "set*", "none"),
        "The row is there: it is fetched again.",
    ),
    (
        "Its callback gives items",
        ("dispatched", "there*", "set*", "wait"),
        "It is fetched again. What waits is dropped, so that no item comes twice.",
    ),
    (
        "Commit",
        ("done", "deleted*", "set*", "final*"),
        "Nothing is lost or repeated: children have rows, items are in the database.",
    ),
    (
        "Feed",
        ("done", "gone", "set*", "in the file*"),
        "Items beyond the recorded length are cut off, and appended again.",
    ),
)
COLUMNS = ("Request", "Row", "Bit", "Items")


def request_picture() -> Picture:
    """Where a request, its row, its bit and its items are, and what a kill leaves."""
    top, high, wide = 98, 116, 96
    picture = Picture(
        top + len(MOMENTS) * high,
        "What a kill leaves of a request",
        request_picture.__doc__ or "",
    )
    for at, (dashed, words) in enumerate(
        ((False, "on the disk: survives a kill"), (True, "in memory, or not there"))
    ):
        fill, edge = ("ground", "line") if dashed else ("safe", "ours")
        picture.box(12 + 200 * at, 40, 12, 12, fill, edge=edge, dashed=dashed)
        picture.text(29 + 200 * at, 51, words, "grey")
    picture.box(12, 60, 12, 12, "killed", edge="lost")
    picture.text(29, 71, "what a start finds that was killed at this moment", "grey")
    for row, (moment, states, left_over) in enumerate(MOMENTS):
        y = top + row * high
        picture.text(12, y, f"{row + 1}. {moment}", bold=True)
        for column, (name, state) in enumerate(zip(COLUMNS, states, strict=True)):
            x, safe = 8 + wide * column, state.endswith("*")
            fill, edge = ("safe", "ours") if safe else ("ground", "line")
            picture.box(x, y + 8, wide - 4, 40, fill, edge=edge, dashed=not safe)
            x += wide / 2 - 2
            picture.text(x, y + 24, name, anchor="middle", size=12)
            picture.text(x, y + 41, state.strip("*"), anchor="middle", size=12, bold=True)
        lines = wrap(left_over, 54)
        picture.box(8, y + 52, wide * 4 - 4, 8 + 16 * len(lines), "killed", edge="lost")
        for number, words in enumerate(lines):
            picture.text(16, y + 68 + 16 * number, words, size=12.5)
    return picture


def three_kills_picture() -> Picture:
    """Pages, items and CPU time of the crawls that `make demo` kills, of its table in README.md."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    table = text.partition("<!-- killed -->")[2].partition("<!-- /killed -->")[0].splitlines()

    def row(start: str) -> tuple[int, list[float]]:
        """Return the number in the name of a row, and its cells."""
        name, *cells = re.split(" {2,}", next(line for line in table if line.startswith(start)))
        total = re.sub(r"\D", "", name)
        return int(total or 0), [float(cell.replace(",", "")) for cell in cells]

    (pages, missed), (items, missing) = row("pages missed"), row("items missing")
    kills, twice, cpu = (row(start)[1] for start in ("times killed", "items twice", "CPU time an"))
    names = ("scrapy-bloom", "stock Scrapy", "stock, not killed")
    picture = Picture(
        326,
        "One crawl, killed three times with kill -9",
        f"Crawls of a site of {pages:,} pages: scrapy-bloom killed {kills[0]:.0f} times, stock"
        f" Scrapy {kills[1]:.0f}, and stock Scrapy not killed.",
    )
    left, wide, y = 124, 136, 54
    ends = {
        "Pages fetched": (pages, missed, [f"{each:,.0f} missed" for each in missed]),
        "Items in the feed": (
            items,
            missing,
            [
                f"{each:,.0f} missing" if each else f"{more:,.0f} twice" if more else "each once"
                for each, more in zip(missing, twice, strict=True)
            ],
        ),
    }
    for what, (total, lacking, words) in ends.items():
        picture.text(12, y, f"{what}, of {total:,}", bold=True)
        for number, colour in enumerate(("ours", "stock")):
            y += 22
            there = total - lacking[number]
            picture.text(left - 8, y, names[number], anchor="end")
            picture.box(left, y - 13, wide * there / total, 17, colour)
            picture.text(
                left + wide * there / total + 7, y, f"{there:,.0f} ({words[number]})",
                "lost" if lacking[number] else "ink", bold=lacking[number] > 0,
            )  # fmt: skip
        y += 30
    picture.text(12, y, "CPU time for each item in the feed", bold=True)
    for name, colour, each in zip(names, ("ours", "stock", "line"), cpu, strict=True):
        y += 22
        picture.text(left - 8, y, name, anchor="end")
        picture.box(left, y - 13, wide * each / max(cpu), 17, colour)
        picture.text(left + wide * each / max(cpu) + 7, y, f"{each:.1f} ms")
    picture.text(12, y + 28, "After its first kill stock Scrapy has nothing to resume,", "grey")
    picture.text(12, y + 45, "and reports “finished”. Printed by: make demo", "grey")
    return picture


def cpu_picture() -> Picture:
    """CPU time a page with JOBDIR, times stock Scrapy's, by the way that links are followed."""
    rows = rows_of("speed.md", "| Times stock Scrapy's CPU time")
    left, wide, high, top = 12, 330, 76, 100
    picture = Picture(top + high * len(rows) + 36, "CPU time a page", cpu_picture.__doc__ or "")
    picture.legend(50, [(12, "stock", "stock Scrapy = 1")])
    picture.legend(69, [(12, "ours", "openjdk-17-doc, 145 duplicate links a page")])
    picture.legend(88, [(12, "ours-too", "the site of the demo, 23 duplicate links a page")])
    for number, row in enumerate(rows):
        y = top + number * high
        picture.text(left, y + 15, row[0].replace("`", ""), bold=True)
        for bar, (share, colour) in enumerate(
            ((1.0, "stock"), (float(row[1].strip("* ")), "ours"), (float(row[2]), "ours-too"))
        ):
            at = y + 21 + bar * 16
            picture.box(left, at, wide * share, 13, colour, radius=2)
            picture.text(left + wide * share + 6, at + 11, f"{share:.2f}", size=12)
    y = top + high * len(rows) + 6
    picture.text(12, y + 8, "python benchmarks/bench_crawl.py, with JOBDIR", "grey", size=12)
    picture.text(12, y + 23, "medians of 3 pairs: the table in speed.md", "grey", size=12)
    return picture


def memory_picture() -> Picture:
    """Memory of a process by its requests, as bench_memory.py has measured it."""
    rows = rows_of("exactness.md", "| Requests | RFPDupeFilter")
    names = ("RFPDupeFilter", "grown from 1 M", "capacity set", "exact, capacity set")
    colours = ("stock", "ours-too", "ours", "exact")
    left, top, wide, high = 62, 92, 318, 250
    picture = Picture(
        top + high + 88, "Memory by the number of requests", memory_picture.__doc__ or ""
    )
    for at, entry in enumerate(zip(colours, names, strict=True)):
        picture.legend(50 + 20 * (at // 2), [(12 + 180 * (at % 2), *entry)])
    counts = [int(row[0].replace(",", "")) for row in rows]
    low, top_power = 6.0, 9.0  # 1 MB to 1 GB
    for power, name in ((6, "1 MB"), (7, "10 MB"), (8, "100 MB"), (9, "1 GB")):
        y = top + high * (1 - (power - low) / (top_power - low))
        picture.line([(left, y), (left + wide, y)], "pale")
        picture.text(left - 6, y + 5, name, "grey", anchor="end", size=12)
    for million in range(6):
        x = left + wide * million / 5
        picture.text(x, top + high + 18, f"{million}", "grey", anchor="middle", size=12)
    picture.text(left + wide / 2, top + high + 36, "million requests", anchor="middle")
    picture.line([(left, top), (left, top + high), (left + wide, top + high)], "line")
    for column, colour in enumerate(colours, 1):
        points = []
        for count, row in zip(counts, rows, strict=True):
            size = max(count * float(row[column].removesuffix(" B")), 10**low)
            y = top + high * (1 - (log10(size) - low) / (top_power - low))
            points.append((left + wide * count / 5e6, y))
        picture.line(points, colour, 2)
        for point in points:
            picture.dot(*point, colour)
    y = top + high + 60
    picture.text(12, y, "memory on a logarithmic scale: the table in exactness.md", "grey", size=12)
    picture.text(12, y + 16, "python benchmarks/bench_memory.py", "grey", size=12)
    return picture


def floors() -> dict[str, int]:
    """Return {room: number of its floor, 1 at the top}, from the table in CONTRIBUTING.md."""
    table = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| \S.* \|$", table, re.MULTILINE)
    return {room: int(number) for number, room in rows}


@cache
def rooms_imported(room: str) -> set[str]:
    """Return the rooms from which the files of a room import."""
    found = set()
    files = [*(PACKAGE / room).rglob("*.py"), *PACKAGE.glob(f"{room}.py")]
    for file in files:
        inside = len(file.relative_to(PACKAGE).parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == inside:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                found |= {name.partition(".")[0] for name in names}
    return found - {room}


def steps() -> list[tuple[str, set[str]]]:
    """Return the steps of a request in architecture.md: the name, and the rooms on the way."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    return [
        (name, {room for room in floors() if re.search(rf"`{room}(?:/[\w/]*)?(?:\.py)?`", words)})
        for name, words in re.findall(r"^\d\. \*\*(\w+)\.\*\* (.*(?:\n   .*)*)", text, re.MULTILINE)
    ]


def architecture_picture() -> Picture:
    """The rooms of the package by floor, each importing from below only, and those that a request
    passes at each step: joined where the upper one imports the lower one."""
    rooms, way = floors(), steps()
    top, high, left, wide = 96, 19, 162, 31
    picture = Picture(
        top + high * len(rooms) + 8, "Rooms, floors, and the way of a request",
        architecture_picture.__doc__ or "",
    )  # fmt: skip
    for x, fill, words in (
        (18, "ground", "by Scrapy or a seam"),
        (170, "ours", "imported by the one above"),
    ):
        picture.dot(x, 44, fill, "ours", 5)
        picture.text(x + 10, 48, words, "grey", size=12)
    picture.text(12, 82, "Floor, room", bold=True, size=12)
    rows = {room: top + high * (at + 0.5) for at, room in enumerate(rooms)}
    for room, y in rows.items():
        if rooms[room] % 2:
            picture.box(6, y - high / 2, WIDE - 12, high, "pale", radius=0)
        picture.text(30, y + 4, f"{rooms[room]}", "grey", anchor="end", size=12)
        picture.text(38, y + 4, room, code=True, size=12)
    for column, (name, passed) in enumerate(way):
        x = left + wide * column
        picture.text(x, 70 + 15 * (column % 2), name, anchor="middle", bold=True, size=12)
        picture.line([(x, top), (x, top + high * len(rooms))], "pale", 1)
        found = [room for room in rooms if room in passed]
        for at, room in enumerate(found):
            above = [other for other in found[:at] if room in rooms_imported(other)]
            if above and above[-1] == found[at - 1]:
                picture.line([(x, rows[above[-1]]), (x, rows[room])], "ours", 2)
            elif above:
                picture.bow(x, rows[above[-1]], rows[room], "ours")
        for at, room in enumerate(found):
            joined = any(room in rooms_imported(other) for other in found[:at])
            picture.dot(x, rows[room], "ours" if joined else "ground", "ours", 5)
    return picture


PICTURES = {
    "three-kills.svg": three_kills_picture,
    "architecture.svg": architecture_picture,
    "request.svg": request_picture,
    "cpu.svg": cpu_picture,
    "memory-measured.svg": memory_picture,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (DOCS / "images" / name).write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
