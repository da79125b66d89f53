"""Files of checkpoints: digests reveal damage, and a replaced checkpoint is kept until its replacement is complete."""

import atexit
import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemjax.batches.threads import start_thread

UNFINISHED = ".orbax-checkpoint-tmp"  # In the names of folders of failed or running writes.
REPLACED = ".replaced-"  # Prefix of a checkpoint that is being replaced.
SUPERSEDED = "superseded-"  # Prefix of a checkpoint of another continuation of the run.
DIGESTS = "gemjax.digests.json"  # Size and SHA-256 of every other file of a checkpoint.
METADATA = "_CHECKPOINT_METADATA"  # The file in which Orbax keeps what gemjax writes as metadata.
OWN_METADATA = {"format", "commits", "num_workers", "user"}  # Names that every version writes.
HAS_DIGESTS = "digests"  # In the metadata, true if digests belong to the checkpoint.
MISREAD = re.compile(r"\[[^/]+\]|\\|gs:/")  # Orbax's globs and TensorStore's paths take it for something else.
_WRITES = itertools.count()
_writing: dict[Future, Path] = {}  # Writes in progress.


def identity(checkpoint: Path) -> str | None:
    """Return a text that another checkpoint in the same place does not have; ``None`` if there is none.

    Orbax writes the time into it.
    """
    try:
        return hashlib.sha256(_read(checkpoint / METADATA)).hexdigest()
    except OSError:
        return None


def write_digests(checkpoint: Path) -> None:
    """Note the sizes and digests of the files of a checkpoint, for :func:`damage_of`."""
    paths, digests = sorted(checkpoint.rglob("*")), {}
    for noted in (path for path in paths if path.name == DIGESTS and path.parent != checkpoint):  # By a part's writer.
        part = noted.parent.relative_to(checkpoint)
        digests |= {(part / name).as_posix(): digest for name, digest in json.loads(noted.read_bytes()).items()}
    for path in paths:
        name = path.relative_to(checkpoint).as_posix()
        if path.is_file() and path.name != DIGESTS and name not in digests:
            digests[name] = _digest(path)
    (checkpoint / DIGESTS).write_text(json.dumps(digests, indent=0), encoding="utf-8")


def unfinished(folder: Path, commits: int) -> Path:
    """Return the path at which a checkpoint is written; no other write uses it, not even one that was interrupted."""
    return folder / f"{commits}{UNFINISHED}-{os.getpid()}-{next(_WRITES)}"


def completed(
    response: Any,
    written: Path,
    checkpoint: Path,
    keep: int | None,
    release: Callable[[], None],
    *,
    replaces_later: bool,
) -> Future:
    """Return a future for Orbax's response, after which the checkpoint gets its digests and then its name.

    After it checkpoints of more commits are renamed, or removed if ``replaces_later`` is set, and those beyond the newest
    ``keep`` are removed. At the end, and after a failure, the folder's lock is released.
    """
    done = Future()

    def finish():
        failure = None
        try:
            response.result()
            write_digests(written)
            set_aside(checkpoint.parent, int(checkpoint.name))
            written.rename(checkpoint)
            settle_replaced(checkpoint.parent)
            renamed = [
                _rename(checkpoint.parent, number) for number in later_than(checkpoint.parent, int(checkpoint.name))
            ]
            for number in own_numbers(checkpoint.parent)[:-keep] if keep else []:
                _remove(checkpoint.with_name(str(number)))
            for path in renamed if replaces_later else []:
                _remove(path)
        except BaseException as error:
            failure = error
            with contextlib.suppress(OSError):
                clean(checkpoint.parent)
        release()
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)

    _writing[done] = checkpoint
    done.add_done_callback(_writing.pop)
    try:
        start_thread(finish, name="gemjax-checkpoint")
    except RuntimeError as error:  # The system has no more threads.
        release()
        done.set_exception(error)
    return done


def _finish_writes() -> None:
    """Wait at the end of the interpreter for writes that nothing has waited for."""
    for done, checkpoint in list(_writing.items()):
        if (error := done.exception()) is not None:
            print(f"gemjax: {checkpoint} could not be written: {error!r}", file=sys.stderr)


# Before the pools of threads end, which Orbax needs; `atexit` would be too late. Functions are called in reverse order.
ThreadPoolExecutor(1).shutdown()
getattr(threading, "_register_atexit", atexit.register)(_finish_writes)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_writing.clear)  # The threads that write are not in the forked process.


def damage_of(checkpoint: Path, only: str | None = None) -> str | None:
    """Describe the first damaged file of a checkpoint; ``None`` if there is none, or an older version wrote no digests.

    Args:
      checkpoint: folder of the checkpoint.
      only: the one file whose bytes to compare, and not only its size; default all.
    """
    if not checkpoint.is_dir():
        return "it is not a folder"
    try:
        digests = json.loads(_read(checkpoint / DIGESTS))
        digests = {name: (size, digest) for name, (size, digest) in digests.items()}
    except FileNotFoundError:
        return f"its file {DIGESTS} is missing" if _had_digests(checkpoint) else None
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return f"its file {DIGESTS} cannot be read ({type(error).__name__})"
    for name in digests if only is None or only in digests else [only]:
        try:
            found = _digest(checkpoint / name) if only in (None, name) else _size(checkpoint / name, digests[name])
        except FileNotFoundError:
            return f"its file {name!a} is missing"
        except (OSError, ValueError) as error:
            return f"its file {name!a} cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})"
        if found != digests.get(name):
            size = digests.get(name, found)[0]
            what = "other bytes than were written" if found[0] == size else f"{found[0]} bytes instead of {size!a}"
            return f"its file {name!a} has {what}"
    return None


