"""Methods made from configurations, and the table of facts about them."""

import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

import gemjax
from train.common.errors import UsageError
from train.config.config import Config
from train.config.helptext import meanings
from train.config.methods import METHODS, methods_with
from train.sweep.grid import Grid
from train.task.methods import COMPOSITIONS, local_steps, make_method, maker


def test_every_method_of_the_library_has_a_row():
    aliases = {
        name
        for name in gemjax.__all__
        if inspect.isfunction(function := getattr(gemjax, name))
        and {"learning_rate", "num_workers"} <= inspect.signature(function).parameters.keys()
    }
    differ = METHODS.keys() ^ (aliases | COMPOSITIONS.keys())
    assert not differ, f"only one of gemjax and METHODS in train/config/methods.py has {differ}"


@pytest.mark.parametrize(("options", "name"), [(Config, "method"), (Grid, "methods")])
def test_the_help_names_the_baselines(options, name):
    meaning = " ".join(meanings(options)[name].split())
    assert all(f"`{one}`" in meaning for one in COMPOSITIONS)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_names_fields_of_the_configuration(name):
    unknown = set(METHODS[name].takes) - Config.__dataclass_fields__.keys()
    assert not unknown, f"train/config/methods.py: add {unknown} as fields to Config, or leave them out of {name!r}"


@pytest.mark.parametrize("name", METHODS)
def test_a_row_has_the_arguments_of_its_function(name):
    """A row names every field of a configuration that the function takes, except learning rate and number of workers."""
    arguments = inspect.signature(maker(name)).parameters
    others = {"learning_rate", "batch_size"}  # Rennala's batch size counts gradients.
    assert set(METHODS[name].takes) == arguments.keys() & (Config.__dataclass_fields__.keys() - others)
    local = METHODS[name].local
    assert not local or arguments["learning_rate"].default > 0, "an outer learning rate has a published default"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_from_a_configuration(name):
    state = make_method(Config(method=name, workers=3)).init(jnp.zeros(2))
    assert gemjax.protocol.staleness.num_workers_of(state) == 3
    assert gemjax.protocol.staleness.needs_local_steps(state) == METHODS[name].local
    assert gemjax.protocol.staleness.needs_rounds(state) == METHODS[name].rounds
    assert (local_steps(Config(method=name)) is not None) == METHODS[name].local


def test_flags_reach_the_method():
    sizes = [
        sum(
            leaf.size
            for leaf in jax.tree.leaves(
                make_method(Config(method="dc_asgd", variant=variant, workers=3)).init(jnp.zeros(9))
            )
        )
        for variant in ("constant", "adaptive")
    ]
    assert sizes[1] - sizes[0] == 3 * 9  # A mean square per worker.
    for fields, moved in (({}, 0.7), ({"outer_learning_rate": 0.25}, 0.25)):
        tx = make_method(Config(method="momentum_lookahead", workers=1, momentum=0.0, **fields))
        updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1))
        assert -updates[0] == pytest.approx(moved)


def test_numbers_of_a_point_replace_those_of_the_configuration():
    config = Config(method="easgd", learning_rate=0.5, workers=2, weight_decay=0.1)
    assert make_method(config, strength=0.5).init(jnp.ones(2)) is not None
    updates, _ = (tx := local_steps(config, learning_rate=2.0).tx).update(1.0, tx.init(0.0), 0.0)
    assert updates == pytest.approx(-2.0)
    with pytest.raises(UsageError, match="strength"):
        make_method(config, strength=5.0)


def test_local_steps_are_those_of_the_flags():
    local = local_steps(Config(method="easgd", period=5, learning_rate=0.5, local_momentum=0.9))
    assert local.period == 5
    updates, _ = local.tx.update(1.0, local.tx.init(0.0))
    assert updates == pytest.approx(-0.5 * 1.9)
    local = local_steps(Config(method="easgd", learning_rate=0.5, local_optimizer="adamw", weight_decay=0.1))
    updates, _ = local.tx.update(7.0, local.tx.init(2.0), 2.0)
    assert updates == pytest.approx(-0.5 * (1 + 0.1 * 2.0), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_a_flag_of_some_methods_is_refused_with_the_others(name):
    for flag, value in (("strength", 0.5), ("kappa", 2.0), ("period", 2), ("variant", "adaptive")):
        if name in methods_with(flag):
            Config(method=name, **{flag: value})
        else:
            with pytest.raises(ValueError, match=f"--{flag} acts only with --method .*; --method is {name}"):
                Config(method=name, **{flag: value})


def test_flags_are_checked_without_jax():
    parse = "from train.run import command; command.parse(['--method', 'lsgd', '--period', '4'])"
    subprocess.run([sys.executable, "-c", f"import sys; {parse}; assert 'jax' not in sys.modules"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name, facts in METHODS.items() if "momentum" in facts.takes and not facts.local]
)
def test_without_a_learning_rate_a_gradient_moves_parameters_no_further_than_with_plain_sgd(method):
    """A method whose momentum adds gradients up is marked so; a gradient of 1 and then of 0 show what one of them does."""
    tx = make_method(Config(method=method, workers=2, learning_rate=1e-3))
    params, apply = jnp.zeros(1), jax.jit(tx.update)
    state = tx.init(params)
    for commit in range(100):
        gradient = jnp.full(1, float(commit == 0))
        updates, state = apply(gradient, state, params, worker=commit % 2, value=0.0)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, worker=commit % 2)
    moved = float(-params[0]) / 1e-3
    assert (moved > 5.5) == METHODS[method].adds_up
    assert moved * Config(method=method).rate < 0.6
