"""The class that saves and loads the checkpoints of one run."""

import concurrent.futures
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from gemjax.checkpoints import contents, files, lock, parts, turns
from gemjax.checkpoints.errors import CheckpointError, damage, is_write_error, unreadable, write_error
from gemjax.checkpoints.quiet import ignore_repeated_errors, quietly
from gemjax.engines.checks import RunWarning
from gemjax.engines.devices.hardware import keys
from gemjax.engines.memory import Elsewhere
from gemjax.engines.result import check_valid
from gemjax.engines.running.interrupts import Held
from gemjax.engines.transition import RunState
from gemjax.protocol.checks import check_bool, check_path, check_positive_int, integer
from gemjax.protocol.trace import Trace
from gemjax.telemetry.locks import close_after

STATE = "state"  # Folder of the arrays of a checkpoint.


class Checkpoints:
    """Checkpoints of one run in one folder; each is complete or absent, and the newest are kept.

    Objects and processes that write to one folder wait for each other's writes; loading moves and removes nothing. Threads of
    one process take turns: none loads or saves while another one saves.
    A checkpoint holds a :class:`gemjax.RunState` (central variable, method state with its staleness counters, model state,
    view and step of each worker) and the trace so far, so that a resumed run has the staleness that it had. Of a run with
    ``central_hosts`` each actor writes its own arrays, so all hosts must share the folder (:mod:`gemjax.checkpoints.parts`).

    Args:
      folder: folder of the checkpoints; created if it does not exist.
      keep: number of checkpoints to keep, positive; ``None`` keeps all.
      read_only: True to only load, while another process may write to the folder.

    Raises:
      TypeError: if ``folder`` is no path.
      ValueError: if ``keep`` is neither a positive int nor ``None``, or ``read_only`` no bool.
      NotADirectoryError: if there is a file of this name, or a link that leads to no folder.
      CheckpointError: if the name is not UTF-8 or has text in brackets [ ], a backslash or gs:/ in it, or the folder holds
        checkpoints of another program and is not ``read_only``.
    """

    replaces_later = False  # True where the owner has said that a save replaces checkpoints of more commits.

    def __init__(self, folder: str | os.PathLike, keep: int | None = 2, *, read_only: bool = False):
        if keep is not None:
            check_positive_int("keep", keep)
        check_bool("read_only", read_only)
        check_path("folder", folder)
        self.folder, self.keep, self.read_only = Path(folder).absolute(), keep, read_only
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise NotADirectoryError(
                f"{self.folder} is a link that leads nowhere; mount or restore what it names, or give another name"
                if not self.folder.exists()
                else f"{self.folder} is not a folder; give another name, or remove the file"
            )
        try:
            str(self.folder).encode()
        except UnicodeEncodeError:
            raise CheckpointError(
                f"{str(self.folder)!a} is not UTF-8, and Orbax writes to no such folder; give another name, or set "
                "PYTHONUTF8=1 if Python misreads this one"
            ) from None
        if misread := files.MISREAD.search(self.folder.as_posix()):
            raise CheckpointError(
                f"{self.folder} has {misread[0]} in its name, which the libraries that read and write checkpoints take for a "
                "pattern or another path; rename that folder, or choose another one"
            )
        if not read_only:  # Unfinished writes remain until the next one: they may be those of another process.
            if foreign := files.foreign_numbers(self.folder):
                raise CheckpointError(
                    f"{self.folder} holds {files.in_words(foreign)}, checkpoints of another program, which would be removed "
                    "or renamed; give these checkpoints a folder of their own"
                )
            self.folder.mkdir(parents=True, exist_ok=True)
        self._writing: Future | None = None  # Of a write in the background.
        self._written = 0  # Commits and bytes of that write.
        self._size = 0

    def save(self, state: RunState, trace: Trace, metadata: dict[str, Any] | None = None, *, wait: bool = True) -> None:
        """Write ``state`` after the commits of ``trace``.

        A checkpoint of as many commits is replaced as soon as the new one is on disk. Those of more commits belong to another
        continuation of the run: they are then renamed, so that the newest one is of this continuation. Those of fewer
        commits stay, of whichever continuation. A state
        whose ``params`` are not finite is refused: no gradient at them would be. Method state and ``model_state`` may contain
        infinities by choice.

        Args:
          state: state of the run.
          trace: applied commits of the run so far.
          metadata: dict of further values to keep, as JSON: it returns with tuples as lists and names as strings.
          wait: if ``True`` (default), return when everything is on disk. If ``False``, copy the state on its devices, where
            it takes twice the memory meanwhile, and write it in the background, so that the run may go on. The next call of
            this object waits for the write and raises its error. The next write of another object waits for it, too. After a
            run with ``central_hosts`` call :meth:`wait` before the cluster is closed or begins its next run, because its
            actors write.

        Warns:
          RunWarning: if there are checkpoints of more commits, or something else of the name of this one, with their new names.

        Raises:
          CheckpointError: if a number in ``state.params`` is not finite; nothing is written, and earlier checkpoints remain.
          CheckpointWriteError: (an OSError) if this checkpoint cannot be written, another writer has been at work for 5
            minutes, or the previous one could not be written in the background. Existing checkpoints remain valid, and the next
            call tries again.
          TypeError: if an argument is of the wrong type, ``metadata`` cannot be written as JSON, or an array has a dtype that
            Orbax cannot write; nothing is written.
          ValueError: if the folder was opened with ``read_only``, ``state`` is no longer valid, or ``trace`` is not that of
            ``state``: its last commits must lead to the state's steps and pulls.
          RuntimeError: in a process that was forked from one that has used JAX.
        """
        if self.read_only:
            raise ValueError(f"{self.folder} was opened with read_only=True; open it without to save a checkpoint")
        turns.check_not_forked()
        contents.check_state("state", state)
        check_valid(state)
        contents.check_trace_of(state, trace)
        data = contents.storable(keys.as_data(state))
        owners = parts.by_owner(data)
        custom_metadata = contents.metadata_of(state, trace, metadata, [arrays for _, arrays in owners])
        self.wait()
        contents.check_finite(state.params, f"{self.folder}: the state after {len(trace)} commits", self.latest)
        plain = contents.without_empty(parts.without_owned(data))
        tree: Any = {"state": plain}
        if len(trace):
            tree["trace"] = {name: getattr(trace, name) for name in contents.KINDS}
        self._written, self._size = len(trace), sum(leaf.nbytes for leaf in jax.tree.leaves((tree.get("trace"), data)))
        # Interrupted, Orbax would leave threads that wait without end, and with them the process.
        with self._recovering(), Held() as held, lock.alone_in(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)  # It may have been removed.
            ends = contextlib.ExitStack()  # What the end of the write releases.
            ends.callback(lock.hold(self.folder, held))
            try:
                files.clean(self.folder)
                if files.is_doubtful(checkpoint := self.folder / str(len(trace))):
                    warnings.warn(
                        f"{checkpoint} has the name of the checkpoint after {len(trace)} commits, and does not look like "
                        f"one that gemjax has written; it is renamed to {files.SUPERSEDED}…",
                        RunWarning,
                        stacklevel=2,
                    )
                if not wait:
                    # A run that goes on donates the buffers of its state to the next commit.
                    tree["state"] = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), plain)
                if (later := files.later_than(self.folder, len(trace))) and not self.replaces_later:
                    what = f"of another continuation of the run than the state after {len(trace)} commits that is saved"
                    warnings.warn(
                        f"{self.folder} holds checkpoints of {files.in_words(later)} commits, {what}; they are renamed to "
                        f"{files.SUPERSEDED}…",
                        RunWarning,
                        stacklevel=2,
                    )
                unfinished = files.unfinished(self.folder, len(trace))
                kept = parts.keep(owners, unfinished)
                turn = turns.Write()
                ends.callback(turn.end)
                turn.begin()
                ignore_repeated_errors()
                response = ocp.save_checkpointables_async(
                    str(unfinished), {STATE: tree}, custom_metadata=custom_metadata
                )
                response = parts.Written(response, kept, unfinished, turn)
            except BaseException:
                ends.close()
                raise
            self._writing = files.completed(
                response, unfinished, checkpoint, self.keep, ends.close, replaces_later=self.replaces_later
            )
        if wait:
            self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the write in the background is finished.

        Args:
          timeout: longest time to wait in seconds; 0 only asks; ``None`` (default) waits without limit.

        Returns:
          True if no write is in progress.

        Raises:
          CheckpointWriteError: (an OSError) if the checkpoint could not be written.
          RuntimeError: in a process that was forked during the write, which never ends there.
        """
        if self._writing is not None:
            if not self._writing.done():
                turns.check_not_forked()
            with self._recovering():
                if (
                    timeout is not None
                    and concurrent.futures.wait([self._writing], min(float(timeout), threading.TIMEOUT_MAX)).not_done
                ):
                    return False
                self._writing.result()
            self._writing = None
        return True

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """Forget a failed write, and turn an error of I/O into a :class:`CheckpointWriteError`."""
        try:
            yield
        except Exception as error:
            self._writing = None
            if is_write_error(error):
                raise write_error(error, self.folder, self._written, self._size, self.latest) from error
            raise

    @property
    def commits(self) -> list[int]:
        """Commits of each checkpoint, in increasing order.

        Raises:
          CheckpointError: if there is a file in place of a newer checkpoint.
        """
        self.wait()
        found = files.numbers(self.folder)
        folders = [number for number in found if files.path_of(self.folder, number).is_dir()]
        if found[-1:] != folders[-1:]:
            raise damage(f"{self.folder}: checkpoint {found[-1]}", "it is not a folder")
        return folders

    @property
    def latest(self) -> int | None:
        """Commits of the newest checkpoint; ``None`` if there is none.

        Raises:
          CheckpointError: if there is a file in place of a newer checkpoint.
        """
        return max(self.commits, default=None)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The ``metadata`` that the newest checkpoint was saved with; ``None`` if there is no checkpoint.

        Raises:
          CheckpointError: if the metadata are damaged, a file is missing or of another size, or the checkpoint is not written
            by gemjax. Only :meth:`load` compares all bytes.
        """

        def read(commits: int | None) -> dict[str, Any] | None:
            if commits is None:
                return None
            self._check_files(commits, only=files.METADATA)
            name = self._name(commits)
            # Orbax would read files of the arrays, too, whose digests take longer, and print what it finds damaged in them.
            if (found := files.custom_metadata(files.path_of(self.folder, commits))) is None:
                raise damage(name, f"its file {files.METADATA} holds no metadata of gemjax")
            return contents.check_metadata(found, name, commits)["user"]

        return self._steadily(None, read)

    def load(
        self, like: RunState, commits: int | None = None, *, in_files: bool = False
    ) -> tuple[RunState, Trace, dict[str, Any]]:
        """Load a checkpoint.

        Args:
          like: a state of the same structure, shapes and dtypes, such as the initial state of the run; or its shapes
            (``jax.ShapeDtypeStruct``), with the shardings that the arrays are to have.
          commits: those of the checkpoint; ``None`` (default) loads the newest one.
          in_files: True to leave large arrays in their files. As ``state=`` of a run with ``central_hosts`` each is read by the
            actor that needs it; ``np.asarray`` reads one here, and other engines read all.

        Returns:
          ``(state, trace, metadata)`` as given to :meth:`save`, ``metadata`` as JSON has it.

        Raises:
          TypeError: if ``like`` is not the state of a run, or has numbers of 64 bits where they are not enabled.
          ValueError: if ``commits`` is no number of commits.
          FileNotFoundError: if the folder does not hold this checkpoint.
          CheckpointError: (a ValueError) if the checkpoint is damaged, of another method, schedule, model, number of workers or
            PRNG implementation, or not written by gemjax; the message names its folder. Changed files are found by digests,
            which checkpoints of older versions do not have.
          RuntimeError: in a process that was forked from one that has used JAX.
        """
        turns.check_not_forked()
        contents.check_state("like", like)
        check_bool("in_files", in_files)
        commits = None if commits is None else integer("commits", commits, 0)
        like = jax.tree.map(_as_like, like)
        contents.check_enabled(like)

        def read(found: int | None) -> tuple[RunState, Trace, dict[str, Any]]:
            if found is None or found not in self.commits:
                what = "checkpoint to continue from" if commits is None else f"checkpoint {commits}"
                raise FileNotFoundError(f"{self.folder} holds no {what}")
            return self._load(like, found, in_files)

        return self._steadily(commits, read)

    def _steadily(self, commits: int | None, read: Callable[[int | None], Any]) -> Any:
        """Return ``read(commits)``, with ``None`` of the newest checkpoint; again if another writer replaces it meanwhile."""
        while True:
            before = self._identities()
            try:
                latest = self.latest if commits is None else commits
                found = self._identity(latest)
                value = read(latest)
            except (CheckpointError, FileNotFoundError):
                if self._identities() == before:
                    raise
            else:
                if self._identity(latest) == found:
                    return value  # Otherwise it may be of two checkpoints.

    def _load(self, like: RunState, latest: int, in_files: bool) -> tuple[RunState, Trace, dict[str, Any]]:
        """Load the checkpoint of so many commits."""
        self._check_files(latest)
        (metadata, shapes), name = self._read_metadata(latest), self._name(latest)
        num_workers = jax.tree.leaves(like.step)[0].shape[0]
        contents.check_arrays(shapes, like, name, metadata)
        if metadata.get("num_workers") != num_workers:
            raise contents.damaged(name, "num_workers", metadata.get("num_workers"), num_workers)
        plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        plain = contents.storable(keys.as_data(plain))
        named = zip(contents.names(like), jax.tree.leaves(like), strict=True)
        stays = [in_files and parts.can_stay(*one) for one in named]
        plan = parts.Plan(plain, contents.names(plain), metadata["parts"], stays)
        abstract: Any = {"state": plan.abstract(contents.readable)}
        if latest:
            abstract["trace"] = {name: np.empty(latest, kind) for name, kind in contents.KINDS.items()}

        def read():
            checkpoint = files.path_of(self.folder, latest)
            tree: Any = ocp.load_checkpointables(str(checkpoint), {STATE: abstract})[STATE]
            trace = Trace(**tree.get("trace", {"worker": []}), num_workers=num_workers)
            return plan.filled(tree["state"], checkpoint, STATE, abstract), trace

        try:
            state, trace = self._read(latest, read)
        except CheckpointError:  # Orbax does not find the same nodes without arrays.
            if (other := contents.other_method(name, metadata.get("method"), like)) is not None:
                raise other from None
            raise
        state = jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(state))
        return keys.as_keys(state, like), trace, metadata["user"]

    def _identities(self) -> dict[int, tuple[int, int] | None]:
        """Return the identity of each checkpoint, by commits."""
        return {number: self._identity(number) for number in files.numbers(self.folder)}

    def _identity(self, commits: int | None) -> tuple[int, int] | None:
        """Return numbers that change when a checkpoint is replaced; ``None`` if there is none."""
        if commits is None:
            return None
        try:
            status = files.path_of(self.folder, commits).stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns  # The number of a removed folder is given to another one.

    def _name(self, commits: int) -> str:
        """Return the name of a checkpoint in messages."""
        return f"{self.folder}: checkpoint {commits}"

    def _check_files(self, commits: int, only: str | None = None) -> None:
        """Raise :class:`CheckpointError` if a file of the checkpoint is damaged."""
        if (what := files.damage_of(files.path_of(self.folder, commits), only)) is not None:
            raise damage(self._name(commits), what)

    def _read_metadata(self, commits: int) -> tuple[dict[str, Any], Any]:
        """Read the metadata of a checkpoint and the shapes of its arrays."""
        found = self._read(commits, lambda: ocp.metadata(str(files.path_of(self.folder, commits)), STATE))
        return contents.check_metadata(found.custom_metadata, self._name(commits), commits), found.metadata

    def _read(self, commits: int, read: Callable[[], Any]) -> Any:
        """Return ``read()``; any exception of it, and all that Orbax prints, becomes one :class:`CheckpointError`."""
        value, error = quietly(read, lambda error: unreadable(self._name(commits), error))
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Wait for the write in the background."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        close_after(raised, self.close, "the last checkpoint was not written")


def _as_like(leaf: Any) -> Any:
    """Return an array, or shape, dtype and sharding of one."""
    if isinstance(leaf, Elsewhere):
        host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=host)
    return leaf if hasattr(leaf, "sharding") else jnp.asarray(leaf)
