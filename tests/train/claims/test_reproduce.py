"""Claims from end to end, with runs that are made up: judging, going on after an interruption, the files, what is refused."""

import dataclasses
import errno
import io
import json
import math
import os

import jax
import pytest
from matplotlib import image
from rich.console import Console

from train import cli
from train.claims import papers as configs
from train.claims import reproduce
from train.claims.claim import Claim, Scatter, Statement, compare
from train.claims.execution.cache import Pool
from train.claims.results import Measured, Spread
from train.claims.runs import PlannedRun, num_commits, over_seeds
from train.common.errors import RecordError, UsageError
from train.config.config import Config
from train.config.datasets import DATASETS

BASE = Config(engine="simulate", method="asgd", workers=2, epochs=1.0)


def made_up(run, loss=0.1, **changes):
    """Return a record such as those of `train.claims.execution.single`."""
    total = num_commits(run.config, DATASETS[run.config.dataset].rows)
    curve = {"commits": [total // 2, total], "time": [1.0, 2.0 * total / run.config.workers], "train_loss": [1.0, loss]}
    looks = [total * (k + 1) // run.evaluations for k in range(run.evaluations)]
    diagnostic = {"median": 0.5, "mean": 0.5, "time": [1.0, 2.0], "curve": [0.6, 0.4], "mean_curve": [0.6, 0.4]}
    return {
        "train_loss": loss, "test_loss": loss, "test_accuracy": 0.9, "diverged": False, "initial_train_loss": 2.3,
        "staleness_p50": 1.0, "staleness_p95": 2.0, "rejected": 0, "dropped": 0, "time": 2.0 * total / run.config.workers,
        "diagnostics": dict.fromkeys(run.diagnostics, diagnostic), "curve": curve, "failed": "",
        "evaluations": {"commits": looks, "test_loss": [loss] * len(looks), "test_accuracy": [0.9] * len(looks)},
        "commits": total, "steps_per_epoch": 44, "seconds": 1.0, "commits_per_second": 100.0, "processes": 2,
        "hardware": {"device": "made up", "cores": 2, "jax": "0", "backend": "cpu"}, "git_commit": "abc", "date": "2026-01-01",
    } | changes  # fmt: skip


class Inline:
    """A replacement for processes; `made` lists the requested runs, and `fail` is raised at its run."""

    made: list = []  # noqa: RUF012
    fail: dict = {}  # noqa: RUF012
    hardware = {"device": "made up", "cores": 2, "jax": "0", "backend": "cpu"}  # noqa: RUF012

    def __init__(self, count=None):
        self.count = count or 2

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def make(self, groups, machine, progress):
        for run in [run for group in groups for run in group]:
            if error := self.fail.get(run.name):
                raise error
            self.made.append(run.name)
            progress(run.name, 1)
            yield run, made_up(run)


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(Inline, "made", [])
    monkeypatch.setattr(Inline, "fail", {})
    monkeypatch.setattr(reproduce, "Processes", Inline)
    monkeypatch.setattr(reproduce, "cores", lambda: 2)
    return Inline


@pytest.fixture
def claim(monkeypatch):
    runs = [
        *over_seeds("plain", BASE, seeds=(0, 1)),
        *over_seeds("plain", dataclasses.replace(BASE, workers=4), seeds=(0, 1)),
    ]
    made = Claim(
        name="pretended",
        title="a claim",
        source="An author, 2026",
        runs={"small": runs, "full": runs},
        judge=lambda measured: [
            Statement("low", measured.mean("train_loss", "plain", 2) < 0.2, "ours", "theirs"),
            Statement("lower", measured.mean("train_loss", "plain", 4) < 0.05, "ours"),
        ],
        draw=lambda figure, measured, plots: [figure.subplots()],
        paper={"train_loss": {"plain": {2: 0.1}}},
        minutes={"small": 1, "full": 1},
    )
    monkeypatch.setattr(configs, "CLAIMS", ("pretended",))
    monkeypatch.setattr(configs, "claim", lambda name: made)
    return made


def command(tmp_path, *more):
    return ["reproduce", "pretended", "--work", str(tmp_path / "work"), *more]


def test_a_claim_is_run_judged_drawn_and_written(claim, inline, tmp_path, capsys):
    assert cli.main(command(tmp_path, "--out", str(tmp_path))) == 0
    said = capsys.readouterr().out
    assert "1 reproduced in direction, 1 differs, at small scale, which is not the paper's setting" in said
    assert "4/4 runs done, 100 % of the gradients" in said
    result = json.loads((tmp_path / "pretended-small.json").read_text())
    assert (result["part"], result["verdict"]) == ("reduced setting", "1 reproduced in direction, 1 differs")
    assert [one["verdict"] for one in result["statements"]] == ["reproduced in direction", "differs"]
    assert [(row["point"], row["seeds"]) for row in result["results"]] == [(2, [0, 1]), (4, [0, 1])]
    assert result["results"][0]["train_loss"] == {"mean": 0.1, "interval_95": 0.0, "values": [0.1, 0.1]}
    assert result["cost"]["commits"] == 2 * 88 + 2 * 176
    assert result["hardware"] == [inline.hardware]
    assert image.imread(tmp_path / "pretended-small.png").shape[2] >= 3


@pytest.mark.slow
def test_pictures_for_papers_are_vectors_without_a_title_and_always_the_same(claim, inline, tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr("gemjax.telemetry.style.heading", lambda figure, title, subtitle: titles.append(title))
    asked = command(tmp_path, "--out", str(tmp_path), "--pdf", str(tmp_path / "paper"))
    assert cli.main(asked) == 0
    assert len(titles) == 1  # That of the PNG.
    first = (tmp_path / "paper" / "pretended-small.pdf").read_bytes()
    assert first.startswith(b"%PDF")
    assert cli.main(asked) == 0
    assert (tmp_path / "paper" / "pretended-small.pdf").read_bytes() == first


def test_a_folder_for_papers_that_cannot_be_made_is_refused_before_any_run(claim, inline, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(command(tmp_path, "--pdf", str(tmp_path / "file" / "paper"))) == 2
    assert "--pdf" in capsys.readouterr().err
    assert inline.made == []


@pytest.mark.slow
def test_published_runs_are_not_made_again_unless_asked(claim, inline, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path / "results")
    assert cli.main(command(tmp_path, "--scale", "full")) == 0
    (one,) = (tmp_path / "published").iterdir()
    assert len(inline.made) == len(json.loads(one.read_text())) == 4
    elsewhere = ["reproduce", "pretended", "--work", str(tmp_path / "elsewhere"), "--scale", "full"]
    assert "of them published" not in capsys.readouterr().out
    assert cli.main(elsewhere) == 0
    assert len(inline.made) == 4
    assert "4 of them done already (4 of them published in" in capsys.readouterr().out
    before = one.read_bytes()
    one.write_bytes(before.replace(b'"seconds"', b'"Seconds"'))  # Another result.
    assert cli.main([*elsewhere, "--anew"]) == 0
    assert len(inline.made) == 8
    assert one.read_bytes() == before  # Results and runs are of one time.


@pytest.mark.slow
def test_the_scale_for_cpus_has_files_of_its_own(claim, inline, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path / "results")
    own = dataclasses.replace(claim, runs=dict(claim.runs, cpu=claim.runs["small"][:2]), setting={"cpu": "a little"})
    own = dataclasses.replace(own, judge=lambda measured: [Statement("cpu", measured.scale == "cpu", "ours")])
    monkeypatch.setattr(configs, "claim", lambda name: own)
    assert cli.main(command(tmp_path, "--scale", "full")) == 0
    assert cli.main(command(tmp_path, "--scale", "cpu")) == 0
    full, cpu = (json.loads((tmp_path / "results" / f"pretended{end}.json").read_text()) for end in ("", "-cpu"))
    assert (full["scale"], cpu["scale"], cpu["setting"]) == ("full", "cpu", "a little")
    assert cpu["verdict"] == "reproduced in direction"
    assert (tmp_path / "results" / "pretended-cpu.png").exists()
    capsys.readouterr()
    assert cli.main(["reproduce", "--list"]) == 0
    assert "pretended" in capsys.readouterr().out


def test_a_claim_without_a_scale_for_cpus_says_so_and_all_leaves_it_out(claim, inline, tmp_path, capsys):
    assert cli.main(command(tmp_path, "--scale", "cpu")) == 2
    assert "pretended has no scale cpu" in capsys.readouterr().err
    asked, claims = reproduce.parse(["all", "--scale", "cpu"])
    assert (asked.scale, claims) == ("cpu", [])
    assert [one.name for one in reproduce.parse(["all"])[1]] == ["pretended"]


@pytest.mark.slow
def test_runs_that_follow_from_what_was_measured_are_made_after_it(claim, inline, tmp_path, monkeypatch, capsys):
    def then(measured):
        assert len(measured.records) in (4, 5)  # Asked again with its own, it names nothing new.
        return over_seeds("plain", BASE, seeds=(7,))

    own = dataclasses.replace(claim, then=then)
    monkeypatch.setattr(configs, "claim", lambda name: own)
    assert cli.main(command(tmp_path, "--out", str(tmp_path))) == 0
    assert inline.made[-1] == "plain at 2, seed 7"
    assert "5 runs, including those that follow" in capsys.readouterr().out
    assert json.loads((tmp_path / "pretended-small.json").read_text())["results"][0]["seeds"] == [0, 1, 7]
    inline.made.clear()
    assert cli.main(command(tmp_path, "--out", str(tmp_path))) == 0
    assert inline.made == []
    tuned = dataclasses.replace(own, tuning=(0,))  # What chose is kept apart from what is reported.
    monkeypatch.setattr(configs, "claim", lambda name: tuned)
    assert cli.main(command(tmp_path, "--out", str(tmp_path))) == 0
    result = json.loads((tmp_path / "pretended-small.json").read_text())
    assert [result[part][0]["seeds"] for part in ("results", "tuning")] == [[1, 7], [0]]
    cli.main(command(tmp_path, "--dry-run"))
    assert "then more runs" in capsys.readouterr().out
    cli.main(command(tmp_path / "elsewhere", "--dry-run"))
    assert "including runs that depend on these" in capsys.readouterr().out


def test_runs_of_one_length_are_made_seed_by_seed(claim, inline, tmp_path):
    """An interrupted claim has every series with its first seeds."""
    runs = [*over_seeds("plain", BASE, seeds=(0, 1)), *over_seeds("other", BASE, seeds=(0, 1))]
    asked = reproduce.Reproduce(("pretended",), work=str(tmp_path))
    reproduce._make_missing(runs, {}, asked.pool(claim), asked, Console(file=io.StringIO()))
    assert inline.made == ["plain at 2, seed 0", "other at 2, seed 0", "plain at 2, seed 1", "other at 2, seed 1"]


def test_an_interrupted_claim_makes_only_what_is_missing(claim, inline, tmp_path, capsys):
    inline.fail["plain at 2, seed 0"] = KeyboardInterrupt()  # The longest runs come first.
    assert cli.main(command(tmp_path)) == 130
    assert inline.made == ["plain at 4, seed 0", "plain at 4, seed 1"]
    assert f"Resume with: python -m train {' '.join(command(tmp_path))}" in capsys.readouterr().out
    inline.fail.clear()
    inline.made.clear()
    assert cli.main(command(tmp_path)) == 0
    assert inline.made == ["plain at 2, seed 0", "plain at 2, seed 1"]
    inline.made.clear()
    assert cli.main(command(tmp_path)) == 0
    assert inline.made == []


def test_a_claim_on_a_full_disk_keeps_finished_runs(claim, inline, tmp_path, monkeypatch, capsys):
    save = Pool.save

    def full(self, job, result):
        if job.name == "plain at 2, seed 0":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file(job)))
        save(self, job, result)

    monkeypatch.setattr(Pool, "save", full)
    assert cli.main(command(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "No space left on device (" in error
    resume = f"make room. Stopped; finished runs are kept. Resume with: python -m train {' '.join(command(tmp_path))}\n"
    assert error.endswith(resume)
    assert len(Pool(tmp_path / "work").known(claim.runs["small"])) == 2


def test_a_run_that_raises_is_named_and_others_are_kept(claim, inline, tmp_path, capsys):
    inline.fail["plain at 4, seed 1"] = UsageError("plain at 4, seed 1: no data here")
    assert cli.main(command(tmp_path)) == 2
    assert "plain at 4, seed 1: no data here" in capsys.readouterr().err
    assert Pool(tmp_path / "work").load(claim.runs["small"][2]) is not None


def test_whatever_decides_a_runs_numbers_makes_another_run_of_it(tmp_path):
    run = PlannedRun("a", 2, BASE)
    same = [PlannedRun("b", 7, BASE), PlannedRun("a", 2, dataclasses.replace(BASE, data_dir="elsewhere", out="there"))]
    others = [
        PlannedRun("a", 2, dataclasses.replace(BASE, learning_rate=0.2)),
        PlannedRun("a", 2, dataclasses.replace(BASE, seed=1)),
        PlannedRun("a", 2, BASE, diagnostics=("gap",)),
        PlannedRun("a", 2, BASE, evaluations=2),
    ]
    assert {other.key("1") for other in same} == {run.key("1")}
    assert len({one.key("1") for one in [run, *others]} | {run.key("2")}) == 6
    pool = Pool(tmp_path)
    pool.save(run, made_up(run))
    assert pool.load(same[0]) is not None
    assert all(pool.load(other) is None for other in others)


def test_a_record_with_other_random_numbers_is_refused(tmp_path):
    run, published = PlannedRun("plain", 2, BASE), tmp_path / "published.json"
    own, others = Pool(tmp_path, published), Pool(tmp_path / "other", published)
    own.save(run, made_up(run))
    own.publish(published, {run: made_up(run)})
    assert own.load(run) == others.load(run) == {"run": own.load(run)["run"]} | made_up(run)
    with jax.threefry_partitionable(False):
        for one in own, others:
            with pytest.raises(
                RecordError, match=r"was computed with JAX_THREEFRY_PARTITIONABLE=True, and now it is False"
            ):
                one.load(run)
    published.write_text(json.dumps({own.key(run): own.encode(run, made_up(run))}))  # It names no generator.
    assert others.load(run) is not None
    with jax.default_prng_impl("rbg"), pytest.raises(RecordError, match=r"threefry2x32, and now it is rbg.*--anew"):
        Pool(tmp_path / "other", published).load(run)
    jax.config.update("jax_random_seed_offset", 1)
    try:
        with pytest.raises(RecordError, match=r"JAX_RANDOM_SEED_OFFSET=0, and now it is 1"):
            Pool(tmp_path / "other", published).load(run)
    finally:
        jax.config.update("jax_random_seed_offset", 0)


def test_a_dry_run_says_what_is_left(claim, inline, tmp_path, capsys):
    assert cli.main(command(tmp_path, "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "4 runs of 528 commits in all, 0 done" in said
    assert "plain at 4: asgd, 2 seeds of 176 commits" in said
    assert inline.made == []
    cli.main(command(tmp_path))
    capsys.readouterr()
    cli.main(command(tmp_path, "--dry-run"))
    assert "left: 0 commits" in capsys.readouterr().out


def test_results_of_the_full_scale_alone_go_into_the_project(tmp_path):
    asked = reproduce.Reproduce(("x",), work=str(tmp_path))
    assert asked.folder == tmp_path / "small"
    assert dataclasses.replace(asked, scale="full").folder == reproduce.RESULTS
    assert dataclasses.replace(asked, scale="full", out="there").folder.name == "there"


def test_all_claims_may_be_named_beside_one():
    assert reproduce.parse(["all", "gem_figure_1"])[1] == reproduce.parse(["all"])[1]


def test_the_list_names_every_claim(capsys):
    assert cli.main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in configs.CLAIMS)


def test_means_and_intervals_are_students():
    spread = Spread.of([1.0, 2.0, 3.0])
    assert spread.mean == 2.0
    assert spread.half == pytest.approx(4.302653 / 3**0.5)
    assert Spread.of([1.0, float("inf")]).text() == "diverged"
    assert Spread.of([0.25]).text(".1f", 100) == "25.0"


def test_what_is_not_finite_counts_as_bad_as_can_be():
    run = PlannedRun("a", 2, BASE)
    measured = Measured("small", [(run, made_up(run, loss=None, test_accuracy=None, diverged=True))])
    assert measured.mean("train_loss", "a", 2) == float("inf")
    assert math.isnan(measured.mean("test_accuracy", "a", 2))
    assert measured.diverged("a", 2) == 1
    assert measured.rows()[0]["train_loss"] == {"mean": None, "interval_95": None, "values": [None]}
    with pytest.raises(KeyError, match="no run of 'b'"):
        measured.mean("train_loss", "b", 2)


def test_curves_are_means_over_the_seeds_that_came_so_far():
    runs = over_seeds("a", BASE, seeds=(0, 1))
    short = {"commits": [44], "time": [1.0], "train_loss": [3.0]}
    measured = Measured("small", [(runs[0], made_up(runs[0])), (runs[1], made_up(runs[1], curve=short))])
    commits, losses = measured.curve("train_loss", "a", 2)
    assert commits.tolist() == [44.0, 88.0]
    assert losses.tolist() == [2.0, 0.1]


def test_a_ratio_is_judged_by_the_scatter_over_seeds():
    def judged(ours, paper=1.0, **own):
        return compare("a loss", [ours], [paper], **{"direction": False, **own})

    calm = [0.98, 1.0, 1.02]
    assert [judged(calm, paper).verdict for paper in (1.0, 1.03, 1.2)] == ["reproduced", "reproduced", "differs"]
    assert judged(calm, 1.2, direction=True).verdict == "reproduced in direction"
    assert judged(calm, 1.2).compared == "ratio 0.83; chance: up to 1.07"
    wide = judged([0.5, 1.0, 2.0])  # Agreement of so wide a scatter says nothing.
    assert (wide.verdict, wide.why[:28]) == ("not decidable here", "seeds scatter by a factor of")
    assert judged([0.5, 1.0, 2.0], 1000.0).verdict == "differs"
    assert (judged([1.0]).verdict, judged([1.0]).why) == ("not decidable here", "one seed")
    assert judged([1.0], scatter=Scatter.of([calm])).verdict == "reproduced"
    assert judged([1.0, math.inf], scatter=Scatter.of([calm])).verdict == "differs"


def test_data_that_are_missing_are_said_before_anything_is_made(inline, tmp_path, capsys):
    argv = [
        "reproduce",
        "gem_figure_4",
        "--scale",
        "full",
        "--anew",
        "--work",
        str(tmp_path),
        "--data-dir",
        str(tmp_path),
    ]
    assert cli.main([*argv, "--dry-run"]) == 0
    assert "but MNIST is not prepared yet and no --manual-dir is given" in capsys.readouterr().out
    assert cli.main(argv) == 2
    assert "train: MNIST is not prepared yet" in capsys.readouterr().err
    assert inline.made == []


def test_data_that_a_later_claim_lacks_are_said_before_anything_is_made(inline, tmp_path, capsys):
    places = ["--work", str(tmp_path), "--data-dir", str(tmp_path)]
    assert cli.main(["reproduce", "gem_figure_4", "dana_gap", "--scale", "full", *places]) == 2
    found = capsys.readouterr()
    assert "train: CIFAR-10 is not prepared yet" in found.err
    assert found.err.rstrip().endswith("Needed for dana_gap.")
    assert (found.out, inline.made) == ("", [])
