"""The conformance kit: what a plugin must do, as checks that run against any plugin.

Levels build on each other: C0 packaging, C1 contract, C2 numerics, C3 serving. `tokenspeed plugins
test ID` and `run_conformance` run them in a child process and return one report.
"""

from __future__ import annotations

from tokenspeed_sdk.conformance.report import CheckResult, Report
from tokenspeed_sdk.conformance.runner import LEVELS, run_conformance
from tokenspeed_sdk.conformance.waivers import Waiver, read_waivers

__all__ = ["LEVELS", "CheckResult", "Report", "Waiver", "read_waivers", "run_conformance"]
