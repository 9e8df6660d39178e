"""Draws the pictures of the documents: `python docs/pictures.py` writes them to docs/images.

The figures are those in speed.md and exactness.md, which say what has printed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10
from pathlib import Path

DOCS = Path(__file__).resolve().parent
INK, GREY, PALE, LINE = "#1f2933", "#52606d", "#eef2f6", "#9aa5b1"
OURS, STOCK, LOST = "#1b6e4f", "#c05621", "#b42318"


class Picture:
    """An SVG with a background of its own, so that it can be read on white and on black."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img"'
            ' font-family="Helvetica, Arial, sans-serif" font-size="14">',
            f"<title>{escape(title)}</title>",
        ]
        self.box(0, 0, width, height, fill="#ffffff", stroke="none", radius=8)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "#ffffff",
        stroke: str = LINE,
        radius: float = 4,
        dashed: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
            f' fill="{fill}" stroke="{stroke}"{dash}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "start",
        colour: str = INK,
        bold: bool = False,
        size: int = 14,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"'
            f' font-size="{size}"{weight}>{escape(words)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{colour}"/>')

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


# Moments of a request's life, from above: what is where, and what a kill leaves at that moment.
# A state that ends in * is safe on the disk.
MOMENTS = (
    (
        ("A page", "yields it"),
        ("in memory", "none", "not set", "none"),
        ("Its parent's row is there: the parent", "is fetched again, and yields it again."),
    ),
    (
        ("Commit",),
        ("waits", "written*", "noted, set*", "none"),
        ("Row and note of the bit are one trans-", "action: the next start sets the bit."),
    ),
    (
        ("In flight",),
        ("with the engine", "there*", "set*", "none"),
        ("The row is there:", "it is fetched again."),
    ),
    (
        ("Its callback", "gives items"),
        ("with the engine", "there*", "set*", "wait"),
        ("It is fetched again. What waits is", "dropped, so that no item comes twice."),
    ),
    (
        ("Commit",),
        ("done", "deleted*", "set*", "final*"),
        ("Nothing is lost or repeated: children", "have rows, items are in the database."),
    ),
    (
        ("Feed",),
        ("done", "gone", "set*", "in the file*"),
        ("Items beyond the recorded length are", "cut off, and appended again."),
    ),
)
COLUMNS = (("Request", 136), ("Row", 92), ("Bit", 104), ("Items", 100))


def request_picture() -> Picture:
    """Where a request, its row, its bit and its items are, and what a kill leaves."""
    left, top, high, gap, kill = 116, 104, 48, 8, 272
    wide = left + sum(width for _, width in COLUMNS) + kill + 20
    picture = Picture(wide, top + 20 + len(MOMENTS) * (high + gap), request_picture.__doc__ or "")
    picture.text(16, 30, "The life of a request, and what a kill leaves", bold=True, size=18)
    picture.text(
        16, 54, "Green is on the disk, and survives. Dashed is in memory, or not there.",
        colour=GREY,
    )  # fmt: skip
    x: float = left
    for name, width in COLUMNS:
        picture.text(x + (width - 8) / 2, top - 14, name, anchor="middle", bold=True)
        x += width
    picture.text(x + 8, top - 14, "Killed now", bold=True, colour=LOST)
    for row, (moment, states, left_over) in enumerate(MOMENTS):
        y = top + row * (high + gap)
        for number, words in enumerate(moment):
            picture.text(16, y + (29 if len(moment) == 1 else 20 + 18 * number), words, bold=True)
        x = left
        for (_, width), state in zip(COLUMNS, states, strict=True):
            safe = state.endswith("*")
            fill, stroke = ("#d9f0e3", OURS) if safe else ("#ffffff", LINE)
            picture.box(x, y, width - 8, high, fill=fill, stroke=stroke, dashed=not safe)
            picture.text(x + (width - 8) / 2, y + 29, state.strip("*"), anchor="middle")
            x += width
        picture.box(x, y, kill, high, fill="#fdecea", stroke=LOST)
        for number, words in enumerate(left_over):
            picture.text(x + 10, y + 20 + 18 * number, words)
    return picture


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


