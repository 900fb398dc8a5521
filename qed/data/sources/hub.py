"""Load datasets of the Hugging Face hub by their public names, and folders with the same layout.

The datasets library (4 and later) runs no code from a dataset. Datasets are cached; HF_HUB_OFFLINE=1 uses only the
cache.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.data.sources.rows import Place, Rows, decode_texts, describe_duplicates
from qed.errors import DataError

NEWEST = "main"
SAVED = ("dataset_dict.json", "state.json")  # files of `save_to_disk`, for several splits and for one
BATCH_ROWS = 1000  # rows of a parquet file that the library converts at a time
PROBE_SECONDS = 5.0  # timeout of the check whether the hub responds


@dataclass(frozen=True)
class HubDataset:
    """A split of a dataset on the hub.

    Attributes:
        name: `owner/name`.
        configs: its configurations, concatenated; empty uses the default one.
        split: the hub's name of the split; `train+test` concatenates two.
        file: a data file of the repository, if its splits cannot be loaded by name.
        revision: the commit to load; `main` is the newest.
        gated: whether the hub requires an account and consent.
    """

    name: str
    split: str = "test"
    configs: tuple[str, ...] = ()
    file: str = ""
    revision: str = NEWEST
    gated: bool = False


def load_datasets_library() -> Any:
    """Import the datasets library and silence its output; the import is deferred because it is slow."""
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)  # errors are reported by exceptions
    return datasets


def load_rows(hub: HubDataset, task: str) -> Rows:
    """Yield the rows of a hub dataset's split.

    Args:
        hub: the dataset.
        task: the task's name with its split, for the error message.

    Raises:
        DataError: the hub cannot be reached and the dataset is not cached, or it has no such split.
    """
    reason = _explain_unreachable(hub)
    with _use_cache_only(bool(reason)):
        for config in hub.configs or ("",):
            try:
                table = _load(hub, config)
            except Exception as error:
                text = " ".join(f"{type(error).__name__}: {error}".split())
                raise DataError(_advise(hub, task, reason or text)) from error
            yield from _number_rows(table, hub.name)


def load_folder(folder: Path, split: str, configs: Sequence[str]) -> Rows:
    """Yield the rows of a split from a folder written by `save_to_disk`, or with the files of a hub dataset.

    Raises:
        DataError: the folder has no such split, or cannot be read.
    """
    for part in _load_parts(folder, configs):
        yield from _number_rows(_select_split(part, split, folder), str(folder))


def list_folder_splits(folder: Path, configs: Sequence[str]) -> list[str]:
    """List the splits of a folder that `load_folder` reads; empty for data without splits.

    Raises:
        DataError: the folder cannot be read.
    """
    kind = load_datasets_library().DatasetDict
    return [name for part in _load_parts(folder, configs) if isinstance(part, kind) for name in part]


def _load_parts(folder: Path, configs: Sequence[str]) -> list[Any]:
    """Load those of the configurations that a folder has; its default one if it has none of them."""
    datasets = load_datasets_library()
    try:
        if any((folder / name).is_file() for name in SAVED):
            return [datasets.load_from_disk(str(folder), keep_in_memory=True)]
        available = datasets.get_dataset_config_names(str(folder))
        selected: list[str | None] = [config for config in configs if config in available] or [None]
        return [_load_files(folder, config) for config in selected]
    except Exception as error:
        reason = f"{explain_cause(error)}.{_name_odd_file(folder)}"
        raise DataError(f"{folder} cannot be read as a folder of data: {reason}") from error


def _load_files(folder: Path, config: str | None) -> Any:
    datasets = load_datasets_library()
    # The library uses the size of a parquet file's first row group as its batch size, and fails on an empty one.
    is_parquet = hasattr(datasets.load_dataset_builder(str(folder), config).config, "batch_size")
    return datasets.load_dataset(str(folder), config, **({"batch_size": BATCH_ROWS} if is_parquet else {}))


def _name_odd_file(folder: Path) -> str:
    """Return a sentence about the first parquet file that explains a failure, or an empty string.

    The file is unreadable, has other column types than the first file, or a column of an unsupported type.
    """
    from pyarrow.parquet import read_schema  # noqa: PLC0415 -- heavy, and needed for this one message

    first: tuple[Path, Any] | None = None
    for file in sorted(folder.rglob("*.parquet")):
        try:
            schema = read_schema(file)
        except Exception:  # noqa: BLE001 -- the library, which reads all files, gives the reason
            return f" {file} cannot be read: restore it from a copy, or remove it."
        if duplicates := describe_duplicates(schema.names):
            return f" In {file} {duplicates}"
        if unread := find_unread_columns(schema):
            return (
                f" The column {unread[0].name} is {name_type(unread[0])} in {file}, which is not supported here: "
                "remove it or convert it to text in all files, or name the files instead of the folder to ignore it."
            )
        first = first or (file, schema)
        known = {column.name: column.type for column in first[1]}
        if other := [column for column in schema if known.get(column.name, column.type) != column.type]:
            name = other[0].name
            return (
                f" The column {name} is {other[0].type} in {file}, and {known[name]} in {first[0]}: give it one type "
                "in all files."
            )
    return ""


def find_unread_columns(schema: Any) -> list[Any]:
    """Return the columns of a parquet file whose type the datasets library does not support, such as a map."""
    from pyarrow import schema as build_schema  # noqa: PLC0415 -- heavy, and needed for this one format

    features = load_datasets_library().Features
    unread = []
    for column in schema:
        try:
            features.from_arrow_schema(build_schema([column]))
        except ValueError:
            unread.append(column)
    return unread


def name_type(column: Any) -> str:
    """Return the type of a column as text, without the names that some Arrow versions give to the parts of a map."""
    return re.sub(r" \('[^']*'\)", "", str(column.type))


def explain_cause(error: BaseException) -> str:
    """Return on one line the root cause of an error of the datasets library, whose own message often says little."""
    while error.__cause__:
        error = error.__cause__
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
    if isinstance(error, OSError):
        cache = Path(load_datasets_library().config.HF_DATASETS_CACHE)
        if str(cache) in text or (error.filename and Path(str(error.filename)) in cache.parents):
            text += (
                f". The datasets library needs a writable cache folder, but {cache} is not: set the environment "
                "variable HF_HOME or HF_DATASETS_CACHE to one"
            )
    return text


def _select_split(data: Any, split: str, folder: Path) -> Any:
    """Select a split of a folder's data, `a+b` for two of them; data without splits is returned unchanged."""
    datasets = load_datasets_library()
    if not isinstance(data, datasets.DatasetDict):
        return data
    names = split.split("+") if split else list(data)
    missing = [name for name in names if name not in data]
    if missing:
        raise DataError(f"{folder} has no split '{missing[0]}'. There are: {', '.join(data)}.")
    return datasets.concatenate_datasets([data[name] for name in names])


