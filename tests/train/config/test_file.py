"""Configuration files: flags in TOML or in a run's `config.json`, which all others override."""

import tomllib

import pytest

from train.common.errors import UsageError
from train.config.config import Config
from train.config.file import text
from train.run import command
from train.sweep import sweep
from train.sweep.grid import Grid


def written(path, content):
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_flags_override_the_file_and_the_file_the_configuration_in_front(tmp_path):
    file = written(
        tmp_path / "a.toml",
        'method = "asgd"\nlearning-rate = 0.05\nworkers = 4\nepochs = 2\naugment = true\ndecay_epochs = [1, 1.5]\n',
    )
    config, _ = command.parse(["--workers", "5", "--config", file, "--decay-epochs", "1", "--no-augment"])
    assert (config.method, config.learning_rate, config.workers, config.epochs) == ("asgd", 0.05, 5, 2.0)
    assert (config.decay_epochs, config.augment) == ((1.0,), False)
    assert config.batch_size == 256  # That of the configuration digits.
    assert command.parse([f"--config={file}"])[0].decay_epochs == (1.0, 1.5)


def test_the_file_of_a_run_begins_the_same_run_elsewhere(tmp_path):
    begun = Config(method="dana_slim", epochs=3.0, max_staleness=4, out=str(tmp_path / "run"))
    begun.save(tmp_path / "config.json")
    for name in (tmp_path, tmp_path / "config.json"):
        config, resume = command.parse(["--config", str(name)])
        assert config == Config(**(vars(begun) | {"out": None}))
        assert resume is None


def test_a_printed_file_asks_for_the_same_options(tmp_path, capsys):
    asked = ["--method", "diloco", "--engine", "simulate", "--period", "3", "--seed", "7", "--decay-epochs", "1", "2"]
    for parse, argv, table in (
        (command.parse, asked, None),
        (sweep.parse, ["--methods", "diloco", "--seeds", "1", "2"], "sweep"),
    ):
        with pytest.raises(SystemExit) as ended:
            parse([*argv, "--print-config"])
        printed = capsys.readouterr().out
        assert ended.value.code == 0
        found = tomllib.loads(printed)
        assert (found[table] if table else found)["cluster"] == "barrier"
        again = parse(["--config", written(tmp_path / "again.toml", printed)])[0]
        assert again == parse(argv)[0]
        assert text(again, table or "") == printed


def test_a_flag_on_top_of_a_file_changes_what_follows_from_it(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.parse(["--engine", "simulate", "--print-config"])
    printed = written(tmp_path / "run.toml", capsys.readouterr().out)
    Config(engine="simulate").save(tmp_path / "config.json")
    for file in (printed, str(tmp_path)):
        config, _ = command.parse(["--config", file, "--method", "diloco"])
        assert config.cluster == "barrier"
        assert command.parse(["--config", file, "--method", "dana_slim"])[0].rate == 0.01
    assert command.parse(["--config", printed, "--method", "diloco", "--cluster", "tiered"])[0].cluster == "tiered"


def test_a_sweep_takes_the_task_of_a_file_and_its_own_table(tmp_path):
    file = written(
        tmp_path / "a.toml",
        'method = "gem"\nworkers = 3\nbatch_size = 16\nweight_decay = 0.1\n[sweep]\nmethods = ["asgd"]\nworkers = [2]\n',
    )
    grid, _ = sweep.parse(["--config", file])
    assert (grid.methods, grid.workers, grid.batch_size, grid.weight_decay) == (("asgd",), (2,), 16, 0.1)
    assert grid.learning_rates == Grid().learning_rates
    assert command.parse(["--config", file])[0].workers == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("lr = 0.1", "key lr, which is no flag; did you mean learning_rate?"),
        ("[swep]\nworkers = [2]", "key swep"),
        ("workers: 3", "is not a configuration file"),
        ('workers = "many"', "--workers"),
        ("workers = 0", "--workers must be at least 1"),
    ],
    ids=["unknown", "table", "yaml", "kind", "value"],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(UsageError) as raised:
        command.parse(["--config", written(tmp_path / "a.toml", content)])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("words", [["--config="], ["--config", "--dry-run"], ["--resume="], ["--resume", ""]])
def test_a_flag_without_its_name_is_refused(words):
    with pytest.raises(UsageError, match=f"{words[0].strip('=')} needs the name of a"):
        command.parse(words)


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "a.toml").write_bytes("workers = 3".encode("utf-16"))
    with pytest.raises(UsageError, match="is not a configuration file"):
        command.parse(["--config", str(tmp_path / "a.toml")])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--lr", "--learning-rate"),
        ("--bs", "--batch-size"),
        ("--opt=adam", "--method"),
        ("--n", "--workers"),
        ("--data", "--dataset"),
    ],
)
def test_abbreviations_of_other_programs_name_the_flag(typed, meant):
    with pytest.raises(UsageError, match=f"did you mean {meant}\\?"):
        command.parse([typed, "1"])
