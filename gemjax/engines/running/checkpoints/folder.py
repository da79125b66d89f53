"""The folder of a run's checkpoints: one writer at a time, and each checkpoint complete or absent.

A checkpoint is written under an unfinished name and renamed when it is complete. Orbax replaces no existing checkpoint, so one
of the same commits is moved aside before. Checkpoints of another continuation of the run get another name.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemjax.telemetry.locks import lock, unlock

UNFINISHED = ".unfinished-"  # In the names of folders of failed or running writes.
REPLACED = ".replaced-"  # Prefix of a checkpoint that is being replaced.
SUPERSEDED = "superseded-"  # Prefix of a checkpoint of another continuation of the run.
SIZES = "gemjax.sizes.json"  # Size of every other file of a checkpoint.
METADATA = "_CHECKPOINT_METADATA"  # The file in which Orbax keeps what gemjax writes as metadata.
LOCK = ".lock"  # A file, because network file systems lock nothing that cannot be opened for writing.
PATIENCE = 300.0  # Seconds.


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other object or process writes to ``folder``, and keep others out meanwhile.

    The lock ends at the latest with its process. Where the file system has no locks, there is none.

    Raises:
      BlockingIOError: if another one writes for longer than ``PATIENCE``.
      OSError: if the folder cannot be written to.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            opened = lock(folder / LOCK, os.O_RDWR | os.O_CREAT, strict=True)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BlockingIOError(
                    f"another process, or another object of this one, has been writing there for {PATIENCE:g} s; wait for its "
                    "end, stop it, or give another folder"
                ) from None
            time.sleep(0.02)
    try:
        yield
    finally:
        unlock(opened)


def unfinished(folder: Path, commits: int) -> Path:
    """Return the path at which a checkpoint is written; no other write uses it, not even one that was interrupted."""
    return folder / f"{commits}{UNFINISHED}{uuid.uuid4().hex[:12]}"


def clean(folder: Path) -> None:
    """Remove the files of failed writes, and settle what they have set aside; only with the folder's lock."""
    for path in folder.glob(f"*{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)
    _settle_replaced(folder)


def publish(written: Path, checkpoint: Path, keep: int | None, *, removes_later: bool) -> None:
    """Give a complete checkpoint its name.

    Checkpoints of more commits are then renamed, or removed if ``removes_later`` is set, and those before the newest ``keep``
    are removed.
    """
    folder, commits = checkpoint.parent, int(checkpoint.name)
    _write_sizes(written)
    if checkpoint.exists():
        checkpoint.rename(folder / f"{REPLACED}{commits}")
    written.rename(checkpoint)
    _settle_replaced(folder)
    for number in later_than(folder, commits):
        renamed = (folder / str(number)).rename(_superseded(folder, number))
        if removes_later:
            shutil.rmtree(renamed, ignore_errors=True)
    for number in numbers(folder)[:-keep] if keep else ():
        with contextlib.suppress(OSError):  # If the removal is interrupted, the rest has another name.
            shutil.rmtree((folder / str(number)).rename(unfinished(folder, number)), ignore_errors=True)


def _superseded(folder: Path, commits: int) -> Path:
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (folder / f"{SUPERSEDED}{commits}{suffix}" for suffix in suffixes)
    return next(path for path in paths if not path.exists())


def _settle_replaced(folder: Path) -> None:
    """Remove each checkpoint that was set aside, or restore it if its replacement is missing."""
    for replaced in folder.glob(f"{REPLACED}*"):
        checkpoint = folder / replaced.name.removeprefix(REPLACED)
        if checkpoint.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(checkpoint)


def numbers(folder: Path) -> list[int]:
    """Return the commits of all checkpoints, in increasing order."""
    names = {path.name.removeprefix(REPLACED) for path in folder.iterdir()} if folder.is_dir() else ()
    found = sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))  # Not "0020".
    return [number for number in found if any((path_of(folder, number) / name).exists() for name in (METADATA, SIZES))]


def later_than(folder: Path, commits: int) -> list[int]:
    """Return the commits of checkpoints of more commits."""
    return [number for number in numbers(folder) if number > commits]


def path_of(folder: Path, commits: int) -> Path:
    """Return the path of a checkpoint; it has another name while it is replaced."""
    checkpoint, replaced = folder / str(commits), folder / f"{REPLACED}{commits}"
    return checkpoint if checkpoint.exists() or not replaced.exists() else replaced


def custom_metadata(checkpoint: Path) -> Any:
    """Return what was given to Orbax as metadata of a checkpoint; ``None`` if that is damaged."""
    try:
        return json.loads((checkpoint / METADATA).read_bytes())["custom_metadata"]
    except (ValueError, LookupError, TypeError):
        return None


def identity(checkpoint: Path) -> str | None:
    """Return a hash of a checkpoint's metadata, which contain the time of its writing; ``None`` without a checkpoint."""
    try:
        return hashlib.sha256((checkpoint / METADATA).read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _write_sizes(checkpoint: Path) -> None:
    """Note the sizes of the files of a checkpoint, for :func:`damage_of`."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}
    (checkpoint / SIZES).write_text(json.dumps(sizes, indent=0), encoding="utf-8")


def damage_of(checkpoint: Path) -> str | None:
    """Describe the first file of a checkpoint that is missing or cut; ``None`` if there is none."""
    try:
        sizes = json.loads((checkpoint / SIZES).read_bytes())
    except (FileNotFoundError, ValueError) as error:
        return f"its file {SIZES} cannot be read ({type(error).__name__})"
    for name, size in sizes.items():
        try:
            found = (checkpoint / name).stat().st_size
        except FileNotFoundError:
            return f"its file {name!a} is missing"
        if found != size:
            return f"its file {name!a} has {found} bytes instead of {size}"
    return None
