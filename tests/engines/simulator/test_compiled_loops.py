"""Cost of the simulator's compiled loop: compiled once, and without a copy of a stack."""

import gc
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import distinct, every_method
from engines.simulator.simulations import programs

import gemjax
from gemjax.batches.local import LocalBatches
from gemjax.engines.simulator import loops
from gemjax.engines.transition import Transition


class InTurn(gemjax.batches.Rows):
    def __init__(self, data):
        self.data = data

    def select(self, worker, step):
        return (step % 8)[:, None].astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "local",
    [None, pytest.param(gemjax.LocalSteps(optax.sgd(0.1), period=2), marks=pytest.mark.nightly)],
    ids=["gradients", "local steps"],
)
@pytest.mark.parametrize(
    "make",
    [
        InTurn,
        lambda data: gemjax.Epochs(data, 2),
        pytest.param(lambda data: gemjax.Shards(data, 2, num_workers=2), marks=pytest.mark.nightly),
        pytest.param(lambda data: gemjax.Stream(data, 2), marks=pytest.mark.nightly),
        pytest.param(lambda data: gemjax.OnHost(gemjax.Epochs(data, 2)), marks=pytest.mark.nightly),
        lambda data: gemjax.FromSource(data, batch_size=2),
    ],
    ids=["own", "epochs", "shards", "stream", "on host", "source"],
)
def test_a_kept_program_keeps_no_data_and_runs_on_others(make, local):
    tx, trace = gemjax.downpour(num_workers=2) if local else gemjax.asgd(0.1, num_workers=2), gemjax.Trace([0, 1, 1])
    loss_fn = lambda params, batch: jnp.mean((params - batch.mean(0)) ** 2)
    found, alive = [], []
    for value in (1.0, 2.0):
        data = np.full([8, 3], value, np.float32)
        alive.append(weakref.ref(data))
        found.append(gemjax.simulate(tx, loss_fn, jnp.zeros(3), make(data), trace, local=local).params[0])
        if value == 1.0:
            before = programs()
        del data
        gc.collect()
    assert programs() == before
    assert float(found[1]) == pytest.approx(2 * float(found[0]), rel=1e-6)
    assert [reference() for reference in alive] == [None, None]


STACK = 64


def stacked_copies(hlo: str) -> list[str]:
    """List the instructions in the loop (outside the entry) that copy an array with a leading axis of N."""
    found, entry = [], False
    for line in hlo.splitlines():
        if re.match(r"^(ENTRY )?%?[\w.\-]+ .*\{$", line):
            entry = line.startswith("ENTRY")
        if not entry and re.search(rf"= \(?\w+\[{STACK},.* copy(-start)?\(", line):
            found.append(line.strip())
    return found


@pytest.mark.slow
@every_method("gem", "adam-per-worker", "lsgd-groups", only=distinct, each_kind=True)
@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.nightly), 5])
def test_the_compiled_loop_copies_no_stack(make, window):
    """A commit costs the same at 4 workers and at 1,024."""
    assert_no_copies(make(STACK), make.local, window, with_pulls=True)


@pytest.mark.slow
def test_the_compiled_loop_copies_no_shared_rows_of_a_method_that_refuses():
    tx = gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(8), gemjax.lsgd(num_workers=STACK)), STACK)
    assert_no_copies(tx, gemjax.LocalSteps(optax.sgd(0.1), period=2))


def assert_no_copies(tx, local, window=1, with_pulls=False):
    params = {"w": jnp.ones((33, 17)), "b": jnp.ones(17)}

    def loss_fn(params, batch):
        return jnp.mean(jnp.tanh(batch @ params["w"] + params["b"][None]) ** 2)

    batches = gemjax.Computed(lambda worker, step: jnp.full((5, 33), 0.01) * (worker + step))
    if local:
        batches = LocalBatches(batches, local)
    transition = Transition(tx=tx, loss_fn=loss_fn, num_workers=STACK, local=local).bind(params)
    state = transition.init(params)
    trace = gemjax.arrivals.RoundRobin(STACK).trace(16)
    inputs = loops.inputs(trace.events(), batches, 16, window)
    run_chunk = loops.compiled(transition, batches, 16, window, with_pulls).at(np.int64(0), state, (), *inputs)
    compiled = run_chunk.lower(np.int64(0), state, (), *inputs).compile().as_text()
    assert "while(" in compiled
    assert re.search(rf"\[{STACK}[,\]]", compiled)
    assert stacked_copies(compiled) == []


@pytest.mark.slow
@every_method("gem", "yellowfin", only=distinct, each_kind=True)
def test_the_traffic_of_a_commit_does_not_grow_with_the_workers(make):
    """XLA counts the bytes, which include a choice between two stacks, or a sum over one."""
    params = {"w": jnp.ones((33, 17)), "b": jnp.ones(17)}

    def loss_fn(params, batch):
        return jnp.mean(jnp.tanh(batch @ params["w"] + params["b"][None]) ** 2)

    def traffic(num_workers):
        batches = gemjax.Computed(lambda worker, step: jnp.full((5, 33), 0.01) * (worker + step))
        batches = LocalBatches(batches, make.local) if make.local else batches
        transition = Transition(tx=make(num_workers), loss_fn=loss_fn, num_workers=num_workers, local=make.local)
        transition = transition.bind(params)
        state = transition.init(params)
        inputs = loops.inputs(gemjax.arrivals.RoundRobin(num_workers).trace(16).events(), batches, 16, 1)
        run_chunk = loops.compiled(transition, batches, 16, 1, with_pulls=False).at(np.int64(0), state, (), *inputs)
        return run_chunk.lower(np.int64(0), state, (), *inputs).compile().cost_analysis()["bytes accessed"]

    growth = (traffic(2 * STACK) - traffic(STACK)) / STACK
    assert growth <= 0.05 * sum(leaf.nbytes for leaf in jax.tree.leaves(params))  # Clocks and losses of all, at most.


def test_a_loop_that_copies_its_stack_is_found():
    """The test above can fail: a loop that reads a slot and then writes it copies the stack."""

    def body(i, stack):
        mine = jax.lax.dynamic_index_in_dim(stack, i % STACK, keepdims=False)
        other = jax.lax.dynamic_index_in_dim(stack, (i + 1) % STACK, keepdims=False)
        written = jax.lax.dynamic_update_index_in_dim(stack, jnp.tanh(mine @ mine) + 1, i % STACK, 0)
        return written.at[0].add(other)

    stack = jax.ShapeDtypeStruct((STACK, 32, 32), jnp.float32)
    compiled = (
        jax.jit(lambda stack: jax.lax.fori_loop(0, 9, body, stack), donate_argnums=0).lower(stack).compile().as_text()
    )
    assert stacked_copies(compiled)
