"""What can be typed: subcommands, arguments and numbers."""

import argparse
import subprocess
from itertools import product

import pytest
from scrapy.settings import Settings

from scrapy_bloom.commands import BloomCommand
from tests.commands.command_line import (
    SUBCOMMANDS,
    SUBCOMMANDS_OF_JOBS,
    SUBCOMMANDS_OF_REDIS,
    bloom,
    environment,
    scrapy_executable,
)


def test_help_names_every_subcommand(tmp_path):
    """`scrapy` lists the command; its help, also without a subcommand, has a line about each."""
    listed = subprocess.run(
        scrapy_executable(), cwd=tmp_path, env=environment(), capture_output=True, text=True
    ).stdout
    assert "bloom" in listed
    for module, arguments in product((False, True), (["--help"], [])):
        result = bloom(tmp_path, *arguments, module=module)
        assert result.status == 0
        for name in SUBCOMMANDS + SUBCOMMANDS_OF_REDIS + SUBCOMMANDS_OF_JOBS:
            (line,) = [each for each in result.lines if each.split()[:1] == [name]]
            assert len(line.split()) > 3


def test_help_of_each_subcommand_is_complete():
    """Each has a description, each argument a help text, and figures come as JSON."""
    command = BloomCommand()
    command.settings = Settings()
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    (subparsers,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(subparsers.choices) == {*SUBCOMMANDS, *SUBCOMMANDS_OF_REDIS, *SUBCOMMANDS_OF_JOBS}
    for name, subparser in subparsers.choices.items():
        assert subparser.description
        assert all(action.help for action in subparser._actions)
        options = {option for action in subparser._actions for option in action.option_strings}
        assert {"--set", "--loglevel"} <= options
        assert ("--json" in options) == (name not in {"clear", "drop", "plot"})
        assert subparser.format_help()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "'nonsense' is no subcommand ("),
        (["chek"], "'chek' is no subcommand: did you mean check?"),
        (["info"], "required: PLACE"),
        (["info", "a", "b"], "unrecognized: b"),
        (["info", "a", "--nonsense"], "unrecognized: --nonsense"),
        (["queue", "hold", "a", "--json", "b", "--nonsense", "c"], "unrecognized: --nonsense"),
        (["size", "--urls", "many"], "'many' is not a whole number"),
        (["plot", "pie", "x.png"], "invalid choice: 'pie'"),
    ],
)
def test_wrong_arguments_get_one_line(run, tmp_path, arguments, message):
    """A mistyped command ends with status 2 and a line that says what and where to look."""
    result = run(tmp_path, *arguments)
    assert message in result.refusal
    assert "--help" in result.refusal
    assert not result.out


def test_wrong_arguments_get_one_line_from_scrapy_too(tmp_path):
    """The same through Scrapy's own parser, which would print its usage."""
    assert "'nonsense' is no subcommand" in bloom(tmp_path, "nonsense").refusal
    assert "unrecognized: --nonsense" in bloom(tmp_path, "info", "x", "--nonsense").refusal


@pytest.mark.parametrize("text", ["5000000", "5_000_000", "5,000,000", "5e6", "5M", "0.005G"])
def test_numbers_may_be_written_as_people_do(run, tmp_path, text):
    """Underscores, commas, exponents and suffixes mean the same everywhere."""
    assert run(tmp_path, "size", "--urls", text, "--json").json["urls"] == 5_000_000


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "1.5", "x", "M", "1e", "nan", "inf", "1e999", "1e300"]
)
@pytest.mark.parametrize("option", ["--urls", "--from"])
def test_other_numbers_are_refused(run, tmp_path, option, text):
    """What is no positive whole number, or more than there can be, is named."""
    refusal = run(tmp_path, "size", "--urls", "5", f"{option}={text}").refusal
    assert f"argument {option}: {text!r} is not a whole number from 1 to 1,000" in refusal


@pytest.mark.parametrize("option", ["-s", "--pidfile"])
def test_bad_options_of_scrapy_get_one_line(tmp_path, option):
    """What Scrapy's own options cannot take ends no command with a traceback."""
    for module in (False, True):
        refusal = bloom(tmp_path, "size", "--urls", "5", option, "/no/x", module=module).refusal
        assert "/no/x" in refusal or "use -s NAME=VALUE" in refusal
