"""Show a run in a tracker afterwards: TensorBoard, W&B or Trackio."""
# ruff: noqa: PLC0415 -- heavy modules are imported only after the options are parsed

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qed.cli.commands.base import Parser, split_words
from qed.config import plugins
from qed.errors import QedError, UsageError

ABOUT = """Show a run in a tracker afterwards: settings, metrics, evaluations, a sample of rollouts, alarms, the report.

The command can be repeated: the tracker shows one run, with the same id. During training, use --run.trackers instead.
Keys come from the environment, such as WANDB_API_KEY, or from the tracker's own login."""
EPILOG = """examples:
  qed track runs/first --to tensorboard
  qed track runs/first --to wandb --project reasoning
  WANDB_MODE=offline qed track runs/first --to wandb"""


def run(arguments: Sequence[str]) -> int:
    """Show the run in the tracker, and print where to find it."""
    parser = Parser("track", ABOUT, EPILOG)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's folder")
    add("--to", required=True, metavar="NAME", help=f"the tracker: {', '.join(plugins.list_leaves('trackers'))}")
    add("--name", default="", help="name of the run there (default: that of its folder)")
    add("--project", default="", help="project there (default: the run's setting run.project)")
    add("--entity", default="", help="user or team that owns the project (default: run.entity)")
    add("--group", default="", help="group of runs (default: run.group)")
    add("--tags", default="", metavar="TAG,…", help="tags of the run (default: run.tags)")
    args = parser.parse(arguments)
    plugins.check_leaf("trackers", args.to)
    if not args.run.is_dir():
        raise UsageError(f"There is no run {args.run}: it is not a folder.")
    from qed.trackers.process import track_run
    from qed.trackers.start import require_installed

    require_installed([args.to])
    given = {
        "tags": list(split_words(args.tags)),
        **{name: getattr(args, name) for name in ("name", "project", "entity", "group")},
    }
    try:
        state = track_run(args.run, args.to, given, wait=lambda seconds: True)
    except QedError:
        raise
    except Exception as error:
        raise QedError(f"{args.to} could not show {args.run}: {type(error).__name__}: {error}") from error
    print(state.where)  # noqa: T201 -- its result
    return 0
