// A small machine that proves; each *.cc here breaks one law of it.
// Thread: compile time.
#pragma once

#include <tuple>
#include <variant>

#include "fsm/table.h"

namespace tokenspeed::fsm {

struct Handle {};
struct Waiting {
  auto Tie() { return std::tie(); }
};
struct Running {
  Handle handle;
  auto Tie() { return std::tie(handle); }
};
struct Done {
  auto Tie() { return std::tie(); }
};

struct Start {};
struct Abort {};
struct Timeout {};

using States = std::variant<Waiting, Running, Done>;
using Events = std::variant<Start, Abort, Timeout>;

template <class Table>
using Toy = Machine<States, Events, Table, std::tuple<Done>, std::tuple<Abort, Timeout>>;

}  // namespace tokenspeed::fsm
