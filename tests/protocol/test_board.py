"""The board: a worker writes one row, anybody reads any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gemjax.protocol.board import Board

PARAMS = {"w": jnp.array([[1.0, 2.0]]), "b": jnp.array(3.0)}


def filled(num_workers=3):
    """On which row i is i times the parameters."""
    board = Board.of(PARAMS, num_workers)
    for worker in range(num_workers):
        board = board.write(worker, jax.tree.map(lambda p, i=worker: i * p, PARAMS))
    return board


def assert_rows(board, factors):
    for name, p in PARAMS.items():
        np.testing.assert_array_equal(board.rows[name], np.stack([factor * p for factor in factors]))


def test_at_first_every_row_is_the_parameters():
    board = Board.of(PARAMS, 4)
    assert board.rows["w"].shape == (4, 1, 2)
    assert board.rows["b"].shape == (4,)
    assert_rows(board, [1, 1, 1, 1])


def test_what_a_worker_writes_stands_in_its_row_alone():
    board = filled().write(1, jax.tree.map(lambda p: 9 * p, PARAMS))
    assert_rows(board, [0, 9, 2])
    for worker, factor in enumerate([0, 9, 2]):
        row = board.read(worker)
        jax.tree.map(lambda r, p, f=factor: np.testing.assert_array_equal(r, f * p), row, PARAMS)


def test_what_is_not_applied_writes_nothing():
    """Not even where the row is not finite."""
    bad = jax.tree.map(lambda p: p * jnp.nan, PARAMS)
    assert_rows(filled().write(1, bad, applied=False), [0, 1, 2])
    assert_rows(filled().write(0, PARAMS, applied=jnp.array(True)), [1, 1, 2])


@pytest.mark.parametrize("worker", [3, 100])
def test_beyond_the_last_row_nothing_is_written(worker):
    assert_rows(filled().write(worker, PARAMS), [0, 1, 2])


@pytest.mark.parametrize("applied", [True, False])
def test_the_worker_and_the_outcome_may_be_traced(applied):
    @jax.jit
    def write_and_read(board, worker, applied):
        board = board.write(worker, jax.tree.map(lambda p: 7 * p, PARAMS), applied)
        return board, board.read(worker)

    for worker in range(3):
        factors = [0, 1, 2]
        factors[worker] = 7 if applied else worker
        board, row = write_and_read(filled(), jnp.int32(worker), jnp.array(applied))
        assert_rows(board, factors)
        np.testing.assert_array_equal(row["w"], factors[worker] * PARAMS["w"])
    assert write_and_read._cache_size() == 1


def test_every_leaf_keeps_its_dtype(x64):
    params = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.float32(1.0), "double": jnp.ones(1), "n": jnp.int32(2)}
    board = Board.of(params, 2).write(1, params)
    for tree in (board.rows, board.read(1)):
        assert jax.tree.map(lambda x: x.dtype, tree) == jax.tree.map(lambda x: x.dtype, params)


def test_what_was_there_before_is_not_changed():
    board = filled()
    board.write(1, PARAMS)
    assert_rows(board, [0, 1, 2])
