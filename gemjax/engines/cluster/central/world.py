"""Actors of Ray that form one world of JAX processes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.result import RunFailedError

PATIENCE = 10.0  # Seconds in which an actor answers that does not wait for another one.


class PartLostError(RunFailedError):
    """An actor of the central variable has ended."""


class World:
    """The actors of the central variable, which are called all alike.

    Args:
      actors: those of :class:`gemjax.engines.cluster.central.actor.CentralActor`, new ones.
    """

    def __init__(self, actors: Sequence[Any]):
        self.actors, self._in_order, self._broken = list(actors), threading.Lock(), False
        self._hosts = len(self.actors)
        self.owner: Any = None  # The last run's, whose state is in the actors.
        (address,) = self.wait([self.actors[0].address.remote()])
        self.wait(self.send(lambda actor, host: actor.join.remote(address, host, len(self.actors))))

    def send(self, call: Callable[[Any, int], Any]) -> list[Any]:
        """Call every actor, with its number; no other thread calls one meanwhile. Return the references.

        Raises:
          PartLostError: after a failure in one process alone, which the others may still wait for.
        """
        with self._in_order:
            if self._broken or not self.actors:  # Ended.
                raise self._lost()
            try:
                return [call(actor, host) for host, actor in enumerate(self.actors)]
            except BaseException:  # Ctrl-C, when some have been called.
                self._broken = True
                raise

    def each(self, method: str, *arguments: Any, alone: bool = False) -> list[Any]:
        """Call a method of every actor and wait for all answers; ``alone`` as for :meth:`wait`."""
        return self.wait(self.send(lambda actor, host: getattr(actor, method).remote(*arguments)), alone=alone)

    def wait(self, calls: Sequence[Any], *, alone: bool = False) -> list[Any]:
        """Return the answers to calls, as soon as all are there or one has failed.

        Args:
          calls: references.
          alone: True if no process waits for another one during the call, so that a failure in one leaves the world usable.

        Raises:
          PartLostError: if an actor has ended.
          Exception: that of an actor.
        """
        ray, left = imported_ray(), list(calls)
        try:
            while left:
                done, left = ray.wait(left, num_returns=1)
                ray.get(done)
            return ray.get(list(calls))
        except ray.exceptions.RayTaskError as error:
            if self.is_broken():
                raise self._lost() from error
            self._broken = not alone
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
            self._broken = True
            raise self._lost() from error

    def is_broken(self) -> bool:
        """Return True if an actor has ended, hangs, or has failed in what all of them do together."""
        ray, actors = imported_ray(), list(self.actors)
        try:
            calls = [] if self._broken else [actor.ping.remote() for actor in actors]
            ray.get(calls, timeout=PATIENCE)
        except ray.exceptions.RayError:
            self._broken = True
        return self._broken

    def failed_or_ready(self, calls: Sequence[Any]) -> bool:
        """Return True if :meth:`wait` would return or raise at once."""
        ray = imported_ray()
        done, left = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)
        try:
            ray.get(done if left else [])
        except ray.exceptions.RayError:
            return True
        return not left

    def _lost(self) -> PartLostError:
        return PartLostError(
            f"the central variable, divided over {self._hosts} actors, has lost one of them with its part; continue "
            "from the last checkpoint, with resume=True or with state= and recorded="
        )
