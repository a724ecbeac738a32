"""What a run of the kit found: as data, as JSON, as Markdown and as text for a terminal."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
PASSED, FAILED, SKIPPED, WAIVED = "passed", "failed", "skipped", "waived"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one subject.

    Args:
        id: level and name, such as "C1/every-offer-constructs[attention/paged]"; stable.
        outcome: passed, failed, skipped (it does not apply here) or waived (failed, and a waiver
            in force says why that is accepted).
        message: why it failed or was skipped; of a waived one also the waiver's reason.
        seconds: what it took.
        evidence: figures that the check took, such as tokens per second.
    """

    id: str
    outcome: str
    message: str = ""
    seconds: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """C0 to C3."""
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Report:
    """A run of the kit.

    Args:
        plugin: id, version, distribution and device facts of the subject.
        engine: version of TokenSpeed and of the plugin API.
        level: the highest level that was asked for.
        checks: in the order in which they ran.
        problems: what is wrong with the run itself: a waiver that expired or matches nothing, a
            kit that could not run.
    """

    plugin: Mapping[str, Any]
    engine: Mapping[str, str]
    level: str
    checks: tuple[CheckResult, ...]
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Something passed, nothing failed, and the run itself is sound."""
        counts = self.counts()
        return counts[PASSED] > 0 and counts[FAILED] == 0 and not self.problems

    def counts(self) -> Counter[str]:
        """Return outcome -> number of checks."""
        return Counter(check.outcome for check in self.checks)

    def to_json(self) -> str:
        """Return the whole report as JSON."""
        data = {"schema": SCHEMA, "ok": self.ok, **asdict(self)}
        return json.dumps(data, indent=2, default=str) + "\n"

    def to_markdown(self) -> str:
        """Return the report as a page: a verdict, a table of levels, and what did not pass."""
        name = f"{self.plugin.get('id')} {self.plugin.get('version', '')}".strip()
        lines = [f"# Conformance of {name}: {'passed' if self.ok else 'FAILED'}", ""]
        lines += [f"TokenSpeed {self.engine.get('version')}, plugin API {self.engine.get('api')}."]
        lines += ["", "| level | passed | failed | waived | skipped |", "|---|---|---|---|---|"]
        for level in sorted({check.level for check in self.checks}):
            counts = Counter(check.outcome for check in self.checks if check.level == level)
            cells = (counts[name] for name in (PASSED, FAILED, WAIVED, SKIPPED))
            lines.append(f"| {level} | " + " | ".join(map(str, cells)) + " |")
        for check in self.checks:
            if check.evidence:
                figures = ", ".join(f"{name} {value}" for name, value in check.evidence.items())
                lines += ["", f"{check.id}: {figures}"]
        lines += ["", *self._findings("- **{}** {}: {}", (FAILED, WAIVED, SKIPPED))]
        return "\n".join(lines) + "\n"

    def text(self) -> str:
        """Return what failed or was waived, a line each, and the totals."""
        counts = self.counts()
        totals = ", ".join(f"{counts[name]} {name}" for name in (PASSED, FAILED, WAIVED, SKIPPED))
        return "\n".join([*self._findings("{} {}: {}", (FAILED, WAIVED)), totals])

    def _findings(self, form: str, outcomes: tuple[str, ...]) -> list[str]:
        lines = [form.format("problem", "run", problem) for problem in self.problems]
        for check in self.checks:
            if check.outcome in outcomes:
                lines.append(form.format(check.outcome, check.id, " ".join(check.message.split())))
        return lines
