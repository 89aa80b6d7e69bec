"""Filesystem broker: messages are files in a folder, for machines without RabbitMQ.

It replaces the file handling of kombu's transport, because there

* readers take messages that are still being written, and the worker dies of the half;
* every poll lists the messages of all queues together;
* the events for a Flower that was killed are kept for good, one file each;
* two processes that start at the same time can overwrite each other's bindings.

Not guaranteed: a message that a reader took before it was killed is lost; the reaper finds its job.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any
from urllib.parse import quote

from kombu.exceptions import ChannelError
from kombu.transport import filesystem as kombu_filesystem
from kombu.utils.json import dumps, loads

from models.pools import is_job_queue

#: A queue without jobs that was not read for so long gets no more messages.
SILENT_SECONDS = 30.0
#: A reader touches its marker this often.
NOTE_SECONDS = 5.0
#: Touched by the readers of a queue. Hidden files are no messages.
READER = ".reader"


class Channel(kombu_filesystem.Channel):
    """Queues as folders, messages as files that are renamed into them."""

    def _folder(self, queue: str) -> Path:
        return Path(self.data_folder_in) / quote(queue, safe="@")

    def _put(  # type: ignore[override]  # kombu's own classes disagree on the name
        self, queue: str, payload: Any, **_: Any
    ) -> None:
        if not is_job_queue(queue) and not self._is_read(queue):
            self._purge(queue)
            return
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex}"
        write_whole(self._folder(queue) / name, dumps(payload))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        folder = self._folder(queue)
        self._note_reader(folder)
        for name in messages(folder):
            taken = folder / f".{name}"
            try:
                os.rename(folder / name, taken)
            except FileNotFoundError:
                continue  # another reader was faster
            text = taken.read_text()
            taken.unlink()
            return loads(text)
        raise Empty

    def _size(self, queue: str) -> int:
        return len(messages(self._folder(queue)))

    def _purge(self, queue: str) -> int:
        names = messages(self._folder(queue))
        for name in names:
            (self._folder(queue) / name).unlink(missing_ok=True)
        return len(names)

    def _delete(self, queue: str, *binding: str, **_: Any) -> None:
        exchange, routing_key, pattern = binding[:3]
        self._purge(queue)
        self._binding(exchange, routing_key, pattern, queue).unlink(missing_ok=True)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        self._note_reader(self._folder(queue))
        binding = self._binding(exchange, routing_key, pattern, queue)
        if not binding.exists():
            write_whole(binding, json.dumps([routing_key or "", pattern or "", queue]))

    def get_table(self, exchange: str) -> list[Any]:
        """Every binding of the exchange."""
        folder = self._exchange_folder(exchange)
        table = []
        for name in messages(folder):
            with suppress(FileNotFoundError):  # unbound meanwhile
                entry = json.loads((folder / name).read_text())
                table.append(kombu_filesystem.exchange_queue_t(*entry))
        return table

    def _exchange_folder(self, exchange: str) -> Path:
        file: Path = self._exchange_file(exchange)  # type: ignore[no-untyped-call]  # kombu's
        return file.with_suffix(".bindings")

    def _binding(self, exchange: str, routing_key: str, pattern: str, queue: str) -> Path:
        name = hashlib.sha256(json.dumps([routing_key or "", pattern or "", queue]).encode())
        return self._exchange_folder(exchange) / name.hexdigest()[:32]

    def _note_reader(self, folder: Path) -> None:
        noted = self.__dict__.setdefault("_noted", {})
        now = time.monotonic()
        if now - noted.get(folder, -NOTE_SECONDS) < NOTE_SECONDS:
            return
        noted[folder] = now
        folder.mkdir(parents=True, exist_ok=True)
        (folder / READER).touch()

    def _is_read(self, queue: str) -> bool:
        with suppress(FileNotFoundError):
            return time.time() - (self._folder(queue) / READER).stat().st_mtime < SILENT_SECONDS
        return False


class Transport(kombu_filesystem.Transport):
    """Registered for ``filesystem://`` by ``celeryconfig``."""

    Channel = Channel


def messages(folder: Path) -> list[str]:
    """Names of the complete files of a folder, oldest first."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return []


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            draft.write_text(text)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text)
        draft.rename(path)
    except OSError as error:
        raise ChannelError(f"cannot write {path}: {error}") from error
