import os

import pytest

from train.files import write_whole


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
