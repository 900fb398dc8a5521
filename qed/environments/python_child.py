"""The child's side of running a model's Python code; `python.py` is the caller's side.

The child is sealed like the judge's (`qed.grading.child`): its memory, CPU time and open files are limited, and events
such as opening a file for writing, a socket or a program raise an error. If the system supports it, the child also
gives up all system calls but those for computing, before any code runs.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

from qed.environments import lockdown

# What a program may import; nothing else can be loaded once the child is sealed.
MODULES = (
    "abc array base64 binascii bisect calendar cmath collections collections.abc contextlib copy csv "
    "dataclasses datetime decimal enum fractions functools hashlib heapq io itertools json keyword math "
    "numbers operator pprint queue random re secrets statistics string struct sys textwrap time types typing "
    "unicodedata zlib argparse bz2 colorsys difflib encodings.cp1252 encodings.utf_16 encodings.utf_32 graphlib "
    "inspect linecache locale logging lzma _strptime timeit traceback uuid warnings zoneinfo "
    "numpy numpy.fft numpy.linalg numpy.polynomial numpy.random numpy.ma mpmath "
    "sympy sympy.abc sympy.codegen sympy.parsing.sympy_parser sympy.printing.lambdarepr sympy.printing.numpy "
    "sympy.vector"
)
# Packages that load their own modules on first use, so all of them are imported.
WHOLE = (
    "sympy.assumptions sympy.calculus sympy.combinatorics sympy.concrete sympy.functions sympy.geometry "
    "sympy.integrals sympy.logic sympy.matrices sympy.ntheory sympy.polys sympy.series sympy.sets sympy.simplify "
    "sympy.solvers sympy.stats"
)
QUIET: tuple[tuple[Any, ...], ...] = ((), (None,), (0,))  # arguments of SystemExit that mean success
CUT = "\n[the output is cut here]"
# Modules load more code on first use, which must happen before sealing: use a little of everything.
WARM_UP = """
import sympy
x, y = sympy.symbols("x y")
sympy.solve(x**2 - 4), sympy.solve([x + y - 1, x - y], [x, y]), sympy.factor(x**2 - 1), sympy.simplify(sympy.sin(x)**2)
sympy.integrate(x**2 * sympy.exp(x), x), sympy.diff(sympy.log(x), x), sympy.limit(sympy.sin(x) / x, x, 0)
sympy.Matrix([[1, 2], [3, 4]]).inv(), sympy.factorint(360), sympy.isprime(97), sympy.sqrt(8), sympy.Rational(1, 3)
sympy.summation(x, (x, 1, y)), sympy.N(sympy.pi, 20), str(sympy.series(sympy.cos(x), x, 0, 4))
import numpy
numpy.linalg.inv(numpy.eye(2)), numpy.random.default_rng(0).random(), str(numpy.arange(3))
"""


class _FullError(BaseException):
    """Raised in a program that prints too much; `except Exception` does not catch it."""


class _Output(io.TextIOBase):
    """Keeps the first `most` characters written, and ends a program that writes more."""

    def __init__(self, most: int) -> None:
        self.most, self.parts, self.length = most, list[str](), 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Keep as much of a text as fits.

        Raises:
            _FullError: the text did not fit.
        """
        if not isinstance(text, str):
            raise TypeError("only text can be printed")
        if self.length <= self.most:
            self.parts.append(text[: self.most + 1 - self.length])
            self.length += len(self.parts[-1])
        if self.length > self.most:
            raise _FullError
        return len(text)

    def read_text(self) -> str:
        """Return the kept text."""
        text = "".join(self.parts)
        return text[: self.most] + CUT if len(text) > self.most else text


class _Programs:
    """Runs programs in a child, which gives up system calls before its first one."""

    def __init__(self, max_characters: int) -> None:
        self.max_characters = max_characters
        self._give_up = lockdown.prepare() if lockdown.is_available() else None

    def enter_child(self) -> None:
        """Give up system calls; this calls C, which Python reports to audit hooks and a sealed process may not do."""
        if self._give_up is not None:
            self._give_up()

    def __call__(self, codes: list[str]) -> str:
        """Run programs that share their names, and return what the last one printed."""
        forget_secrets()
        names: dict[str, Any] = {}
        return [run_program(code, self.max_characters, names) for code in codes][-1]


def load(max_characters: int) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Import what programs may use; return the system's capabilities and the function that runs programs."""
    for name in MODULES.split():
        with suppress(ImportError):
            importlib.import_module(name)
    for name in WHOLE.split():
        _import_whole(name)
    run_program(WARM_UP, max_characters, {})
    if lockdown.is_available():
        lockdown.try_out()
    return {"refuses_system_calls": lockdown.is_available()}, _Programs(max_characters)


def _import_whole(name: str) -> None:
    """Import a package, if it is installed, with all its modules except tests and benchmarks."""
    with suppress(ImportError):
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            if module.name not in {"tests", "benchmarks"}:
                _import_whole(f"{name}.{module.name}")


def forget_secrets() -> None:
    """Clear the environment variables, which may hold secrets, and stdin."""
    os.environ.clear()
    sys.stdin = io.StringIO()


def run_program(code: str, max_characters: int, names: dict[str, Any]) -> str:
    """Run a program, and return what it printed, including the value of a final expression, and its error if it failed.

    Args:
        code: Python.
        max_characters: how many characters of the output to keep.
        names: the program's names; it adds its own.
    """
    output = _Output(max_characters)
    names.update({"__name__": "__main__", "__builtins__": builtins})
    sys.stdout = sys.stderr = output
    failure = ""
    try:
        _execute(code, names, output)
    except BaseException as error:  # noqa: BLE001 -- a program may raise anything, and its author is told
        failure = _describe(error)
    finally:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    text = output.read_text()
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{failure}" if failure else text


def _execute(code: str, names: dict[str, Any], output: _Output) -> None:
    """Run a program and print the value of a final expression, as in a notebook."""
    tree = ast.parse(code, "<program>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    FunctionType(compile(tree, "<program>", "exec"), names)()
    if isinstance(last, ast.Expr):
        value = FunctionType(compile(ast.Expression(last.value), "<program>", "eval"), names)()
        if value is not None:
            output.write(f"{value!r}\n")


def _describe(error: BaseException) -> str:
    """Return one line about an error; the error's methods may be code of the program and can fail too."""
    if type(error) is _FullError or (type(error) is SystemExit and error.args in QUIET):
        return ""
    try:
        # The text of a syntax error also names the line, so use its msg.
        text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())[:500]
        name = str(type(error).__name__)[:100]
        line = _find_line(error)
    except BaseException:  # noqa: BLE001 -- see above
        return "Error: the program ended with an error that cannot be shown"
    return f"{name}{f': {text}' if text else ''}{f' (line {line})' if line else ''}"


def _find_line(error: BaseException) -> int:
    """Return the program's line that raised an error; 0 if unknown."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<program>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
