"""Every call of a scheduler with its answer, to be repeated on a fresh one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from tests.support.simulated_memory import require

from tokenspeed.errors import CapacityError, RequestError
from tokenspeed.scheduler import Scheduler

Arrays = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Call:
    """One call; `answer` is a value, copies of arrays, or the text of a refusal."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    answer: Any = None


class CallLog:
    """Calls a scheduler and remembers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._calls: list[Call] = []

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method by name."""
        call = Call(name, arguments, keywords)
        self._calls.append(call)
        try:
            call.answer = getattr(self._scheduler, name)(*arguments, **keywords)
        except (RequestError, CapacityError) as error:
            call.answer = str(error)
            raise
        return call.answer

    def note_arrays(self, arrays: Arrays | None) -> None:
        """Keep copies instead of the last answer, whose buffers may be used again."""
        self._calls[-1].answer = arrays

    def replay(self, again: Scheduler) -> None:
        """The same calls on a fresh scheduler give the same arrays, bit for bit."""
        for number, call in enumerate(self._calls):
            where = f"replay, call {number} {call.name}"
            try:
                result = getattr(again, call.name)(*call.arguments, **call.keywords)
            except (RequestError, CapacityError) as error:
                require(call.answer == str(error), f"{where}: {error}")
                continue
            if not isinstance(call.answer, dict) or isinstance(result, dict):
                require(result == call.answer, f"{where}: {result}")
                continue
            require(result is not None, f"{where}: nothing")
            for name, values in call.answer.items():
                same = getattr(result, name).tobytes() == values.tobytes()
                require(same, f"{where}: {name} differs")

    def last(self, count: int) -> str:
        """Return the last calls as text."""
        calls = self._calls[-count:]
        return "\n".join(f"  {call.name}{call.arguments} {call.keywords}" for call in calls)
