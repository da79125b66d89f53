"""Batches of a sweep that differ between seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import assert_close, late, quadratic

import gemjax

LATE = late()
RATES, SEEDS = (0.02, 0.05), (3, 4)


def gem(rate, kappa=1.0):
    return gemjax.gem(rate, 0.9, 4, kappa=kappa)


class Drawn(gemjax.batches.Batches):
    """Batches that a class draws itself, around a number."""

    def __init__(self, seed, around=0.0):
        self.seed, self.around = seed, around

    def select(self, worker, step):
        return np.stack([worker, step + 1000 * self.seed], 1).astype(np.int32)

    def batch(self, data, selection):
        return self.around + jax.random.normal(jax.random.fold_in(jax.random.key(selection[0]), selection[1]), (4,))


class Host(gemjax.batches.Batches):
    """Batches of rows that a class reads on the host, which are other ones for each seed."""

    data = ()

    def __init__(self, seed, factor=1.0):
        self.seed, self.factor = seed, factor

    def select(self, worker, step):
        return (3 * worker + 7 * step)[:, None].astype(np.int32)

    def gather(self, selection):
        rows = np.float32(selection.reshape(-1, 1) % 5 + self.seed) * np.ones(4, np.float32)
        return rows, np.arange(selection.size, dtype=np.int32).reshape(selection.shape)

    def batch(self, data, selection):
        return self.factor * data[selection].mean(0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Drawn, pytest.param(Host, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "one-by-one"])
def test_batches_that_a_class_makes_itself_may_depend_on_the_seed_by_what_it_selects_or_reads(kind, batched):
    loss_fn, params = quadratic()[:2]
    sweep = lambda make, rates: gemjax.sweep(
        gem, loss_fn, params, gemjax.PerSeed(make), LATE, {"rate": rates}, seeds=(0, 5), batched=batched
    )
    result = sweep(kind, RATES[:1])
    for run, seed in enumerate((0, 5)):
        alone = gemjax.simulate(gem(RATES[0]), loss_fn, params, kind(seed), LATE, seed=seed)
        assert_close(jax.tree.map(lambda leaf, run=run: leaf[run], result.params), alone.params, rtol=1e-5)
    # The program of the first seed would make the batches of all.
    message = rf"{kind.__name__}\.batch is another function of data and selection for each seed"
    with pytest.raises(ValueError, match=message):
        sweep(lambda seed: kind(seed, 1.0 + seed), RATES)


def test_what_depends_on_the_seed_is_made_once_per_seed():
    rows, made = np.ones((12, 3)), {"params": [], "batches": [], "trace": []}
    values = {"params": lambda seed: jnp.zeros(3), "batches": lambda seed: gemjax.Epochs(rows, 4, seed)}
    values["trace"] = lambda seed: LATE
    noted = lambda name: gemjax.PerSeed(lambda seed: made[name].append(seed) or values[name](seed))
    own = {name: noted(name) for name in made}
    loss_fn = lambda params, batch: jnp.mean((params[None] - batch) ** 2)
    gemjax.sweep(gem, loss_fn, *own.values(), {"rate": RATES}, seeds=SEEDS)
    assert list(made.values()) == [[*SEEDS]] * 3
