import scrapy


class BooksSpider(scrapy.Spider):
    name = "books"
    start_urls = ["https://books.toscrape.com/"]

    def parse(self, response):
        categories = ".side_categories ul ul a"
        yield from response.follow_all(css=categories, callback=self.parse_category)

    def parse_category(self, response):
        for book in response.css("article.product_pod h3 a"):
            yield {"title": book.attrib["title"], "url": response.urljoin(book.attrib["href"])}
        yield from response.follow_all(css="li.next a", callback=self.parse_category)
