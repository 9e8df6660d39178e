"""`scrapy bloom`: looks at filters, fills them, and shows what the settings should be.

Scrapy imports this with each of its own commands, so it must be quick: the rest is
imported when it is asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

DESCRIPTION = (
    "Look at crawls, their jobs and Bloom filters, fill them with what was crawled before, and find"
    " out what the settings should be."
)


class BloomCommand(ScrapyCommand):
    """The command behind the entry point `bloom` in the group `scrapy.commands`."""

    requires_project = False
    requires_crawler_process = False

    program = "scrapy bloom"

    def syntax(self) -> str:
        """Return what follows the name of the command."""
        return "<subcommand> [options]"

    def short_desc(self) -> str:
        """Return the line in Scrapy's list of commands."""
        return "Inspect, fill, merge and size the Bloom filters of crawls"

    def long_desc(self) -> str:
        """Return the text of the help."""
        return DESCRIPTION

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the subcommands, each with Scrapy's global options."""
        from .arguments import add_subcommands

        add_subcommands(parser, self.program, super().add_options)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Take Scrapy's global options. Raises UsageError for what cannot be taken."""
        try:
            super().process_options(args, opts)
        except OSError as error:
            raise UsageError(str(error), print_help=False) from error

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the subcommand; its exit status is `exitcode`."""
        from .context import run

        assert self.settings is not None
        self.exitcode = run(self.program, opts, args, self.settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m scrapy_bloom`, inside a project with its settings, and return the
    exit status."""
    from scrapy.utils.project import get_project_settings

    command = BloomCommand()
    command.program = "python -m scrapy_bloom"
    command.settings = get_project_settings()
    parser = argparse.ArgumentParser(prog=command.program, description=DESCRIPTION)
    command.add_options(parser)
    options, rest = parser.parse_known_args(arguments)
    try:
        command.process_options(rest, options)
    except UsageError as error:
        parser.error(str(error))
    command.run(rest, options)
    return command.exitcode
