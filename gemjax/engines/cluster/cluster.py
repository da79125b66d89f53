"""A Ray cluster with one actor per worker, which several runs may use."""

import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import jax

from gemjax.batches.threads import SECONDS_AT_EXIT, start_thread
from gemjax.engines.checks import RunWarning
from gemjax.engines.cluster.actor import Actor
from gemjax.engines.cluster.connection import (
    authenticated,
    check_reachable,
    explained,
    hide_token,
    imported_ray,
    on_loopback,
    shut_down,
    signals_kept,
)
from gemjax.engines.devices.hardware.sharding import Place
from gemjax.engines.devices.roster import INFINITY
from gemjax.protocol.checks import check_at_least, check_positive_int, integer

RAY_HAS_ENDED = "the Ray of this cluster has ended on its host, so no worker can return; make another cluster"
PATIENCE = 60.0  # Seconds without an answer of the actors after which a warning names the resources that they wait for.
FILES = "files"  # Threads of a central actor that wait for its files, while it goes on with commits.
PAUSE = 0.2  # Seconds between two calls of an actor that is being restarted.
ROUNDING = 1e-9  # Of counts of resources such as 0.1 GPU.
FREED = 5.0  # Seconds in which Ray frees the resources of a cluster that was closed.
REPLACED = 20.0  # Seconds after which an actor that Ray does not restart is replaced by a new one.
INTERRUPTIONS = "interruptions"  # Ray's name of the actors' thread for calls that overtake a gradient.
LOOPBACK = ("127.0.0.1", "::1")
# Settings of JAX that change numbers or compilation: the actors take those of the driver.
CONFIG = (
    "jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision",
    "jax_default_dtype_bits", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_debug_nans",
    "jax_debug_infs", "jax_random_seed_offset", "jax_high_dynamic_range_gumbel", "jax_enable_custom_prng",
    "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)  # fmt: skip


class Cluster:
    """Workers on a Ray cluster: the connection, and one actor per worker, for one or several runs.

    A context manager: inside of ``with`` the actors exist, and each :func:`gemjax.run_on_cluster` with ``cluster=`` uses them.
    At its end, also after an exception, they end, and so does the Ray that was started for them. The calling process is
    the driver: it schedules, commits and keeps the central variable. Ray places each actor for itself, spread over the hosts,
    and restarts it if its process or its host ends. All hosts need the same versions of Python, Ray, JAX and gemjax.

    An actor computes on the accelerators that Ray assigns to it, else on the CPU. JAX starts in it when they are known, with
    the driver's settings of precision, keys and compilation cache. If it has several accelerators, they share each batch.

    Args:
      num_workers: number of workers N, positive.
      min_workers: number of workers with which a run begins, from 1 to N; default: those that the cluster has room for, and
        after a minute those that Ray has placed. The others join when they are placed, and pull then.
      address: ``None`` (default) starts a Ray of its own on this host, which listens on the loopback interface only and has as
        many CPUs as the workers need; ``"auto"``, ``"host:port"`` or ``"ray://host:port"`` joins a running one. If the caller
        has called ``ray.init``, that connection is used and left open.
      num_cpus: CPUs that Ray reserves per worker, not negative, default 1; JAX may use more.
      num_gpus: GPUs per worker, not negative, default 0.
      resources: further resources per worker, such as ``{"TPU": 4}``; default none.
      groups: number of groups of consecutive workers, as of :func:`gemjax.lsgd`; it must divide N. Ray places all groups at
        once: the workers of a group on one host, and the groups on different hosts if there is room. Default: each worker is
        placed for itself.
      central: device of the central variable on the driver's host, or a tuple of devices over which it is sharded; default the
        host's CPU.
      central_hosts: number of hosts over which central variable and method state are sharded, positive; see
        :func:`gemjax.run_on_cluster`. As many further actors, which Ray spreads over the hosts, compute on CPUs; ``central`` is
        then the place of the arrays that the driver reads. Default: the driver keeps both.
      runtime_env: environment of the workers, as for ``ray.init``, such as ``{"working_dir": "."}``; default that of Ray.

    Raises:
      ImportError: if Ray is not installed.
      ValueError: if an argument is outside its range; on entering, if a Ray of its own, or of another cluster of this
        process, lacks the resources.
      ConnectionError: on entering, if there is no Ray at ``address``.

    Warns:
      RunWarning: on entering, if fewer than N workers begin without ``min_workers``; if Ray has started fewer than
        ``min_workers`` after a minute (it goes on waiting); or if no host has room for a group.

    Two runs on the same four actors (not run as a test, because Ray takes seconds to start):

    >>> import gemjax, jax.numpy as jnp
    >>> loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
    >>> batches = lambda worker, step: jnp.array([3.0, -1.0])
    >>> with gemjax.Cluster(4) as cluster:                       # doctest: +SKIP
    ...     for rate in (0.05, 0.1):
    ...         tx = gemjax.gem(rate, num_workers=4)
    ...         gemjax.run_on_cluster(tx, loss_fn, jnp.zeros(2), batches, num_commits=300, cluster=cluster)
    """

    _own = False  # True while a cluster of this process has a Ray of its own.

    def __init__(
        self,
        num_workers: int,
        *,
        min_workers: int | None = None,
        address: str | None = None,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: "Mapping[str, float] | None" = None,
        groups: int | None = None,
        central: "Place | None" = None,
        central_hosts: int | None = None,
        runtime_env: "Mapping[str, Any] | None" = None,
    ):
        check_positive_int("num_workers", num_workers)
        if min_workers is not None:
            integer("min_workers", min_workers, 1, num_workers)
        for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
            check_at_least(name, value, 0.0)
        if groups is not None:
            check_positive_int("groups", groups)
            if num_workers % groups:
                raise ValueError(f"groups must divide the workers: got {groups} groups for {num_workers} workers")
        if central_hosts is not None:
            check_positive_int("central_hosts", central_hosts)
        imported_ray()
        self.central_hosts = central_hosts
        self.num_workers, self.min_workers, self.address = num_workers, min_workers, address
        self._needs = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {})}
        self._runtime_env = dict(runtime_env or {}) or None
        self._central, self._groups = central, groups
        self.actors: list[Any] = []
        self._pings: list[Any] = []  # Replies of the actors, once Ray has placed them.
        self._central_actors: list[Any] = []
        self._world: Any = None  # That they form.
        self._restarts: queue.SimpleQueue = queue.SimpleQueue()
        self._begin_arguments: tuple = ()  # Of the last call of the actors' ``begin``.
        self._connection = contextlib.ExitStack()  # Made by this object, and ended with it.
        self._connected = False  # By this object.
        self._reserved: Any = None  # Ray's placement group.
        self._closed = threading.Event()
        self._ended = False  # True if a Ray of its own has no host any more; another Ray may get new ones.
        self._busy = threading.Lock()  # Held by the run that the workers compute for.

    @property
    def central(self) -> Place:
        """The place of the central variable."""
        return jax.local_devices(backend="cpu")[0] if self._central is None else self._central

    def __enter__(self) -> Self:
        if self.actors or self._closed.is_set():
            raise RuntimeError("this cluster has been started before; make another one")
        ray = imported_ray()
        try:
            if not ray.is_initialized():
                self._connect(ray)
            elif Cluster._own:
                until = time.perf_counter() + FREED
                while missing := self._missing(ray.available_resources()):
                    if self._closed.wait(PAUSE) or time.perf_counter() > until:
                        raise ValueError(
                            f"the workers need {missing}: another cluster of this process has started Ray for its own workers; "
                            "give it as cluster=, or close it first"
                        )
            if self._groups is not None:
                self._reserved = self._reserve(ray, self._groups)
            self.actors = [self._make(ray, worker) for worker in range(self.num_workers)]
            self._pings = [actor.ping.remote() for actor in self.actors]
            self._await_enough(ray)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs from these workers meanwhile.

        Raises:
          RuntimeError: if a run has them.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this cluster is busy with another run; let that one end first, or make another cluster")
        try:
            yield
        finally:
            self._busy.release()

    def close(self) -> None:
        """End the actors, and the connection or the Ray that was started for them. May be called again."""
        self._closed.set()
        ray = imported_ray()
        if ray.is_initialized():
            self.end_central()
            for actor in self.actors:
                with contextlib.suppress(Exception):
                    ray.kill(actor)
            if self._reserved is not None:
                ray.util.remove_placement_group(self._reserved)
        self.actors, self._reserved = [], None
        self._connection.close()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"runtime_env": self._runtime_env, "logging_level": logging.ERROR}
        if self.address is None:
            # Ray reserves CPUs by count alone; more workers than cores share them.
            cpus = max(math.ceil(self.num_workers * self._needs["num_cpus"]), os.cpu_count() or 1)
            own = {name: count * self.num_workers for name, count in self._needs["resources"].items()}
            options |= {"num_cpus": cpus, "include_dashboard": False, "resources": own or None}
            # Otherwise Ray ends workers, of any program's making, if other programs fill the memory of this host.
            options["_system_config"] = {"memory_monitor_refresh_ms": 0}
            self._connection.enter_context(authenticated())
        else:
            check_reachable(self.address)
        self._connected = True
        self._connection.callback(setattr, Cluster, "_own", False)
        self._connection.callback(shut_down, ray.shutdown)
        with signals_kept(ray.shutdown), on_loopback(self.address is None), warnings.catch_warnings():
            # Ray forks only to start other programs, which is harmless.
            warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
            with explained(self.address):
                ray.init(self.address or "local", **options)
        if self.address is None:
            hide_token()
            if not all(node["NodeManagerAddress"] in LOOPBACK for node in ray.nodes()):
                raise RuntimeError(
                    f"Ray {ray.__version__} would listen on the network; start it yourself, and give its address= to Cluster"
                )
        Cluster._own = self.address is None
        if Cluster._own and (missing := self._missing(ray.cluster_resources())):
            raise ValueError(
                f"the workers need {missing}, which this host lacks; give fewer workers or another address="
            )

    def _needed(self, workers: int) -> dict[str, float]:
        """Return the resources that so many workers need together, those with a count of 0 left out."""
        needed = {"CPU": self._needs["num_cpus"], "GPU": self._needs["num_gpus"]} | self._needs["resources"]
        return {name: count * workers for name, count in needed.items() if count}

    def _missing(self, found: Mapping[str, float]) -> str:
        """Return the resources that all workers need together and the found ones lack, in words."""
        return ", ".join(
            f"{count:g} {name} (there are {found.get(name, 0):g})"
            for name, count in self._needed(self.num_workers).items()
            if count > found.get(name, 0) + ROUNDING
        )

    def _reserve(self, ray: Any, groups: int) -> Any:
        """Reserve room for each group on one host, the groups spread over the hosts; return ``None`` if no host has it.

        If a host ends, Ray reserves the room of its group on another one.
        """
        members = self.num_workers // groups
        needed = self._needed(members)
        has_room = lambda found: all(found.get(name, 0) + ROUNDING >= count for name, count in needed.items())
        if needed and any(node["Alive"] and has_room(node["Resources"]) for node in ray.nodes()):
            return ray.util.placement_group([needed] * groups, strategy="SPREAD")
        why = f"no host has {needed}" if needed else "they reserve no resources"
        warnings.warn(
            f"the {members} workers of a group may be on several hosts, because {why}", RunWarning, stacklevel=3
        )
        return None

    def _make(self, ray: Any, worker: int) -> Any:
        strategy: Any = "SPREAD"
        if self._reserved is not None:
            group = worker * self._reserved.bundle_count // self.num_workers
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._reserved, group)
        options = self._needs | {"max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": strategy}
        ray.method(concurrency_group=INTERRUPTIONS)(Actor.interrupt)  # So that the call can overtake a gradient.
        make = ray.remote(concurrency_groups={INTERRUPTIONS: 1})(Actor)
        return make.options(**options | self._environment).remote(_paths())

    @property
    def _environment(self) -> dict[str, Any]:
        """The option of an actor for its environment, unless it is that of the connection."""
        return {} if self._runtime_env is None or self._connected else {"runtime_env": self._runtime_env}

    def world(self, kind: type, form: Callable[[list[Any]], Any], hosts: int) -> Any:
        """Return the world of the central variable, that of the last run if all its actors live.

        Args:
          kind: class of the actors. One that ends has lost its part, so none is restarted.
          form: makes a world of new actors.
          hosts: number of actors.
        """
        if self._world is None or self._world.is_broken():
            self.end_central()
            ray = imported_ray()
            options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
            options |= {"concurrency_groups": {FILES: 8}}  # A failed write may keep one of them for minutes.
            ray.method(concurrency_group=FILES)(kind.written)  # Ray Client takes no group with a call.
            make = ray.remote(**options | self._environment)(kind)
            # Ray's own "SPREAD" may put two actors on one host, and none on another.
            nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            on = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            places = [on(nodes[host % len(nodes)], soft=False) for host in range(hosts)]
            self._central_actors = [make.options(scheduling_strategy=place).remote(_paths()) for place in places]
            self._world = form(self._central_actors)
        return self._world

    def end_central(self) -> None:
        """End the actors of the central variable."""
        if self._world is not None:
            self._world.actors.clear()
        for actor in self._central_actors:
            with contextlib.suppress(Exception):
                imported_ray().kill(actor)
        self._central_actors, self._world = [], None

    def _await_enough(self, ray: Any) -> None:
        """Wait for ``min_workers`` actors, or with patience for those that the cluster has room for; warn of the others."""
        found = ray.cluster_resources()
        room = [int(found.get(name, 0) / count + ROUNDING) for name, count in self._needed(1).items()]
        least, expected = self.min_workers or 1, self.min_workers or max(1, min([self.num_workers, *room]))
        begun, late = ray.wait(self._pings, num_returns=expected, timeout=PATIENCE, fetch_local=False)
        if len(begun) == (self.min_workers or self.num_workers):
            return
        why = "the cluster is busy, or its hosts cannot import gemjax"
        if missing := self._missing(found):
            why = f"all {self.num_workers} together need {missing}"
        words = f"Ray has not started {len(late)} of {self.num_workers} workers after {PATIENCE:g} s"
        if len(begun) >= least:
            words = f"Ray has started {len(begun)} of {self.num_workers} workers; the others join when they are placed"
        warnings.warn(f"{words}; {why}", RunWarning, stacklevel=3)
        ray.wait(self._pings, num_returns=least, fetch_local=False)

    @property
    def placed(self) -> list[int]:
        """Workers whose actors Ray has placed by now."""
        placed, _ = imported_ray().wait(self._pings, num_returns=len(self._pings), timeout=0, fetch_local=False)
        return [worker for worker, ping in enumerate(self._pings) if ping in placed]

    def begin(self, pickle: Callable[[], bytes], by_value: Callable[[str], bool]) -> tuple[str, dict[int, str]]:
        """Prepare the placed actors for a run; return its name, and per worker the name of its devices.

        Args:
          pickle: returns the pickled :class:`gemjax.engines.cluster.actor.Job`.
          by_value: called with the name of a module that the actors cannot import; returns True if ``pickle`` will now send
            the module itself.
        """
        ray = imported_ray()
        while True:
            self._begin_arguments = run = (uuid.uuid4().hex, settings(), ray.put(pickle()))
            replies = {worker: self.actors[worker].begin.remote(*run) for worker in self.placed}
            warns_at = time.perf_counter() + PATIENCE
            answers = [self._begun(worker, run, reply, warns_at) for worker, reply in replies.items()]
            if not send_missing(answers, by_value):
                return run[0], dict(zip(replies, _distinct([name for _, name in answers]), strict=True))

    def restart(self, worker: int, wake: Callable[[], None]) -> None:
        """Wait in a thread until the actor of ``worker`` has been placed and has begun the run; then call ``wake``."""
        run = self._begin_arguments
        start_thread(self._revive, worker, run, wake, name=f"gemjax-revive-{worker}", seconds=SECONDS_AT_EXIT)

    def _revive(self, worker: int, run: tuple, wake: Callable[[], None]) -> None:
        ray = imported_ray()
        try:
            while not ray.wait([self._pings[worker]], num_returns=1, timeout=PAUSE, fetch_local=False)[0]:
                if self._closed.wait(PAUSE) or self._begin_arguments is not run:
                    return
            self._begun(worker, run)
        except Exception:
            # Its next gradient is lost, too, so that it is retired in the end, and the run does not wait forever.
            if self._closed.wait(PAUSE) or self._begin_arguments is not run:
                return
        self._restarts.put((run[0], worker))
        wake()

    def _begun(self, worker: int, run: tuple, reply: Any = None, warns_at: float = INFINITY) -> tuple[str, str]:
        """Return the answer of the worker's actor to ``begin``; repeat the call while the actor is being restarted."""
        ray, since = imported_ray(), time.perf_counter()
        while True:
            try:
                reply = self.actors[worker].begin.remote(*run) if reply is None else reply
                return ray.get(reply, timeout=PATIENCE)
            except ray.exceptions.RayTaskError as error:  # Its message is the whole traceback of the actor.
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ray.exceptions.ActorDiedError:  # Also at once after its end.
                reply = None
                if time.perf_counter() > since + REPLACED:
                    self.actors[worker], since = self._make(ray, worker), time.perf_counter()
            except ray.exceptions.RayError as error:
                if not isinstance(error, ray.exceptions.GetTimeoutError):  # Otherwise the actor is still at work.
                    reply = None
                if time.perf_counter() > warns_at:  # Otherwise a run that cannot begin would wait without a word.
                    warns_at, why = INFINITY, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                    warnings.warn(f"worker {worker} has not begun the run yet: {why}", RunWarning, stacklevel=3)
            self._ended = Cluster._own and not any(node["Alive"] for node in ray.nodes())
            if self._ended:
                raise RuntimeError(RAY_HAS_ENDED)
            if self._closed.wait(PAUSE) or self._begin_arguments is not run:
                raise RuntimeError("the run has ended")

    def restarted(self, run: str) -> Iterator[int]:
        """Yield the workers of ``run`` that have been restarted since the last call.

        Raises:
          RuntimeError: if no worker can be restarted any more.
        """
        if self._ended:
            raise RuntimeError(RAY_HAS_ENDED)
        while not self._restarts.empty():
            of, worker = self._restarts.get()
            if of == run:
                yield worker

    def kill(self, worker: int) -> None:
        """Kill the actor of a worker, which Ray then restarts."""
        with contextlib.suppress(Exception):
            imported_ray().kill(self.actors[worker], no_restart=False)


