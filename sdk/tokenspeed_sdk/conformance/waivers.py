"""Waivers: failures that an author accepts for now, each with a reason and a last day.

A TOML file of tables:

    [[waivers]]
    check = "C2/kernel[norm.rms/*]"
    reason = "bfloat16 rounds twice until driver 5.2"
    expires = 2027-03-31
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import reason_of
from tokenspeed.plugins.toml_file import read_toml
from tokenspeed_sdk import ConfigError
from tokenspeed_sdk.conformance.report import FAILED, WAIVED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tokenspeed_sdk.conformance.report import CheckResult, Report

MAX_DAYS = 366
"""A waiver lasts a year at most: what is accepted for longer is a missing capability."""
_KEYS = {"check", "reason", "expires"}


@dataclass(frozen=True, slots=True)
class Waiver:
    """One accepted failure.

    Args:
        check: id of a check; "*" stands for any text.
        reason: why it is accepted.
        expires: last day in force, ISO date.
    """

    check: str
    reason: str
    expires: str

    def covers(self, check: CheckResult) -> bool:
        """Say whether the check is meant."""
        pattern = ".*".join(re.escape(part) for part in self.check.split("*"))
        return re.fullmatch(pattern, check.id) is not None


def read_waivers(path: Path, today: datetime.date) -> tuple[Waiver, ...]:
    """Read a file of waivers.

    Raises:
        ConfigError: unreadable, not TOML, a missing or unknown key, an empty reason, or a last day
            more than a year away.
    """
    try:
        data = read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"waivers {path} cannot be read: {reason_of(error)}; "
            "a TOML file with [[waivers]] is needed"
        ) from error
    tables = data.get("waivers")
    if set(data) != {"waivers"} or not isinstance(tables, list):
        raise ConfigError(f"waivers {path}: keys {sorted(data)}; only [[waivers]] is allowed")
    return tuple(_waiver(path, table, today) for table in tables)


def _waiver(path: Path, table: Any, today: datetime.date) -> Waiver:
    where = f"waivers {path}"
    if not isinstance(table, dict) or set(table) != _KEYS:
        keys = sorted(table) if isinstance(table, dict) else table
        raise ConfigError(f"{where}: a waiver has keys {keys}; {sorted(_KEYS)} are needed")
    check, reason, expires = table["check"], table["reason"], table["expires"]
    if not isinstance(check, str) or not re.match(r"C[0-3*]", check):
        raise ConfigError(f"{where}: check is {check!r}; a check's id such as C1/... is needed")
    if not isinstance(reason, str) or len(reason.split()) < 3:
        raise ConfigError(f"{where}: the reason of {check} is {reason!r}; say why in a sentence")
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        raise ConfigError(f"{where}: expires of {check} is {expires!r}; a date is needed")
    if (expires - today).days > MAX_DAYS:
        raise ConfigError(
            f"{where}: the waiver of {check} expires on {expires}; {MAX_DAYS} days from today are "
            "allowed; choose an earlier day"
        )
    return Waiver(check, reason, expires.isoformat())


def with_waivers(report: Report, waivers: Iterable[Waiver], today: str) -> Report:
    """Turn failures that a waiver in force covers into waived ones.

    Args:
        today: ISO date; a waiver is in force up to and including its `expires`.
    Returns:
        The report with a problem for each waiver that has expired or that no failed check needs.
    """
    checks = list(report.checks)
    problems = list(report.problems)
    for waiver in waivers:
        matching = [
            i for i, check in enumerate(checks) if check.outcome == FAILED and waiver.covers(check)
        ]
        if waiver.expires < today:
            problems.append(
                f"the waiver of {waiver.check} expired on {waiver.expires}: {waiver.reason}; "
                "repair what it covers, or renew it with a reason"
            )
            continue
        if not matching and any(waiver.covers(check) for check in checks):
            problems.append(f"the waiver of {waiver.check} is not needed any more; remove it")
        for i in matching:
            message = f"waived until {waiver.expires}: {waiver.reason}; {checks[i].message}"
            checks[i] = replace(checks[i], outcome=WAIVED, message=message)
    return replace(report, checks=tuple(checks), problems=tuple(problems))