def _load(hub: HubDataset, config: str) -> Any:
    datasets = load_datasets_library()
    if hub.file:
        kind = "json" if hub.file.endswith((".json", ".jsonl")) else hub.file.rpartition(".")[2]
        address = f"hf://datasets/{hub.name}@{hub.revision}/{hub.file}"
        return datasets.load_dataset(kind, data_files=address, split="train")
    return datasets.load_dataset(hub.name, config or None, split=hub.split, revision=hub.revision)


def _number_rows(table: Any, name: str) -> Rows:
    for number, row in enumerate(table, 1):
        yield Place(name, number), decode_texts(row)


def _explain_unreachable(hub: HubDataset) -> str:
    """Return why the hub does not respond, or an empty string; probing avoids half a minute of library retries."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415

    if constants.HF_HUB_OFFLINE or load_datasets_library().config.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the dataset is not in the cache"
    try:
        HfApi().dataset_info(hub.name, revision=hub.revision, timeout=PROBE_SECONDS)
    except Exception as error:  # noqa: BLE001 -- after any error, the cache is tried next
        return f"{type(error).__name__}: {str(error).strip() or 'no answer'}".split("\n")[0]
    return ""


@contextmanager
def _use_cache_only(offline: bool) -> Iterator[None]:
    """If `offline`, make the datasets library use only its cache within the context."""
    config = load_datasets_library().config
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _advise(hub: HubDataset, task: str, reason: str) -> str:
    gate = " It is gated: accept its terms on its page and log in (HF_TOKEN)." if hub.gated else ""
    return (
        f"{task} is the dataset {hub.name} of the hub (revision {hub.revision}), which cannot be loaded: {reason}."
        f"{gate} Give a local file or folder instead: --tasks {task}@PATH."
    )
