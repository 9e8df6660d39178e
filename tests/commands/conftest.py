"""What the tests of the subcommands share."""

import subprocess

import pytest

from scrapy_bloom.commands import main
from tests.commands.command_line import SEEN, Result


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs a command in this process, as `python -m` does."""

    def run(folder, *arguments):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as end:
            status = end.code
        out, error = capsys.readouterr()
        return Result(subprocess.CompletedProcess(arguments, status, out, error))

    return run


@pytest.fixture
def job(run, tmp_path):
    """A job directory whose filter knows SEEN, by Scrapy's fingerprints, outside a project."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    result = run(tmp_path, "add", "job", "urls.txt", "--capacity", "2k")
    assert result.status == 0, result.error
    assert "3 added, 0 were known" in result.out
    return tmp_path / "job"
