"""Keeps converted tokenizers in the cache folder: one file each, that proves itself whole.

    sha256 of the rest (64 hex characters) \n | JSON object on one line \n | tokenizer.json

A damaged file is made again, a folder that cannot be used costs one warning and the conversion at
each start. Nothing half written is ever seen under a file's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenspeed.env import cache_dir
from tokenspeed.log import LOGGER


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted tokenizer.

    Args:
        definition: content of tokenizer.json.
        config: content of tokenizer_config.json.
        ends: ids that end an answer.
    """

    definition: str
    config: dict[str, Any]
    ends: list[int]


def cache_file(digest: str) -> Path:
    """Return where the conversion of a header with that digest belongs."""
    return cache_dir() / "tokenizers" / f"{digest}.tokenizer"


def read(file: Path) -> Converted | None:
    """Return what `file` keeps, None where there is nothing whole."""
    try:
        proof, _, content = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    if proof != _proof(content):
        LOGGER.warning("cached tokenizer %s is damaged and is made again", file)
        return None
    head, _, definition = content.partition(b"\n")
    facts = json.loads(head)
    return Converted(definition.decode(), facts["config"], facts["ends"])


def write(file: Path, converted: Converted) -> None:
    """Keep a conversion; a failure is logged once and leaves nothing behind."""
    facts = json.dumps({"config": converted.config, "ends": converted.ends})
    content = f"{facts}\n{converted.definition}".encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, _proof(content) + b"\n" + content)
    except OSError as error:
        LOGGER.warning("the converted tokenizer is not cached in %s: %s", file, error)


def _replace(file: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as staging:
            staging.write(content)
        if file.is_dir():
            shutil.rmtree(file)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _proof(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
