"""Configurations: frozen values that survive JSON and refuse wrong fields."""

import dataclasses
import json

import pytest

from gemjax.protocol import checks, local_steps
from train.claims.runs import Run
from train.config import presets, validation
from train.config.config import Config


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_configuration_loads_and_its_module_states_cost_and_command(name):
    import importlib

    module = importlib.import_module(f"train.config.presets.{name}")
    assert isinstance(presets.load(name), Config)
    assert "Cost:" in module.__doc__
    assert "python -m train" in module.__doc__


def test_an_unknown_configuration_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="digits, mnist"):
        presets.load("imagenet")


def test_configurations_survive_json(tmp_path):
    config = Config(method="asgd", workers=3, learning_rate=0.25)
    config.save(tmp_path / "config.json")
    assert Config.load(tmp_path / "config.json") == config


@pytest.mark.parametrize("text", ["{", "[]", "5", "[" * 100_000, '{"colour": 1}', '{"workers": 0}'])
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
        ("interrupt", 0, "--interrupt must be at least 1; got 0"),
        ("grace", -1.0, "--grace must not be negative; got -1.0"),
        ("grace", 1.0, "--grace is the time after a quorum and acts only with --quorum; got 1.0"),
        ("retries", -1, "--retries must not be negative; got -1"),
        ("checkpoint_seconds", -1.0, "--checkpoint-seconds must not be negative; got -1.0"),
        ("checkpoint_seconds", float("inf"), "--checkpoint-seconds must be finite; got inf"),
        ("deadline", 0.0, "--deadline must be a positive number of seconds; got 0.0"),
        ("batch_size", 0, "--batch-size must be at least 1"),
        ("epochs", 0.0, "--epochs must be positive"),
        ("epochs", 1e308, "--epochs must be positive and at most 1e12"),
        ("epochs", float("nan"), "--epochs must be finite"),
        ("learning_rate", float("inf"), "--learning-rate must be finite"),
        ("learning_rate", 1e40, "--learning-rate must be at most 3.4e.38, the largest number of float32; got 1e.40"),
        ("seed", 2**32, "--seed must be below"),
        ("momentum", 1.0, r"--momentum must be in \[0, 1\)"),
        ("dropout", -0.1, r"--dropout must be in \[0, 1\)"),
        ("learning_rate", -1.0, "--learning-rate must not be negative"),
        ("method", "adam", "--method must be a name that --help lists"),
        ("variant", "a", "--variant must be one of constant, adaptive"),
        ("eval_seconds", 0.0, "--eval-seconds must be positive and finite; got 0.0"),
        ("eval_seconds", float("nan"), "--eval-seconds must be positive and finite"),
        ("eval_seconds", 1.0, "--eval-seconds counts virtual time, which only --engine simulate has; otherwise use"),
        ("model", "lenet", "--model must be one of auto, digits_cnn"),
        (
            "model",
            "cnn7",
            "--model cnn7 takes images of at least 28x28 pixels; digits has images of 8x8, which digits_cnn, batchnorm_cnn, ",
        ),
        ("width", 0.0, "--width must be positive and finite; got 0.0"),
        ("variation", 11.0, "--variation must be between 1e-6 and 10; got 11.0"),
        ("variation", 1e-200, "--variation must be between 1e-6 and 10; got 1e-200"),
        ("width", 1e7, "--width must be at most 1000; got 10000000.0"),
        ("depth", 6002, "--depth must be at most 2000, because each layer is compiled; got 6002"),
        ("width", 0.5, "--width acts only with --model pooled_cnn, .* or transformer; the model is digits_cnn"),
        ("depth", 8, "--depth acts only with --model resnet20, wrn_16_4 or transformer; the model is digits_cnn"),
        ("weight_decay", -1.0, "--weight-decay must be finite and not negative; got -1.0"),
        ("warmup_epochs", float("inf"), "--warmup-epochs must be finite and not negative; got inf"),
        ("decay_epochs", (2.0, 1.0), "--decay-epochs must be positive and rise; got 2.0 1.0"),
        ("decay_epochs", (0.0,), "--decay-epochs must be positive and rise"),
        ("decay_factor", 0.5, "--decay-factor acts only with --decay-epochs, which are not given"),
        ("schedule", "cos", "--schedule must be one of constant, cosine"),
        ("engine", "ray", "--engine must be one of devices, cluster, simulate"),
    ],
)
def test_values_out_of_range_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        Config(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("workers", True, "--workers must be an integer; got True"),
        ("workers", 2.0, "--workers must be an integer; got 2.0"),
        ("workers", "8", "--workers must be an integer; got '8'"),
        ("workers", None, "--workers must be an integer; got None"),
        ("workers", 10**9, "--workers must be at most 1048576; got 1000000000"),
        ("worker_devices", 10**9, "--worker-devices must be at most 4096; got 1000000000"),
        ("batch_size", 10**30, r"--batch-size must be below 2\*\*31; got 1000"),
        ("seed", None, "--seed must be an integer; got None"),
        ("depth", 8.0, "--depth must be an integer; got 8.0"),
        ("max_staleness", False, "--max-staleness must be an integer; got False"),
        ("epochs", "6", "--epochs must be a number; got '6'"),
        ("epochs", 10**400, "--epochs must be a number; got 1000"),
        ("learning_rate", True, "--learning-rate must be a number; got True"),
        ("deadline", "1", "--deadline must be a number; got '1'"),
        ("augment", 1, "--augment must be true or false; got 1"),
        ("tensorboard", "no", "--tensorboard must be true or false; got 'no'"),
        ("dataset", 5, "--dataset must be a text without control characters; got 5"),
        ("dataset", "a\nb", r"--dataset must be a text without control characters; got 'a\\nb'"),
        ("out", ["run"], "--out must be a text without control characters; got .'run'"),
        ("method", 5, "--method must be a name that --help lists; got 5"),
        ("model", ["auto"], "--model must be one of auto, .*; got .'auto'"),
        ("decay_epochs", 5, "--decay-epochs must be a list, each value a number; got 5"),
        ("decay_epochs", ["a"], "--decay-epochs must be a list, each value a number; got .'a'"),
        ("colour", 1, "it has an unknown field 'colour'"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line(tmp_path, field, value, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({field: value}))
    with pytest.raises(ValueError, match=rf"config\.json is not the configuration of a run: {message}") as refused:
        Config.load(path)
    assert str(refused.value).isprintable()
    if field != "colour":
        with pytest.raises(ValueError, match=message):
            Config(**{field: value})


def test_numbers_without_a_fraction_and_missing_fields_are_possible(tmp_path):
    (tmp_path / "config.json").write_text('{"epochs": 2, "depth": null, "decay_epochs": [1]}')
    assert Config.load(tmp_path / "config.json") == Config(epochs=2.0, decay_epochs=(1.0,))


def test_a_run_has_at_most_the_workers_and_local_steps_that_the_library_takes():
    assert validation.MOST_WORKERS == checks.MOST_WORKERS
    assert validation.MOST_LOCAL_STEPS == local_steps.LONGEST


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "gem", "period": 4}, "--period acts only with --method downpour, .* or fedasync; --method is gem"),
        ({"method": "gem", "local_momentum": 0.9}, "--local-momentum acts only with --method downpour, "),
        ({"method": "asgd", "outer_learning_rate": 0.7}, "--outer-learning-rate acts only with --method downpour, "),
        ({"method": "gem", "strength": 1.0}, "--strength acts only with --method dana_dc, .* or lsgd; --method is gem"),
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"address": "ray://host:10001"}, "--address must be auto or HOST:PORT; got ray://host:10001"),
        ({"address": "host"}, "--address must be auto or HOST:PORT; got host"),
        ({"address": "host:65536"}, "--address must be auto or HOST:PORT; got host:65536"),
        ({"address": "-x:1"}, "--address must be auto or HOST:PORT; got -x:1"),
        ({"min_workers": 3, "workers": 2}, "--min-workers must be at most --workers, 2; got 3"),
        ({"worker_cpus": -1.0}, r"--worker-cpus must be in \[0, 4096\]; got -1.0"),
        ({"worker_gpus": float("nan")}, r"--worker-gpus must be in \[0, 4096\]; got nan"),
        ({"worker_gpus": 1.5}, "--worker-gpus must be a whole number, or a fraction below 1; got 1.5"),
        ({"worker_tpus": 2.5}, "--worker-tpus must be a whole number, or a fraction below 1; got 2.5"),
        ({"central": "colocated"}, "--central must be auto, host or dedicated with --engine cluster; got colocated"),
        ({"compression": "zip"}, "--compression must be one of none, bfloat16, int8; got 'zip'"),
        (
            {"engine": "devices", "compression": "int8"},
            "--compression acts only with --engine cluster; --engine is devices",
        ),
        ({"worker_devices": 2}, "--worker-devices acts only with --engine devices; --engine is cluster"),
        ({"cluster": "tiered"}, "--cluster acts only with --engine simulate; --engine is cluster"),
        ({"engine": "devices", "address": "auto"}, "--address acts only with --engine cluster; --engine is devices"),
        ({"central_hosts": -1}, "--central-hosts must not be negative; got -1"),
        (
            {"engine": "devices", "central_hosts": 2},
            "--central-hosts acts only with --engine cluster; --engine is devices",
        ),
        (
            {"central_hosts": 2, "compression": "int8"},
            "--compression does not go with --central-hosts; give one of the two, got int8 and 2",
        ),
        (
            {"engine": "simulate", "worker_gpus": 1.0},
            "--worker-gpus acts only with --engine cluster; --engine is simulate",
        ),
        (
            {"engine": "simulate", "quorum": 2},
            "--quorum acts only with --engine devices or cluster; --engine is simulate",
        ),
        (
            {"interrupt": 2, "max_staleness": 4},
            "give one of --interrupt, --max-staleness and --quorum; --interrupt is 2",
        ),
        (
            {"engine": "devices", "method": "lsgd", "interrupt": 2, "worker_devices": 2},
            "--interrupt with the local steps of lsgd needs one device per worker; --worker-devices is 2",
        ),
    ],
)
def test_flags_of_a_cluster_are_checked_also_in_a_file(tmp_path, fields, message):
    fields = {"engine": "cluster"} | fields
    with pytest.raises(ValueError, match=message):
        Config(**fields)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=rf"config\.json is not the configuration of a run: {message}"):
        Config.load(tmp_path / "config.json")


