"""The report of a run: one self-contained page, pictures, a timeline; damaged records are refused."""

import html.parser
import json

import browser
import matplotlib.image
import numpy as np
import pytest
from cycles import free

import gemjax
from train import cli
from train.config.config import Config
from train.report import report
from train.run.folder import RunFolder

HOSTILE = "<script>alert(1)</script><img src=http://evil.example/x onerror='x()'>\"'&$\\frac{"


def make_run(path, events, config=None, metrics=3):
    folder = RunFolder(path)
    (config or Config(workers=4)).save(folder.config)
    with gemjax.EventLog(folder.events) as log:
        for event in events:
            log.write(**event)
    for row in range(metrics):
        folder.add_metrics(
            commits=40 * row,
            time=10.0 * row,
            train_loss=1.0,
            test_loss=None if row == 1 else 1 / (row + 1),
            test_accuracy=0.5,
        )
    return folder


@pytest.mark.slow
def test_the_page_has_the_bibtex_of_the_method(folder):
    assert "@article{hermans2018gradient," in folder.report.read_text(encoding="utf-8")


def hostile_events():
    events = free(rounds=12)
    events[0] |= {"devices": [HOSTILE, "gpu:1", "gpu:2", "gpu:3"], "central": HOSTILE}
    at = events[-1]["time"]
    step = 1 + max(event["step"] for event in events if event["event"] == "commit" and event["worker"] == 3)
    middle = len(events) // 2
    return [
        *events[:middle],
        {"event": "pause", "time": events[middle]["time"], "seconds": 0.25},
        *events[middle:],
        {"event": "dispatch", "time": at, "worker": 3, "step": step},
        {"event": "fault", "time": at + 0.5, "worker": 3, "step": step, "error": HOSTILE},
        {"event": "retire", "time": at + 0.5, "worker": 3, "step": step},
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make the folder of a run with a fault, in which every text of the records is hostile."""
    path = tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", "|")
    folder = make_run(path, hostile_events(), Config(workers=4, data_dir=HOSTILE))
    report.write_report(folder)
    return folder


class Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def elements(folder):
    return Elements(folder.report.read_text(encoding="utf-8"))


FIGURES = {
    "loss",
    "loss-time",
    "accuracy",
    "staleness",
    "gap",
    "utilisation",
    "waits",
    "shares",
    "incidents",
    "timeline",
}


@pytest.mark.slow
def test_every_figure_is_on_the_page_and_in_a_file(folder, elements):
    assert {figure["id"] for figure in elements.all("figure")} == FIGURES
    assert len(elements.all("img")) == len(FIGURES)
    assert all(picture["alt"] for picture in elements.all("img"))
    assert {path.stem for path in (folder.path / "figures").glob("*.png")} == FIGURES
    for path in (folder.path / "figures").glob("*.png"):
        assert matplotlib.image.imread(path).std() > 0.05


def test_the_page_loads_nothing_from_outside_and_has_no_script(elements):
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "section", "ul", "li", "span", "strong",
               "dl", "div", "dt", "dd", "small", "figure", "img", "figcaption", "table", "thead", "tbody", "tr", "th", "td",
               "details", "summary", "footer", "pre"}  # fmt: skip
    assert {tag for tag, _ in elements.found} <= allowed
    for _, attributes in elements.found:
        assert set(attributes) <= {"lang", "charset", "http-equiv", "content", "name", "class", "id", "alt", "src"}
        assert attributes.get("src", "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
    policy = next(meta["content"] for meta in elements.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none';")
    assert "script" not in policy


def test_texts_of_the_records_are_escaped(folder, elements):
    page = folder.report.read_text(encoding="utf-8")
    assert HOSTILE in elements.words  # The fault's error and the flag's value, unchanged.
    assert "<script" not in page
    assert "<img src=http" not in page
    assert "url(" not in page


def test_the_page_shows_the_verdict_and_the_numbers(folder, elements):
    words = " ".join(elements.words)
    assert "Truly asynchronous." in words
    assert "Faults: 1; workers retired: 1; commits dropped: 0, rejected: 0; computations called back: 0." in words
    for name in (
        "utilisation",
        "commit and view wait",
        "staleness",
        "test accuracy",
        "250 ms of it in callbacks and checkpoints",
    ):
        assert name in words
    commits = sum(event["event"] == "commit" and event["worker"] == 1 for event in free(rounds=12))
    row = f'<tr><td>1</td><td class="word">gpu:1</td><td>{commits}</td><td>{100 * commits / 48:.1f} %</td>'
    assert row in folder.report.read_text(encoding="utf-8")


def test_the_timeline_is_written(folder):
    trace = json.loads(folder.timeline.read_text())
    assert sum(event["name"] == "gradient" for event in trace["traceEvents"]) == 49


def test_the_terminal_shows_the_key_figures(folder, capsys):
    assert report.main([str(folder.path)]) == 0
    headline, *_, figures, page = capsys.readouterr().out.splitlines()
    assert headline == "Truly asynchronous."
    assert figures == "48 commits, 3.7 commits/s, staleness p50 3 p95 4, utilisation 90 %"
    assert page == f"report: {folder.report}"


def test_the_rate_of_a_simulated_run_is_that_of_its_summary(tmp_path):
    commits = [event for event in free(rounds=12) if event["event"] == "commit"]
    folder = make_run(tmp_path / "run", commits, Config(workers=4, engine="simulate"), metrics=0)
    summary = gemjax.summarise(commits)
    assert "commits/s" not in report.facts(folder, summary)
    folder.summary.write_text(json.dumps({"commits": 48, "commits_per_second": 1234.5}))
    assert report.facts(folder, summary) == "48 commits, 1,234 commits/s, staleness p50 3 p95 4"


@pytest.mark.slow
def test_the_report_of_a_simulated_run_shows_no_waiting(tmp_path):
    commits = [event for event in free(rounds=12) if event["event"] == "commit"]
    folder = make_run(tmp_path / "run", commits, Config(workers=4, engine="simulate"), metrics=0)
    assert report.write_report(folder)[1].asynchronous == "yes"
    elements = Elements(folder.report.read_text(encoding="utf-8"))
    found = {figure["id"] for figure in elements.all("figure")}
    assert found == FIGURES - {"accuracy", "utilisation", "waits", "incidents"}
    assert "simulated: times are virtual" in " ".join(elements.words)


@pytest.mark.slow
def test_many_workers_and_commits_fit_on_the_page(tmp_path):
    folder = make_run(tmp_path / "run", free(130, rounds=20), Config(workers=130))
    report.write_report(folder)
    assert folder.report.stat().st_size < 3e6
    assert "The first 128 of 130." in folder.report.read_text(encoding="utf-8")


def test_a_run_without_its_log_is_refused(tmp_path, capsys):
    folder = make_run(tmp_path, free(rounds=4))
    folder.events.unlink()
    assert cli.main(["report", str(tmp_path)]) == 2
    said = "has no events.jsonl: no commit was made yet, or the file was removed"
    assert capsys.readouterr().err == f"train: {tmp_path} {said}\n"


def test_metrics_truncated_by_a_crash_are_read_up_to_there(tmp_path):
    folder = make_run(tmp_path / "run", free(rounds=4))
    with open(folder.metrics, "a") as file:
        file.write('{"commits": 99, "ti')
    metrics = folder.read_metrics()
    np.testing.assert_array_equal(metrics["commits"], [0, 40, 80])
    np.testing.assert_array_equal(metrics["test_loss"], [1.0, np.nan, 1 / 3])


def test_the_command_line_reports_the_newest_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "draw", lambda *_: [])  # Drawing is slow, and tested above.
    assert cli.main(["report"]) == 2
    assert "there is no run under runs" in capsys.readouterr().err
    folder = make_run(tmp_path / "runs" / "a", free(rounds=12))
    assert cli.main(["report"]) == 0
    output = capsys.readouterr().out
    assert "Truly asynchronous." in output
    assert "report: runs/a/report.html" in output
    assert folder.report.exists()


CHROMIUM = browser.find()
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium; on Debian: apt-get install chromium")
# For every picture: its name, its decoded width, its size on the page, and its number of colours.
PICTURES = """Promise.all([...document.querySelectorAll('img')].map(async (img) => {
  await img.decode();
  const canvas = new OffscreenCanvas(300, 200), context = canvas.getContext('2d'), box = img.getBoundingClientRect();
  context.drawImage(img, 0, 0, 300, 200);
  const pixels = new Uint32Array(context.getImageData(0, 0, 300, 200).data.buffer);
  return [img.closest('figure').id, img.naturalWidth, box.width, box.height, new Set(pixels).size];
}))"""


@needs_browser
@pytest.mark.slow
def test_a_browser_shows_every_figure_and_fetches_nothing(folder, tmp_path):
    with browser.Page(CHROMIUM, str(tmp_path / "profile"), folder.report.as_uri()) as page:
        pictures = page.evaluate(PICTURES)
        assert {name for name, *_ in pictures} == FIGURES
        for name, natural, width, height, colours in pictures:
            assert min(natural, width, height) > 200, name
            assert colours > 20, name
        assert page.evaluate("document.scripts.length") == 0
        assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        outside = [url for url in page.requests() if not url.startswith("data:")]
        assert outside == [folder.report.as_uri()]
        assert page.complaints() == []
