"""`tokenspeed plugins explain [MODEL]`: what would be chosen, from config.json alone, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.plugin_output import plugins_print_to_stderr
from tokenspeed.cli.table import print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from tokenspeed.engine.explain import Explanation

OK, NO_CANDIDATE = 0, 5
PROFILE_SUFFIX = ".json"
HEADS = ("OFFER", "VERSION", "BAND", "VERDICT", "WHY")


def fill_explain(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments, the engine's flags among them."""
    from tokenspeed.cli.settings import add_settings
    from tokenspeed.config.schema import EngineConfig

    parser.description = (
        "Make every choice that `serve` would make with these settings, from config.json alone. "
        "Exit code 5: something cannot be filled."
    )
    parser.add_argument(
        "model_argument",
        nargs="?",
        metavar="MODEL",
        help="model folder, its config.json, or a .gguf file; absent: SmolLM2-135M-Instruct",
    )
    parser.add_argument(
        "--device",
        metavar="KIND|PROFILE.json",
        help="device kind, or the profile of a device that is not here; absent: as serve chooses",
    )
    parser.add_argument(
        "--slot", metavar="SLOT", help="show only this slot or operator, such as attention"
    )
    parser.add_argument(
        "--why-not", metavar="PLUGIN/OFFER", help="say why this offer was not chosen"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    add_settings(parser, EngineConfig, skip=("device",))


def run(args: argparse.Namespace) -> int:
    """Explain; returns 5 when a slot or operator cannot be filled."""
    from tokenspeed.cli.settings import read_settings
    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.engine.explain import explain_start
    from tokenspeed.engine.profile import read_profile
    from tokenspeed.log import set_up_logging

    set_up_logging("error")  # the table says what the log would
    device = args.device
    profile = None
    if device is not None and device.endswith(PROFILE_SUFFIX):
        profile = read_profile(Path(device))
        del args.device
    elif device is None:
        del args.device
    settings = read_settings(args, EngineConfig)
    with plugins_print_to_stderr():
        explanation = explain_start(settings, profile)
    records = _chosen_records(explanation, args.slot)
    if args.why_not:
        _print_why_not(explanation, records, args.why_not, as_json=args.json)
    elif args.json:
        print(json.dumps(_filtered(explanation.to_json(), args.slot), indent=2))
    else:
        _print(explanation, records, args.slot)
    failing = [name for name in explanation.failures if _is_in(name, args.slot)]
    return NO_CANDIDATE if failing else OK


def _is_in(name: str, slot: str | None) -> bool:
    """Say whether a choice belongs to what was asked for; "attention" covers "attention.full"."""
    return slot is None or name == slot or name.startswith(f"{slot}.")


def _chosen_records(
    explanation: Explanation, slot: str | None
) -> list[tuple[str, Mapping[str, Any]]]:
    from tokenspeed.errors import ConfigError
    from tokenspeed.plugins.nearest import suggestion

    names = [name for name, _ in explanation.records()] + list(explanation.failures)
    if not any(_is_in(name, slot) for name in names):
        raise ConfigError(
            f"--slot {slot!r} is nothing that this start chooses; {suggestion(str(slot), names)}"
        )
    return [(name, record) for name, record in explanation.records() if _is_in(name, slot)]


def _filtered(data: dict[str, Any], slot: str | None) -> dict[str, Any]:
    return {
        **data,
        "slots": {name: entry for name, entry in data["slots"].items() if _is_in(name, slot)},
        "kernels": [item for item in data["kernels"] if _is_in(item["record"]["slot"], slot)],
        "failures": [item for item in data["failures"] if _is_in(item["slot"], slot)],
    }


def _print(
    explanation: Explanation, records: Iterable[tuple[str, Mapping[str, Any]]], slot: str | None
) -> None:
    from tokenspeed.kernels.explain import headline

    facts, plan = explanation.device, explanation.plan
    print(f"model    {explanation.architecture} ({explanation.model})   dtype {explanation.dtype}")
    print(f"device   {facts.kind} ({facts.name}, {facts.arch})")
    taint = "   TAINTED by --unsafe-force" if plan.forced else ""
    print(f"plan     {plan.digest}{taint}")
    for plugin_id in explanation.silent_plugins():
        print(
            f"plugin   {plugin_id} is known by its manifest alone, which states no [[offers]]: "
            "nothing of it can be chosen here"
        )
    for _, record in records:
        print()
        rows = [_row(entry) for entry in record["candidates"]]
        print_table(HEADS, rows, title=headline(record), indent="  ")
    for name, error in explanation.failures.items():
        if _is_in(name, slot):
            print(f"\n{name} CANNOT BE FILLED: {error}")
    for note in explanation.notes if slot is None else ():
        print(f"\nnote: {note}")


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return entry["offer"], entry["version"], entry["band"], entry["verdict"], entry["reason"]


def _print_why_not(
    explanation: Explanation,
    records: Iterable[tuple[str, Mapping[str, Any]]],
    pin: str,
    *,
    as_json: bool,
) -> None:
    """Print one offer's verdicts.

    Raises:
        CapabilityError: no loaded plugin offers it; says what is known of its plugin.
    """
    from tokenspeed.errors import CapabilityError

    found = [
        (record, entry)
        for _, record in records
        for entry in record["candidates"]
        if entry["offer"] == pin
    ]
    if not found:
        raise CapabilityError(_unknown_offer(explanation, pin), id="pin-unknown")
    if as_json:
        answer = [{"slot": r["slot"], "traits": r["traits"], **entry} for r, entry in found]
        print(json.dumps(answer, indent=2))
        return
    from tokenspeed.kernels.explain import asked

    for record, entry in found:
        print(f"{pin} {entry['verdict']} {asked(record)}: {entry['reason']}")


def _unknown_offer(explanation: Explanation, pin: str) -> str:
    from tokenspeed.plugins.nearest import suggestion

    plugin_id = pin.partition("/")[0]
    for status in explanation.registry.plugins:
        if status.id == plugin_id and status.state not in ("registered", "stated"):
            return f"{pin} is no candidate: plugin {plugin_id} is {status.state}: {status.reason}"
    known = {entry["offer"] for _, r in explanation.records() for entry in r["candidates"]}
    return f"{pin} is no candidate of any choice shown; {suggestion(pin, known)}"
