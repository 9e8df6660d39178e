"""A spider whose site leads back to where it came from, run by `scrapy runspider`.

The site is a downloader middleware; what was asked stands in the file `asked` of the working
directory, whichever process has asked it.
"""

from pathlib import Path
from time import sleep

import scrapy

BUSY = 6
PAGES = [
    *("/", "/cookie", "/kid", "/leaf", "/new"),
    *("/order?a=1&b=2", "/page/1", "/page/2", "/refresh"),
]
"""What gives an item."""
ONCE_MORE = {
    "/cookie": "/cookie",
    "/kid": "/kid",
    "/order?b=2&a=1": "/order?a=1&b=2",
    "/page/1": "/consent?to=/page/1",
    "/page/2": "/consent?to=/page/2",
}
"""Where a page redirects to when it is asked for the first time."""
MOVED = {
    "/consent?to=/page/1": "/page/1",
    "/consent?to=/page/2": "/page/2",
    "/endless": "/endless",
    "/home": "/",
    "/old": "/new",
    "/child": "/old",
    **dict.fromkeys((f"/busy/{number}" for number in range(BUSY)), "/shared"),
}
"""Where a page redirects to whenever it is asked."""
LINKS = {
    "/": ["/cookie", "/order?b=2&a=1", "/page/1", "/page/2", "/refresh", "/endless", "/home"],
    "/cookie": ["/leaf", "/cookie", "/endless-refresh"],
    "/leaf": ["/old", "/page/1"],
    "/new": ["/kid", "/child", "/old"],
}


class Site:
    """Answers without a network."""

    def process_request(self, request, spider=None):
        path = request.url.partition("site.example")[2]
        file = Path("asked")
        before = file.read_text().splitlines().count(path) if file.exists() else 0
        with file.open("a") as asked:
            print(path, file=asked)
        if path == "/endless":
            sleep(0.05)  # some commits come between
        if path.startswith("/busy") and not before:
            return scrapy.http.Response(request.url, 429, {"Retry-After": "1"})
        if target := MOVED.get(path) or (not before and ONCE_MORE.get(path)):
            return scrapy.http.Response(request.url, 302, {"Location": target})
        links = "".join(f'<a href="{link}"></a>' for link in LINKS.get(path, ()))
        if path == "/endless-refresh" or (path == "/refresh" and not before):
            links = f'<meta http-equiv="refresh" content="0; url={path}">'
        return scrapy.http.HtmlResponse(request.url, body=f"<html>{links}".encode())


class RedirectingSpider(scrapy.Spider):
    """Follows all links, those of /new with the meta of its response. With `-a busy=1` it asks for
    pages that want to be asked later, and lead to one page then."""

    name = "redirecting"

    @classmethod
    def update_settings(cls, settings):
        super().update_settings(settings)
        settings.set("DOWNLOADER_MIDDLEWARES", {Site: 1000})
        settings.set("BLOOM_HOLD_MAX", 0.2)

    async def start(self):
        yield scrapy.Request("http://site.example/")
        if hasattr(self, "busy"):
            for number in range(BUSY):
                yield scrapy.Request(f"http://site.example/busy/{number}")

    def parse(self, response):
        path = response.url.partition("site.example")[2]
        yield {"url": path}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link, meta=response.meta if path == "/new" else None)
