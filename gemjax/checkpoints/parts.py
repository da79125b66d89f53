"""Arrays of a checkpoint that other processes write and read, each those that it has.

A checkpoint of a run whose central variable is divided over actors has, besides the files of any checkpoint, a folder per
actor with its arrays, ``parts/0`` and so on. The metadata name each array with its part. Any run can load it: an engine on one
host reads all parts, and another number of actors reads those arrays that each of them needs.

The actors write next to the checkpoint's unfinished folder, under names that say the same of them. When all have answered, the
writer moves their folders into the unfinished one and gives that its name, by which it becomes a checkpoint. So the end of an
actor or of the writer leaves unfinished folders only, which the next write removes.

All hosts must see the folder under one path, in a file system whose ``rename`` is atomic and in which a file that one host has
closed can be read by the others, as NFS and the parallel file systems have it. The lock of the folder is the writer's alone.
"""

import functools
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
from gemjax.checkpoints.files import identity, write_digests
from gemjax.checkpoints.quiet import discarding, ignore_repeated_errors, quietly
from gemjax.checkpoints.turns import Write
from gemjax.engines.checks import is_key
from gemjax.engines.memory import Elsewhere, Function, Owner

PARTS = "parts"  # Folder of the folders of all parts.
ARRAYS = "arrays"  # Folder of the arrays of a part.
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
        ignore_repeated_errors()
        with discarding():
            ocp.save_checkpointables(self.path, {ARRAYS: dict(arrays)})
        write_digests(Path(self.path))


def without_owned(tree: Any) -> Any:
    """Return ``tree`` with ``None`` in place of arrays of other processes, and with those of files brought here."""

    def here(leaf):
        if not isinstance(leaf, Elsewhere):
            return leaf
        return leaf.read() if leaf.owner is None else None

    return jax.tree.map(here, tree)


class InFile(Elsewhere):
    """An array in a checkpoint; picklable.

    Args:
      checkpoint: folder of the checkpoint.
      identity: that of the checkpoint, by :func:`identity`, so that no array of another one is taken for it.
      part: folder of Orbax in it.
      item: name of the tree in that.
      tree: the tree, with ``...`` in place of each array.
      index: number of this array's leaf in ``tree``.
      like: shape and dtype of the array.
    """

    def __init__(self, checkpoint: Path, identity: str | None, part: str, item: str, tree: Any, index: int, like: Any):
        super().__init__(like.shape, like.dtype)
        self._of, self._at = (str(checkpoint), identity), (str(checkpoint / part), item, tree, index)

    def sent(self) -> "InFile":
        return self

    def read(self) -> np.ndarray:
        """Return the array.

        Raises:
          CheckpointError: if it cannot be read, or the checkpoint was replaced, moved or removed meanwhile.
        """
        (folder, loaded), (checkpoint, item, tree, index) = self._of, self._at
        leaves, structure = jax.tree.flatten(tree)
        leaves[index] = np.empty(self.shape, self.dtype)
        wanted = {item: jax.tree.unflatten(structure, leaves)}
        read = lambda: jax.tree.leaves(ocp.load_checkpointables(checkpoint, wanted)[item])[index]
        found, error = quietly(read, lambda error: unreadable(checkpoint, error))
        now = identity(Path(folder))
        if now != loaded and (now is not None or not os.path.exists(folder)):
            raise CheckpointError(
                f"{folder} was replaced, moved or removed since the state was loaded from it, and some arrays of the state are "
                "still in its files; load it again, and keep it while a run reads from it"
            )
        if error is not None:
            raise error
        return np.asarray(found)


def not_finite(leaf: Any) -> int:
    """Return how many numbers of an array are not finite; the process that has it counts them."""
    if isinstance(leaf, Elsewhere) and leaf.owner is not None:
        return leaf.owner.keep({"": leaf})(_not_finite)()
    return _not_finite({"": np.asarray(leaf) if isinstance(leaf, Elsewhere) else leaf})


