"""The flags of the scheduler's policy."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scheduling:
    """Fields of a run that are those of :class:`gemjax.Policy`, by the same names."""

    max_staleness: int | None = None
    """Largest staleness of a gradient, in commits; faster workers wait for slower ones. Default: no bound."""
    interrupt: int | None = None
    """Staleness, in commits, at which a worker is called back and begins its step again. Default: never."""
    quorum: int | None = None
    """Gradients to collect before any is committed; with methods that are defined in rounds all workers', else 1."""
    grace: float = 0.0
    """Seconds in which more gradients may arrive after the quorum."""
    deadline: float | None = None
    """Seconds of silence after which a worker is given up; default: never."""
    retries: int = 2
    """Retries in a row of a step that raises, before its worker is given up."""


POLICY = tuple(field.name for field in dataclasses.fields(Scheduling))
PACING = ("max_staleness", "interrupt", "quorum")  # Those of a resumed run are replaced together.
