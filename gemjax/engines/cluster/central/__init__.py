"""The central variable over several hosts: one sharded global array of a `jax.distributed` world.

- ``actor`` is a process of the world. It has a :class:`gemjax.engines.devices.hardware.central.Central` over the devices of all
  processes, so that a commit is the program of one host with ``central_devices=``, which XLA divides.
- ``world`` calls all processes alike. ``driver`` gives them commits in order. ``programs`` is the transport.

:mod:`gemjax.engines.cluster.pieces` cuts gradients and joins views, which travel between workers and actors.
A program over several processes runs when all of them run it: an operation on a global array in one process alone would wait
forever. The driver has the parameters that the caller gives and that the result returns, small arrays, and the states of local
optimizers. The other arrays of a run's state are in the actors (:class:`gemjax.engines.memory.Elsewhere`).
"""
