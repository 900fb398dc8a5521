"""Settings that were written load back equal."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from qed.config import plugins, values
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import expand_home, read_sources, resolve_settings
from qed.config.values import dump_settings
from qed.errors import UsageError

ALGORITHMS = sorted(plugins.list_leaves("algorithms"))

pytestmark = pytest.mark.usefixtures("elsewhere")


def texts() -> some.SearchStrategy[str]:
    awkward = [
        "null",
        "none",
        "~",
        "yes",
        "010",
        "1e-6",
        "a: b",
        "[x",
        "# x",
        "'",
        " x ",
        "a,b",
        "*x",
        "!x",
        "",
        "=",
        "<<",
    ]
    return some.sampled_from(awkward) | some.text(some.characters(exclude_categories=["Cs"]), max_size=12)


def of_type(kind: Any) -> some.SearchStrategy[Any]:
    if get_origin(kind) is Literal:
        return some.sampled_from(get_args(kind))
    if get_origin(kind) is UnionType:
        return some.none() | of_type(get_args(kind)[0])
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if kinds[1] is ...:
            return some.lists(of_type(kinds[0]), max_size=3).map(tuple)
        return some.tuples(*map(of_type, kinds))
    return {
        bool: some.booleans(),
        int: some.integers(1, 10**12),
        float: some.floats(1e-300, 0.999),
        str: texts(),
    }[kind]


@some.composite
def any_settings(draw: some.DrawFn) -> Settings | PipelineSettings:
    """Settings in which every field that names no leaf and no task has some value of its type."""
    command = draw(some.sampled_from([*ALGORITHMS, "pipeline"]))
    source = read_sources(command, [])
    tasks = ("data.tasks", "evaluation.tasks")
    free = [s for s in source.table.settings.values() if not s.shelf and not s.key.endswith(tasks)]
    chosen = {
        setting.path: expand_home(setting.key, draw(of_type(setting.kind))) for setting in free if draw(some.booleans())
    }
    changed = resolve_settings(command, []).settings
    for path, value in chosen.items():
        with suppress(UsageError):  # some settings refuse each other, such as skip_sft and skip_rl
            changed = with_value(changed, path.split("."), value)
    return changed


def with_value(whole: Any, path: list[str], value: Any) -> Any:
    inner = value if len(path) == 1 else with_value(getattr(whole, path[0]), path[1:], value)
    return dataclasses.replace(whole, **{path[0]: inner})


@given(wanted=any_settings())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_dumped_settings_load_back_equal(tmp_path: Path, wanted: Settings | PipelineSettings) -> None:
    (tmp_path / "settings.yaml").write_text(dump_settings(wanted), encoding="utf-8")
    command = wanted.method if isinstance(wanted, Settings) else "pipeline"
    assert resolve_settings(command, ["settings.yaml"]).settings == wanted


@given(number=some.floats(allow_nan=False))
def test_every_float_is_written_so_that_it_reads_back_exactly(number: float) -> None:
    @dataclasses.dataclass
    class One:
        number: float

    node = yaml.compose(dump_settings(One(number)), Loader=yaml.SafeLoader)
    assert values.coerce_value(values.read_node(node.value[0][1], "x"), float) == number
    assert yaml.safe_load(dump_settings(One(number))) == {"number": number}


def test_optional_texts_that_look_like_nothing_are_written_in_quotes() -> None:
    @dataclasses.dataclass
    class One:
        words: tuple[str, ...]
        nothing: str | None = None

    node = yaml.compose(dump_settings(One(("none", "null", "~", "x"))), Loader=yaml.SafeLoader)
    kind = tuple[str | None, ...]
    assert values.coerce_value(values.read_node(node.value[0][1], "x"), kind) == ("none", "null", "~", "x")
    assert values.coerce_value(values.read_node(node.value[1][1], "x"), str | None) is None


def test_a_dump_is_for_people_too() -> None:
    text = dump_settings(resolve_settings("grpo", ["--lr", "1e-6", "--tasks", "arithmetic"]).settings)
    assert text.startswith("method: grpo\nalgorithm:\n  average: sequence\n")
    assert "  lr: 1.0e-06\n" in text
    assert "  tasks: [arithmetic]\n" in text
