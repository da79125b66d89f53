"""Configurations: frozen values that survive JSON and say what is wrong with them."""

import dataclasses
import json
from typing import get_args

import pytest

from train.claims.runs import Run
from train.config import presets
from train.config.config import Config, Method
from train.config.validation import STRONG
from train.task.methods import METHODS, knobs, local_steps


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_configuration_loads_and_its_module_states_claim_and_command(name):
    import importlib

    module = importlib.import_module(f"train.config.presets.{name}")
    assert isinstance(presets.load(name), Config)
    assert "Cost:" in module.__doc__
    assert "python -m train" in module.__doc__


def test_an_unknown_configuration_names_those_there_are():
    with pytest.raises(ValueError, match="digits, mnist"):
        presets.load("imagenet")


def test_configurations_survive_json(tmp_path):
    config = Config(method="asgd", workers=3, learning_rate=0.25)
    config.save(tmp_path / "config.json")
    assert Config.load(tmp_path / "config.json") == config


@pytest.mark.parametrize("text", ["{", "[]", '{"colour": 1}', '{"workers": 0}'])
def test_a_damaged_or_foreign_configuration_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a run"):
        Config.load(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("workers", 0, "--workers must be at least 1; got 0"),
        ("central_devices", 0, "--central-devices must be at least 1; got 0"),
        ("quorum", 9, "--quorum must be at most --workers, 8; got 9"),
        ("max_staleness", -1, "--max-staleness must not be negative"),
        ("grace", -1.0, "--grace must not be negative; got -1.0"),
        ("grace", 1.0, "--grace is the time after a quorum and acts only with --quorum; got 1.0"),
        ("retries", -1, "--retries must not be negative; got -1"),
        ("checkpoint_seconds", -1.0, "--checkpoint-seconds must not be negative; got -1.0"),
        ("checkpoint_seconds", float("inf"), "--checkpoint-seconds must be finite; got inf"),
        ("deadline", 0.0, "--deadline must be a positive number of seconds; got 0.0"),
        ("batch_size", 0, "--batch-size must be at least 1"),
        ("epochs", 0.0, "--epochs must be positive"),
        ("epochs", float("nan"), "--epochs must be finite"),
        ("learning_rate", float("inf"), "--learning-rate must be finite"),
        ("seed", 2**32, "--seed must be below"),
        ("momentum", 1.0, r"--momentum must be in \[0, 1\)"),
        ("dropout", -0.1, r"--dropout must be in \[0, 1\)"),
        ("learning_rate", -1.0, "--learning-rate must not be negative"),
        ("method", "adam", "--method must be one of gem, asgd"),
        ("variant", "a", "--variant must be one of constant, adaptive"),
        ("eval_seconds", 0.0, "--eval-seconds must be positive and finite; got 0.0"),
        ("eval_seconds", float("nan"), "--eval-seconds must be positive and finite"),
        ("eval_seconds", 1.0, "--eval-seconds counts virtual time, which only --engine simulate has; on devices use"),
        ("model", "lenet", "--model must be one of auto, digits_cnn"),
        (
            "model",
            "cnn7",
            "--model cnn7 takes images of at least 28x28 pixels; digits has images of 8x8, which digits_cnn or",
        ),
        ("width", 0.0, "--width must be positive and finite; got 0.0"),
        ("width", 0.5, "--width acts only with --model cnn7 or .*; the model is digits_cnn"),
        ("depth", 8, "--depth acts only with --model resnet20 or wrn_16_4 or transformer; the model is digits_cnn"),
        ("weight_decay", -1.0, "--weight-decay must be finite and not negative; got -1.0"),
        ("warmup_epochs", float("inf"), "--warmup-epochs must be finite and not negative; got inf"),
        ("decay_epochs", (2.0, 1.0), "--decay-epochs must be positive and rise; got 2.0 1.0"),
        ("decay_epochs", (0.0,), "--decay-epochs must be positive and rise"),
        ("decay_factor", 0.5, "--decay-factor acts only with --decay-epochs, which are not given"),
        ("schedule", "cos", "--schedule must be one of constant, cosine"),
        ("engine", "cluster", "--engine must be one of devices, simulate"),
    ],
)
def test_values_out_of_range_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        Config(**{field: value})


