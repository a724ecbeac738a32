// Scheduler::Move, shared by the scheduler's own files: applies an event that must be legal.
// Thread: scheduler thread only.
#pragma once

#include <string>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {

template <class E>
void Scheduler::Move(Request& request, E event) {
  const size_t before = request.state.index();
  const fsm::Result result = fsm::Apply(request.state, std::move(event));
  TS_CHECK(result == fsm::Result::kMoved, std::string("the table moves on ") + E::kName);
  --num_in_state_[before];
  ++num_in_state_[request.state.index()];
  request.NoteState();
}

}  // namespace tokenspeed
