// Expect: unreachable state
#include "toy.h"

namespace tokenspeed::fsm {

using Table = Cells<Cell<Waiting, Start, Refuse>, Cell<Waiting, Abort, To<Done>>,
                    Cell<Waiting, Timeout, To<Done>>, Cell<Running, Start, Refuse>,
                    Cell<Running, Abort, To<Done>, Release<Handle>>,
                    Cell<Running, Timeout, To<Done>, Release<Handle>>, Cell<Done, Start, Refuse>,
                    Cell<Done, Abort, Ignore>, Cell<Done, Timeout, Ignore>>;
static_assert(Toy<Table>::Prove());

}  // namespace tokenspeed::fsm
