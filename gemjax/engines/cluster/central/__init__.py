"""The central variable over several hosts: a commit's program is divided, and each part stays with its arrays.

- ``program`` flattens the program of a commit and the pull after it; ``division`` gives each operation a place and a round.
- ``commit`` has the program's values by their role, and one place's share of the state; the driver is a place, too.
- ``actor`` is that share in a process of Ray. ``driver`` leads a commit through its rounds; ``programs`` is the transport.

Every process traces and divides the program by itself, and a digest says that all of them did it alike. What one process still
sees whole: the driver makes the first state and sends its leaves, and gathers them for a checkpoint and for the result. The
program of ``Transition.init`` could be divided in the same way, with the places of a commit; then no process would need the
first state of all workers. A checkpoint could be written by the actors, each its leaves.
"""
