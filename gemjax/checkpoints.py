"""Checkpoints of a run, through Orbax: the central variable *and* the asynchrony around it."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from gemjax.engines import keys
from gemjax.engines.memory import readable
from gemjax.engines.transition import RunState
from gemjax.protocol.trace import COLUMNS, Trace

FORMAT = "gemjax.run.2"  # Counts up whenever RunState or the columns of a trace change.
UNFINISHED = "*.orbax-checkpoint-tmp*"  # Folders of writes that have not ended well.
REPLACED = ".replaced-"  # Before the name of a checkpoint that is being written anew.
WRITE_ERROR = re.compile(
    "os_error_code=|(Error|Failed) writing|RESOURCE_EXHAUSTED"
)  # Errors of TensorStore are ValueErrors.
KINDS = {name: np.float64 if name == "time" else np.int32 for name in COLUMNS}


class CheckpointError(ValueError):
    """A checkpoint that is damaged, of something else, or none of gemjax; the message names its folder."""


class CheckpointWriteError(OSError):
    """A checkpoint could not be written, because the disk is full for example; the ones before it are as good as they were.

    The message names the folder, the cause, the space that is free, and the newest good checkpoint.
    """

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class Checkpoints:
    """Checkpoints of one run in one folder; written whole or not at all, the newest kept.

    A checkpoint holds a :class:`gemjax.RunState` (central variable, method state with its staleness counters, model state,
    what every worker computes on and which of its steps) and the trace so far, so that a run goes on with the staleness it
    had.

    Args:
      folder: made if it does not exist.
      keep: how many checkpoints to keep, positive.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 2):
        self.folder, self.keep = Path(folder).absolute(), keep
        self._checkpointer = self._open()
        self._writing: Any = None  # What Orbax answers to a write in the background.
        self._written = 0  # Commits and bytes of that one.
        self._size = 0

    def _open(self) -> ocp.training.Checkpointer:
        """Opens the folder after removing what failed writes have left.

        Orbax could remove that too, but does it in a thread, which fails if anything else removes the same folder.
        """
        self._remove_unfinished()
        self._settle_replaced()
        return self._open_as_is()

    def _open_as_is(self) -> ocp.training.Checkpointer:
        policy: Any = ocp.training.preservation_policies.LatestN(self.keep)
        return ocp.training.Checkpointer(str(self.folder), preservation_policy=policy)

    def save(self, state: RunState, trace: Trace, metadata: dict[str, Any] | None = None, *, wait: bool = True) -> None:
        """Writes ``state`` after the commits of ``trace``; replaces a checkpoint of as many commits, once all is on disk.

        Args:
          state: of the run.
          trace: its applied commits so far.
          metadata: a dict of whatever else to keep, as JSON has it.
          wait: ``True`` (default): returns when all is on disk. ``False``: copies the state on its devices, which takes its
            room twice for the while, and writes it in the background; the run may go on. The next call of this object waits
            for that, and raises what went wrong there.

        Raises:
          CheckpointWriteError: (an OSError) if it cannot be written, or the one before it, in the background, could not. The
            checkpoints that were there stay valid, and the next call tries again.
          TypeError: if ``metadata`` cannot be written as JSON; nothing is written.
        """
        _check_metadata(metadata)
        self.wait()
        self._remove_unfinished()
        columns = {name: getattr(trace, name) for name in COLUMNS}
        known: dict[str, Any] = {"format": FORMAT, "commits": len(trace), "num_workers": trace.num_workers}
        plain = keys.as_data(state)
        tree: Any = {"state": plain, "trace": columns} if len(trace) else {"state": plain}
        options: Any = {"force": True, "custom_metadata": known | {"user": metadata or {}}}
        self._written, self._size = len(trace), sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        if not wait:
            # A run that goes on donates the buffers of its state to the next commit.
            tree["state"] = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), plain)
        with self._recovering():
            self._set_aside(len(trace))
            self._writing = self._checkpointer.save_async(len(trace), tree, **options)
        if wait:
            self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the checkpoint that is being written is on disk.

        Args:
          timeout: seconds to wait at most, 0 to ask only; default without end.

        Returns:
          Whether nothing is being written any more.

        Raises:
          CheckpointWriteError: (an OSError) if the checkpoint could not be written.
        """
        if self._writing is not None:
            with self._recovering():
                try:
                    self._writing.result(timeout=timeout)
                except TimeoutError:
                    if timeout is None:
                        raise
                    return False
            self._writing = None
            self._settle_replaced()
        return True

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """Begins anew after a write that failed, and turns its error into :class:`CheckpointWriteError` if it is one of I/O.

        Orbax would raise the same error at the next write, and keep what it wrote of the checkpoint, which takes room where
        there is too little. Any other error, such as a TypeError, is raised as it is.
        """
        try:
            yield
        except Exception as error:
            self._writing = None
            with contextlib.suppress(Exception):
                self._checkpointer.close()
            self._checkpointer = self._open()
            if isinstance(error, (OSError, MemoryError)) or WRITE_ERROR.search(str(error)):
                raise self._unwritten(error) from error
            raise

    def _remove_unfinished(self) -> None:
        """Removes what failed writes have left; threads of Orbax may add to it for a moment after the failure."""
        for unfinished in self.folder.glob(UNFINISHED):
            shutil.rmtree(unfinished, ignore_errors=True)

    def _set_aside(self, commits: int) -> None:
        """Renames the checkpoint of so many commits, if there is one, so that it outlasts a write that fails."""
        checkpoint = self.folder / str(commits)
        # Orbax may know one that is not there, if an exception such as KeyboardInterrupt came while it began to write.
        if checkpoint.exists() or any(known.step == commits for known in self._checkpointer.checkpoints):
            self._checkpointer.close()
            self._settle_replaced()
            with contextlib.suppress(FileNotFoundError):
                checkpoint.rename(self.folder / f"{REPLACED}{commits}")
            self._checkpointer = self._open_as_is()

    def _settle_replaced(self) -> None:
        """Puts a checkpoint that was set aside back where its replacement is missing, and removes it otherwise.

        Orbax gives a checkpoint its name once it is whole.
        """
        for replaced in self.folder.glob(f"{REPLACED}*"):
            checkpoint = self.folder / replaced.name.removeprefix(REPLACED)
            if checkpoint.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(checkpoint)

    def _unwritten(self, error: Exception) -> CheckpointWriteError:
        first_line = str(error).strip().partition("\n")[0][:200]
        number, why = getattr(error, "errno", None), f"{type(error).__name__}: {first_line}".removesuffix(": ")
        if found := re.search(r"os_error_code='(\d+)'", str(error)):  # TensorStore has errors of its own kind.
            number = int(found[1])
        if number is not None:
            why = os.strerror(number)
        newest = self.latest
        return CheckpointWriteError(
            number,
            f"{self.folder}: the checkpoint of {self._written} commits could not be written: {why} (its arrays take "
            f"{readable(self._size)}, {readable(shutil.disk_usage(self.folder).free)} are free); "
            + ("there is no other" if newest is None else f"the newest good one is of {newest} commits"),
        )

    @property
    def latest(self) -> int | None:
        """Commits of the newest checkpoint; ``None`` if there is none."""
        self.wait()
        newest = self._checkpointer.latest
        return None if newest is None else newest.step

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The ``metadata`` that the newest checkpoint was saved with; ``None`` if there is no checkpoint.

        Raises:
          CheckpointError: if the checkpoint is damaged, or not one of gemjax.
        """
        return None if self.latest is None else self._known(self._read_metadata().custom_metadata)["user"]

    def load(self, like: RunState) -> tuple[RunState, Trace, dict[str, Any]]:
        """The newest checkpoint.

        Args:
          like: a state of the same run's structure, shapes and dtypes, such as the one it started from; or their shapes
            (``jax.ShapeDtypeStruct``), with the shardings that the arrays are to have.

        Returns:
          ``(state, trace, metadata)`` as given to :meth:`save`.

        Raises:
          FileNotFoundError: if the folder holds no checkpoint.
          CheckpointError: (a ValueError) if the checkpoint is damaged, of another method, model or number of workers, or not
            one of gemjax; the message names its folder.
        """
        like = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "sharding") else jnp.asarray(leaf), like)
        if self.latest is None:
            raise FileNotFoundError(f"{self.folder} holds no checkpoint to continue from")
        metadata = self._read_metadata()
        known = self._known(metadata.custom_metadata)
        commits, num_workers = known["commits"], jax.tree.leaves(like.step)[0].shape[0]
        plain = keys.as_data(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like))
        self._check_shapes(metadata.metadata, plain, commits)
        if known.get("num_workers") != num_workers:
            raise self._damaged("num_workers", known.get("num_workers"), num_workers)
        abstract: Any = {"state": plain}
        if commits:
            abstract["trace"] = {name: np.empty(commits, kind) for name, kind in KINDS.items()}
        try:
            tree: Any = self._checkpointer.load(self.latest, abstract)
            trace = Trace(**tree.get("trace", {"worker": []}), num_workers=num_workers)
        except Exception as error:
            raise self._unreadable(error) from error
        return keys.as_keys(tree["state"], like), trace, known["user"]

    def _read_metadata(self) -> Any:
        try:
            return self._checkpointer.metadata(self.latest)
        except Exception as error:  # Orbax raises many things; the folder and the mend are what matters.
            raise self._unreadable(error) from error

    def _known(self, known: Any) -> dict[str, Any]:
        """What :meth:`save` notes beside the arrays, if it is that."""
        found = known.get("format") if isinstance(known, dict) else None
        if found != FORMAT:
            raise CheckpointError(
                f"{self.folder}: checkpoint {self.latest} is of the format {str(found)[:60]!a}, but this version of gemjax "
                f"reads {FORMAT!r}; go on with the version that wrote it, or begin the run anew"
            )
        if type(known.get("commits")) is not int or known["commits"] != self.latest:
            raise self._damaged("commits", known.get("commits"), self.latest)
        if not isinstance(known.get("user"), dict):
            raise self._damaged("user", known.get("user"), "an object")
        return known

    def _unreadable(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.folder}: checkpoint {self.latest} cannot be read into this run's state; it is damaged, "
            f"or of another method ({type(error).__name__}: {error})"
        )

    def _damaged(self, name: str, found: Any, expected: Any) -> CheckpointError:
        return CheckpointError(
            f"{self.folder}: checkpoint {self.latest} is damaged: its {name} is {ascii(found)[:60]}, expected {expected}; go "
            "on from another checkpoint, or begin the run anew"
        )

    def _check_shapes(self, saved: Any, like: RunState, commits: int) -> None:
        columns = {name: [commits] for name in KINDS} if commits else {}
        if not isinstance(saved, dict) or "state" not in saved:
            raise CheckpointError(f"{self.folder}: checkpoint {self.latest} is damaged: it holds no state")
        lengths = {name: list(column.shape) for name, column in saved.get("trace", {}).items()}
        if lengths != columns:
            raise CheckpointError(
                f"{self.folder}: checkpoint {self.latest} is damaged: its trace has columns {lengths}, expected {columns}"
            )
        saved = saved["state"]
        found, wanted = (
            {
                _name(path): f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
                for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            }
            for tree in (saved, like)
        )
        if found != wanted:
            different = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise CheckpointError(
                f"{self.folder}: checkpoint {self.latest} is of another method, model or number of workers; "
                f"{len(different)} arrays differ, the first is {different[0]!r}: saved {found.get(different[0])}, "
                f"expected {wanted.get(different[0])}"
            )

    def close(self) -> None:
        """Waits for what is being written."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name(path: tuple) -> str:
    """A path in words that do not depend on whether a node was saved as an object or as a dict."""
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def _check_metadata(metadata: Any) -> None:
    """Raises ``TypeError`` unless ``metadata`` is ``None`` or a dict that JSON can hold."""
    if not isinstance(metadata, dict | None):
        raise TypeError(
            f"metadata is of type {type(metadata).__name__}, expected a dict; put the value under a name in one"
        )
    for name, value in (metadata or {}).items():
        try:
            json.dumps({name: value})
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"metadata[{name!r}] is of type {type(value).__name__} and cannot be written as JSON ({error}); give numbers, "
                "strings, truth values, None, and lists and dicts of them, as by float(x) or x.tolist()"
            ) from None
