"""Whether a result depends on what else is in the batch: what trait `deterministic` denies.

A case is cut into single tokens and runs of tokens, or into its rows, and computed again piece by
piece: every bit must be the same as in one call.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenspeed.ops.compare import copied, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.attention import AttentionBatch
    from tokenspeed.contracts.kernel import Case, Operator

LENGTHS = (1, 1, 3, 2)
"""Tokens of the first pieces; the last one has the rest."""


def depends_on_batch(
    operator: Operator,
    implementation: Callable[..., Any],
    case: Case,
    *,
    device: torch.device | str = "cpu",
) -> str:
    """Return where a piece of the case differs from the whole, or "" if none does.

    Args:
        implementation: a callable of the operator's signature (`backends.implementation`).
    """
    if case.calls:
        prepared = implementation(*copied(case.args, device), **copied(case.options, device))
        for number, call in enumerate(case.calls):
            names = [str(place) for place in range(len(call))]
            found = _first_difference(prepared, dict(zip(names, call, strict=True)), names, device)
            if found:
                return f"call {number}: {found}"
        return ""
    bound = inspect.signature(operator.signature).bind(*case.args, **case.options).arguments
    keywords = len(case.args)

    def call_by_name(*values: Any) -> Any:
        named = dict(zip([*bound][keywords:], values[keywords:], strict=True))
        return implementation(*values[:keywords], **named)

    return _first_difference(call_by_name, bound, operator.tokens, device)


def _first_difference(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    tokens: tuple[str, ...] | list[str],
    device: torch.device | str,
) -> str:
    whole = tensors_in(function(*copied([*arguments.values()], device)))
    for piece, cut in _pieces(arguments, tokens):
        parts = tensors_in(function(*copied([*cut.values()], device)))
        for number, (part, joined) in enumerate(zip(parts, whole, strict=True)):
            if not part.equal(joined[piece]):
                return f"result {number} of tokens {piece.start} to {piece.stop - 1}"
    return ""


def _pieces(
    arguments: Mapping[str, Any], tokens: tuple[str, ...] | list[str]
) -> Iterator[tuple[slice, dict[str, Any]]]:
    """Yield (tokens, arguments cut to them)."""
    for row, piece in enumerate(_slices(arguments, tokens)):
        cut = dict(arguments)
        for name in (name for name in tokens if name in arguments):  # others are optional
            cut[name] = arguments[name][piece]
        if "batch" in arguments:
            cut["batch"] = _row_of(arguments["batch"], row, piece)
        if "rows" in arguments:
            rows = arguments["rows"]
            own = slice(row, row + 1)
            cut["rows"] = replace(rows, read_R=rows.read_R[own], write_R=rows.write_R[own])
            cut["query_start"] = arguments["query_start"][row : row + 2] - piece.start
        yield piece, cut


def _slices(arguments: Mapping[str, Any], tokens: tuple[str, ...] | list[str]) -> Iterator[slice]:
    query_start = arguments.get("query_start")
    if "batch" in arguments:
        query_start = arguments["batch"].query_start
    if query_start is not None:
        yield from (slice(*pair) for pair in pairwise(query_start.tolist()))
        return
    count, start = len(arguments[tokens[0]]), 0
    for length in (*LENGTHS, count):
        if start < count:
            yield slice(start, min(start + length, count))
            start += length


def _row_of(batch: AttentionBatch, row: int, piece: slice) -> AttentionBatch:
    own = slice(row, row + 1)
    return replace(
        batch,
        query_start=batch.query_start[row : row + 2] - piece.start,
        context_tokens=batch.context_tokens[own],
        num_decode_rows=int(row < batch.num_decode_rows),
        block_tables=batch.block_tables[own],
        positions_T=batch.positions_T[piece],
    )
