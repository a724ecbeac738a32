"""A replica that lost a rank: nothing can be computed on it any more."""

from __future__ import annotations

from tokenspeed.errors import EngineError


class RankFailure(EngineError):
    """A rank died, hangs, disagrees or raised in a step: the whole replica starts anew.

    Unlike other errors of a step it is no request's fault: nobody is ended for it.
    """
