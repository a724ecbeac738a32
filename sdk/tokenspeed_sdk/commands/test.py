"""`tokenspeed plugins test ID`: the conformance kit with a report in text, JSON and Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.checkpoint.model_path import existing_model
from tokenspeed.errors import reason_of
from tokenspeed_sdk import ConfigError
from tokenspeed_sdk.conformance import LEVELS, run_conformance
from tokenspeed_sdk.conformance.subject import Subject

if TYPE_CHECKING:
    import argparse

    from tokenspeed_sdk.conformance import Report


class Test:
    """Command of slot `cli`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("id", metavar="ID", help="an installed plugin")
        parser.add_argument(
            "--level", choices=LEVELS, default=LEVELS[-1], help="highest level (default: C3)"
        )
        parser.add_argument("--report", metavar="FOLDER", help="write report.json and report.md")
        parser.add_argument("--waivers", metavar="FILE", help="failures accepted for now")
        parser.add_argument(
            "--checkpoint",
            action="append",
            default=[],
            metavar="FOLDER",
            help="a small checkpoint of a model that it offers, to be run at C2; repeatable",
        )
        parser.add_argument("--only", default="", metavar="TEXT", help="checks whose id has it")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Run the kit; 1 if a check fails.

        Raises:
            PluginError: no such plugin is installed.
            ConfigError: no check is asked for, or a file of waivers or reports cannot be used.
        """
        Subject.find(args.id)
        report = run_conformance(
            args.id,
            level=args.level,
            waivers=Path(args.waivers) if args.waivers else None,
            only=args.only,
            checkpoints=[existing_model(folder) for folder in args.checkpoint],
            quiet=args.json,
        )
        if args.report:
            _write(report, Path(args.report))
        print(report.to_json() if args.json else report.text())
        return 0 if report.ok else 1


def _write(report: Report, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
        (folder / "report.md").write_text(report.to_markdown(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"report {folder} cannot be written: {reason_of(error)}; name another folder"
        ) from error
