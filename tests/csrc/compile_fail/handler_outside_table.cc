// Expect: constraint
#include "fsm/apply.h"

namespace tokenspeed::fsm {

// The table refuses Admit in Finished, so there is nothing to handle.
template <>
struct Handler<Finished, Admit> {
  static void Enter(Prefilling&, Admit&) {}
};

}  // namespace tokenspeed::fsm