def _not_finite(arrays: Mapping[str, Any]) -> int:
    return int(jnp.sum(~jnp.isfinite(arrays[""])))


class Written(NamedTuple):
    """The writes of all processes to one checkpoint."""

    response: Any  # Of Orbax in this process.
    parts: list[Part]
    unfinished: Path
    turn: Write

    def result(self) -> None:
        """Wait for Orbax, let all owners write, and move their folders into that of the checkpoint.

        Raises:
          FileNotFoundError: if a part was written where this process does not see it.
          Exception: the first one of a writer, after all have answered.
        """
        self.turn.in_background()
        errors: list[Exception] = []

        def attempt(fn: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return fn(*arguments)
            except Exception as error:
                errors.append(error)
                return lambda: None

        attempt(self.response.result)
        self.turn.end()
        for wait in [
            attempt(part.call, Writer(str(part.path), str(self.unfinished))) for part in self.parts
        ]:  # All at once.
            attempt(wait)
        if errors:
            raise errors[0]
        for number, part in enumerate(self.parts):
            if not part.path.is_dir():
                raise FileNotFoundError(
                    "give a folder in a file system that all hosts share; this process does not see what an actor has written: "
                    f"{part.path.name}"
                )
            (self.unfinished / PARTS).mkdir(exist_ok=True)
            part.path.rename(self.unfinished / PARTS / str(number))


def can_stay(name: str, leaf: Any) -> bool:
    """Return True for an array of the state that a run with ``central_hosts`` may have in its actors."""
    of_method = name.split(".")[0] in ("params", "opt_state", "model_state", "view")
    return of_method and not is_key(leaf) and leaf.size * leaf.dtype.itemsize >= LARGE


class Plan:
    """The reading of a state from the files of a checkpoint.

    Args:
      like: shapes, dtypes and shardings of the arrays, with keys as integers.
      names: the name of each array.
      parts: number of the part, name there and description of each array that is in a part, by its name.
      stays: per array, True if it is to stay in its file.
    """

    def __init__(self, like: Any, names: list[str], parts: Mapping[str, Any], stays: list[bool]):
        leaves, self._structure = jax.tree.flatten(like)
        self._leaves, self._parts = list(zip(leaves, names, stays, strict=True)), parts
        self._of_part: dict[int, list[str]] = {}
        for number, key, _ in parts.values():
            self._of_part.setdefault(number, []).append(key)

    def abstract(self, readable: Callable[[Any], Any]) -> Any:
        """Return the tree by which Orbax reads what is in no part; ``...`` stands for arrays that stay."""

        def wanted(leaf, name, stays):
            return None if not leaf.size or name in self._parts else ... if stays else readable(leaf)

        return jax.tree.unflatten(self._structure, [wanted(*one) for one in self._leaves])

    def filled(self, found: Any, checkpoint: Path, item: str, abstract: Any) -> Any:
        """Return the state.

        Args:
          found: what Orbax has read by :meth:`abstract`.
          checkpoint: folder of the checkpoint.
          item: name of the tree in it.
          abstract: the whole tree, which begins with the state.
        """
        arrays, whole, filled = enumerate(jax.tree.leaves(found)), jax.tree.map(lambda _: ..., abstract), []
        in_file = functools.partial(InFile, checkpoint, identity(checkpoint))
        for leaf, name, stays in self._leaves:
            if not leaf.size:
                array: Any = np.zeros(leaf.shape, leaf.dtype)
            elif name in self._parts:
                number, key, _ = self._parts[name]
                inside = sorted(self._of_part[number])
                array = in_file(f"{PARTS}/{number}", ARRAYS, dict.fromkeys(inside, ...), inside.index(key), leaf)
            else:
                index, array = next(arrays)
                if array is ...:
                    array = in_file("", item, whole, index, leaf)
            if not stays:
                array = jax.device_put(array.read() if isinstance(array, InFile) else array, leaf.sharding)
            filled.append(array)
        return jax.tree.unflatten(self._structure, filled)
