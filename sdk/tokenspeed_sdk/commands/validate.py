"""`tokenspeed plugins validate [FOLDER]`: checks of a plugin's source, without installing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed_sdk.validation import opt_ins, validate_folder

if TYPE_CHECKING:
    import argparse


class Validate:
    """Command of slot `cli`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument(
            "folder", nargs="?", default=".", metavar="FOLDER", help="the plugin's project folder"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print each problem; 1 if there is one."""
        problems = validate_folder(Path(args.folder))
        notes = [] if problems else opt_ins(Path(args.folder))
        if args.json:
            print(json.dumps([{"id": item.id, "problem": item.message} for item in problems]))
        else:
            for item in problems:
                print(f"{item.message} [{item.id}]")
            for note in notes:
                print(f"note: {note}")
            print(f"{args.folder}: {len(problems) or 'no'} problem{'s'[: len(problems) != 1]}")
        return 1 if problems else 0
