import os
import threading

import pytest

from gemjax.telemetry.locks import lock, unlock


def test_a_file_or_folder_has_one_holder(tmp_path):
    for path, flags in ((tmp_path / "file", os.O_RDWR | os.O_CREAT), (tmp_path, os.O_RDONLY)):
        held, refused = lock(path, flags), []

        def other(path=path, flags=flags, refused=refused):
            try:
                unlock(lock(path, flags))
            except BlockingIOError:
                refused.append(path)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert refused == [path]
        unlock(held)
        again = lock(path, flags)
        unlock(held)  # Ends nothing else.
        with pytest.raises(BlockingIOError):
            lock(path, flags)
        unlock(again)
