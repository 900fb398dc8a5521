"""Options of commands whose work several machines may share: as shards, or on a Ray cluster."""
# ruff: noqa: PLC0415 -- heavy modules are imported when the work begins

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qed.errors import UsageError

if TYPE_CHECKING:
    from qed.console.live import Console
    from qed.evaluation.row_shards import RowJob


def add_sharing_options(parser: argparse.ArgumentParser) -> None:
    """Add --shard and --cluster."""
    add = parser.add_argument
    add("--shard", default="", metavar="I/N", help="do the I-th of N shares of the work; `qed merge` joins them")
    add("--cluster", default="", metavar="ADDRESS", help="share the work over a Ray cluster: auto, or HOST:PORT")


def check_sharing(args: argparse.Namespace, has_default: bool = False) -> None:
    """Check the options; `has_default` says that the command has a default place for the result.

    Raises:
        UsageError: both options are given, or one of them without a place for the result.
    """
    if args.shard and args.cluster:
        raise UsageError("--shard and --cluster are two ways to share the same work; leave one of them out.")
    for name in ("shard", "cluster"):
        if getattr(args, name) and not (args.out or has_default):
            raise UsageError(f"--{name} needs a place for the result that all processes share: add --out.")


def run_shared(args: argparse.Namespace, job: RowJob, folder: Path, console: Console) -> dict[str, Any]:
    """Grade a shard of the rows of a file, or all of them on a cluster; `folder` holds the shards."""
    if args.cluster:
        from qed.cluster.grading import grade_on_cluster

        return grade_on_cluster(job, args.out, folder, args.cluster, args.overwrite, console)
    from qed.evaluation.row_shards import run_row_shard
    from qed.evaluation.shards import parse_shard

    shard = parse_shard(args.shard)
    path = run_row_shard(job, folder, shard, args.overwrite, console)
    console.say(f"Shard {shard} is in {path}; `qed merge {args.out}` joins all of them.")
    return {"out": str(args.out), "shard": str(path)}
