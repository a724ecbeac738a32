// The kernels of one instruction set, and whether this processor has it. Compiled once for each.

#include "kernels.h"

namespace tokenspeed_reference {
namespace TS_ISA {

void Norm(const NormArgs& args);
void SiluMul(const SiluArgs& args);
void Rotary(const RotaryArgs& args);
void Linear(const LinearArgs& args);
void PackedLinear(const PackedArgs& args);
void Attend(const DecodeArgs& args);

namespace {

bool IsSupported() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return true;
#endif
}

}  // namespace

#define TS_TEXT_OF(name) #name
#define TS_TEXT(name) TS_TEXT_OF(name)
extern const KernelTable kTable;
const KernelTable kTable = {TS_TEXT(TS_ISA), IsSupported, Norm,         SiluMul,
                            Rotary,          Linear,      PackedLinear, Attend};

}  // namespace TS_ISA
}  // namespace tokenspeed_reference