def test_the_command_line_offers_exactly_the_methods_there_are():
    assert set(get_args(Method)) == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_from_a_configuration(name):
    import jax.numpy as jnp

    import gemjax

    state = METHODS[name](Config(workers=3)).init(jnp.zeros(2))
    assert gemjax.protocol.staleness.num_workers_of(state) == 3


def test_the_variant_of_delay_compensation_reaches_the_method():
    import jax
    import jax.numpy as jnp

    sizes = [
        sum(
            leaf.size
            for leaf in jax.tree.leaves(
                METHODS["dc_asgd"](Config(method="dc_asgd", variant=variant, workers=3)).init(jnp.zeros(9))
            )
        )
        for variant in ("constant", "adaptive")
    ]
    assert sizes[1] - sizes[0] == 3 * 9  # A mean square for each worker.


@pytest.mark.parametrize("name", METHODS)
def test_local_steps_go_with_the_methods_that_take_displacements(name):
    import jax.numpy as jnp

    import gemjax

    state = METHODS[name](Config(workers=3)).init(jnp.zeros(2))
    assert (local_steps(Config(method=name)) is not None) == gemjax.protocol.staleness.needs_local_steps(state)


def test_local_steps_are_what_the_flags_say():
    local = local_steps(Config(method="easgd", period=5, learning_rate=0.5, local_momentum=0.9))
    assert local.period == 5
    updates, _ = local.tx.update(1.0, local.tx.init(0.0))
    assert updates == pytest.approx(-0.5 * 1.9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "gem", "period": 4}, r"--period is for methods with local steps \(downpour, .*\); --method is gem"),
        ({"method": "gem", "local_momentum": 0.9}, "--local-momentum is for methods with local steps"),
        ({"method": "asgd", "outer_learning_rate": 0.7}, "--outer-learning-rate is for methods with local steps"),
        ({"method": "gem", "strength": 1.0}, "--strength is for dc_asgd, .*; --method is gem"),
        ({"method": "eamsgd", "strength": 1.5}, "--strength must be in .0, 1. with eamsgd; got 1.5"),
        ({"method": "lsgd", "strength": -1.0}, "--strength must be finite and not negative; got -1.0"),
        ({"method": "easgd", "period": 0}, "--period must be at least 1; got 0"),
        ({"method": "easgd", "local_momentum": 1.0}, r"--local-momentum must be in \[0, 1\); got 1.0"),
        ({"method": "easgd", "outer_learning_rate": -0.1}, "--outer-learning-rate must be finite and not negative"),
    ],
)
def test_flags_of_local_steps_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**fields)


def test_evaluations_are_counted_in_one_way():
    with pytest.raises(ValueError, match="give --eval-seconds or --eval-every, not both; --eval-every is 7"):
        Config(engine="simulate", eval_seconds=2.0, eval_every=7)


def test_a_configuration_is_plain_data():
    config = Config(decay_epochs=(1.0, 2.5))
    assert Config(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize("method", METHODS)
def test_only_methods_with_a_strength_read_it(method):
    assert ("strength" in knobs(method)) == (method in STRONG)
    assert "learning_rate" in knobs(method)


def test_a_cosine_and_drops_are_not_given_together():
    with pytest.raises(ValueError, match=r"give --schedule cosine or --decay-epochs, not both; got 1\.0 2\.0"):
        Config(schedule="cosine", decay_epochs=(1.0, 2.0))


def test_a_run_from_before_there_was_a_cosine_is_the_run_it_was(tmp_path):
    """Its configuration lacks the field, and what it is found by among finished runs has not changed."""
    fields = dataclasses.asdict(Config(engine="simulate", workers=5))
    del fields["schedule"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = Config.load(tmp_path / "config.json")
    assert config.schedule == "constant"
    assert Run("GEM", 5, config).key("0.1") == "digits-gem-5-seed0-72e53c5d6731"


def test_a_decay_factor_beyond_one_is_refused():
    with pytest.raises(ValueError, match=r"--decay-factor must be in \(0, 1\]; got 2.0"):
        Config(decay_epochs=(1.0,), decay_factor=2.0)
