"""What can be typed: subcommands, arguments and numbers."""

import argparse
import re

import pytest
from scrapy.settings import Settings

from scrapy_bloom.commands import BloomCommand
from tests.commands.command_line import EVERY_SUBCOMMAND, in_shell


@pytest.mark.parametrize("scrapy", [False, True])
def test_help_names_every_subcommand(run, tmp_path, scrapy):
    """Also without a subcommand, it has a line about each; and Scrapy lists the command."""
    for arguments in (["--help"], []):
        result = run(tmp_path, *arguments, scrapy=scrapy)
        assert result.status == 0
        for name in EVERY_SUBCOMMAND:
            (line,) = [each for each in result.lines if each.split()[:1] == [name]]
            assert len(line.split()) > 3
    assert not scrapy or re.search("  bloom +Inspect", in_shell(tmp_path, "scrapy").out)


def test_help_of_each_subcommand_is_complete():
    """Each has a description, each argument a help text, and figures come as JSON."""
    command = BloomCommand()
    command.settings = Settings()
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    (subparsers,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    assert {*subparsers.choices} == EVERY_SUBCOMMAND
    for name, subparser in subparsers.choices.items():
        assert subparser.description
        assert all(action.help for action in subparser._actions)
        options = {option for action in subparser._actions for option in action.option_strings}
        assert {"--set", "--loglevel"} <= options
        assert ("--json" in options) == (name not in {"clear", "drop", "plot"})
        assert subparser.format_help()


@pytest.mark.parametrize("scrapy", [False, True])
def test_wrong_arguments_get_one_line(run, tmp_path, scrapy):
    """A mistyped command ends with status 2 and a line that says what and where to look, also
    through Scrapy's own parser, which would print its usage."""
    for words, message in (
        ("nonsense", "'nonsense' is no subcommand ("),
        ("chek", "'chek' is no subcommand: did you mean check?"),
        ("info", "required: PLACE"),
        ("info a b", "unrecognized: b"),
        ("info a --nonsense", "unrecognized: --nonsense"),
        ("queue hold a --json b --nonsense c", "unrecognized: --nonsense"),
        ("size --urls many", "'many' is not a whole number"),
        ("plot pie x.png", "invalid choice: 'pie'"),
    ):
        result = run(tmp_path, *words.split(), scrapy=scrapy)
        assert message in result.refusal
        assert "--help" in result.refusal
        assert not result.out
    # what Scrapy's own options cannot take
    for option, message in (("-s", "use -s NAME=VALUE"), ("--pidfile", "/no/x")):
        refused = run(tmp_path, "size", "--urls", "5", option, "/no/x", scrapy=scrapy).refusal
        assert message in refused


def test_numbers_may_be_written_as_people_do(run, tmp_path):
    """Underscores, commas, exponents and suffixes mean the same everywhere; what is no positive
    whole number, or more than there can be, is named."""
    for text in ("5000000", "5_000_000", "5,000,000", "5e6", "5M", "0.005G"):
        assert run(tmp_path, "size", "--urls", text, "--json").json["urls"] == 5_000_000
    for text in ("", "0", "-5", "1.5", "x", "nan", "1e300"):
        for option in ("--urls", "--from"):
            refusal = run(tmp_path, "size", "--urls", "5", f"{option}={text}").refusal
            assert f"argument {option}: {text!r} is not a whole number from 1 to 1,000" in refusal
