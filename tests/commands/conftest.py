"""What the tests of the subcommands share."""

import pytest

from tests.commands.command_line import SEEN


@pytest.fixture
def job(run, tmp_path):
    """A job directory whose filter knows SEEN, by Scrapy's fingerprints, outside a project."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    result = run(tmp_path, "add", "job", "urls.txt", "--capacity", "2k")
    assert result.status == 0, result.error
    assert "3 added, 0 were known" in result.out
    return tmp_path / "job"


@pytest.fixture
def there(run, tmp_path, redis_server, key):
    """A function that runs a subcommand on the filter or the crawl `key` in Redis."""

    def there(subcommand, *words, **options):
        place = [*subcommand.split(), redis_server.url, *words, "--key", key]
        return run(tmp_path, *place, **options)

    return there
