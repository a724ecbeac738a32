"""Items of a request's input: as they are stored and listed, and those that only name one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten
from tokenspeed.server.responses.item_ids import FIRST_INPUT, item_id, response_of
from tokenspeed.server.responses.schemas import Item, ItemReference, MessageItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tokenspeed.server.responses.store import Record

    Find = Callable[[str], Record | None]

ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
MAX_PAGE = 100
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_QUERY = frozenset({"limit", "order", "after", "include", "include[]"})


def resolved(items: Iterable[Item | ItemReference], find: Find) -> list[Item]:
    """Return items, with what is named in place of its name.

    Args:
        find: returns the stored response of an id; None: there is none.
    Raises:
        RequestError: an item is not stored, any more or for who asks; names it.
    """
    return [
        _named(item, find, f"input.{index}") if isinstance(item, ItemReference) else item
        for index, item in enumerate(items)
    ]


def _named(reference: ItemReference, find: Find, place: str) -> Item:
    response_id = response_of(reference.id)
    if response_id is not None:
        record = find(response_id)
        for stored in (*record.given, *record.body["output"]) if record is not None else ():
            if stored["id"] == reference.id:
                return ITEMS.validate_python([stored])[0]
    raise RequestError(
        f"{place}: item {shorten(reference.id)} is not stored here; send the item itself",
        param=place,
        code="item_not_found",
    )


def stored_items(items: Sequence[Item], response_id: str) -> list[dict[str, Any]]:
    """Return the items of a request's input as they are stored: each has an id of this response.

    What came back from earlier answers gets a new one, so that no list has an id twice.
    """
    return [_stored(item, response_id, index) for index, item in enumerate(items)]


def _stored(item: Item, response_id: str, index: int) -> dict[str, Any]:
    name = item_id(_PREFIXES[item.type], response_id, FIRST_INPUT + index)
    shown = {"id": name, **item.model_dump(exclude_none=True), "status": "completed"}
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": item.content}]
    for part in shown["content"] if item.type == "message" else ():
        if part["type"] == "output_text":
            part["annotations"] = []
    return shown


def page_of(items: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a list that a query asks for.

    Raises:
        RequestError: a parameter is unknown or out of range; names it.
    """
    for name in query:
        if name not in _QUERY:
            raise RequestError(
                f"unknown parameter {shorten(name)}, allowed are limit, order, after and include; "
                "remove it",
                param=name,
                code="unknown_parameter",
            )
    order, limit = query.get("order", "desc"), _limit(query.get("limit", "20"))
    if order not in ("asc", "desc"):
        raise RequestError(
            f'order is {shorten(order)}, "asc" and "desc" are allowed; change it', param="order"
        )
    rest = list(items) if order == "asc" else list(reversed(items))
    if "after" in query:
        rest = rest[_place_of(query["after"], rest) + 1 :]
    data = rest[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(rest) > limit,
    }


def _limit(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= value <= MAX_PAGE:
        raise RequestError(
            f"limit is {shorten(text)}, 1 to {MAX_PAGE} are allowed; change or omit it",
            param="limit",
        )
    return value


def _place_of(item: str, items: Sequence[dict[str, Any]]) -> int:
    for index, shown in enumerate(items):
        if shown["id"] == item:
            return index
    raise RequestError(
        f"after is {shorten(item)}, which is no item of this list; give the id of its last item",
        param="after",
    )
