// The control: a handler of a move of the table compiles.
#include "fsm/apply.h"

namespace tokenspeed::fsm {

template <>
struct Handler<Prefilling, Retract> {
  static void Enter(Retracted&, Retract&) {}
};

}  // namespace tokenspeed::fsm
