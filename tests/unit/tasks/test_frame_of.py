"""Looking at a thread's stack, whatever the garbage collector would do meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from app.stack.spec import PROJECT_ROOT
from tasks.process import frame_of

#: Threads end all the time. Garbage that gives up the GIL is collected a little later in each
#: round, so that in one of them the collection begins while the frames are being looked up.
ROUNDS = """
import gc, threading, time
from tasks.process import frame_of

class Garbage:
    def __init__(self):
        self.cycle = self
    def __del__(self):
        time.sleep(0.02)

def end_threads():
    while True:
        threading.Thread(target=time.sleep, args=(0.0,)).start()
        time.sleep(0.001)

threading.Thread(target=end_threads, daemon=True).start()
for _ in range(5):
    threading.Thread(target=time.sleep, args=(60.0,), daemon=True).start()
for later in range(1, 30):
    gc.collect()
    Garbage()
    gc.set_threshold(gc.get_count()[0] + later)
    assert frame_of(threading.get_ident()) is not None
    gc.set_threshold(700)
"""


def test_collected_garbage_does_not_stop_the_process() -> None:
    subprocess.run([sys.executable, "-c", ROUNDS], cwd=PROJECT_ROOT, timeout=60, check=True)


@pytest.mark.parametrize("collecting", [True, False])
def test_collection_is_as_it_was(collecting: bool) -> None:
    (gc.enable if collecting else gc.disable)()
    try:
        assert frame_of(threading.get_ident()) is not None
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


def test_thread_that_has_ended_has_no_frame() -> None:
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    assert ended.ident is not None
    assert frame_of(ended.ident) is None
