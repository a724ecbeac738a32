"""Writes docs/settings.md from the settings schema: `python docs/generate_settings.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenspeed.config.ranges import range_text
from tokenspeed.config.schema import EngineConfig, ServeConfig, settings_of

PAGE = Path(__file__).with_name("settings.md")
HEAD = """# Settings

One schema (`core/tokenspeed/config/schema.py`) gives every setting as a flag, an environment
variable and a key of the `--config` YAML file. A flag wins over the environment, the environment
over the file, the file over the default. Written by `python docs/generate_settings.py`.

`tokenspeed generate` and `LLM(...)` take the engine settings; `tokenspeed serve` takes all.
The cache folder is `$TOKENSPEED_CACHE_DIR`, else `~/.cache/tokenspeed`.
"""
TABLE = (
    "| setting | flag | environment | type | range | default | meaning |\n"
    "|---|---|---|---|---|---|---|\n"
)


def page() -> str:
    """Return the page's text."""
    engine = settings_of(EngineConfig)
    serve = {name: item for name, item in settings_of(ServeConfig).items() if name not in engine}
    return f"{HEAD}\n## Engine\n\n{_table(engine)}\n## Server\n\n{_table(serve)}"


def _table(settings: dict[str, Any]) -> str:
    return TABLE + "".join(_row(name, item) for name, item in settings.items())


def _row(name: str, item: Any) -> str:
    default = ",".join(item.default) if isinstance(item.default, tuple) else str(item.default)
    kind = type(item.default).__name__
    choices = item.metadata["choices"]
    cells = (
        f"`{name}`",
        f"`--{name.replace('_', '-')}`",
        f"`TOKENSPEED_{name.upper()}`",
        " / ".join(f"`{choice}`" for choice in choices) if choices else _KINDS.get(kind, kind),
        range_text(item),
        f"`{default}`" if default else "empty",
        item.metadata["help"],
    )
    return f"| {' | '.join(cells)} |\n"


_KINDS = {"str": "text", "tuple": "list", "bool": "yes / no"}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
