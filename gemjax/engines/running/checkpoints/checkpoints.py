"""The class that saves and loads the checkpoints of one run."""

import concurrent.futures
import contextlib
import functools
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

from gemjax.engines.checks import RunWarning
from gemjax.engines.memory import STATE, Elsewhere
from gemjax.engines.result import History, Result, check_valid
from gemjax.engines.running import keys
from gemjax.engines.running.checkpoints import contents, folder
from gemjax.engines.running.checkpoints.errors import ADVICE, CheckpointError, is_io_error, reading, write_error
from gemjax.engines.running.checkpoints.files import NOT_READ, InFile, can_stay
from gemjax.engines.running.checkpoints.writing import ORBAX, in_background, unseen
from gemjax.engines.running.interrupts import Held
from gemjax.engines.transition import RunState
from gemjax.protocol.checks import check_bool, check_path, check_positive_int, integer
from gemjax.protocol.trace import Trace
from gemjax.telemetry.locks import close_after

# Names of columns in the files of a checkpoint.
TRACE, HISTORY, EVALUATIONS = "trace", "history", "evaluations"


class Checkpoints:
    """Checkpoints of one run in one folder; each is complete or absent, and the newest are kept.

    Objects and processes that write to one folder wait for each other if its file system has locks; loading moves and removes
    nothing. A checkpoint holds a :class:`gemjax.RunState` (central variable, method state with its staleness counters, model
    state, view and step of each worker) and the trace so far, so that a resumed run has the staleness that it had. Of a run
    with ``central_hosts`` each host writes its parts of arrays, so all hosts must share the folder.

    Args:
      folder: folder of the checkpoints; created if it does not exist. Give each run its own.
      keep: number of checkpoints to keep, positive; ``None`` keeps all.
      read_only: True to only load, while another process may write to the folder.

    Raises:
      TypeError: if ``folder`` is no path.
      ValueError: if ``keep`` is neither a positive int nor ``None``, or ``read_only`` no bool.
      NotADirectoryError: if there is a file of this name.
    """

    replaces_later = False  # True where a save removes checkpoints of more commits, instead of renaming them.

    def __init__(self, folder: str | os.PathLike, keep: int | None = 2, *, read_only: bool = False):
        if keep is not None:
            check_positive_int("keep", keep)
        check_bool("read_only", read_only)
        check_path("folder", folder)
        self.folder, self.keep, self.read_only = Path(folder).absolute(), keep, read_only
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is not a folder; give another name, or remove the file")
        if not read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._writing: Future | None = None  # Of a write in the background.
        self._written = 0  # Commits and bytes of that write.
        self._size = 0

    def save(
        self,
        state: RunState,
        trace: Trace,
        metadata: dict[str, Any] | None = None,
        *,
        history: History | None = None,
        evaluations: History | None = None,
        wait: bool = True,
    ) -> None:
        """Write ``state`` after the commits of ``trace``.

        A checkpoint of as many commits is replaced as soon as the new one is on disk. Those of more commits belong to another
        continuation of the run: they are then renamed, so that the newest one is of this continuation. A state whose
        ``params`` are not finite is refused, because no gradient at them is finite. Method state and ``model_state`` may
        contain infinities by choice.

        Args:
          state: state of the run.
          trace: applied commits of the run so far.
          metadata: dict of further values to keep, as JSON: it returns with tuples as lists and names as strings.
          history: columns of the run so far, as in :class:`gemjax.Result`, for :meth:`load_result`; default: none.
          evaluations: those of its evaluations.
          wait: if ``True`` (default), return when everything is on disk. If ``False``, copy the state on its devices, where
            it takes twice the memory meanwhile, and write it in the background, so that the run may go on. The next call of
            this object waits for the write and raises its error. After a run with ``central_hosts`` call :meth:`wait` before
            the cluster is closed or begins its next run, because its actors write.

        Warns:
          RunWarning: if there are checkpoints of more commits.

        Raises:
          CheckpointError: if a number in ``state.params`` is not finite; nothing is written, and earlier checkpoints remain.
          CheckpointWriteError: (an OSError) if this checkpoint cannot be written, another writer has been at work for 5
            minutes, or the previous one could not be written in the background. Existing checkpoints remain valid, and the next
            call tries again.
          TypeError: if an argument is of the wrong type, or ``metadata`` cannot be written as JSON; nothing is written.
          ValueError: if the folder was opened with ``read_only``, ``state`` is no longer valid, or ``trace`` is not that of
            ``state``: its last commits must lead to the state's steps and pulls.
        """
        self._check_writable()
        contents.check_state("state", state)
        check_valid(state)
        contents.check_trace_of(state, trace)
        data = keys.as_data(state)
        records = {HISTORY: history or {}, EVALUATIONS: evaluations or {}}
        custom_metadata = contents.metadata_of(state, trace, metadata, records)
        self.wait()
        contents.check_finite(state.params, f"{self.folder}: the state after {len(trace)} commits", self.latest)
        leaves = jax.tree.leaves(data)
        own = {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}  # Orbax writes no empty array.
        others = {name: leaf for name, leaf in own.items() if isinstance(leaf, Elsewhere) and leaf.owner is not None}
        own = {
            name: leaf.read() if isinstance(leaf, Elsewhere) else leaf
            for name, leaf in own.items()
            if name not in others
        }
        owner = next((leaf.owner for leaf in others.values()), None)
        write = _write_here if owner is None else owner.writer(others)
        columns = trace._columns() if len(trace) else {}
        arrays = {TRACE: columns} | {name: contents.by_number(record) for name, record in records.items()}
        self._written, self._size = len(trace), sum(leaf.nbytes for leaf in (*jax.tree.leaves(arrays), *leaves))
        if not wait:  # A run that goes on donates the buffers of its state to the next commit.
            with self._recovering():
                own = {name: jnp.array(leaf, copy=True) for name, leaf in own.items()}
        if (later := folder.later_than(self.folder, len(trace))) and not self.replaces_later:
            warnings.warn(
                f"{self.folder} holds checkpoints of more commits ({', '.join(map(str, later))}), of another continuation of "
                f"the run than the state after {len(trace)} commits that is saved; they are renamed to {folder.SUPERSEDED}…",
                RunWarning,
                stacklevel=2,
            )
        unfinished = folder.unfinished(self.folder, len(trace))
        arrays = {STATE: own} | {name: found for name, found in arrays.items() if found}  # Orbax writes no empty tree.
        with Held():  # Ctrl-C in between would lose sight of the write.
            self._writing = in_background(functools.partial(self._write, unfinished, arrays, custom_metadata, write))
        if wait:
            self.wait()

    def _check_writable(self) -> None:
        if self.read_only:
            raise ValueError(f"{self.folder} was opened with read_only=True; open it without to save a checkpoint")

    def _write(self, unfinished: Path, arrays: dict, custom_metadata: dict, write: Callable) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)  # It may have been removed.
        with folder.locked(self.folder):
            folder.clean(self.folder)
            try:
                with ORBAX:
                    write(str(unfinished), arrays, custom_metadata)
                checkpoint = self.folder / str(custom_metadata["commits"])
                folder.publish(unfinished, checkpoint, self.keep, removes_later=self.replaces_later)
            except BaseException:
                with contextlib.suppress(OSError):
                    folder.clean(self.folder)
                raise

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the write in the background is finished.

        Args:
          timeout: longest time to wait in seconds; 0 only asks; ``None`` (default) waits without limit.

        Returns:
          True if no write is in progress.

        Raises:
          CheckpointWriteError: (an OSError) if the checkpoint could not be written.
        """
        if self._writing is not None:
            limit = None if timeout is None else min(float(timeout), threading.TIMEOUT_MAX)
            if concurrent.futures.wait([self._writing], limit).not_done:
                return False
            with self._recovering():
                unseen.discard(self._writing)
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
            if is_io_error(error):
                raise write_error(error, self.folder, self._written, self._size, self.latest) from error
            raise

    @property
    def commits(self) -> list[int]:
        """Commits of each checkpoint, in increasing order."""
        self.wait()
        return folder.numbers(self.folder)

    @property
    def latest(self) -> int | None:
        """Commits of the newest checkpoint; ``None`` if there is none."""
        return max(self.commits, default=None)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The ``metadata`` that the newest checkpoint was saved with; ``None`` if there is no checkpoint.

        Raises:
          CheckpointError: if a file of the checkpoint is missing or was cut, or it is of another format.
        """
        return None if self.latest is None else self._steadily(None, lambda found: self._metadata(found)["user"])

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
          CheckpointError: (a ValueError) if a file of the checkpoint is missing or was cut, or it is of another method,
            schedule, model, number of workers or PRNG implementation; the message names its folder.
          OSError, MemoryError: if it may be good, but cannot be read now; other errors of I/O and memory are those of
            TensorStore and JAX.
        """
        result, metadata = self._checked(like, commits, in_files)
        return result.state, result.trace, metadata

    def load_result(self, like: RunState, commits: int | None = None, *, in_files: bool = False) -> Result:
        """Load a checkpoint as a result, which an engine takes as ``state=``.

        Args and errors are those of :meth:`load`. History and evaluations are those with which the checkpoint was saved.
        """
        return self._checked(like, commits, in_files, (HISTORY, EVALUATIONS))[0]

    def _checked(
        self, like: RunState, commits: int | None, in_files: bool, records: tuple[str, ...] = ()
    ) -> tuple[Result, dict[str, Any]]:
        """Return a checkpoint, with those of its ``records``, and its metadata."""
        contents.check_state("like", like)
        check_bool("in_files", in_files)
        commits = None if commits is None else integer("commits", commits, 0)
        like = jax.tree.map(_as_like, like)
        contents.check_enabled(like)
        return self._steadily(commits, lambda found: self._load(like, found, in_files, records))

    def _steadily(self, commits: int | None, read: Callable[[int], Any]) -> Any:
        """Return ``read(commits)``, with ``None`` of the newest checkpoint; again if another writer replaces it meanwhile."""
        while True:
            found = self.latest if commits is None else commits
            if found is None or found not in self.commits:
                what = "checkpoint to continue from" if commits is None else f"checkpoint {commits}"
                raise FileNotFoundError(f"{self.folder} holds no {what}")
            before = folder.identity(folder.path_of(self.folder, found))
            try:
                return read(found)
            except Exception:
                if folder.identity(folder.path_of(self.folder, found)) == before:
                    raise

    def _load(
        self, like: RunState, commits: int, in_files: bool, records: tuple[str, ...]
    ) -> tuple[Result, dict[str, Any]]:
        checkpoint, name, metadata = folder.path_of(self.folder, commits), self._name(commits), self._metadata(commits)
        contents.check_metadata(metadata, like, name, commits)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        leaves, structure = jax.tree.flatten(keys.as_data(shapes))
        named = zip(contents.names(like), jax.tree.leaves(like), strict=True)
        stays = [in_files and can_stay(*one) for one in named]
        together = tuple(str(index) for index, leaf in enumerate(leaves) if leaf.size)
        read = {str(index): NOT_READ if stays[index] else contents.readable(leaf) for index, leaf in enumerate(leaves)}
        abstract: dict[str, Any] = {STATE: {name: read[name] for name in together}}
        if commits:
            abstract[TRACE] = {name: np.empty(commits, kind) for name, kind in contents.KINDS.items()}
            if blocks := metadata["num_blocks"]:
                abstract[TRACE]["read_at"] = np.empty((commits, blocks), np.int32)
        described = {name: metadata["records"][name] for name in records}
        abstract |= {name: contents.unread(rows) for name, rows in described.items() if rows}
        with reading(name), ORBAX:
            found = ocp.load_checkpointables(str(checkpoint), abstract)

        def array(index: int, leaf: Any) -> Any:
            if stays[index]:
                return InFile(checkpoint, together, str(index), leaf)
            one = found[STATE][str(index)] if leaf.size else np.zeros(leaf.shape, leaf.dtype)
            return jax.device_put(one, leaf.sharding)

        state = jax.tree.unflatten(structure, [array(*row) for row in enumerate(leaves)])
        trace = Trace(**found.get(TRACE, {"worker": []}), num_workers=metadata["num_workers"])
        history, evaluations = (
            contents.by_name(described.get(name, []), found.get(name, {})) for name in (HISTORY, EVALUATIONS)
        )
        result = Result(keys.as_keys(state, like), history, trace, evaluations=evaluations)
        return result, metadata["user"]

    def _name(self, commits: int) -> str:
        return f"{self.folder}: checkpoint {commits}"

    def _metadata(self, commits: int) -> dict[str, Any]:
        """Return the metadata of a checkpoint of this format of which no file is missing or cut."""
        checkpoint = folder.path_of(self.folder, commits)
        if (what := folder.damage_of(checkpoint)) is not None:
            raise CheckpointError(f"{self._name(commits)} is damaged: {what}; {ADVICE}")
        found = folder.custom_metadata(checkpoint)
        contents.check_format(found, self._name(commits))
        return found

    def close(self) -> None:
        """Wait for the write in the background."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        close_after(raised, self.close, "the last checkpoint was not written")


def _write_here(path: str, arrays: dict, metadata: dict) -> None:
    ocp.save_checkpointables(path, arrays, custom_metadata=metadata)


def _as_like(leaf: Any) -> Any:
    """Return an array, or shape, dtype and sharding of one."""
    if isinstance(leaf, Elsewhere):
        host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=host)
    return leaf if hasattr(leaf, "sharding") else jnp.asarray(leaf)
