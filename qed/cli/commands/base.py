"""The parser of the options of a command, and options that several commands have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from qed.errors import UsageError, suggest_nearest

LISTS = ("answers", "parts")  # what the items of a list in the column of answers are


def add_extract_option(add: Callable[..., object], modes: Sequence[str]) -> None:
    """Add the option that says how a final answer is extracted: one of the modes, or a regular expression."""

    def read(text: str) -> str:
        from qed.grading.extraction.patterns import check_pattern, is_pattern  # noqa: PLC0415 -- only if it is given

        if is_pattern(text):
            try:
                check_pattern(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from None
        elif text not in modes:
            raise argparse.ArgumentTypeError(f"must be {', '.join(modes)} or regex:PATTERN, not '{text}'")
        return text

    about = "how the final answer is extracted: {}, regex:PATTERN or first-regex:PATTERN (default: flexible)"
    add("--extract", type=read, metavar="MODE", default="flexible", help=about.format(", ".join(modes)))


def add_lists_option(add: Callable[..., object], lead: str = "") -> None:
    """Add the option that says what a list in the column of answers is; `lead` begins its help."""
    about = "what a list is: k answers, or the parts of one (default: k answers; an unclear list is refused)"
    add("--lists", choices=LISTS, default="", help=lead + about)


class Parser(argparse.ArgumentParser):
    """An argparse parser that allows no abbreviations and raises UsageError instead of printing usage and exiting."""

    def __init__(self, command: str, about: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"qed {command}",
            description=about,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--debug", action="store_true", help="also print the traceback of an error")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options of a command line.

        Raises:
            UsageError: the command line is invalid.
        """
        if _reveal:
            raise ParserRevealed(self)
        args, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            raise UsageError(
                f"{self.prog} has no option {unknown[0]}.{suggest_nearest(unknown[0], known)}{self._suggest_help()}"
            )
        return args

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError; argparse calls this on a mistake."""
        raise UsageError(f"{self.prog}: {message}.{self._suggest_help()}")

    def _suggest_help(self) -> str:
        return f" `{self.prog} --help` lists its options."


class ParserRevealed(Exception):
    """Raised by `Parser.parse` inside `reveal_parsers`."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


_reveal: list[bool] = []


@contextmanager
def reveal_parsers() -> Iterator[None]:
    """Let every parser raise itself instead of parsing, so that the options of a command can be listed."""
    _reveal.append(True)
    try:
        yield
    finally:
        _reveal.pop()
