"""`tokenspeed plugins new NAME --slots ...`: a plugin that works, to be replaced part by part."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed_sdk.scaffold import ABOUT, MODEL_ALONE, TEMPLATES, Scaffold, write

if TYPE_CHECKING:
    import argparse


class New:
    """Command of slot `cli`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("name", metavar="NAME", help="plugin id, such as acme")
        parser.add_argument(
            "--slots",
            required=True,
            metavar="SLOT,...",
            help=f"what it fills: of {', '.join(TEMPLATES)}; all: every stable one",
        )
        parser.add_argument("--native", action="store_true", help="with a kernel in C++")
        parser.add_argument(
            "--folder", metavar="FOLDER", help="new or empty folder; absent: tokenspeed-NAME"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Render the templates and say what comes next."""
        names = [name.strip() for name in args.slots.split(",") if name.strip()]
        slots = tuple(ABOUT) if names == ["all"] else tuple(dict.fromkeys(names))
        scaffold = Scaffold(args.name, slots, native=args.native)
        folder = Path(args.folder or f"tokenspeed-{args.name}")
        files = write(scaffold, folder)
        print(f"{len(files)} files in {folder}; next, in the environment of tokenspeed:")
        options = "--no-index --no-deps --no-build-isolation"
        print(f"  python -m pip install {options} -e {shlex.quote(str(folder))}")
        print(f"  tokenspeed plugins test {args.name}")
        opt_in = f" --allow-experimental {args.name}" if scaffold.is_experimental else ""
        if slots == MODEL_ALONE:
            print(f"  tokenspeed models list --plugins {args.name}")
        else:
            print(f"  tokenspeed serve --plugins {args.name}{opt_in}")
        return 0