def _had_digests(checkpoint: Path) -> bool:
    """Return True if the checkpoint was named after its digests were written."""
    return (custom_metadata(checkpoint) or {}).get(HAS_DIGESTS) is True


def custom_metadata(checkpoint: Path) -> dict[str, Any] | None:
    """Return what was given to Orbax as metadata of a checkpoint; ``None`` if that is damaged or missing."""
    try:
        return dict(json.loads(_read(checkpoint / METADATA))["custom_metadata"] or {})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read(path: Path) -> bytes:
    _check_no_pipe(path)
    return path.read_bytes()


def _size(path: Path, expected: tuple[int, str]) -> tuple[int, str]:
    """Return the size of a file, with the expected digest."""
    return path.stat().st_size, expected[1]


def _digest(path: Path) -> tuple[int, str]:
    _check_no_pipe(path)
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _check_no_pipe(path: Path) -> None:
    """Raise ``OSError`` for a pipe, from which a reader would wait for a writer without end."""
    if path.is_fifo():
        raise OSError(errno.EINVAL, "it is a pipe", str(path))


def numbers(folder: Path) -> list[int]:
    """Return the commits of all checkpoints, in increasing order; some may not be folders."""
    names = {path.name.removeprefix(REPLACED) for path in folder.iterdir()} if folder.is_dir() else ()
    return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))  # Not "0020".


def path_of(folder: Path, commits: int) -> Path:
    """Return the path of a checkpoint; it has another name while it is replaced."""
    checkpoint, replaced = folder / str(commits), folder / f"{REPLACED}{commits}"
    return checkpoint if checkpoint.exists() or not replaced.exists() else replaced


def own_numbers(folder: Path) -> list[int]:
    """Return the commits of checkpoints that gemjax has written; a folder of others may have a number for a name, too."""
    return [number for number in numbers(folder) if _is_own(folder / str(number))]


def foreign_numbers(folder: Path) -> list[int]:
    """Return the numbers of checkpoints that another program has written with Orbax; damaged ones may be gemjax's."""
    return [number for number in numbers(folder) if _is_foreign(folder / str(number))]


def is_doubtful(checkpoint: Path) -> bool:
    """Return True if something is at the path of a checkpoint of which it is not known that gemjax has written it."""
    if not os.path.lexists(checkpoint) or _is_own(checkpoint):
        return False
    return not checkpoint.is_dir() or any(checkpoint.iterdir())


def _is_own(checkpoint: Path) -> bool:
    """Return True if gemjax has written a checkpoint; earlier versions wrote no digests, and a name may be damaged."""
    return (checkpoint / DIGESTS).is_file() or _has_own_names(custom_metadata(checkpoint))


def _is_foreign(checkpoint: Path) -> bool:
    found = custom_metadata(checkpoint)  # Read once: another process may replace the checkpoint.
    return found is not None and not _has_own_names(found) and not (checkpoint / DIGESTS).exists()


def _has_own_names(found: dict[str, Any] | None) -> bool:
    return len(OWN_METADATA & (found or {}).keys()) > 2


def later_than(folder: Path, commits: int) -> list[int]:
    """Return the commits of checkpoints of more commits."""
    return [number for number in own_numbers(folder) if number > commits]


def in_words(commits: list[int]) -> str:
    """Return numbers as in "20, 30 and 40"."""
    return " and ".join(filter(None, [", ".join(map(str, commits[:-1])), str(commits[-1])]))


def _rename(folder: Path, commits: int) -> Path:
    """Rename a checkpoint of another continuation of the run, or what has the name of one; return its new path."""
    names = (f"{SUPERSEDED}{commits}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
    renamed = next(folder / name for name in names if not (folder / name).exists())
    return (folder / str(commits)).rename(renamed)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; if that is interrupted, the rest has another name."""
    removed = checkpoint.with_name(f"{checkpoint.name}{UNFINISHED}-removed-{os.getpid()}-{next(_WRITES)}")
    with contextlib.suppress(OSError):
        shutil.rmtree(checkpoint.rename(removed), ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove the files of failed writes, and settle what they have set aside; only with the folder's lock.

    For a moment after a failure, threads of Orbax may still add to the files; the next write removes those.
    """
    for path in folder.glob(f"*{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)
    settle_replaced(folder)


def set_aside(folder: Path, commits: int) -> None:
    """Rename the checkpoint of so many commits, so that it survives if its replacement fails; what is doubtful survives."""
    settle_replaced(folder)
    if is_doubtful(folder / str(commits)):
        _rename(folder, commits)
    with contextlib.suppress(FileNotFoundError):
        (folder / str(commits)).rename(folder / f"{REPLACED}{commits}")


def settle_replaced(folder: Path) -> None:
    """Remove each checkpoint that was set aside, or restore it if its replacement is missing.

    A checkpoint gets its name only when it is complete.
    """
    for replaced in folder.glob(f"{REPLACED}*"):
        checkpoint = folder / replaced.name.removeprefix(REPLACED)
        if checkpoint.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(checkpoint)
