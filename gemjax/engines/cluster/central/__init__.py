"""The central variable over several hosts: a commit's program is divided, and each part stays with its arrays.

- ``program`` flattens the program of a commit and the pull after it; ``division`` gives each operation a place and a round.
- ``commit`` has the program's values by their role, and one place's share of the state; the driver is a place, too.
- ``first`` is the program of ``Transition.init``, of which each place computes its own leaves alone.
- ``actor`` is a place in a process of Ray. ``driver`` leads a commit through its rounds; ``programs`` is the transport.

Every process traces and divides the program by itself, and a digest says that all of them did it alike.

No process holds the state of all workers. The driver has the parameters, which the caller gives and which the result returns,
and small values. In the state of a run it has stand-ins for the arrays of actors (:class:`gemjax.engines.memory.Elsewhere`),
which are read on request. :mod:`gemjax.checkpoints.parts` lets each actor write its own arrays, and read those that it needs.
The exceptions: states of local optimizers are the driver's, and a method whose ``init`` cannot be traced begins there.
"""
