"""`tokenspeed serve [MODEL]`: an OpenAI-compatible server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.cli.settings import add_model, add_settings, read_settings
from tokenspeed.config.schema import ServeConfig

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP (OpenAI API)",
        description="Serve a model at http://HOST:PORT/v1. Every option is also an environment "
        "variable TOKENSPEED_<OPTION> and a key of the --config file.",
    )
    add_model(parser)
    add_settings(parser, ServeConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the server until it is stopped."""
    config = read_settings(args, ServeConfig)
    from tokenspeed.server.launch import serve

    return serve(config)
