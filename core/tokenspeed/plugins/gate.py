"""The gate before anything of a plugin runs: trust, the operator's rules, lock file, compatibility.

One Gate is made for a start and asked about each candidate, in this order; the first no counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.plugins.commands import check_commands
from tokenspeed.plugins.compatibility import check_compatible, check_opted_in, check_wheel_tags
from tokenspeed.plugins.lock_file import LockedPlugin, check_locked, own_wheels, read_lock
from tokenspeed.plugins.operator_file import OperatorRules, read_operator_file
from tokenspeed.plugins.trust import check_reserved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.plugins.discovery import FoundPlugin


@dataclass(frozen=True, slots=True)
class Gate:
    """What one start allows.

    Args:
        rules: of the machine's operator.
        opted_in: ids of third parties' plugins that may fill experimental slots.
        locks: lock files in force, by path: the operator's and the user's.
    """

    rules: OperatorRules
    opted_in: frozenset[str] = frozenset()
    locks: Mapping[str, Mapping[str, LockedPlugin]] = field(default_factory=dict)

    def check(self, found: FoundPlugin) -> None:
        """Refuse a plugin that may not or cannot run here; imports nothing.

        Raises:
            PluginError: not trusted (exit 3), broken or incompatible (exit 4).
        """
        check_reserved(found)
        self.rules.check_allowed(found.id)
        if found.problem or found.manifest is None:
            raise PluginError(found.problem, id=found.problem_id)
        for path, locked in self.locks.items():
            check_locked(found, locked, path)
        check_opted_in(found, self.opted_in if self.rules.experimental else ())
        check_compatible(found.manifest)
        check_commands(found)
        check_wheel_tags(found)


def open_gate(*, lock: str = "", experimental: tuple[str, ...] = ()) -> Gate:
    """Read the rules of this machine and the lock files in force.

    Raises:
        PluginError: the operator's file or a lock file cannot be read or understood, or the
            core's own wheels are not what a lock file holds.
    """
    rules = read_operator_file()
    locks = {path: read_lock(path) for path in (rules.lock, lock) if path}
    for path, locked in locks.items():
        for found in own_wheels():
            check_locked(found, locked, path)
    return Gate(rules, frozenset(experimental), locks)
