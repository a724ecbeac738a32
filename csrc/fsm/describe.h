// The transition table as text, for documentation and tests.
// Thread: any.
#pragma once

#include <string>
#include <vector>

namespace tokenspeed::fsm {

struct CellText {
  std::string state, event, cell;
};

// Returns every cell, row by row: "Ignore", "Refuse", or "To<A, B> slot:Keep blocks:Lend".
std::vector<CellText> DescribeTransitions();

}  // namespace tokenspeed::fsm
