"""Configurations: frozen values that survive JSON and refuse wrong fields."""

import dataclasses
import json

import pytest

import gemjax
from train.claims.runs import PlannedRun
from train.common.errors import RecordError
from train.config import presets
from train.config.config import Config
from train.config.policy import POLICY


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_configuration_loads_and_its_module_states_cost_and_command(name):
    import importlib

    module = importlib.import_module(f"train.config.presets.{name}")
    assert isinstance(presets.load(name), Config)
    assert "Cost:" in module.__doc__
    assert "python -m train" in module.__doc__


def test_every_field_of_a_policy_is_a_flag():
    assert {*POLICY} == {field.name for field in dataclasses.fields(gemjax.Policy)}


def test_configurations_survive_json(tmp_path):
    config = Config(method="asgd", workers=3, learning_rate=0.25)
    config.save(tmp_path / "config.json")
    assert Config.load(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("wrong", "fields"),
    [
        ("workers", {"workers": 0}),
        ("central_devices", {"central_devices": 0}),
        ("checkpoint_seconds", {"checkpoint_seconds": float("inf")}),
        ("batch_size", {"batch_size": 0}),
        ("period", {"method": "easgd", "period": 0}),
        ("epochs", {"epochs": 0.0}),
        ("epochs", {"epochs": float("nan")}),
        ("learning_rate", {"learning_rate": float("inf")}),
        ("learning_rate", {"learning_rate": -1.0}),
        ("outer_learning_rate", {"method": "easgd", "outer_learning_rate": -0.1}),
        ("seed", {"seed": -1}),
        ("momentum", {"momentum": 1.0}),
        ("local_momentum", {"method": "easgd", "local_momentum": 1.0}),
        ("dropout", {"dataset": "mnist", "dropout": -0.1}),
        ("weight_decay", {"weight_decay": -1.0}),
        ("warmup_epochs", {"warmup_epochs": float("inf")}),
        ("decay_epochs", {"decay_epochs": (1.0, -2.0)}),
        ("decay_factor", {"decay_epochs": (1.0,), "decay_factor": 10.0}),
        ("width", {"width": 0.0}),
        ("variation", {"engine": "simulate", "variation": 0.0}),
        ("eval_seconds", {"engine": "simulate", "eval_seconds": float("nan")}),
        ("central_hosts", {"engine": "cluster", "central_hosts": -1}),
        # A flag that another one makes ineffective.
        ("eval_seconds", {"eval_seconds": 1.0}),
        ("eval_every", {"engine": "simulate", "eval_seconds": 2.0, "eval_every": 7}),
        ("decay_epochs", {"schedule": "cosine", "decay_epochs": (1.0, 2.0)}),
        ("model", {"model": "cnn7"}),
        ("width", {"width": 0.5}),
        ("depth", {"depth": 8}),
        ("period", {"period": 4}),
        ("momentum", {"method": "asgd", "momentum": 0.5}),
        ("local_momentum", {"method": "easgd", "local_momentum": 0.9, "local_optimizer": "adamw"}),
        ("outer_learning_rate", {"method": "asgd", "outer_learning_rate": 0.7}),
        ("strength", {"strength": 1.0}),
        ("compression", {"compression": "int8"}),
        ("compression", {"engine": "cluster", "central_hosts": 2, "compression": "int8"}),
        ("worker_devices", {"engine": "cluster", "worker_devices": 2}),
        ("cluster", {"engine": "cluster", "cluster": "tiered"}),
        ("variation", {"engine": "simulate", "cluster": "round_robin", "variation": 0.5}),
        ("address", {"address": "auto"}),
        ("central_hosts", {"central_hosts": 2}),
        ("worker_gpus", {"engine": "simulate", "worker_gpus": 1.0}),
        ("quorum", {"engine": "simulate", "quorum": 2}),
    ],
    ids=str,
)
def test_a_value_that_is_not_possible_or_cannot_act_is_refused(wrong, fields):
    with pytest.raises(ValueError, match=f"^--{wrong.replace('_', '-')} "):
        Config(**fields)


@pytest.mark.parametrize("text", ["{", '{"colour": 1}', '{"workers": 0}'])
def test_a_file_that_is_no_configuration_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RecordError, match=r"config\.json is not the configuration of a run"):
        Config.load(tmp_path / "config.json")


def test_numbers_without_a_fraction_and_missing_fields_are_possible(tmp_path):
    (tmp_path / "config.json").write_text('{"epochs": 2, "depth": null, "decay_epochs": [1]}')
    assert Config.load(tmp_path / "config.json") == Config(epochs=2.0, decay_epochs=(1.0,))


@pytest.mark.parametrize("address", ["auto", "10.0.0.7:6379", "head.example-1.org:6379", "[::1]:6379", None])
def test_flags_of_a_cluster_are_accepted_and_may_change_when_a_run_is_resumed(address):
    before = Config(engine="cluster", worker_gpus=0.5, worker_tpus=4, worker_cpus=2.5, deadline=60.0, central="host")
    after = dataclasses.replace(
        before, address=address, worker_gpus=2.0, worker_cpus=1.0, worker_tpus=0.0, central_hosts=2
    )
    assert after.changed(before) == []


def test_a_configuration_is_plain_data():
    config = Config(decay_epochs=(1.0, 2.5))
    assert Config(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_a_run_older_than_the_cosine_keeps_its_key(tmp_path):
    """Its configuration lacks the field, and its key among finished runs has not changed."""
    fields = dataclasses.asdict(Config(engine="simulate", workers=5))
    del fields["schedule"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = Config.load(tmp_path / "config.json")
    assert config.schedule == "constant"
    assert PlannedRun("GEM", 5, config).key("0.1") == "digits-gem-5-seed0-72e53c5d6731"
