// Law 3: the one table of what may happen to a request. A cell for every (state, event).
// Nothing else moves a request: apply.h executes this table and accepts handlers of its moves only.
// Thread: compile time.
#pragma once

#include "fsm/events.h"
#include "fsm/states.h"
#include "fsm/table.h"

namespace tokenspeed::fsm {

using KeepSlot = Keep<SlotRef>;
using KeepBlocks = Keep<KvTable>;
using LendSlot = Lend<SlotRef>;
using LendBlocks = Lend<KvTable>;
using ReleaseSlot = Release<SlotRef>;
using ReleaseBlocks = Release<KvTable>;
using Ends = To<Draining, Finished>;  // Draining while an uncommitted step has a row of it

// clang-format off
using Transitions = Cells<
    Cell<Submitted,  Admit,     To<Prefilling>>,
    Cell<Submitted,  LastChunk, Refuse>,
    Cell<Submitted,  Retract,   Refuse>,
    Cell<Submitted,  Finish,    To<Finished>>,
    Cell<Submitted,  Abort,     To<Finished>>,
    Cell<Submitted,  Timeout,   To<Finished>>,
    Cell<Submitted,  Drained,   Refuse>,

    Cell<Prefilling, Admit,     Refuse>,
    Cell<Prefilling, LastChunk, To<Decoding>,  KeepSlot,    KeepBlocks>,
    Cell<Prefilling, Retract,   To<Retracted>, ReleaseSlot, ReleaseBlocks>,
    Cell<Prefilling, Finish,    Ends,          LendSlot,    LendBlocks>,
    Cell<Prefilling, Abort,     Ends,          LendSlot,    LendBlocks>,
    Cell<Prefilling, Timeout,   Ends,          LendSlot,    LendBlocks>,
    Cell<Prefilling, Drained,   Refuse>,

    Cell<Decoding,   Admit,     Refuse>,
    Cell<Decoding,   LastChunk, Refuse>,
    Cell<Decoding,   Retract,   To<Retracted>, ReleaseSlot, ReleaseBlocks>,
    Cell<Decoding,   Finish,    Ends,          LendSlot,    LendBlocks>,
    Cell<Decoding,   Abort,     Ends,          LendSlot,    LendBlocks>,
    Cell<Decoding,   Timeout,   Ends,          LendSlot,    LendBlocks>,
    Cell<Decoding,   Drained,   Refuse>,

    Cell<Retracted,  Admit,     To<Prefilling>>,
    Cell<Retracted,  LastChunk, Refuse>,
    Cell<Retracted,  Retract,   Refuse>,
    Cell<Retracted,  Finish,    To<Finished>>,
    Cell<Retracted,  Abort,     To<Finished>>,
    Cell<Retracted,  Timeout,   To<Finished>>,
    Cell<Retracted,  Drained,   Refuse>,

    Cell<Draining,   Admit,     Refuse>,
    Cell<Draining,   LastChunk, Refuse>,
    Cell<Draining,   Retract,   Refuse>,
    Cell<Draining,   Finish,    Ignore>,
    Cell<Draining,   Abort,     Ignore>,
    Cell<Draining,   Timeout,   Ignore>,
    Cell<Draining,   Drained,   To<Finished>,  ReleaseSlot, ReleaseBlocks>,

    Cell<Finished,   Admit,     Refuse>,
    Cell<Finished,   LastChunk, Refuse>,
    Cell<Finished,   Retract,   Refuse>,
    Cell<Finished,   Finish,    Ignore>,
    Cell<Finished,   Abort,     Ignore>,
    Cell<Finished,   Timeout,   Ignore>,
    Cell<Finished,   Drained,   Refuse>>;
// clang-format on

using RequestMachine =
    Machine<State, Event, Transitions, std::tuple<Draining, Finished>, std::tuple<Abort, Timeout>>;
static_assert(RequestMachine::Prove());

}  // namespace tokenspeed::fsm
