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
// Two targets: the first while the event says that its handles are in use.
using Ends = To<Draining, Finished>;
using Leaves = To<Retracting, Retracted>;

// clang-format off
using Transitions = Cells<
    Cell<Submitted,  Admit,     To<Prefilling>>,
    Cell<Submitted,  Load,      To<Loading>>,
    Cell<Submitted,  Loaded,    Refuse>,
    Cell<Submitted,  LastChunk, Refuse>,
    Cell<Submitted,  Retract,   Refuse>,
    Cell<Submitted,  Saved,     Refuse>,
    Cell<Submitted,  Finish,    To<Finished>>,
    Cell<Submitted,  Abort,     To<Finished>>,
    Cell<Submitted,  Timeout,   To<Finished>>,
    Cell<Submitted,  Drained,   Refuse>,

    Cell<Loading,    Admit,     Refuse>,
    Cell<Loading,    Load,      Refuse>,
    Cell<Loading,    Loaded,    To<Prefilling>, KeepSlot,    KeepBlocks>,
    Cell<Loading,    LastChunk, Refuse>,
    Cell<Loading,    Retract,   Refuse>,
    Cell<Loading,    Saved,     Refuse>,
    Cell<Loading,    Finish,    Ends,           LendSlot,    LendBlocks>,
    Cell<Loading,    Abort,     Ends,           LendSlot,    LendBlocks>,
    Cell<Loading,    Timeout,   Ends,           LendSlot,    LendBlocks>,
    Cell<Loading,    Drained,   Refuse>,

    Cell<Prefilling, Admit,     Refuse>,
    Cell<Prefilling, Load,      Refuse>,
    Cell<Prefilling, Loaded,    Refuse>,
    Cell<Prefilling, LastChunk, To<Decoding>,   KeepSlot,    KeepBlocks>,
    Cell<Prefilling, Retract,   Leaves,         LendSlot,    LendBlocks>,
    Cell<Prefilling, Saved,     Refuse>,
    Cell<Prefilling, Finish,    Ends,           LendSlot,    LendBlocks>,
    Cell<Prefilling, Abort,     Ends,           LendSlot,    LendBlocks>,
    Cell<Prefilling, Timeout,   Ends,           LendSlot,    LendBlocks>,
    Cell<Prefilling, Drained,   Refuse>,

    Cell<Decoding,   Admit,     Refuse>,
    Cell<Decoding,   Load,      Refuse>,
    Cell<Decoding,   Loaded,    Refuse>,
    Cell<Decoding,   LastChunk, Refuse>,
    Cell<Decoding,   Retract,   Leaves,         LendSlot,    LendBlocks>,
    Cell<Decoding,   Saved,     Refuse>,
    Cell<Decoding,   Finish,    Ends,           LendSlot,    LendBlocks>,
    Cell<Decoding,   Abort,     Ends,           LendSlot,    LendBlocks>,
    Cell<Decoding,   Timeout,   Ends,           LendSlot,    LendBlocks>,
    Cell<Decoding,   Drained,   Refuse>,

    Cell<Retracting, Admit,     Refuse>,
    Cell<Retracting, Load,      Refuse>,
    Cell<Retracting, Loaded,    Refuse>,
    Cell<Retracting, LastChunk, Refuse>,
    Cell<Retracting, Retract,   Refuse>,
    Cell<Retracting, Saved,     To<Retracted>,  ReleaseSlot, ReleaseBlocks>,
    Cell<Retracting, Finish,    Ends,           LendSlot,    LendBlocks>,
    Cell<Retracting, Abort,     Ends,           LendSlot,    LendBlocks>,
    Cell<Retracting, Timeout,   Ends,           LendSlot,    LendBlocks>,
    Cell<Retracting, Drained,   Refuse>,

    Cell<Retracted,  Admit,     To<Prefilling>>,
    Cell<Retracted,  Load,      To<Loading>>,
    Cell<Retracted,  Loaded,    Refuse>,
    Cell<Retracted,  LastChunk, Refuse>,
    Cell<Retracted,  Retract,   Refuse>,
    Cell<Retracted,  Saved,     Refuse>,
    Cell<Retracted,  Finish,    To<Finished>>,
    Cell<Retracted,  Abort,     To<Finished>>,
    Cell<Retracted,  Timeout,   To<Finished>>,
    Cell<Retracted,  Drained,   Refuse>,

    Cell<Draining,   Admit,     Refuse>,
    Cell<Draining,   Load,      Refuse>,
    Cell<Draining,   Loaded,    Refuse>,
    Cell<Draining,   LastChunk, Refuse>,
    Cell<Draining,   Retract,   Refuse>,
    Cell<Draining,   Saved,     Refuse>,
    Cell<Draining,   Finish,    Ignore>,
    Cell<Draining,   Abort,     Ignore>,
    Cell<Draining,   Timeout,   Ignore>,
    Cell<Draining,   Drained,   To<Finished>,   ReleaseSlot, ReleaseBlocks>,

    Cell<Finished,   Admit,     Refuse>,
    Cell<Finished,   Load,      Refuse>,
    Cell<Finished,   Loaded,    Refuse>,
    Cell<Finished,   LastChunk, Refuse>,
    Cell<Finished,   Retract,   Refuse>,
    Cell<Finished,   Saved,     Refuse>,
    Cell<Finished,   Finish,    Ignore>,
    Cell<Finished,   Abort,     Ignore>,
    Cell<Finished,   Timeout,   Ignore>,
    Cell<Finished,   Drained,   Refuse>>;
// clang-format on

using RequestMachine =
    Machine<State, Event, Transitions, std::tuple<Draining, Finished>, std::tuple<Abort, Timeout>>;
static_assert(RequestMachine::Prove());

}  // namespace tokenspeed::fsm
