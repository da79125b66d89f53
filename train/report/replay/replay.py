"""`python -m train replay [RUN]`: a recorded run is replayed in the simulator, from checkpoint to checkpoint."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import tyro
from rich.console import Console

import gemjax
from gemjax.telemetry import eventlog
from train.common.console import RunConsole, say
from train.common.errors import RecordError, printable
from train.common.files import write_whole
from train.common.machine import describe, in_its_precision
from train.config.config import Config
from train.config.parsing import parse_flags
from train.report.replay.pieces import FACTOR, TELLING, VERDICTS, Piece, compare, worst
from train.report.replay.simulator import Replayer
from train.run.folder import RunFolder
from train.run.resume import settings_of
from train.task.task import make_task


@dataclasses.dataclass(frozen=True)
class Replay:
    """Replay a run in the simulator, and compare the parameters with those of its checkpoints.

    Each piece of the run, from a checkpoint to the next, is computed again from the recorded order of commits. The
    difference at its end is compared with the effect of rounding: that of one unit in the last place of the parameters at
    its beginning. The exit status is 0 if rounding explains every difference, and 1 if not. Writes `replay.json` into the run
    folder if it can.
    """

    run: tyro.conf.Positional[str] = "latest"
    """Folder of the run; the newest under `runs/` if not given."""
    data_dir: str | None = None
    """Folder of prepared data sets; default: that of the run."""
    manual_dir: str | None = None
    """Folder with the original files of the data set, if it is not prepared; default: that of the run."""


def main(argv: Sequence[str]) -> int:
    """Replay the run that the command line names."""
    options = parse_flags(Replay, argv, "python -m train replay")
    folders = {name: path for name in ("data_dir", "manual_dir") if (path := getattr(options, name)) is not None}
    try:
        folder = RunFolder.find(options.run)
        found = replay(dataclasses.replace(Config.load(folder.config), **folders), folder, RunConsole())
    except ValueError as error:  # A damaged or foreign record or checkpoint.
        print(f"train: {printable(str(error))}", file=sys.stderr)
        return 2
    return int(found["verdict"] == "differs")


@in_its_precision
def replay(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Replay a run, print a line per piece and the verdict, and write `replay.json`.

    Returns:
      The content of `replay.json`.

    Raises:
      RecordError: if there is no event log or no checkpoint after a commit, lines of the log are
        missing, or all checkpoints are removed meanwhile.
      ValueError: if the event log or a checkpoint is damaged.
    """
    if not folder.events.exists():
        raise RecordError(f"{folder.path} cannot be replayed: it has no {folder.events.name}")
    with folder.checkpoints(read_only=True) as checkpoints:
        if not checkpoints.latest:
            raise RecordError(f"{folder.path} cannot be replayed: it has no checkpoint after a commit yet")
        say(console, f"{config.method} on {config.dataset}: preparing data and parameters …")
        task = make_task(config)
        numbers, saved = list(filter(None, checkpoints.commits)), checkpoints.metadata or {}
        logged = eventlog.trace_of(folder.events, config.workers)  # Read after them: a run that goes on adds to both.
        remedy = f"put those back into {config.data_dir or 'the folder of TFDS'}, or give their folder as --data-dir"
        folder.provenance.check_same(config, saved, task.data_checksum(), remedy)
        replayer = Replayer(config, task, logged, settings_of(saved))
        pieces: list[Piece] = []
        state, begin = replayer.initial(), 0
        for number in numbers:
            try:
                end_state, _, _ = checkpoints.load(replayer.shapes(), number)
            except FileNotFoundError:  # The run goes on, and has replaced it.
                continue
            end = int(end_state.commits)
            if end > len(logged):
                raise RecordError(
                    f"{folder.events} has {len(logged)} commits, but {checkpoints.folder / str(number)} was saved after {end}: "
                    "lines are missing at the end of the log"
                )
            if not pieces:
                say(console, HEADER)
            pieces.append(compare(state, end_state, (begin, end), lambda s, b=begin, e=end: replayer.run(s, b, e)))
            say(console, _row(pieces[-1]))
            state, begin = end_state, end
    if not pieces:
        raise RecordError(
            f"{folder.path} cannot be replayed now: its checkpoints were removed meanwhile, as a run that goes on removes "
            "them; replay it when it has ended, or train with --keep-checkpoints 0"
        )
    found = {
        "verdict": worst(piece.verdict for piece in pieces),
        "pieces": [dataclasses.asdict(piece) | {"telling": piece.is_telling} for piece in pieces],
        "factor": FACTOR,
        "gemjax": gemjax.__version__,
        **describe(),
    }
    for sentence in conclusion(config, found, pieces):
        say(console, sentence)
    try:
        write_whole(folder.replay, json.dumps(found, indent=2) + "\n")
    except OSError as error:
        say(console, f"{folder.replay} is not written ({error.strerror}), so the report will not show this verdict")
    return found


HEADER = (
    "replaying; difference, and effect of one unit in the last place, relative to the movement of the parameters (RMS)\n"
    f"{'commits':>15}  {'difference':>10}  {'one unit':>10}  {'largest':>10}  verdict"
)


def _row(piece: Piece) -> str:
    """Return the line of a piece."""
    effect = f"{piece.relative(piece.effect):.2g}" if piece.moved else "-"  # No ratio, as without an applied commit.
    commits = f"{piece.begin} to {piece.end}"
    return (
        f"{commits:>15}  {piece.relative(piece.difference):10.2g}  {effect:>10}  {piece.largest:10.2g}  {piece.verdict}"
    )


def conclusion(config: Config, found: dict[str, Any], pieces: Sequence[Piece]) -> list[str]:
    """Return the verdict on the run, with its reasons and advice."""
    count = {verdict: sum(piece.verdict == verdict for piece in pieces) for verdict in VERDICTS}
    beyond = f"{count['differs']} of {len(pieces)} pieces" if len(pieces) > 1 else "the one piece"
    sentences = []
    if count["differs"]:
        sentences.append(
            f"differs: in {beyond} the difference is more than {FACTOR:g} times the effect of one unit in the last place; the "
            "event log, a checkpoint or the configuration is not that of this run, or the run was computed in another way"
        )
    else:
        within = f"{count[VERDICTS[0]]} of {len(pieces)} pieces end within one unit in the last place"
        rest = f"; elsewhere the difference is at most {FACTOR:g} times the effect of one such unit, as it should be"
        sentences.append(f"{found['verdict']}: {within}{rest if count[VERDICTS[1]] else ''}")
    if blind := sum(not piece.is_telling for piece in pieces):
        sentences.append(
            f"{blind} of {len(pieces)} pieces show little: one unit in the last place changes them by more than "
            f"{100 * TELLING:g} % of their movement, so that a wrong commit may not show; run with --checkpoint-every 20 "
            "--keep-checkpoints 0 for shorter pieces" + ("" if config.x64 else ", or with --x64")
        )
    return sentences