@pytest.mark.parametrize("address", ["auto", "10.0.0.7:6379", "head.example-1.org:6379", "[::1]:6379", None])
def test_flags_of_a_cluster_are_accepted_and_may_change_when_a_run_is_resumed(address):
    before = Config(engine="cluster", worker_gpus=0.5, worker_tpus=4, worker_cpus=2.5, deadline=60.0, central="host")
    after = dataclasses.replace(
        before, address=address, worker_gpus=2.0, worker_cpus=1.0, worker_tpus=0.0, central_hosts=2
    )
    assert after.changed(before) == []


def test_evaluations_are_counted_in_one_way():
    with pytest.raises(ValueError, match="give --eval-seconds or --eval-every, not both; --eval-every is 7"):
        Config(engine="simulate", eval_seconds=2.0, eval_every=7)


def test_a_configuration_is_plain_data():
    config = Config(decay_epochs=(1.0, 2.5))
    assert Config(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_a_cosine_and_drops_are_not_given_together():
    with pytest.raises(ValueError, match=r"give --schedule cosine or --decay-epochs, not both; got 1\.0 2\.0"):
        Config(schedule="cosine", decay_epochs=(1.0, 2.0))


def test_a_run_older_than_the_cosine_keeps_its_key(tmp_path):
    """Its configuration lacks the field, and its key among finished runs has not changed."""
    fields = dataclasses.asdict(Config(engine="simulate", workers=5))
    del fields["schedule"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = Config.load(tmp_path / "config.json")
    assert config.schedule == "constant"
    assert Run("GEM", 5, config).key("0.1") == "digits-gem-5-seed0-72e53c5d6731"


def test_a_decay_factor_beyond_one_is_refused():
    with pytest.raises(ValueError, match=r"--decay-factor must be in \(0, 1\]; got 2.0"):
        Config(decay_epochs=(1.0,), decay_factor=2.0)
