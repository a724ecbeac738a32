// Expect: state without a way to the final one
#include "toy.h"

namespace tokenspeed::fsm {

// Stuck ended, so it needs no Abort; but nothing leads on from it.
struct Stuck {
  auto Tie() { return std::tie(); }
};

using Table =
    Cells<Cell<Waiting, Start, To<Stuck>>, Cell<Waiting, Abort, To<Done>>,
          Cell<Waiting, Timeout, To<Done>>, Cell<Stuck, Start, Refuse>, Cell<Stuck, Abort, Ignore>,
          Cell<Stuck, Timeout, Ignore>, Cell<Done, Start, Refuse>, Cell<Done, Abort, Ignore>,
          Cell<Done, Timeout, Ignore>>;
static_assert(Machine<std::variant<Waiting, Stuck, Done>, Events, Table, std::tuple<Stuck, Done>,
                      std::tuple<Abort, Timeout>>::Prove());

}  // namespace tokenspeed::fsm
