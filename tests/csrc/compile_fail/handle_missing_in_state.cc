// Expect: no member named 'blocks'
#include "fsm/states.h"

auto* Blocks(tokenspeed::Retracted& state) { return &state.blocks; }
