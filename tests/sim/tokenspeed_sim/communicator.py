"""Collectives between the ranks of a group."""

from __future__ import annotations

from tokenspeed_reference.communicator import ThreadCommunicator


class Communicator(ThreadCommunicator):
    """Communicator; the methods that are not here are the reference's, whose ranks are threads.

    Replace first: `all_reduce`, then `all_gather`. A rank that leaves must break the group with an
    error on every other rank; none may hang.
    """
