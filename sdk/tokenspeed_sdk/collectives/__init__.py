"""What communicators are written with: checked calls, a place to meet, a line that names who fails.

`RankCommunicator` checks arguments and gives every call its text; `Line` finds the rank that died,
hangs or calls something else; `ProcessCommunicator` joins the two for ranks that are processes;
`MovingCommunicator` computes every collective for a transport that only moves bytes.
"""

from __future__ import annotations

from tokenspeed_sdk.collectives.base import REDUCTIONS, RankCommunicator, reduced
from tokenspeed_sdk.collectives.line import Line
from tokenspeed_sdk.collectives.meeting import loopback_only, open_store, serve_store
from tokenspeed_sdk.collectives.moving import MovingCommunicator, bytes_of
from tokenspeed_sdk.collectives.process_communicator import ProcessCommunicator, never_destroyed

__all__ = [
    "REDUCTIONS",
    "Line",
    "MovingCommunicator",
    "ProcessCommunicator",
    "RankCommunicator",
    "bytes_of",
    "loopback_only",
    "never_destroyed",
    "open_store",
    "reduced",
    "serve_store",
]
