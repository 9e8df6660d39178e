"""The part of the embedded site that changes: lists of articles, of which each day brings some."""

import re

from example.model import NOT_FOUND, Answer

LISTS, ARTICLES, NEW_A_DAY = 10, 20, 2
REWRITTEN = (3, 7)
"""These articles of each list are rewritten every day."""


def news(target: str, day: int) -> Answer:
    """Return the answer for a path below /news on a day, from 1."""
    if target == "/news":
        return Answer(200, "News", [f"/news/{number}" for number in range(LISTS)])
    found = re.fullmatch(r"/news/(\d+)(?:/(\d+))?", target)
    articles = ARTICLES + NEW_A_DAY * (day - 1)
    if not found or int(found[1]) >= LISTS or int(found[2] or 0) >= articles:
        return NOT_FOUND
    if found[2] is None:
        # the newest first, and the list before for whoever reads on
        links = [f"{target}/{number}" for number in reversed(range(articles))]
        return Answer(200, f"News of desk {found[1]}", links)
    version = day if int(found[2]) in REWRITTEN else 1
    return Answer(200, f"Article {found[2]} of desk {found[1]}, version {version}")
