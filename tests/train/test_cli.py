"""The command line: its flags, its help, and errors in one line."""

import dataclasses
import importlib.util
import os
import re
import runpy
import sys
import time

import jax
import pytest
from flax import linen as nn

import gemjax
from train import cli
from train.bench.bench import Bench
from train.claims.reproduce import Reproduce
from train.common import interrupts
from train.common.errors import DataError
from train.config import helptext
from train.config.config import Config
from train.config.file import take_resume
from train.race import race
from train.run import command
from train.run import train as story
from train.run.folder import RunFolder
from train.sweep import sweep
from train.sweep.grid import Grid
from train.task import models


class Tiny(nn.Module):
    """A network that compiles quickly, in place of the convolutional one."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, train=False):
        del train
        return nn.Dense(10)(nn.Dense(1000)(images.reshape(len(images), -1)))


def test_no_arguments_is_the_digits_configuration():
    assert command.parse([]) == (Config(workers=3, batch_size=256, epochs=40.0), None)


def test_a_configuration_name_comes_first_and_flags_change_it():
    config, _ = command.parse(["mnist", "--workers", "3", "--engine", "simulate"])
    assert (config.dataset, config.workers, config.engine, config.batch_size) == ("mnist", 3, "simulate", 64)


# Wrong command lines, and what their one line names; all end with status 2.
WRONG = [
    (["--method", "gemm"], "--method must be gem or another name"),
    (["--engine=device"], "--engine must be one of devices, cluster, simulate (did you mean devices?); got 'device'"),
    (["--methd", "gem"], "--methd, gem; did you mean --method?"),
    (["--workers", "many"], "--workers"),
    (
        ["imagenet"],
        "'imagenet'; choose one of digits, mnist, race, report, replay, compare, twice, sweep, benchmark, reproduce",
    ),
    (["--workers", "0"], "--workers must be at least 1; got 0"),
    (["--method", "asgd", "--kappa", "2"], "--kappa acts only with --method gem; --method is asgd"),
    (["--method", "easgd", "--strength", "2", "--dry-run"], "easgd: strength"),
    (["--quorum", "9"], "--quorum"),
    (["--grace", "0.2"], "--grace is the time after a quorum; give --quorum as well"),
    (["--max-staleness", "2", "--interrupt", "3"], "--max-staleness goes with neither --quorum nor --interrupt; leave"),
    (["--quorum", "3", "--interrupt", "2"], "--interrupt=2 must be at least the quorum, got --quorum=3"),
    (["--dry-run", "digits"], "digits; a configuration comes first"),
    (["--\x1b[31m"], "--\\x1b[31m"),
    (["--resume", "nowhere"], "nowhere"),
    (["--resume", "nowhere", "--out", "there"], "nowhere"),
    (["mnist", "--data-dir", "DATA"], "--manual-dir"),
    (["--resume", "my/manual_dir"], "my/manual_dir is not a run folder"),
    (["sweep", "--methods", "adam"], "--methods"),
    (["sweep", "--worker", "3"], "--worker"),
    (["sweep", "--workers", "0"], "--workers"),
    (["sweep", "--learning-rates", "0.1", "-1"], "--learning-rate"),
    (["sweep", "--momenta", "1.5"], "--momentum"),
    (["sweep", "--seeds", "-1"], "--seed"),
    (["sweep", "--methods", "gem", "easgd", "--strengths", "0.5", "5"], "easgd: strength"),
    (["sweep", "--methods", "asgd", "--strengths", "1"], "--strengths"),
    (["sweep", "--methods", "asgd", "--momenta", "0.5"], "--momenta"),
    (["sweep", "--methods", "asgd", "--reading", "code"], "--reading"),
    (["sweep", "--period", "2"], "--period"),
    (["sweep", "--gradients", "0"], "--gradients"),
    (["sweep", "imagenet"], "'imagenet'"),
    (["sweep", "--resume", "nowhere"], "nowhere"),
    (["sweep", "--resume"], "latest"),
    (["reproduce"], "name a claim"),
    (["reproduce", "all", "nothing"], "'nothing'"),
    (["reproduce", "dana_gap", "gem_figure_1", "--scale", "cpu"], "gem_figure_1 has no scale cpu"),
    (["reproduce", "gem_figure_1", "--scale", "large"], "--scale"),
    (["benchmark", "--quick", "--methods", "gemm"], "--methods"),
    (["benchmark", "--quick", "--workers", "3"], "--workers"),
    (["benchmark", "--quick", "--workers", "64", "--clusters", "homogeneous"], "--clusters"),
    (["benchmark", "--methods", "gem", "yellowfin", "--tasks", "characters", "--dry-run"], "--methods yellowfin"),
    (["race", "--workers", "1"], "--workers"),
    (["race", "--gradients", "3"], "--gradients"),
    (["race", "--slow", "nan"], "--slow"),
    (["race", "--methods", "sgd"], "--methods"),
    (["bench", "foo"], "'foo'"),
    (["results", "foo"], "foo"),
    (["results", "--results", "nowhere"], "--results nowhere"),
]


@pytest.mark.parametrize(("argv", "name"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_wrong_command_line_is_answered_in_one_line(argv, name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert name in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["sweep"]], ids=["run", "sweep"])
def test_another_folder_or_other_data_than_those_that_are_resumed_are_refused(tmp_path, capsys, command):
    Config().save(tmp_path / "config.json")
    (tmp_path / "sweep.json").write_text(Grid().text())
    assert cli.main([*command, "--resume", str(tmp_path), "--out", "other"]) == 2
    assert "--out" in capsys.readouterr().err
    assert cli.main([*command, "mnist", "--resume", str(tmp_path)]) == 2
    assert "leave out mnist" in capsys.readouterr().err
    assert cli.main([*command, "mnist", "--dataset", "digits", "--resume", str(tmp_path), "--dry-run"]) == 0


def test_a_cluster_without_ray_is_answered_with_the_command_that_installs_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["--engine", "cluster"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "train: --engine cluster needs Ray: pip install 'gemjax[cluster]'\n"
    assert printed.out == ""
    assert not (tmp_path / "runs").exists()


def help_of(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(list(argv))
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("command", "options"), [([], Config), (["sweep"], Grid)], ids=["train", "sweep"])
def test_help_is_in_groups_and_names_every_flag_once(capsys, monkeypatch, command, options):
    monkeypatch.setenv("COLUMNS", "200")
    common, everything = (help_of(capsys, *command, how) for how in ("--help", "--help-all"))
    flags = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(options)]
    assert sorted(re.findall(r"^  (--\S+)", everything, re.MULTILINE)) == sorted(flags)
    assert set(re.findall(r"^  (--\S+)", common, re.MULTILINE)) < set(flags)
    groups = [
        "data",
        "model",
        "method",
        "cluster",
        *(["scheduler (--engine devices, cluster)"] if not command else []),
        "output",
    ]
    assert re.findall(r"\n\n([a-z].*):\n", everything) == groups
    assert max(map(len, everything.splitlines())) <= 100
    assert common.count("\n") <= 2 * 50
    assert "digits or mnist" in common
    assert f"python -m train{' sweep' * bool(command)} --help-all shows all flags" in common


def test_help_has_values_and_defaults_of_the_configuration(capsys):
    printed = " ".join(help_of(capsys, "mnist", "-h").split())
    assert (
        "--seed INT Seed of initial parameters, shuffles, dropout masks and simulated arrivals. (default: 0)" in printed
    )
    assert "--batch-size INT Rows per gradient, of one worker. (default: 64)" in printed
    assert "--engine devices|cluster|simulate " in printed
    assert "One of gem, asgd, " in printed
    assert "--out PATH Run folder, new or empty; default: runs/<time>-<dataset>-<method>. --dry-run Print" in printed


@pytest.mark.parametrize("options", [Config, Grid, Reproduce, Bench], ids=lambda options: options.__name__)
def test_the_help_of_a_flag_is_one_line_in_the_source(options):
    """A second line would be a line of its own in `--help`."""
    texts = helptext.meanings(options)
    assert texts.keys() == {field.name for field in dataclasses.fields(options)}
    assert [text for text in texts.values() if "\n" in text] == []


@pytest.mark.parametrize(
    ("argv", "rest", "resume"),
    [
        (["--resume"], [], "latest"),
        (["--resume", "runs/a"], [], "runs/a"),
        (["--resume=runs/a", "--seed", "1"], ["--seed", "1"], "runs/a"),
        (["--resume", "--seed", "1"], ["--seed", "1"], "latest"),
        (["--seed", "1"], ["--seed", "1"], None),
    ],
)
def test_resume_takes_a_folder_or_the_newest(argv, rest, resume):
    assert take_resume(argv) == (rest, resume)


@pytest.mark.parametrize(
    ("begun", "given", "evaluations"),
    [
        ({"eval_seconds": 2.0}, ["--eval-every", "3"], (3, None)),
        ({"eval_every": 3}, ["--eval-seconds=2"], (0, 2.0)),
        ({"eval_every": 3}, ["--epochs", "2"], (3, None)),
    ],
)
def test_a_resumed_run_may_be_evaluated_by_other_intervals(tmp_path, begun, given, evaluations):
    Config(out=str(tmp_path), engine="simulate", **begun).save(tmp_path / "config.json")
    config, _ = command.parse(["--resume", str(tmp_path), *given])
    assert (config.eval_every, config.eval_seconds) == evaluations


def test_resuming_the_newest_run_names_its_folder(tmp_path, monkeypatch):
    """Else the configuration of this run would be applied to one that begins meanwhile."""
    monkeypatch.chdir(tmp_path)
    Config(workers=5).save("runs/one/config.json")
    assert command.parse(["--resume"])[1] == "runs/one"


def test_the_name_of_a_data_set_is_no_markup(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.makedirs("photos[old]")
    monkeypatch.setattr(story, "train", lambda *_: {"finished": True})
    assert cli.main(["--dataset", "./photos[old]", "--out", "run"]) == 0
    assert "photos[old]: preparing data" in capsys.readouterr().out


def test_resuming_starts_from_the_configuration_of_the_run(tmp_path):
    Config(method="dynsgd", workers=5).save(tmp_path / "config.json")
    config, resume = command.parse(["--resume", str(tmp_path), "--epochs", "2"])
    assert resume == str(tmp_path)
    assert (config.method, config.workers, config.epochs) == ("dynsgd", 5, 2.0)


@pytest.mark.parametrize(
    ("given", "cluster"),
    [
        (["--method", "diloco"], "barrier"),
        (["--method", "streaming_diloco"], "barrier"),
        (["--method", "diloco", "--cluster", "homogeneous"], "homogeneous"),
        (["--method=diloco", "--cluster=tiered"], "tiered"),
        (["--method", "delayed_nesterov"], "homogeneous"),
    ],
)
def test_workers_of_a_method_in_rounds_wait_for_each_other_unless_a_cluster_is_given(given, cluster):
    assert command.parse(["--engine", "simulate", *given])[0].cluster == cluster
    swept = [word.replace("--method", "--methods") for word in given]
    assert sweep.parse([*swept, "--out", "nowhere"])[0].cluster == cluster


@pytest.mark.parametrize(
    ("begun", "given", "policy"),
    [
        ({"interrupt": 2}, ["--quorum", "2"], (None, None, 2, 0.0)),
        ({"quorum": 2}, ["--max-staleness=5"], (None, 5, None, 0.0)),
        ({"max_staleness": 5}, ["--interrupt", "3"], (3, None, None, 0.0)),
        ({"max_staleness": 5}, ["--epochs", "2"], (None, 5, None, 0.0)),
        ({"quorum": 2}, ["--quorum", "1"], (None, None, 1, 0.0)),
        ({"quorum": 2, "grace": 0.1}, ["--max-staleness", "3"], (None, 3, None, 0.0)),
        ({"quorum": 2, "grace": 0.1}, ["--interrupt", "3", "--grace=0"], (3, None, None, 0.0)),
        ({"quorum": 2, "grace": 0.1}, ["--quorum", "1"], (None, None, 1, 0.0)),
        ({"quorum": 2, "grace": 0.1}, ["--quorum", "3", "--grace", "0.2"], (None, None, 3, 0.2)),
        ({"quorum": 2, "grace": 0.1}, ["--grace", "0.2"], (None, None, 2, 0.2)),
    ],
)
def test_a_resumed_run_may_have_another_policy(tmp_path, begun, given, policy):
    Config(out=str(tmp_path), **begun).save(tmp_path / "config.json")
    config, _ = command.parse(["--resume", str(tmp_path), *given])
    assert (config.interrupt, config.max_staleness, config.quorum, config.grace) == policy


def test_a_resumed_run_keeps_what_makes_it_the_same_run(tmp_path, capsys):
    Config(method="dynsgd", workers=5).save(tmp_path / "config.json")
    assert cli.main(["--resume", str(tmp_path), "--workers", "3", "--engine", "simulate"]) == 2
    assert "a resumed run keeps its --engine, --workers" in capsys.readouterr().err
    assert Config.load(tmp_path / "config.json").workers == 5


@pytest.mark.slow
def test_a_dry_run_prints_the_memory_and_leaves_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--engine", "simulate", "--method", "gem", "--workers", "100", "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "gem with 100 workers on digits" in printed
    unit = {"B": 1, "KiB": 2**10, "MiB": 2**20}
    size, *parts = [
        float(number) * unit[name]
        for number, name in re.findall(r"(?:keeps|variable|views|method|optimizers) ([\d.]+) (\w+)", printed)
    ]
    assert size == pytest.approx(sum(parts), rel=1e-3)
    assert 90 < float(re.search(r"([\d.]+) KiB for training", printed)[1]) < 1000  # 1,437 images of 64 bytes.
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [[], ["sweep"], ["reproduce", "gem_figure_2"], ["bench", "arrivals"], ["race"]])
def test_an_out_that_cannot_be_made_is_refused_before_anything_is_compiled(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(story, "make_task", None)
    monkeypatch.setattr(sweep, "make_task", None)
    monkeypatch.setattr(race, "make_task", None)
    (tmp_path / "file").write_text("")
    assert cli.main([*command, "--out", str(tmp_path / "file" / "run" / "x")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"train: --out {tmp_path / 'file' / 'run'}")
    assert f"cannot be made: {tmp_path / 'file'} is no folder with permission to write" in error
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cli.main([*command, "--out", str(tmp_path / "run" / "x")]) == 2
    assert f"{tmp_path} is no folder with permission to write" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["file"]


def test_an_out_with_other_files_is_refused_but_not_an_unfinished_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.tex").write_text("")
    assert cli.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"train: --out {tmp_path} is not empty: it holds thesis.tex; choose an empty or a new folder\n"
    )
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json.0123abcd.unfinished").write_text("{")
    assert RunFolder.fresh(Config(out=str(tmp_path / "run"))).path == tmp_path / "run"
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match="holds a run already; continue it with --resume"):
        RunFolder.fresh(Config(out=str(tmp_path / "run")))


def test_ctrl_c_before_the_first_commit_is_one_line_and_ends_at_once(monkeypatch, capsys, tmp_path):
    """The normal exit of the interpreter may crash after an interrupted compilation."""

    class EndedError(Exception):
        pass

    def interrupted(config):
        raise KeyboardInterrupt

    def end(status):
        raise EndedError(status)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(story, "make_task", interrupted)
    monkeypatch.setattr(sys, "argv", ["train", "--engine", "simulate"])
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(interrupts, "end_at_once", lambda: None)
    with pytest.raises(EndedError, match="130"):
        runpy.run_module("train", run_name="__main__")
    printed = capsys.readouterr()
    assert printed.err == "train: interrupted by Ctrl-C\n"
    about = r"gem with 3 workers on digits, 23,946 parameters, engine simulate \(cpu\); run folder runs/\S+\n"
    assert re.fullmatch(f"gem on digits: preparing data and parameters …\n{about}", printed.out)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_needs_no_data(capsys, tmp_path):
    assert cli.main(["mnist", "--engine", "simulate", "--data-dir", str(tmp_path), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "163,790 parameters, engine simulate" in printed
    assert "data, gradients and activations come on top" in printed
    assert "but MNIST is not prepared yet and no --manual-dir is given" in printed


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda format: "now")
    made = []

    def stand_in(config, folder, console, interrupt):
        made.append(folder.path.name)
        if len(made) < 3:
            (folder.path / "config.json").write_text("{}")
        if len(made) == 3:
            raise DataError("no data")
        return {"finished": True}

    monkeypatch.setattr(story, "train", stand_in)
    assert [cli.main([]) for _ in range(4)] == [0, 0, 2, 0]
    assert made == ["now-digits-gem", "now-digits-gem-2", "now-digits-gem-3", "now-digits-gem-3"]
    assert sorted(os.listdir("runs")) == [
        "now-digits-gem",
        "now-digits-gem-2",
    ]  # Nothing is left of those that wrote nothing.


def test_a_path_may_begin_at_the_home_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["--out=~/run"], ["--out", "~/run"], ["--resume=~/run"], ["report", "~/run"]):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "notes.txt").touch()
        assert cli.main(words) == 2
        assert str(tmp_path / "run") in capsys.readouterr().err


def test_a_dry_run_checks_what_the_run_would_check(capsys, tmp_path):
    run = ["digits", "--engine", "simulate", "--batch-size", "2000", "--dry-run", "--out"]
    assert cli.main([*run, str(tmp_path / "new")]) == 0
    assert "--batch-size 2000 is larger than the data: a batch has 1437 rows" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
    (tmp_path / "notes.txt").touch()
    assert cli.main([*run, str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("is not empty: it holds notes.txt; choose an empty or a new folder\n")


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--dry-run"], []], ids=["dry", "run"])
def test_a_run_that_cannot_fit_is_refused_before_a_trace_or_a_folder_is_made(how, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(story, "traces", None)
    monkeypatch.setattr(models, "DigitsCNN", Tiny)
    assert cli.main(["--engine", "simulate", "--method", "gem", "--workers", "1000000", *how]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(r"train: the run keeps \S+ GiB \(.*, but .* has \S+ GiB; take fewer workers.*\n", printed.err)
    assert "it keeps" not in printed.out
    assert not (tmp_path / "runs").exists()


def test_a_platform_that_does_not_start_is_named_as_jax_names_it(monkeypatch):
    def broken(backend=None):
        raise RuntimeError("Unable to initialize backend 'tpu': no library")

    monkeypatch.setattr(jax, "local_devices", broken)
    with pytest.raises(RuntimeError, match=r"^Unable to initialize backend 'tpu': no library$"):
        gemjax.cpu_devices(2)


def test_devices_that_are_too_few_are_refused_before_there_is_a_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(gemjax, "cpu_devices", lambda count: jax.devices()[:1])
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: jax.devices()[:1])
    assert cli.main(["--central", "dedicated", "--out", str(tmp_path / "run")]) == 2
    assert (
        "--central dedicated does not fit this host: central='dedicated' with central_devices=1 and worker_devices=1 needs at "
        "least 2 devices, but there are 1 in all; lower --central-devices and --worker-devices, or change --central"
        in capsys.readouterr().err
    )

    assert not list(tmp_path.iterdir())


def test_a_device_without_memory_is_named_with_the_remedy(capsys, monkeypatch):
    def fail(argv):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5020314512 bytes.\nmore")

    monkeypatch.setattr(command, "run", fail)
    assert cli.main([]) == 1
    said = "train: a device has not enough memory (Out of memory allocating 5020314512 bytes. more); begin a run with a smaller"
    assert capsys.readouterr().err.startswith(said)
