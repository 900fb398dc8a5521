"""Datasets of the Hugging Face hub by their public names, and folders that are laid out as they are.

Data only: the datasets library (4 and later) runs no code that comes with a dataset. What was loaded once is cached,
and HF_HUB_OFFLINE=1 takes the cache without asking.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.data.sources.rows import Place, Rows
from qed.errors import DataError

NEWEST = "main"
SAVED = ("dataset_dict.json", "state.json")  # of `save_to_disk`: several splits, and one
ASK_SECONDS = 5.0  # how long the hub may take to say that it is there


@dataclass(frozen=True)
class HubDataset:
    """A split of a dataset on the hub.

    Attributes:
        name: `owner/name`.
        configs: its configurations, read one behind the other; none takes the default one.
        split: the name that the hub has for the split; `train+test` joins two.
        file: a data file of the repository, where its splits are not described in a way that can be loaded.
        revision: the commit to load; `main` is the newest.
        gated: whether the hub asks for an account and for consent.
    """

    name: str
    split: str = "test"
    configs: tuple[str, ...] = ()
    file: str = ""
    revision: str = NEWEST
    gated: bool = False


def load_datasets_library() -> Any:
    """The datasets library, imported late because it is heavy, and quiet."""
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)  # what goes wrong is told by what is raised
    return datasets


def load_rows(hub: HubDataset, task: str) -> Rows:
    """The rows of a hub dataset's split.

    Args:
        hub: where it lies.
        task: the task's name with its split, for the message on how to do without the hub.

    Raises:
        DataError: the hub cannot be reached and the dataset is not cached, or it has no such split.
    """
    reason = _explain_unreachable(hub)
    with _use_cache_only(bool(reason)):
        for config in hub.configs or ("",):
            try:
                table = _load(hub, config)
            except Exception as error:
                raise DataError(_advise(hub, task, reason or f"{type(error).__name__}: {error}")) from error
            yield from _number_rows(table, hub.name)


def load_folder(folder: Path, split: str, configs: Sequence[str] = ()) -> Rows:
    """The rows of a split of a folder: one that `save_to_disk` wrote, or one with the files of a hub dataset.

    Raises:
        DataError: the folder has no such split, or nothing that can be read.
    """
    datasets = load_datasets_library()
    try:
        if any((folder / name).is_file() for name in SAVED):
            parts = [datasets.load_from_disk(str(folder), keep_in_memory=True)]
        else:
            known = datasets.get_dataset_config_names(str(folder))
            wanted: list[str | None] = [config for config in configs if config in known] or [None]
            parts = [datasets.load_dataset(str(folder), config) for config in wanted]
    except Exception as error:
        raise DataError(f"{folder} cannot be read as a folder of data: {type(error).__name__}: {error}") from error
    for part in parts:
        yield from _number_rows(_select_split(part, split, folder), str(folder))


def _select_split(found: Any, split: str, folder: Path) -> Any:
    """A split of what a folder holds, `a+b` for two of them; a folder without splits is taken whole."""
    datasets = load_datasets_library()
    if not isinstance(found, datasets.DatasetDict):
        return found
    names = split.split("+") if split else list(found)
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{folder} has no split '{missing[0]}'. There are: {', '.join(found)}.")
    return datasets.concatenate_datasets([found[name] for name in names])


def _load(hub: HubDataset, config: str) -> Any:
    datasets = load_datasets_library()
    if hub.file:
        kind = "json" if hub.file.endswith((".json", ".jsonl")) else hub.file.rpartition(".")[2]
        address = f"hf://datasets/{hub.name}@{hub.revision}/{hub.file}"
        return datasets.load_dataset(kind, data_files=address, split="train")
    return datasets.load_dataset(hub.name, config or None, split=hub.split, revision=hub.revision)


def _number_rows(table: Any, name: str) -> Rows:
    for number, row in enumerate(table, 1):
        yield Place(name, number), row


def _explain_unreachable(hub: HubDataset) -> str:
    """Why the hub does not answer, or an empty text; asked once, because the libraries retry for half a minute."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415

    if constants.HF_HUB_OFFLINE or load_datasets_library().config.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the dataset is not in the cache"
    try:
        HfApi().dataset_info(hub.name, revision=hub.revision, timeout=ASK_SECONDS)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the cache is the next thing to try
        return f"{type(error).__name__}: {str(error).strip() or 'no answer'}".split("\n")[0]
    return ""


@contextmanager
def _use_cache_only(wanted: bool) -> Iterator[None]:
    """The datasets library kept to its cache."""
    config = load_datasets_library().config
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or wanted
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