def settings() -> dict[str, Any]:
    """Return the settings of JAX that actors take from the driver."""
    return {name: getattr(jax.config, name) for name in CONFIG if hasattr(jax.config, name)}


def _paths() -> list[str]:
    """Return the folders from which this process imports."""
    return [os.path.abspath(path) for path in sys.path]


def send_missing(answers: list[tuple[str, str]], by_value: Callable[[str], bool]) -> bool:
    """Let the modules that actors could not import be sent by value; return False if there are none.

    Raises:
      ValueError: if a module cannot be sent.
    """
    missing = sorted({name for kind, name in answers if kind == "missing"})
    if refused := [name for name in missing if not by_value(name)]:
        raise ValueError(
            f"the workers cannot import {', '.join(refused)}; install it on all hosts or give "
            "Cluster(runtime_env={'py_modules': [...]}), or 'working_dir' or 'pip', as for ray.init"
        )
    return bool(missing)


def _distinct(names: list[str]) -> list[str]:
    """Return names with numbers on equal ones: each actor counts its devices from 0.

    >>> _distinct(["one:cpu:0", "two:cpu:0", "one:cpu:0"])
    ['one:cpu:0', 'two:cpu:0', 'one:cpu:0#2']
    """
    counts = [names[: k + 1].count(name) for k, name in enumerate(names)]
    return [name if count == 1 else f"{name}#{count}" for name, count in zip(names, counts, strict=True)]
