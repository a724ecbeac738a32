#include "dispatch.h"

namespace tokenspeed_reference {

#if defined(TS_X86)
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
#endif
namespace portable {
extern const KernelTable kTable;
}

namespace {

const KernelTable* const kAll[] = {
#if defined(TS_X86)
    &avx512::kTable,
    &avx2::kTable,
#endif
    &portable::kTable,
};

const KernelTable*& Current() {
  static const KernelTable* current = [] {
    for (const KernelTable* table : kAll) {
      if (table->is_supported()) return table;
    }
    return &portable::kTable;
  }();
  return current;
}

}  // namespace

const KernelTable& Kernels() { return *Current(); }

std::vector<std::string> InstructionSets() {
  std::vector<std::string> names;
  for (const KernelTable* table : kAll) {
    if (table->is_supported()) names.emplace_back(table->name);
  }
  return names;
}

bool Use(const std::string& name) {
  for (const KernelTable* table : kAll) {
    if (name == table->name && table->is_supported()) {
      Current() = table;
      return true;
    }
  }
  return false;
}

}  // namespace tokenspeed_reference
