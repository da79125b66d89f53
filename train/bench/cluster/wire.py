"""Share of the wire's speed that commits reach: `python -m train bench cluster --address`."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import gemjax
from train.bench.devices import parameters, step_as_batch, trivial_loss
from train.common.console import show_table
from train.common.errors import UsageError

PAYLOAD = 40_000_000  # Bytes of each message of the plain socket.
MESSAGES = ("float32", "bfloat16", "int8")
WORKERS = (1, 4)
FIGURES = ("s per commit", "s to host", "s on the wire", "s to device", "s at its speed")


class Peer:
    """Actor with plain sockets."""

    def listen(self) -> list[tuple[str, int]]:
        """Return the addresses of sockets that answer a payload with a byte, and a byte with a payload."""
        import ray

        listeners = [socket.create_server((ray.util.get_node_ip_address(), 0)) for _ in range(2)]
        for answer, listener in zip((_take, _give), listeners, strict=True):
            threading.Thread(target=answer, args=(listener,), daemon=True).start()
        return [listener.getsockname()[:2] for listener in listeners]


def _take(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    while _received(connection):
        connection.sendall(b"1")


def _give(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    while connection.recv(1):
        connection.sendall(bytes(PAYLOAD))


def _received(connection: socket.socket) -> bool:
    buffer, left = bytearray(1 << 20), PAYLOAD
    while left and (got := connection.recv_into(buffer, min(left, len(buffer)))):
        left -= got
    return not left


def speeds(addresses: Sequence[tuple[str, int]], rounds: int) -> dict[str, float]:
    """Return the bytes per second of plain sockets to a :class:`Peer`, from it, and each way when ``both`` are in use."""
    with socket.create_connection(addresses[0]) as out, socket.create_connection(addresses[1]) as into:

        def send() -> None:
            out.sendall(bytes(PAYLOAD))
            out.recv(1)

        def take() -> None:
            into.sendall(b"1")
            _received(into)

        def both() -> None:
            sending = threading.Thread(target=send)
            sending.start()
            take()
            sending.join()

        def speed(exchange: Callable[[], None]) -> float:
            began = time.perf_counter()
            exchange()
            return PAYLOAD / (time.perf_counter() - began)

        found = [[speed(exchange) for exchange in (send, take, both)] for _ in range(rounds)]
    return dict(zip(("out", "in", "both"), np.median(found, 0).tolist(), strict=True))


def measure(address: str, sizes: Sequence[int], rounds: int, commits: int, console: Console) -> dict[str, Any]:
    """Measure commits of workers on another host than this one, and the speed of a plain socket to that host.

    One worker has its view before it sends its gradient. With four, views and gradients are on the wire at the same time. At
    the wire's speed a commit takes the time of a plain socket for the bytes of one after the other, or of both at once.

    Returns:
      The speeds in MB/s, and by size, message and number of workers the figures of :func:`_commits`.

    Raises:
      UsageError: if the cluster has no other host.
    """
    import ray

    peers: Any = ray.remote(Peer)
    with gemjax.Cluster(1, num_cpus=0, address=address):  # The connection, which the others use.
        here = ray.get_runtime_context().get_node_id()
        others = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
        if not others:
            raise UsageError(f"the cluster at {address} has no host besides this one; start Ray on another one, too")
        there = {f"node:{others[0]}": 1e-3}
        peer = peers.options(num_cpus=0, resources=there).remote()
        speed = speeds(ray.get(peer.listen.remote()), max(3, rounds))
        figures: dict[str, Any] = {"ray": ray.__version__, **{f"MB/s {way}": 1e-6 * of for way, of in speed.items()}}
        for workers in WORKERS:
            with gemjax.Cluster(workers, num_cpus=0, resources=there) as cluster:
                for size in sizes:
                    count = max(2 * workers, min(commits, 60_000_000 // size))
                    of = figures.setdefault(f"{size:,}", {})
                    for message in MESSAGES:
                        of[f"{message}, {workers}"] = _commits(cluster, message, size, rounds, count, speed)
    for size in sizes:
        rows = []
        for name, of in figures[f"{size:,}"].items():
            shares = (f"{100 * of[column]:.0f} %" for column in ("share", "least", "most"))
            rows.append((*name.split(", "), *(f"{of[column]:.3g}" for column in FIGURES), *shares))
        words = ", ".join(f"{1e-6 * of:.4g} MB/s {way}" for way, of in speed.items())
        title = f"{size:,} parameters; a plain socket: {words}"
        show_table(console, title, ("gradients", "workers", *FIGURES, "share", "least", "most"), rows)
    return figures


def _commits(
    cluster: gemjax.Cluster, message: str, size: int, rounds: int, count: int, speed: Mapping[str, float]
) -> dict[str, float]:
    """Return seconds per commit, medians over runs of ``count`` commits; of each gradient's parts the medians of all.

    ``share`` is that of the time at the wire's speed, with the ``least`` and the ``most`` of a run.
    """
    workers, params = cluster.num_workers, parameters(size)
    tx = gemjax.asgd(1e-3, num_workers=workers)
    if message != "float32":
        tx = gemjax.asynchronous(optax.chain(gemjax.rules.round_to(message), tx), workers)
    view, gradient = 4 * size, jnp.dtype(message).itemsize * size
    ideal = view / speed["out"] + gradient / speed["in"]
    if workers > 1:
        ideal = gradient / speed["both"] + (view - gradient) / speed["out"]
    found = []
    for _ in range(rounds):
        history = gemjax.run_on_cluster(
            tx, trivial_loss, params, step_as_batch, count + workers + 1, cluster=cluster
        ).history
        later = {name: history[name][workers:] for name in ("time", "to_host", "wire", "to_device")}
        found.append([np.diff(later.pop("time")).mean(), *(np.median(part) for part in later.values())])
    seconds = np.array(found)[:, 0]
    shares = {"share": np.median(ideal / seconds), "least": (ideal / seconds).min(), "most": (ideal / seconds).max()}
    figures = dict(zip(FIGURES, (*np.median(found, 0), ideal), strict=True)) | shares
    return {name: float(number) for name, number in figures.items()}
