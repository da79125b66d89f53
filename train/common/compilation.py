"""The persistent compilation cache: compiled programs are kept for the next start."""

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from train.common.errors import UsageError

FLAG = "--compilation-cache"
OFF = "off"
ENTRY = re.compile("-[0-9a-f]{64}-cache$")  # End of the name of an entry.
MAX_BYTES = 2**30  # The oldest entries beyond it are removed at the start.
SETTINGS = {
    "jax_compilation_cache_dir": "",  # The folder.
    "jax_persistent_cache_min_compile_time_secs": "0.2",
    "jax_persistent_cache_min_entry_size_bytes": "-1",
}


def default_folder() -> Path:
    """Return the default folder of the cache: `gemjax/compilation` in the user's cache folder.

    >>> default_folder().parts[-2:]
    ('gemjax', 'compilation')
    """
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "gemjax" / "compilation"
    base = {"darwin": "Library/Caches", "win32": "AppData/Local"}.get(sys.platform, ".cache")
    return Path.home() / base / "gemjax" / "compilation"


def use_flag(argv: Sequence[str]) -> list[str]:
    """Take `--compilation-cache FOLDER` out of a command line, and use that folder or the default one.

    Raises:
      UsageError: if no value follows.
    """
    rest, value, words = [], None, iter(argv)
    for word in words:
        if word == FLAG or word.startswith(f"{FLAG}="):
            value = next(words, "") if word == FLAG else word.removeprefix(f"{FLAG}=")
            if not value or value.startswith("-"):
                raise UsageError(f"{FLAG} needs a folder, or {OFF}")
        else:
            rest.append(word)
    use(value)
    return rest


def use(folder: str | os.PathLike | None = None) -> Path | None:
    """Let JAX keep compiled programs in `folder`, in this process and in the processes that it starts.

    Args:
      folder: the folder; `"off"` for no cache; `None` for JAX's own setting (`JAX_COMPILATION_CACHE_DIR`) if there is one, else
        :func:`default_folder`.

    Returns:
      The folder, or `None` without a cache: it was switched off, or the folder cannot be written, which must not stop a
      run.
    """
    if folder == OFF:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        _configure({"jax_enable_compilation_cache": False})
        return None
    # An entry that cannot be read or written, such as an unfinished one of a killed process, is compiled again.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    if folder is None and "JAX_COMPILATION_CACHE_DIR" in os.environ:
        given = os.environ["JAX_COMPILATION_CACHE_DIR"]  # Empty for no cache.
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
    """Pass settings to JAX if it has been imported, and so has read its environment already."""
    if "jax" in sys.modules:
        import jax

        for name, value in settings.items():
            jax.config.update(name, value)


def _prune(path: Path) -> None:
    """Remove empty entries of JAX, and its oldest ones until the others take at most `MAX_BYTES`; no other file is touched."""
    found = (entry for entry in path.glob("*-cache") if ENTRY.search(entry.name))
    with contextlib.suppress(OSError):  # Another process may prune at the same time.
        entries = sorted((stat.st_mtime, stat.st_size, entry) for entry in found if (stat := entry.stat()))
        for _, size, entry in entries:
            if not size:  # Left by a full disk: JAX would neither read nor replace it.
                entry.unlink(missing_ok=True)
        excess = sum(size for _, size, _ in entries) - MAX_BYTES
        for _, size, entry in entries:
            if excess <= 0:
                break
            entry.unlink(missing_ok=True)
            excess -= size
