"""Runs on devices of a quadratic problem, each of which is replayed."""

import jax
from engines.problems import assert_close, quadratic

import gemjax
from gemjax.protocol.compat import enable_x64
from gemjax.testing import Faults

QUADRATIC = quadratic()
GEM = gemjax.gem(0.05, num_workers=4)
ASGD = gemjax.asgd(0.05, num_workers=4)


def run(num_commits=60, tx=GEM, num_workers=4, **options):
    """Run in double precision: single precision amplifies rounding, by GEM a hundredfold within some tens of commits."""
    with enable_x64(True):
        problem = quadratic()
        params = jax.tree.map(lambda leaf: leaf.astype(float), problem.params)
        result = gemjax.run_on_devices(
            tx, problem.loss_fn, params, problem.batches, num_commits, num_workers=num_workers, **options
        )
        replay = gemjax.simulate(tx, problem.loss_fn, params, problem.batches, result.trace)
        assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-10)
    assert len(result.trace) == num_commits
    return result


def all_hang(at):
    """Faults that let all four workers hang in one step; the run fails unless they are released."""
    return Faults().hang(0, at).hang(1, at).hang(2, at).hang(3, at)


LIMIT = gemjax.Policy(deadline=60.0)
