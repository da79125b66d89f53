"""The store of finished jobs: what is saved is found again, and damaged files are named."""

import io

from rich.console import Console

from train.common.interrupts import StoppedBySignal
from train.run.groups.store import Store, until_interrupted


class Squares(Store):
    def key(self, job):
        return f"square-{job}"

    def encode(self, job, result):
        return {"of": job, "is": result}

    def decode(self, job, found):
        if found["of"] != job:
            raise ValueError("it is of another number")
        return found["is"]


def test_each_result_is_saved_as_it_arrives(tmp_path):
    def made():
        yield 2, 4
        assert Squares(tmp_path).known([2, 3]) == {2: 4}
        yield 3, 9

    store, known = Squares(tmp_path), {1: 1}
    assert list(store.keep(made(), known)) == [(2, 4), (3, 9)]
    assert known == {1: 1, 2: 4, 3: 9}
    assert store.known([1, 2, 3]) == {2: 4, 3: 9}


def test_an_interruption_says_how_to_resume():
    def work():
        raise StoppedBySignal(15)

    console = Console(file=io.StringIO(), width=200)
    assert until_interrupted(work, console, lambda: "; resume so") == 143
    assert console.file.getvalue() == "stopped by SIGTERM; resume so\n"
    assert until_interrupted(lambda: None, console, str) == 0
