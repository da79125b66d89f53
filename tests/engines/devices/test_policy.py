"""Policies: pacing keeps its bound without deadlock."""

import dataclasses
import pathlib
import random
import re

import pytest

import gemjax
from gemjax.engines.devices.policy import Policy


@pytest.mark.parametrize("num_workers", [1, 2, 5, 16])
@pytest.mark.parametrize("max_staleness", [0, 1, 3, 8, 40])
def test_pacing_keeps_the_bound_and_never_stops(num_workers, max_staleness):
    """In a plain event loop workers, some of them very slow, finish in any order."""
    policy, rng = Policy(max_staleness=max_staleness), random.Random(num_workers * 100 + max_staleness)
    clock, pulled, in_flight, held, waiting, staleness = 0, {}, [], [], list(range(num_workers)), []
    slow = [rng.choice((1, 1, 1, 50)) for _ in range(num_workers)]
    while len(staleness) < 500:
        while waiting and policy.admits(len(in_flight) + len(held)):
            worker = waiting.pop(0)
            pulled[worker] = clock
            in_flight.append(worker)
        others = {w: [pulled[other] for other in in_flight + held if other != w] for w in held}
        ready = next((w for w in held if policy.may_commit(clock, others[w])), None)
        if ready is not None:
            held.remove(ready)
            staleness.append(clock - pulled[ready])
            clock += 1
            waiting.append(ready)
            continue
        assert in_flight, "gradients are held, though no worker computes"
        finished = min(in_flight, key=lambda worker: rng.random() * slow[worker])
        in_flight.remove(finished)
        held.append(finished)
    assert max(staleness) <= max_staleness
    if 0 < max_staleness < num_workers:
        assert max(staleness) == max_staleness  # The bound is reached.


def test_without_a_bound_every_worker_may_commit():
    policy = Policy()
    assert policy.admits(in_flight=10**6)
    assert policy.may_commit(clock=10**6, pulled_at=[0])


def test_a_quorum_cannot_be_larger_than_the_run():
    with pytest.raises(ValueError, match="quorum=5, but the run has 4 workers"):
        Policy(quorum=5).resolved(4, in_rounds=False)
    assert Policy(quorum=4).resolved(4, in_rounds=False).quorum == 4


def test_the_guide_has_a_row_for_every_field():
    page = (pathlib.Path(gemjax.__file__).parent / "runs.md").read_text(encoding="utf-8")
    table = re.search(r"\n## Policies\n.*?\n## ", page, re.DOTALL)[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))
    assert rows == {field.name: repr(field.default) for field in dataclasses.fields(Policy)}
