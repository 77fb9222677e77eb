from __future__ import annotations

import threading

import pytest

from ckptstore.state.errands import Errands


def test_what_it_gives_and_what_it_raises():
    errands = Errands()
    assert errands.run(lambda: threading.current_thread().name) == "ckptstore-errands"
    with pytest.raises(KeyError, match="odd"):
        errands.run(lambda: dict[str, int]()["odd"])
    errands.close()


def test_after_its_end_who_asks_does_it():
    errands = Errands()
    errands.close()
    assert errands.run(threading.current_thread) is threading.current_thread()


def test_other_threads_do_it_themselves():
    errands = Errands()
    found: list[threading.Thread] = []
    other = threading.Thread(target=lambda: found.append(errands.run_if_main(threading.current_thread, lambda: None)))
    other.start()
    other.join()
    assert found == [other]
    assert errands.run_if_main(threading.current_thread, lambda: None) is not threading.current_thread()
    errands.close()


def test_who_does_it_after_its_end_may_be_interrupted():
    errands = Errands()
    errands.close()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        errands.run(interrupted, lambda: None)
