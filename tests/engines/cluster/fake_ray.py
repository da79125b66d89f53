"""A module like Ray whose actors are threads of this process, for tests of the engine without processes."""

import concurrent.futures
import functools
import pickle
import threading
import time
import types

import pytest

ray = pytest.importorskip("ray", reason="the cluster engine needs Ray")

from gemjax.engines.cluster.cluster import INTERRUPTIONS  # noqa: E402

GONE = "the actor is restarting"


class FakeRay(types.ModuleType):
    """Stand-in for the module ``ray``.

    Attributes:
      lose: called with (actor, method, its arguments) before each call; the actor ends if it returns True.
      calls: what was called, as (method, its arguments).
      places: events of actors by their number; such an actor answers nothing before its event, as if Ray had no room for it.
    """

    node_address, alive = "127.0.0.1", True
    __version__ = ray.__version__
    exceptions, cloudpickle, ObjectRef = ray.exceptions, ray.cloudpickle, concurrent.futures.Future

    def __init__(self, lose=lambda actor, method, arguments: False):
        super().__init__("ray")
        self.lose, self.calls, self.puts, self.running, self.handles, self.places = lose, [], [], False, [], {}

    def is_initialized(self):
        return self.running

    def init(self, address, **options):
        self.running, self.options = True, options

    def shutdown(self):
        self.running = False

    def nodes(self):
        return [{"NodeManagerAddress": self.node_address, "Alive": self.alive}]

    def cluster_resources(self):
        return {"CPU": self.options["num_cpus"]}

    def available_resources(self):
        return {}

    def remote(self, *kinds, **options):
        def made(kind):
            make = types.SimpleNamespace(remote=lambda *arguments: self._make(kind, *arguments))
            return types.SimpleNamespace(options=lambda **options: make, remote=make.remote)

        return made(*kinds) if kinds else made

    def method(self, concurrency_group):
        def declare(function):
            function.group = concurrency_group
            return function

        return declare

    def _make(self, kind, *arguments):
        self.handles.append(Handle(self, len(self.handles), kind, arguments))
        return self.handles[-1]

    def put(self, value):
        self.puts.append(value)
        return Put(value)

    def get(self, reply, timeout=None):
        if isinstance(reply, list):
            return [self.get(one, timeout) for one in reply]
        try:
            return reply.value if isinstance(reply, Put) else reply.result(timeout)
        except TimeoutError:
            raise ray.exceptions.GetTimeoutError("it has not answered") from None

    def wait(self, replies, num_returns, timeout=None, fetch_local=True):
        done, until = set(), time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        while len(done) < num_returns:
            left, rest = max(0.0, until - time.monotonic()), set(replies) - done
            if not (more := concurrent.futures.wait(rest, left, concurrent.futures.FIRST_COMPLETED).done):
                break
            done |= more
        return [reply for reply in replies if reply in done], [reply for reply in replies if reply not in done]

    def kill(self, handle, no_restart=True):
        handle.restart()


class Put:
    def __init__(self, value):
        self.value = value


class Handle:
    """An actor: one thread, in which its methods are called in order with copies of their arguments."""

    def __init__(self, fake, number, kind, arguments):
        self.fake, self.number, self.make = fake, number, lambda: kind(*arguments)
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        self.actor = self.make()
        self.pending = []

    def restart(self):
        """End: calls fail that have not returned, and the next one is of a new actor."""
        self.actor = self.make()
        for reply in self.pending:
            if not reply.done():
                reply.set_exception(ray.exceptions.ActorUnavailableError(GONE, None))

    def __getattr__(self, method):
        function = getattr(self.actor, method)
        if getattr(function, "group", None) == INTERRUPTIONS:  # It overtakes the calls in the actor's thread.
            return types.SimpleNamespace(remote=function)

        def options(num_returns=None):
            call = self.call if num_returns is None else functools.partial(self.call_for, num_returns)
            return types.SimpleNamespace(remote=lambda *arguments: call(method, arguments))

        return types.SimpleNamespace(remote=lambda *arguments: self.call(method, arguments), options=options)

    def call(self, method, arguments):
        self.fake.calls.append((method, arguments))
        reply = concurrent.futures.Future()
        self.pending = [*(other for other in self.pending if not other.done()), reply]
        self.thread.submit(self.serve, method, arguments, reply)
        return reply

    def call_for(self, num_returns, method, arguments):
        """Return a reply for each of the returned values."""
        replies = [concurrent.futures.Future() for _ in range(num_returns)]

        def fill(reply):
            for index, one in enumerate(replies):
                if reply.exception() is None:
                    one.set_result(reply.result()[index])
                else:
                    one.set_exception(reply.exception())

        self.call(method, arguments).add_done_callback(fill)
        return replies

    def copied(self, part):
        if isinstance(part, (Put, concurrent.futures.Future)):
            part = self.fake.get(part)
        return pickle.loads(self.fake.cloudpickle.dumps(part))

    def serve(self, method, arguments, reply):
        if self.number in self.fake.places:
            self.fake.places[self.number].wait()
        actor = self.actor
        if self.fake.lose(self.number, method, arguments):
            return self.restart()
        try:
            copied = [part.value if isinstance(part, Put) else self.copied(part) for part in arguments]
            value = getattr(actor, method)(*copied)
        except Exception as error:
            value = ray.exceptions.RayTaskError(method, "the traceback of the actor", error, method, 1, "local")
            if not reply.done():
                reply.set_exception(value)
        else:
            if not reply.done():
                reply.set_result(value)
        return None
