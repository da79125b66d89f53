"""Arrays of a checkpoint that other processes write and read, each those that it has.

A checkpoint of a run whose central variable is divided over actors has, besides the files of any checkpoint, a folder per
actor with its arrays, ``parts/0`` and so on. The metadata have the part of each array. Any run can load it: an engine on one
host reads all parts, and another number of actors reads those arrays that each of them needs.

The actors write next to the checkpoint's unfinished folder, under names that say the same of them. When all have answered, the
writer moves their folders into the unfinished one and gives that its name, by which it becomes a checkpoint. So the end of an
actor or of the writer leaves unfinished folders only, which the next write removes.

All hosts must see the folder under one path, in a file system whose ``rename`` is atomic and in which a file that one host has
closed can be read by the others, as NFS and the parallel file systems have it. The lock of the folder is the writer's alone.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from gemjax.checkpoints.errors import CheckpointError, unreadable
from gemjax.checkpoints.folder import identity
from gemjax.checkpoints.writing import ORBAX
from gemjax.engines.checks import is_key
from gemjax.engines.memory import Elsewhere, Function, Owner

PARTS = "parts"  # Folder of the folders of all parts.
STATE = "state"  # Name of the arrays in the files of a checkpoint, and in those of a part.
LARGE = 2**16  # Bytes of the smallest array that can be left in its file.


class Part(NamedTuple):
    """A part to be written into a folder, from arrays that its owner keeps."""

    path: Path
    call: Callable[[Function], Callable[[], Any]]


def by_owner(tree: Any) -> list[tuple[Owner, dict[str, Elsewhere]]]:
    """Return the owners of arrays of a tree, with these arrays by the number of the leaf."""
    found: dict[Any, dict[str, Elsewhere]] = {}
    for index, leaf in enumerate(jax.tree.leaves(tree)):
        if isinstance(leaf, Elsewhere) and leaf.owner is not None:
            found.setdefault(leaf.owner, {})[str(index)] = leaf
    return list(found.items())


def keep(owners: list[tuple[Owner, dict[str, Elsewhere]]], unfinished: Path) -> list[Part]:
    """Let each owner keep its arrays as they are now, for a folder next to ``unfinished``."""
    name = f"{unfinished}-{uuid.uuid4().hex[:8]}"  # Actors of a dead process with the same number may still write.
    return [Part(Path(f"{name}-part-{number}"), owner.keep(arrays)) for number, (owner, arrays) in enumerate(owners)]


class Writer(NamedTuple):
    """Picklable function that writes arrays into a folder, if the process sees the unfinished folder beside it."""

    path: str
    unfinished: str

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> None:
        if not os.path.isdir(self.unfinished):
            raise FileNotFoundError(
                "give a folder in a file system that all hosts share; this actor does not see the unfinished checkpoint: "
                f"{self.unfinished}"
            )
        with ORBAX:
            ocp.save_checkpointables(self.path, {STATE: dict(arrays)})


class InFile(Elsewhere):
    """An array in a checkpoint; picklable.

    Args:
      checkpoint: folder of the checkpoint.
      identity: that of the checkpoint, by :func:`identity`, so that no array of another one is taken for it.
      part: folder of Orbax in it.
      together: names of all arrays there.
      name: name of this array.
      like: shape and dtype of the array.
    """

    def __init__(self, checkpoint: Path, identity: str | None, part: str, together: list[str], name: str, like: Any):
        super().__init__(like.shape, like.dtype)
        self._of, self._at = (str(checkpoint), identity), (str(checkpoint / part), together, name)

    def sent(self) -> "InFile":
        return self

    def read(self) -> np.ndarray:
        """Return the array.

        Raises:
          CheckpointError: if it cannot be read, or the checkpoint was replaced, moved or removed meanwhile.
        """
        (folder, loaded), (checkpoint, together, name) = self._of, self._at
        wanted = {STATE: dict.fromkeys(together, ...) | {name: np.empty(self.shape, self.dtype)}}
        try:
            with ORBAX:
                found, error = np.asarray(ocp.load_checkpointables(checkpoint, wanted)[STATE][name]), None
        except Exception as raised:
            found, error = np.empty(0), unreadable(checkpoint, raised)
        if identity(Path(folder)) != loaded:
            raise CheckpointError(
                f"{folder} was replaced, moved or removed since the state was loaded from it, and some arrays of the state are "
                "still in its files; load it again, and keep it while a run reads from it"
            )
        if error is not None:
            raise error
        return found


def not_finite(leaf: Any) -> int:
    """Return how many numbers of an array are not finite; the process that has it counts them."""
    if isinstance(leaf, Elsewhere) and leaf.owner is not None:
        return leaf.owner.keep({"": leaf})(_not_finite)()
    return _not_finite({"": np.asarray(leaf) if isinstance(leaf, Elsewhere) else leaf})


def _not_finite(arrays: Mapping[str, Any]) -> int:
    return int(jnp.sum(~jnp.isfinite(arrays[""])))


def collect(parts: list[Part], unfinished: Path) -> None:
    """Let all owners write, and move their folders into that of the unfinished checkpoint.

    Raises:
      FileNotFoundError: if a part was written where this process does not see it.
      Exception: the first one of a writer, after all have answered.
    """
    errors: list[Exception] = []

    def attempt(fn: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return fn(*arguments)
        except Exception as error:
            errors.append(error)
            return lambda: None

    for wait in [attempt(part.call, Writer(str(part.path), str(unfinished))) for part in parts]:  # All at once.
        attempt(wait)
    if errors:
        raise errors[0]
    for number, part in enumerate(parts):
        if not part.path.is_dir():
            raise FileNotFoundError(
                "give a folder in a file system that all hosts share; this process does not see what an actor has written: "
                f"{part.path.name}"
            )
        (unfinished / PARTS).mkdir(exist_ok=True)
        part.path.rename(unfinished / PARTS / str(number))


def can_stay(name: str, leaf: Any) -> bool:
    """Return True for an array of the state that a run with ``central_hosts`` may have in its actors."""
    of_method = name.split(".")[0] in ("params", "opt_state", "model_state", "view")
    return of_method and not is_key(leaf) and leaf.size * leaf.dtype.itemsize >= LARGE


class Plan:
    """The reading of the arrays of a state from the files of a checkpoint.

    Args:
      like: shapes, dtypes and shardings of the arrays in order, with keys as integers.
      part_of: the part of each array; ``None`` for those that are in none.
      stays: per array, True if it is to stay in its file.
    """

    def __init__(self, like: list[Any], part_of: list[int | None], stays: list[bool]):
        self._arrays = [(str(index), *one) for index, one in enumerate(zip(like, part_of, stays, strict=True))]
        self._together: dict[int | None, list[str]] = {}  # Per part, the names of all its arrays.
        for name, leaf, part, _ in self._arrays:
            if leaf.size:
                self._together.setdefault(part, []).append(name)

    def abstract(self, readable: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the tree by which Orbax reads what is in no part; ``...`` stands for arrays that stay."""
        read = {name: ... if stays else readable(leaf) for name, leaf, _, stays in self._arrays}
        return {name: read[name] for name in self._together.get(None, [])}

    def filled(self, found: dict[str, Any], checkpoint: Path) -> list[Any]:
        """Return the arrays of the state; ``found`` is what Orbax has read by :meth:`abstract`."""
        loaded = identity(checkpoint)

        def array(name, leaf, part, stays):
            if not leaf.size:
                return np.zeros(leaf.shape, leaf.dtype)
            if part is None and not stays:
                return found[name]
            where = "" if part is None else f"{PARTS}/{part}"
            in_file = InFile(checkpoint, loaded, where, self._together[part], name, leaf)
            return in_file if stays else in_file.read()

        return [
            one if isinstance(one := array(*row), InFile) else jax.device_put(one, row[1].sharding)
            for row in self._arrays
        ]
