"""Loads of experts of all pipeline stages, as the engine shows them and as figures."""

from __future__ import annotations

import socket
import threading

from tokenspeed.engine.expert_loads import ExpertLoads
from tokenspeed.engine.ranks.messages import RankExperts
from tokenspeed.engine.ranks.progress import RankProgress
from tokenspeed.engine.ranks.watch import RankWatch
from tokenspeed.engine.ranks.wire import FrameReader, encoded, send_frame
from tokenspeed.engine.ranks.workers import Worker
from tokenspeed.placement.expert_load import ExpertLoad

LAST = ExpertLoad({2: [1, 3], 3: [4, 4]}, {2: (0, 1), 3: (0, 1)}, {2: 1.5, 3: 1.0}, 6, 2, 5)
FIRST = ExpertLoad({0: [9, 1], 1: [5, 5]}, {0: (1, 0), 1: (0, 1)}, {0: 1.8}, 4, 1, 2)


def test_stages_are_shown_in_the_order_of_their_layers() -> None:
    loads = ExpertLoads(LAST, lambda: [FIRST])
    shown = loads.shown()
    assert [*shown["layers"]] == ["0", "1", "2", "3"]
    assert shown["layers"]["0"] == {"counts": [9, 1], "slots": [1, 0], "peak": 1.8}
    assert (shown["times"], shown["rebalanced"], shown["moved"]) == (10, 3, 7)
    figures = loads.figures()
    assert [(one.layers, one.imbalance, one.imbalance_mean) for one in figures] == [
        ("0-1", 1.8, 1.4),
        ("2-3", 1.5, 1.25),
    ]
    assert [(one.looks, one.rebalances, one.moved) for one in figures] == [(4, 1, 2), (6, 2, 5)]


def test_a_stage_that_has_said_nothing_yet_is_left_out() -> None:
    assert len(ExpertLoads(LAST, list).figures()) == 1
    assert ExpertLoads(None, list).figures() == ()


def test_what_a_stage_says_reaches_rank_0() -> None:
    ours, theirs = socket.socketpair()
    worker = Worker(1, ours, FrameReader(ours))
    heard = threading.Event()

    def tick() -> None:
        if worker.experts is not None:
            heard.set()

    watch = RankWatch(
        lambda: [worker],
        RankProgress(),
        timeout_s=60,
        start_timeout_s=60,
        ends_process=False,
        tick=tick,
    )
    watch.begin_running()
    watch.start()
    with theirs:
        send_frame(theirs, encoded(RankExperts(load=FIRST)))
        assert heard.wait(60)
        watch.close(in_peace=False)
    assert worker.experts == FIRST
