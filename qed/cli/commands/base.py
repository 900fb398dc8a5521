"""The option parser of commands, and options that several commands share."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from qed.config.names import explain_repetition
from qed.errors import UsageError, suggest_nearest

LIST_END = ",…"  # ends the metavar of an option that takes a list
ALIASES = {"--n": "--samples", "--k": "--samples", "--samples": "--n", "--num-samples": "--samples"}
LISTS = ("answers", "parts")  # what the items of a list in the answer column are


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
            raise argparse.ArgumentTypeError(
                f"must be {', '.join(modes)}, regex:PATTERN or first-regex:PATTERN, not '{text}'"
            )
        return text

    about = "how the final answer is extracted: {}, regex:PATTERN or first-regex:PATTERN (default: flexible)"
    add("--extract", type=read, metavar="MODE", default="flexible", help=about.format(", ".join(modes)))


def add_lists_option(add: Callable[..., object], lead: str = "") -> None:
    """Add the option that says how to read a list in the answer column; its help begins with `lead`."""
    about = "what a list is: k answers, or the parts of one (default: k answers; an unclear list is refused)"
    add("--lists", choices=LISTS, default="", help=lead + about)


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of an option's value: comma-separated, or a JSON list, whose words may contain commas."""
    from qed.config.values import split_items  # noqa: PLC0415 -- it loads yaml, which help texts do not need

    return tuple(word for item in split_items(text) if (word := item.text.strip()))


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

    def parse(self, arguments: Sequence[str], layered: bool = False) -> argparse.Namespace:
        """Return the options of a command line.

        Args:
            arguments: the arguments after the command.
            layered: whether later arguments may replace a list that earlier ones give, such as those of a file.

        Raises:
            UsageError: the command line is invalid, or gives a list twice.
        """
        if _reveal:
            raise ParserRevealed(self)
        if not layered:
            self._refuse_repeated_lists(arguments)
        args, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            meant = ALIASES.get(unknown[0].partition("=")[0], "")
            hint = f" Did you mean '{meant}'?" if meant in known else suggest_nearest(unknown[0], known)
            raise UsageError(f"{self.prog} has no option {unknown[0]}.{hint}{self._suggest_help()}")
        return args

    def list_given(self, arguments: Sequence[str]) -> list[tuple[str, argparse.Action]]:
        """Return the options that a command line gives, under the names used there, in order."""
        names = [argument.partition("=")[0] for argument in itertools.takewhile("--".__ne__, arguments)]
        return [(name, self._option_string_actions[name]) for name in names if name in self._option_string_actions]

    def _refuse_repeated_lists(self, arguments: Sequence[str]) -> None:
        """Raise UsageError for a list option given twice: the second would silently replace the first."""
        given: dict[str, str] = {}
        for name, action in self.list_given(arguments):
            metavar = str(action.metavar)
            if not metavar.endswith(LIST_END) or isinstance(action, argparse._AppendAction):
                continue
            if action.dest in given:
                raise UsageError(explain_repetition(given[action.dest], name, "=" in metavar))
            given[action.dest] = name

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
    """Make every parser raise itself instead of parsing, so that the options of a command can be listed."""
    _reveal.append(True)
    try:
        yield
    finally:
        _reveal.pop()
