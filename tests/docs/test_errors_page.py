"""The page of errors has a section for every diagnostic, and nothing else."""

from __future__ import annotations

import re
import runpy

from tests.support.source_tree import ROOT

from tokenspeed.diagnostics import DIAGNOSTICS, EXIT_CODES, exit_code_of

PAGE = ROOT / "docs" / "plugins" / "errors.md"


def test_the_page_is_what_the_generator_writes() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_errors.py"))
    assert PAGE.read_text(encoding="utf-8") == generator["page"](), (
        "run python docs/generate_errors.py"
    )


def test_every_diagnostic_has_one_section_and_a_documented_exit_code() -> None:
    sections = re.findall(r"^## (\S+-\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == list(DIAGNOSTICS)
    assert {item.exit_code for item in DIAGNOSTICS.values()} <= set(EXIT_CODES)


def test_an_id_that_a_plugin_invented_counts_as_failed() -> None:
    assert exit_code_of("acme-is-asleep") == 4
