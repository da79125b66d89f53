"""The persistent compilation cache: a program that was compiled once starts at once the next time."""

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

FLAG = "--compilation-cache"
OFF = "off"
MAX_BYTES = 2**30  # Beyond it the entries that were written first are removed at the start.
SETTINGS = {
    "jax_compilation_cache_dir": "",  # The folder.
    "jax_persistent_cache_min_compile_time_secs": "0.2",
    "jax_persistent_cache_min_entry_size_bytes": "-1",
}


def default_folder() -> Path:
    """Folder of the cache: `gemjax/compilation` in the user's cache folder.

    >>> default_folder().parts[-2:]
    ('gemjax', 'compilation')
    """
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "gemjax" / "compilation"
    base = {"darwin": "Library/Caches", "win32": "AppData/Local"}.get(sys.platform, ".cache")
    return Path.home() / base / "gemjax" / "compilation"


def take_flag(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Takes `--compilation-cache FOLDER` out of the command line; `None` if it is not there.

    >>> take_flag(["mnist", "--compilation-cache", "off", "--seed", "1"])
    (['mnist', '--seed', '1'], 'off')

    Raises:
      ValueError: if no value follows.
    """
    rest, value, words = [], None, iter(argv)
    for word in words:
        if word == FLAG or word.startswith(f"{FLAG}="):
            value = next(words, "") if word == FLAG else word.removeprefix(f"{FLAG}=")
            if not value or value.startswith("-"):
                raise ValueError(f"{FLAG} needs a folder, or {OFF}")
        else:
            rest.append(word)
    return rest, value


def use(folder: str | os.PathLike | None = None) -> Path | None:
    """Makes JAX keep compiled programs in `folder`, in this process and in those that it starts.

    Args:
      folder: where; `"off"` for nowhere; `None` for JAX's own setting (`JAX_COMPILATION_CACHE_DIR`) if there is one, else
        :func:`default_folder`.

    Returns:
      The folder, or `None` if nothing is kept: it was switched off, or the folder cannot be written, which must not hold
      a run up.
    """
    if folder == OFF:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        _configure({"jax_enable_compilation_cache": False})
        return None
    # A program that cannot be read or written, as one that a killed process left unfinished, is compiled as without a cache.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    if folder is None and "JAX_COMPILATION_CACHE_DIR" in os.environ:
        given = os.environ["JAX_COMPILATION_CACHE_DIR"]  # JAX's own setting; empty for none.
        return Path(given) if given else None
    try:
        path = Path(folder or default_folder()).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder.
        return None
    if not os.access(path, os.W_OK):
        return None
    _prune(path)
    settings = SETTINGS | {"jax_compilation_cache_dir": str(path)}
    os.environ.update({name.upper(): value for name, value in settings.items()})
    _configure({name: type_of(settings[name]) for name, type_of in zip(settings, (str, float, int), strict=True)})
    return path


def _configure(settings: dict[str, object]) -> None:
    """Tells a JAX that has been imported already, which has read its environment by then."""
    if "jax" in sys.modules:
        import jax

        for name, value in settings.items():
            jax.config.update(name, value)


def _prune(path: Path) -> None:
    """Removes JAX's oldest entries until what remains of them is at most `MAX_BYTES`; other files are left alone."""
    with contextlib.suppress(OSError):  # Another process may prune at the same time.
        entries = sorted(
            (stat.st_mtime, stat.st_size, entry) for entry in path.glob("*-cache") if (stat := entry.stat())
        )
        excess = sum(size for _, size, _ in entries) - MAX_BYTES
        for _, size, entry in entries:
            if excess <= 0:
                break
            entry.unlink()
            excess -= size
