import dataclasses
import os
from pathlib import Path

import pytest

from train import cli
from train.common.files import in_words, write_whole
from train.config.config import Config
from train.run.folder import RunFolder


@pytest.mark.parametrize(
    "command",
    [[], ["sweep"], ["reproduce", "dana_accuracy"], ["bench", "arrivals"], ["race"]],
    ids=lambda c: " ".join(c),
)
def test_the_address_of_a_bucket_is_refused(command, tmp_path, monkeypatch, capsys):
    """It would be the name of a folder here."""
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "--out", "gs://bucket/run"]) == 2
    told = capsys.readouterr().err
    assert "--out is the address gs:/" in told
    assert command or "gs://bucket/run" in told  # As typed.
    assert not any(tmp_path.iterdir())


def test_a_folder_whose_name_looks_like_an_address_is_taken(tmp_path, monkeypatch):
    """Earlier versions made such folders."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "run").mkdir(parents=True)
    assert RunFolder.fresh(dataclasses.replace(Config(), out="s3:/run")).path == Path("s3:/run")


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "config.json"
    for text in ("{}\n", "τ" * 10_000):
        write_whole(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert os.listdir(tmp_path) == ["config.json"]


def test_what_was_there_stays_until_the_new_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_whole(path, "before")

    def killed(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["config.json"]


def test_bytes_and_parts_are_written_as_well(tmp_path):
    write_whole(tmp_path / "picture", b"\x89PNG")
    write_whole(tmp_path / "parts", (f"{number}\n" for number in range(3)))
    assert (tmp_path / "picture").read_bytes() == b"\x89PNG"
    assert (tmp_path / "parts").read_text() == "0\n1\n2\n"


def test_a_link_is_followed(tmp_path):
    (tmp_path / "report.html").symlink_to(tmp_path / "target")
    for text in ("first", "second"):
        write_whole(tmp_path / "report.html", text)
        assert (tmp_path / "target").read_text() == text
    assert (tmp_path / "report.html").is_symlink()


def test_two_processes_that_write_one_file_do_not_disturb_each_other(tmp_path):
    """The second one begins and ends while the first one writes."""
    path = tmp_path / "report.html"

    def parts():
        yield "a first "
        write_whole(path, "a second")
        assert path.read_text() == "a second"
        yield "part"

    write_whole(path, parts())
    assert path.read_text() == "a first part"
    assert os.listdir(tmp_path) == ["report.html"]


def test_an_error_names_the_file_and_not_its_unfinished_one(tmp_path):
    with pytest.raises(OSError, match="No such file") as raised:
        write_whole(tmp_path / "nothing" / "page", "")
    assert in_words(raised.value) == f"{tmp_path / 'nothing' / 'page'}: No such file or directory"


def test_a_folder_in_its_place_is_named(tmp_path):
    (tmp_path / "replay.json").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        write_whole(tmp_path / "replay.json", "")
    assert in_words(raised.value) == f"{tmp_path / 'replay.json'}: Is a directory"
    assert os.listdir(tmp_path) == ["replay.json"]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, ["one ", "line"])
        assert os.read(reader, 100) == b"one line"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_name_of_a_file_that_is_no_text_can_be_written(tmp_path):
    """`report` failed in a folder whose name is not UTF-8, or in a locale that is not."""
    write_whole(tmp_path / "page", f"runs/{os.fsdecode(bytes([0xFF]))}")
    assert (tmp_path / "page").read_bytes() == b"runs/\xff"
