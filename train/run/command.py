"""`python -m train [CONFIGURATION] [flags]`: one training run, begun or resumed."""

import dataclasses
import importlib.util
import logging
import sys

from train.common import interrupts
from train.common.console import RunConsole, say
from train.common.errors import UsageError
from train.common.files import FULL, in_words, release, reserve
from train.config import helptext
from train.config.config import Config
from train.config.file import show_config, start_from, take_config, take_resume
from train.config.parsing import check_resumed, in_rounds, parse_flags
from train.config.policy import PACING
from train.config.validation import flag
from train.run import tensorboard as scalars
from train.task.data.load import check_name

USAGE = "python -m train"
EVALUATIONS = ("eval_every", "eval_seconds")  # Intervals of evaluations, of which a run has one at most.
MORE_MEMORY = (
    "begin a run with a smaller --batch-size, a smaller network or fewer --workers, or end other programs that use the "
    "device"
)
ABOUT = f"""Train a network with asynchronous workers, on the devices of this machine, on a Ray cluster or in a simulator.
{helptext.START} Ctrl-C, SIGTERM and SIGHUP write a checkpoint and end the run; --resume continues it. Other commands:
  python -m train race             seconds that a slow worker costs, with a barrier and without
  python -m train report [RUN]     was a run truly asynchronous, and what slowed it down
  python -m train replay [RUN]     does a run replay in the simulator to the same parameters
  python -m train compare RUN RUN  several runs in one picture and one table
  python -m train twice            a run killed and resumed, and a run replayed, in one picture
  python -m train sweep            compare methods, numbers of workers and learning rates
  python -m train benchmark        which method, and how much faster than synchronous training
  python -m train reproduce CLAIM  check published claims
  python -m train results          table of the claims that were checked
  python -m train bench            measure what the engines cost
Compiled programs are kept in your cache folder for the next start. With every command \
--compilation-cache PATH moves that folder, and --compilation-cache off does without."""


def run(argv: list[str]) -> int:
    """Make the run that the command line asks for and return the exit status."""
    config, resume = parse(argv)
    if config.tensorboard and not scalars.available():
        raise UsageError(scalars.INSTALL)
    if config.engine == "cluster" and importlib.util.find_spec("ray") is None:
        raise UsageError("--engine cluster needs Ray: pip install 'gemjax[cluster]'")
    console = RunConsole()
    say(console, f"{config.method} on {config.dataset}: preparing data and parameters …")
    import gemjax  # After the flags have been checked: this imports JAX.
    from gemjax.engines.running.checkpoints import CheckpointWriteError
    from train.run.engine import result_of
    from train.run.folder import RunFolder
    from train.run.train import train

    folder = RunFolder(resume) if resume else RunFolder.fresh(config)
    # Orbax logs a traceback for each failed write; the run reports it in one line.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    interrupt = interrupts.StopRequest()
    is_named = bool(resume or config.out or config.dry_run)
    try:
        if not is_named:
            folder = RunFolder(reserve(folder.path))
        summary = train(config, folder, console, interrupt)
    except gemjax.CheckpointError as error:
        raise UsageError(str(error)) from error
    except gemjax.RunFailedError as error:
        result = result_of(error)
        is_saved = result is not None and folder.checkpoints(read_only=True).latest == len(result.trace)
        unsaved = not is_saved and folder.config.exists() and folder.can_be_resumed()
        go_on = f"; go on with: {folder.go_on}" if unsaved else ""
        advice = f"; {MORE_MEMORY}" if "RESOURCE_EXHAUSTED" in str(error) else ""
        raise UsageError(f"the run failed: {error}{advice}{go_on}") from error
    except OSError as error:
        if folder.config.exists() and (error.errno in FULL or isinstance(error, CheckpointWriteError)):
            advice = "make room" if error.errno in FULL else "fix that"
            go_on = f"go on with: {folder.go_on}" if folder.can_be_resumed() else folder.begin_again(config)
            newest = "" if isinstance(error, CheckpointWriteError) else f"; {folder.newest_checkpoint()}"
            print(f"train: {in_words(error)}{newest}; {advice} and {go_on}", file=sys.stderr)
            return 1
        raise
    finally:
        if not is_named:
            release(folder.path)
    return 0 if summary["finished"] else interrupts.status_of(interrupt.number)


def parse(argv: list[str]) -> tuple[Config, str | None]:
    """Return the configuration that a command line asks for, and the folder of the run to resume if any.

    Raises:
      UsageError: if the command line is wrong.
      DataError: if there is no such data set.
    """
    given = argv
    argv, default = start_from(list(argv))
    argv, is_printed = take_config(argv, Config)
    argv, resume = take_resume(argv)
    named = default
    if resume:
        from train.run.folder import RunFolder

        folder = RunFolder.find(resume)
        resume, default = str(folder.path), Config.load(folder.config)
    helptext.show(argv, USAGE, ABOUT, default)
    if resume:
        check_resumed(given, named, default)
    flags = {word.split("=")[0].replace("_", "-") for word in argv}
    # If a flag of a group is given, the resumed run's values of all of the group are dropped, and the grace of its quorum.
    for group, dropped in ((PACING, (*PACING, "grace")), (EVALUATIONS, EVALUATIONS)):
        if flags & {flag(name) for name in group}:
            default = dataclasses.replace(default, **{name: getattr(Config, name) for name in dropped})
    config = parse_flags(Config, argv, USAGE, default)
    if not resume and config.engine == "simulate":
        config = in_rounds(config, [config.method], argv)
    if resume and (changed := config.changed(default)):
        raise UsageError(f"a resumed run keeps its {', '.join(changed)}; start a new run to change that")
    if is_printed:
        show_config(config)
    check_name(config.dataset, config.data_dir)
    return dataclasses.replace(config, resume=None), resume
