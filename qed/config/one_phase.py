"""Reads a two-phase configuration for a command with one phase: uses that phase's settings, and skips the other's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qed.config.fields import PHASES, Table
from qed.config.layers import Layer
from qed.config.plugins import spell_leaf

SKIPS = tuple(f"skip_{phase}" for phase in PHASES)


def take_phase(layers: Sequence[Layer], table: Table) -> list[Layer]:
    """Return the layers of configuration files as seen by the command's single phase.

    If the files have a section for the command's phase, its settings replace those for both phases, and the section of
    the other phase and `skip_*` are dropped. Otherwise the layers are returned unchanged.
    """
    own, other = _find_phase(layers, table), ""
    if own and any(entry.key.startswith(f"{own}.") for layer in layers for entry in layer):
        other = next(phase for phase in PHASES if phase != own)
    return [_convert(layer, own, other) for layer in layers] if other else list(layers)


def _find_phase(layers: Sequence[Layer], table: Table) -> str:
    """Return the phase of a command: the one that names its algorithm, or else sft for SFT and similar ones, or rl."""
    if table.pipeline:
        return ""
    for phase in PHASES:
        named = [entry.raw.text for layer in layers for entry in layer if entry.key == f"{phase}.method"]
        if named and spell_leaf(named[-1]) == table.methods[""]:
            return phase
    algorithm = table.sections["algorithm"]
    imitates = not getattr(algorithm, "online", False) and getattr(algorithm, "together", 1) == 1
    return "sft" if imitates else "rl"


def _convert(layer: Layer, own: str, other: str) -> Layer:
    """Return a layer in which the settings of one phase replace those for both, without those of the other phase."""
    single = {entry.key.removeprefix(f"{own}."): entry for entry in layer if entry.key.startswith(f"{own}.")}
    sections = (own, other, *SKIPS)
    shared = [entry for entry in layer if entry.key.partition(".")[0] not in sections and entry.key not in single]
    return [*shared, *(replace(entry, key=key) for key, entry in single.items())]
