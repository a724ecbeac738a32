"""`tokenspeed models explain MODEL`: how a model lies over ranks, from config.json alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.plugin_output import plugins_print_to_stderr
from tokenspeed.cli.table import print_table
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from tokenspeed.placement.explain import Explanation, Row, Section

DEGREES = {
    "tp": "ranks over which attention heads, and the vocabulary, are spread",
    "dp": "partitions of requests, each with its own cache",
    "cp": "ranks over which the query tokens of a step are spread",
    "pp": "pipeline stages",
    "ep": "groups of experts; their features are spread over the other ranks of a stage",
}
HEADS = ("WHAT", "NAME", "TAKES", "GIVES", "OVER", "SENT", "TIME")
CONFIG_FILE = "config.json"
STEP_TOKENS = 256


def fill_explain(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.description = (
        "Compile the model's layers for these ranks and print every node with its layouts, every "
        "collective with its group, bytes and estimated time, and what a rank holds. Needs no "
        "weights and no device."
    )
    parser.add_argument("model", metavar="MODEL", help="a model folder, or a config.json")
    for name, text in DEGREES.items():
        parser.add_argument(f"--{name}", type=int, default=1, metavar="N", help=text)
    parser.add_argument(
        "--dense-tp", type=int, default=0, metavar="N",
        help="ranks over which features of dense MLPs are spread; absent: as --tp",
    )  # fmt: skip
    parser.add_argument(
        "--tokens",
        type=int,
        default=STEP_TOKENS,
        metavar="N",
        help="tokens of a step, all ranks together, 256 if absent",
    )
    parser.add_argument(
        "--plugins", default="", metavar="IDS", help="also load these plugins, comma separated"
    )
    parser.add_argument(
        "--model-module", default="", metavar="MODULES", help="and these model files of your own"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain.

    Raises:
        ConfigError: the model's config, or a degree, is wrong.
        PlacementError: an annotation is wrong, or the ranks do not divide the model.
    """
    from tokenspeed.models.registry import architecture_of

    config = _read_config(Path(args.model))
    explanation = _explained(args, config)
    if args.json:
        print(
            json.dumps({"architecture": architecture_of(config), **asdict(explanation)}, indent=2)
        )
        return 0
    print(f"model    {architecture_of(config)} ({args.model})")
    _print(explanation)
    return 0


def _read_config(path: Path) -> Mapping[str, Any]:
    from tokenspeed.checkpoint.json_file import read_json_object

    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"no model is at {path}: {file} is no file; give a folder with a {CONFIG_FILE}, or the "
            "file itself"
        )
    return read_json_object(file)


def _explained(args: argparse.Namespace, config: Mapping[str, Any]) -> Explanation:
    from tokenspeed.contracts.model import expert_groups_of
    from tokenspeed.models.failures import model_errors
    from tokenspeed.models.fields import count
    from tokenspeed.models.modules import register_model_modules
    from tokenspeed.models.registry import resolve_architecture
    from tokenspeed.placement.cost import CostModel
    from tokenspeed.placement.explain import explain
    from tokenspeed.placement.fitting import TRIED, check_experts
    from tokenspeed.placement.mesh import Degrees, build_mesh
    from tokenspeed.placement.trace import MAX_CONTEXT_TOKENS, trace
    from tokenspeed.placement.vocabulary import padded_config, roomy_config
    from tokenspeed.plugins.manager import load_plugins

    if args.tokens < 1:
        raise ConfigError(f"--tokens is {args.tokens}; a step has 1 token at least; give a number")
    names = (*DEGREES, "dense_tp")
    mesh = build_mesh(Degrees(**{name: getattr(args, name) for name in names}))
    requested = _names(args.plugins)
    with plugins_print_to_stderr():
        registry = load_plugins(requested, role="cli", experimental=requested)
        register_model_modules(registry, _names(args.model_module))
        model_class = resolve_architecture(registry, config)
    with model_errors(model_class, "it declared its cache and experts"):
        groups = model_class.cache_groups(config)
        experts = expert_groups_of(model_class, config)
    check_experts(mesh.degrees, experts)
    count(config, "max_position_embeddings", MAX_CONTEXT_TOKENS)
    graphs = trace(model_class, padded_config(config, mesh))
    return explain(
        graphs,
        mesh,
        CostModel(),
        args.tokens,
        groups,
        is_tied=bool(config.get("tie_word_embeddings")),
        roomy=lambda: trace(model_class, roomy_config(config, TRIED)),
    )


def _print(explanation: Explanation) -> None:
    grid = " x ".join(f"{name} {size}" for name, size in explanation.axes) or "1"
    groups = "   ".join(f"{group} {axes}" for group, axes in explanation.groups if axes)
    print(f"ranks    {explanation.world}, a stage is {grid}")
    print(f"groups   {groups or 'of one rank each'}")
    sent, time = _bytes(explanation.sent_bytes), f"{explanation.time_us:,.0f} us"
    print(f"step     {explanation.tokens:,} tokens: {sent} sent by a rank in {time} (estimated)")
    if explanation.gathered_us is not None:
        print(
            "experts  tokens go to the ranks of their experts; gathered on all of them the step "
            f"would take {explanation.gathered_us:,.0f} us"
        )
    print(f"compiled {explanation.compile_ms:.0f} ms")
    print()
    print_table(
        ("STAGE", "RANKS", "LAYERS", "WEIGHTS", "CACHE A TOKEN", "STATE A SEQUENCE"),
        [
            (
                str(stage.stage),
                "-".join(map(str, dict.fromkeys(stage.ranks))),
                "-".join(map(str, dict.fromkeys(stage.layers))),
                _bytes(stage.weight_bytes),
                _bytes(stage.cache_token_bytes),
                _bytes(stage.cache_sequence_bytes),
            )
            for stage in explanation.stages
        ],
        title="a rank holds",
    )
    for section in explanation.sections:
        print()
        has_branches = any(row.beside for row in section.rows)
        heads = (*HEADS, "BRANCH") if has_branches else HEADS
        rows = [_cells(row)[: len(heads)] for row in section.rows]
        print_table(heads, rows, title=_title(section), indent="  ")


def _title(section: Section) -> str:
    from tokenspeed.placement.exchange import CALLS
    from tokenspeed.placement.explain import EXCHANGE

    own = ((CALLS if row.kind == EXCHANGE else 1) for row in section.rows if row.time_us > 0)
    collectives = sum(own)
    each = "each " if len(section.layers) > 1 else ""
    return (
        f"{section.title}: {each}{collectives} collectives, {_bytes(section.sent_bytes)}, "
        f"{section.time_us:.1f} us"
    )


def _cells(row: Row) -> tuple[str, ...]:
    sent = _bytes(row.sent_bytes) if row.time_us else ""
    time = f"{row.time_us:.1f} us" if row.time_us else ""
    return row.kind, row.name, row.takes, row.gives, row.group, sent, time, row.beside


def _bytes(count: float) -> str:
    if count <= 0:
        return "0"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
