"""A recorded run: everything that went into a scheduler, in a file that `simulate` repeats.

One line of JSON with the scheduler's settings, then the input stream as the scheduler keeps it
(`take_record`), with a digest of each plan. A replay that plans anything else names the plan.
"""

from __future__ import annotations

import json
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed._core import GroupSpec, Scheduler, SchedulerConfig
from tokenspeed.errors import ConfigError, reason_of
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b'{"tokenspeed_record": 1, '


def scheduler_config(settings: Mapping[str, Any]) -> SchedulerConfig:
    """Make the configuration of plain settings; `groups` are mappings with GroupSpec's fields."""
    groups = [GroupSpec(**group) for group in settings["groups"]]
    return SchedulerConfig(**{**settings, "groups": groups})


UNHEARD = {"record_events": False, "kv_events": False}
"""What a replay would only gather: nobody takes it, and no plan depends on it."""

PRIVATE = 0o600
"""A record holds the token ids of every prompt."""


class RecordWriter:
    """Appends a scheduler's input to a file, as long as it can. Thread: the scheduler's.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        head = MAGIC + json.dumps({"scheduler": settings}).encode()[1:] + b"\n"
        self._file = _open(path, os.O_TRUNC)
        weakref.finalize(self, os.close, self._file)
        self._path = path
        self._is_ended = False
        try:
            self._write(head)
        except OSError as error:
            raise ConfigError(
                f"record {path} cannot be written: {reason_of(error)}; make room"
            ) from error

    def append(self, scheduler: Scheduler) -> None:
        """Write what went into the scheduler since the last call; a full disk ends the record."""
        part = scheduler.take_record()
        if not part or self._is_ended:
            return
        try:
            self._write(part)
        except OSError as error:
            self._is_ended = True
            LOGGER.error("record %s ends here, serving goes on: %s", self._path, error)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]


def check_record(path: Path) -> None:
    """Check that a record can be written, and leave alone one that is there.

    Raises:
        ConfigError: it cannot.
    """
    os.close(_open(path))


def _open(path: Path, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | flags, PRIVATE)
    except OSError as error:
        raise ConfigError(
            f"record {path} cannot be written: {reason_of(error)}; "
            "name a file in a folder that exists"
        ) from error


@dataclass(frozen=True, slots=True)
class Record:
    """A recorded run as read from its file."""

    settings: Mapping[str, Any]
    stream: bytes

    def replay(self) -> tuple[int, dict[str, int]]:
        """Repeat it; returns the number of plans and the scheduler's counts at the end.

        Raises:
            ConfigError: the stream is damaged, or a plan differs from the recorded one.
        """
        try:
            scheduler = Scheduler(scheduler_config({**self.settings, **UNHEARD}))
            return scheduler.replay(self.stream), dict(scheduler.stats())
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"the record cannot be repeated: {error}; it is whole and of this version only "
                "when every plan comes out as recorded"
            ) from error


def read_record(path: Path) -> Record | None:
    """Read a recorded run; None when the file is something else.

    Raises:
        ConfigError: it begins like a record and its head is damaged.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
        file.seek(0)
        try:
            settings = json.loads(file.readline())["scheduler"]
        except (ValueError, KeyError, RecursionError) as error:
            raise ConfigError(
                f"record {path} has a damaged head: {error!r}; record again"
            ) from error
        return Record(settings, file.read())
