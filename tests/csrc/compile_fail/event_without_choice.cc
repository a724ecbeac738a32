// Expect: event that cannot choose its target
#include "toy.h"

namespace tokenspeed::fsm {

// Abort of the toy does not say whether handles are in use.
using Table = Cells<Cell<Waiting, Start, To<Running>>, Cell<Waiting, Abort, To<Done>>,
                    Cell<Waiting, Timeout, To<Done>>, Cell<Running, Start, Refuse>,
                    Cell<Running, Abort, To<Waiting, Done>, Release<Handle>>,
                    Cell<Running, Timeout, To<Done>, Release<Handle>>, Cell<Done, Start, Refuse>,
                    Cell<Done, Abort, Ignore>, Cell<Done, Timeout, Ignore>>;
static_assert(Toy<Table>::Prove());

}  // namespace tokenspeed::fsm
