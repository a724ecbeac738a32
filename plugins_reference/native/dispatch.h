// Which instruction set's kernels run: the widest that this processor has.
// Thread: Use() is for tests, while no kernel runs; the rest any.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace tokenspeed_reference {

const KernelTable& Kernels();

// Names this processor can run, widest first; the last one, "portable", runs everywhere.
std::vector<std::string> InstructionSets();

// Takes the kernels of one of InstructionSets(). Returns: false when there is no such name.
bool Use(const std::string& name);

}  // namespace tokenspeed_reference