def cpu_picture() -> Picture:
    """CPU time a page with JOBDIR, times stock Scrapy's, by the way that links are followed."""
    rows = rows_of("speed.md", "| Times stock Scrapy's CPU time")
    left, wide, high = 322, 340, 64
    picture = Picture(left + wide + 90, 118 + high * len(rows), cpu_picture.__doc__ or "")
    picture.text(16, 30, "CPU time a page, stock Scrapy = 1", bold=True, size=18)
    for at, (colour, name) in enumerate(
        ((STOCK, "stock Scrapy"), (OURS, "openjdk-17-doc, 145 duplicates a page"),
         ("#5aa986", "the demo's site, 23 a page"))
    ):  # fmt: skip
        x = 16 + (0, 130, 422)[at]
        picture.box(x, 46, 14, 14, fill=colour, stroke="none", radius=2)
        picture.text(x + 20, 58, name, colour=GREY)
    for number, row in enumerate(rows):
        y = 86 + number * high
        name = row[0].replace("`", "")
        picture.text(left - 12, y + 26, name, anchor="end")
        for bar, (share, colour) in enumerate(
            ((1.0, STOCK), (float(row[1].strip("* ")), OURS), (float(row[2]), "#5aa986"))
        ):
            top = y + bar * 16
            picture.box(left, top, wide * share, 13, fill=colour, stroke="none", radius=2)
            picture.text(left + wide * share + 6, top + 11, f"{share:.2f}", size=12)
    picture.line([(left, 78), (left, 86 + high * len(rows) - 8)], LINE)
    picture.text(
        16, 104 + high * len(rows), "python benchmarks/bench_crawl.py, with JOBDIR, medians"
        " of 5 pairs: the table in speed.md", colour=GREY, size=12,
    )  # fmt: skip
    return picture


def memory_picture() -> Picture:
    """Memory of a process by its requests, as bench_memory.py has measured it."""
    rows = rows_of("exactness.md", "| Requests | RFPDupeFilter")
    names = ("RFPDupeFilter", "grown from 1 M", "capacity set", "exact, capacity set")
    colours = (STOCK, "#5aa986", OURS, "#2b6cb0")
    left, top, wide, high = 74, 76, 560, 300
    picture = Picture(left + wide + 56, top + high + 76, memory_picture.__doc__ or "")
    picture.text(16, 30, "Memory by the number of requests", bold=True, size=18)
    counts = [int(row[0].replace(",", "")) for row in rows]
    low, top_power = 6.0, 9.0  # 1 MB to 1 GB
    for power, name in ((6, "1 MB"), (7, "10 MB"), (8, "100 MB"), (9, "1 GB")):
        y = top + high * (1 - (power - low) / (top_power - low))
        picture.line([(left, y), (left + wide, y)], "#e4e7eb")
        picture.text(left - 8, y + 5, name, anchor="end", colour=GREY, size=12)
    for million in range(6):
        x = left + wide * million / 5
        picture.text(x, top + high + 20, f"{million} M", anchor="middle", colour=GREY, size=12)
    picture.line([(left, top), (left, top + high), (left + wide, top + high)], LINE)
    for column, (name, colour) in enumerate(zip(names, colours, strict=True), 1):
        points = []
        for count, row in zip(counts, rows, strict=True):
            size = max(count * float(row[column].removesuffix(" B")), 10**low)
            y = top + high * (1 - (log10(size) - low) / (top_power - low))
            points.append((left + wide * count / 5e6, y))
        picture.line(points, colour, 2)
        for point in points:
            picture.dot(*point, colour)
        x = left + (0, 150, 296, 424)[column - 1]
        picture.box(x, 44, 14, 14, fill=colour, stroke="none", radius=2)
        picture.text(x + 20, 56, name, colour=GREY)
    picture.text(
        16, top + high + 60, "python benchmarks/bench_memory.py, measured: the table in"
        " exactness.md; the scale is logarithmic", colour=GREY, size=12,
    )  # fmt: skip
    return picture


PICTURES = {
    "request.svg": request_picture,
    "cpu.svg": cpu_picture,
    "memory-measured.svg": memory_picture,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (DOCS / "images" / name).write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
