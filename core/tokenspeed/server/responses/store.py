"""Responses that clients may go on from: files in the server's folder, within a budget of bytes.

A response is stored with its own input only; what it went on from is found by its id, so that a
conversation of n turns takes n records. All API processes read each other's files; each one evicts
its own, the least recently used first. Gone when the server ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgspec

from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten

MAX_RECORDS = 65_536
"""Of one process: what it knows of each takes about 300 bytes of its memory."""
MAX_CHAIN = 16_384
"""Responses that one may go on from, one after the other."""
_ID = re.compile(r"resp_[0-9a-f]{24}")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One stored response.

    Args:
        owner: who may read it: the owner of sessions, as in Terms.
        previous: id of the response that it went on from; "": none.
        given: items of its own input.
        body: the response object.
    """

    owner: str
    previous: str
    given: list[Any]
    body: dict[str, Any]


class ResponseStore:
    """The stored responses of a server, as one API process sees them.

    Args:
        folder: shared by the API processes; made when it is missing.
        max_bytes: of the files of this process.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._shared = folder
        self._own = folder / str(os.getpid())
        self._own.mkdir(parents=True, exist_ok=True)
        _remove_dead(folder)
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self.num_bytes = 0
        self.num_evicted = 0

    def put(self, record: Record) -> None:
        """Store a response; one that is larger than the budget is evicted at once."""
        response_id = record.body["id"]
        path = self._own / response_id
        path.write_bytes(msgspec.json.encode(record))
        found = path.stat()
        self._sizes[response_id] = (found.st_size, found.st_mtime)
        self.num_bytes += found.st_size
        while self.num_bytes > self._max_bytes or len(self._sizes) > MAX_RECORDS:
            self._evict_one()

    def get(self, response_id: str, owner: str) -> Record:
        """Return a stored response; it is used now, so it is evicted later.

        Raises:
            RequestError: it is not there, any more or for this owner.
        """
        record = self.find(response_id, owner)
        if record is None:
            raise _not_found(response_id)
        return record

    def find(self, response_id: str, owner: str) -> Record | None:
        """Return a stored response as `get` does; None: it is not there."""
        path = self._path(response_id)
        if path is not None:
            with contextlib.suppress(OSError):
                record = msgspec.json.decode(path.read_bytes(), type=Record)
                if record.owner == owner:
                    os.utime(path)
                    return record
        return None

    def delete(self, response_id: str, owner: str) -> None:
        """Forget a response.

        Raises:
            RequestError: it is not there, any more or for this owner.
        """
        self.get(response_id, owner)
        path = self._path(response_id)
        if path is not None:
            path.unlink(missing_ok=True)
        self._forget(response_id)

    def chain(self, response_id: str, owner: str) -> list[Any]:
        """Return the items of a response and of all that it went on from, oldest first.

        Raises:
            RequestError: one of them is not there, any more or for this owner; names it.
        """
        records: list[Record] = []
        while response_id and len(records) < MAX_CHAIN:
            records.append(self.get(response_id, owner))
            response_id = records[-1].previous
        items: list[Any] = []
        for record in reversed(records):
            items += record.given
            items += record.body["output"]
        return items

    def _path(self, response_id: str) -> Path | None:
        if not _ID.fullmatch(response_id):
            return None
        own = self._own / response_id
        if own.exists():
            return own
        return next(self._shared.glob(f"*/{response_id}"), None)

    def _evict_one(self) -> None:
        """Evict the oldest, unless it was read since: then it is one of the youngest again."""
        response_id, (size, seen_s) = next(iter(self._sizes.items()))
        path = self._own / response_id
        with contextlib.suppress(FileNotFoundError):
            used_s = path.stat().st_mtime
            if used_s > seen_s:
                self._sizes[response_id] = (size, used_s)
                self._sizes.move_to_end(response_id)
                return
            path.unlink()
        self._forget(response_id)
        self.num_evicted += 1

    def _forget(self, response_id: str) -> None:
        size, _ = self._sizes.pop(response_id, (0, 0.0))
        self.num_bytes -= size


def _remove_dead(folder: Path) -> None:
    """Remove what processes left behind that do not live any more: nobody bounds it."""
    for own in folder.iterdir():
        try:
            os.kill(int(own.name), 0)
        except ProcessLookupError:
            shutil.rmtree(own, ignore_errors=True)


def _not_found(response_id: str) -> RequestError:
    return RequestError(
        f"response {shorten(response_id)} is not stored here: it was never stored, was deleted, or "
        "had to make room (--response-store-mib); send the conversation itself as input",
        param="previous_response_id",
        code="response_not_found",
    )
