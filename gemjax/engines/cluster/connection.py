"""The import of Ray, and the settings with which a Ray of one's own starts."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

INSTALL = "the cluster engine needs Ray, which is not installed; run: pip install 'gemjax[cluster]'"
ANSWER = 10.0  # Seconds until a running cluster answers.


def imported_ray() -> Any:
    """Import and return Ray.

    Raises:
      ImportError: with the command that installs it.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return ray


@contextlib.contextmanager
def authenticated() -> Iterator[None]:
    """Let a Ray that is started here require a token, as newer releases do by default, unless the caller has chosen."""
    if "RAY_AUTH_MODE" in os.environ:
        yield
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    try:
        _read_mode()
        yield
    finally:
        os.environ.pop("RAY_AUTH_MODE", None)
        _read_mode()


def _read_mode() -> None:
    """Make Ray read ``RAY_AUTH_MODE`` again, which it reads once, at its import."""
    from ray import _raylet

    _raylet.Config.initialize("")  # pyrefly: ignore[missing-attribute]
    if hasattr(_raylet, "AuthenticationTokenLoader"):  # Otherwise it would go on sending and asking for its token.
        _raylet.AuthenticationTokenLoader.instance().reset_cache()


def hide_token() -> None:
    """Let only this user read the token, which Ray writes for all users of this host."""
    with contextlib.suppress(OSError):  # Such as a token of the caller in another place.
        (Path.home() / ".ray" / "auth_token").chmod(0o600)


def check_reachable(address: str) -> None:
    """Raise ``ConnectionError`` if no Ray answers at an address: ``ray.init`` would try for minutes."""
    from ray._private import services

    try:
        found = address if address.startswith("ray://") else services.canonicalize_bootstrap_address(address)
        host, _, port = (found or "").removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, or give no address for a Ray "
            "of its own on this host"
        ) from error


@contextlib.contextmanager
def explained(address: str | None) -> Iterator[None]:
    """Explain a refused connection: the usual cause is a missing token."""
    try:
        yield
    except ConnectionError as error:
        if address is None or os.environ.get("RAY_AUTH_MODE") == "token":
            raise
        raise ConnectionError(
            f"a Ray answers at {address}, but does not accept the connection ({error.__cause__ or error}); if it checks a "
            "token, set RAY_AUTH_MODE=token here, too, before this program starts"
        ) from error


def shut_down(shutdown: Callable[[], None]) -> None:
    """Call ``ray.shutdown``, and install the handler of SIGTERM again.

    Ray removes the system's handler, and ``signal.getsignal`` still reports it.
    """
    try:
        shutdown()
    finally:
        handler = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and handler is not None:
            is_of_ray = str(getattr(handler, "__module__", "")).startswith("ray.")  # Where the caller had none.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if is_of_ray else handler)


@contextlib.contextmanager
def signals_kept(shutdown: Callable[[], None]) -> Iterator[None]:
    """Keep the caller's handler of SIGTERM, which ``ray.init`` replaces.

    A SIGTERM during the block first shuts Ray down and then calls that handler. The handler may end the process at once, which
    would leave Ray's processes running.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as stop:
        if stop.code == signal.SIGTERM and handler is not None:  # Raised by Ray's handler.
            signal.signal(signal.SIGTERM, handler)  # First, because signals may come twice.
            shut_down(shutdown)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if handler not in (signal.SIG_DFL, None):  # Ray's own handler ends its processes.
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def on_loopback(local: bool) -> Iterator[None]:
    """Let a Ray that is started here listen on the loopback interface only.

    Ray replaces a ``_node_ip_address`` of 127.0.0.1 by that of the network, except where it does not support clusters.
    """
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if local and before is not None:
        ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if before is not None:
            ray_constants.ENABLE_RAY_CLUSTER = before
