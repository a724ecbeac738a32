// Python's view of the kernels: addresses and sizes in, nothing out. The Python side of each kernel
// checks shapes and keeps the tensors alive; here nothing but conversion.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "decode_step.h"
#include "dispatch.h"
#include "ngram_index.h"
#include "packed_weight.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed_reference {
namespace {

using Address = uintptr_t;
template <typename Element>
using Array = nb::ndarray<const Element, nb::c_contig, nb::device::cpu>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

float* Floats(Address address) { return reinterpret_cast<float*>(address); }

template <typename Element>
std::vector<Element> Copy(const Array<Element>& array) {
  return {array.data(), array.data() + array.size()};
}

void UseKnown(const std::string& name) {
  if (!Use(name)) {
    throw std::invalid_argument("instruction set " + name + " is not in instruction_sets()");
  }
}

void Norm(Address out, Address x, Address weight, int64_t outer, int64_t inner,
          int64_t outer_stride, int64_t inner_stride, int64_t features, float eps, int threads) {
  Kernels().norm({Floats(out), nullptr, Floats(x), nullptr, Floats(weight), outer, inner,
                  outer_stride, inner_stride, features, eps, threads});
}

void AddNorm(Address out, Address total, Address x, Address residual, Address weight, int64_t rows,
             int64_t features, float eps, int threads) {
  Kernels().norm({Floats(out), Floats(total), Floats(x), Floats(residual), Floats(weight), rows, 1,
                  features, 0, features, eps, threads});
}

void SiluMul(Address out, Address gate_up, int64_t rows, int64_t features, int threads) {
  Kernels().silu_mul({Floats(out), Floats(gate_up), rows, features, threads});
}

void Rotary(Address x, Address cos, Address sin, int64_t tokens, int64_t heads, int64_t head_dim,
            int64_t turned, int64_t token_stride, int threads) {
  Kernels().rotary({Floats(x), Floats(cos), Floats(sin), tokens, heads, head_dim, turned,
                    token_stride, threads});
}

void Linear(Address y, Address x, Address weight, Address bias, int64_t rows, int64_t x_stride,
            int64_t outputs, int64_t inputs, int threads) {
  Kernels().linear({Floats(y), Floats(x), Floats(weight), Floats(bias), rows, x_stride, outputs,
                    inputs, threads});
}

void InitWeight(PackedWeight* self, int bits, int group, const Array<int16_t>& q,
                const Array<int16_t>& scales, const Array<int16_t>& offsets) {
  const PackedShape shape{static_cast<int64_t>(q.shape(0)), static_cast<int64_t>(q.shape(1)), bits,
                          group};
  const auto* offset = reinterpret_cast<const uint16_t*>(offsets.data());
  new (self)
      PackedWeight(shape, q.data(), reinterpret_cast<const uint16_t*>(scales.data()), offset);
}

void Multiply(const PackedWeight& self, Address y, Address x, int64_t x_stride, int64_t rows,
              Address bias, int threads) {
  self.Multiply(Floats(y), Floats(x), x_stride, rows, Floats(bias), threads);
}

void InitStep(DecodeStep* self, int64_t kv_heads, int64_t queries_per_kv, int64_t head_dim,
              int64_t block_tokens, const Array<int32_t>& tables, const Array<int32_t>& firsts,
              const Array<int32_t>& lasts, const Array<int64_t>& blocks,
              const Array<int64_t>& offsets) {
  new (self) DecodeStep(kv_heads, queries_per_kv, head_dim, block_tokens, Copy(tables),
                        Copy(firsts), Copy(lasts), Copy(blocks), Copy(offsets));
}

void Write(const DecodeStep& self, Address cache, int64_t block_stride, int64_t head_stride,
           Address x, int64_t x_stride) {
  self.Write(Floats(cache), block_stride, head_stride, Floats(x), x_stride);
}

void Attend(DecodeStep& self, Address out, Address q, int64_t q_stride, Address k, Address v,
            int64_t block_stride, int64_t head_stride, Address sinks, float scale, float softcap,
            int threads) {
  self.Attend(Floats(out), Floats(q), q_stride, Floats(k), Floats(v), block_stride, head_stride,
              Floats(sinks), scale, softcap, threads);
}

void InitIndex(NgramIndex* self, const Array<int32_t>& tokens) {
  new (self) NgramIndex({tokens.data(), tokens.size()});
}

void Extend(NgramIndex& self, const std::vector<int32_t>& tokens) { self.Extend(tokens); }

}  // namespace
}  // namespace tokenspeed_reference

NB_MODULE(_cpu, m) {
  using namespace tokenspeed_reference;
  // Models live until the process ends, and their weights with them: nothing to warn of.
  nb::set_leak_warnings(false);
  m.doc() = "Private extension module (C++): the reference plugin's kernels for float32 on a CPU.";
  m.def("instruction_sets", &InstructionSets,
        "Return the instruction sets of this processor that kernels exist for, widest first.");
  m.def("use", &UseKnown, "name"_a, "Run the kernels of one instruction set; for tests.");
  m.def("norm", &Norm, "out"_a, "x"_a, "weight"_a, "outer"_a, "inner"_a, "outer_stride"_a,
        "inner_stride"_a, "features"_a, "eps"_a, "threads"_a, "Kernel of norm.rms.");
  m.def("add_norm", &AddNorm, "out"_a, "total"_a, "x"_a, "residual"_a, "weight"_a, "rows"_a,
        "features"_a, "eps"_a, "threads"_a, "Kernel of norm.add_rms.");
  m.def("silu_mul", &SiluMul, "out"_a, "gate_up"_a, "rows"_a, "features"_a, "threads"_a,
        "Kernel of activation.silu_mul.");
  m.def("rotary", &Rotary, "x"_a, "cos"_a, "sin"_a, "tokens"_a, "heads"_a, "head_dim"_a, "turned"_a,
        "token_stride"_a, "threads"_a, "Kernel of rotary.apply, in place.");
  m.def("linear", &Linear, "y"_a, "x"_a, "weight"_a, "bias"_a, "rows"_a, "x_stride"_a, "outputs"_a,
        "inputs"_a, "threads"_a, Unlocked(), "Kernel of linear.dense.");
  nb::class_<PackedWeight>(m, "PackedWeight", "A weight of linear.packed, laid out once.")
      .def("__init__", &InitWeight, "bits"_a, "group"_a, "q"_a, "scales"_a, "offsets"_a,
           "Lay out (outputs, inputs) integers; scales and offsets are bits of half precision.")
      .def("multiply", &Multiply, "y"_a, "x"_a, "x_stride"_a, "rows"_a, "bias"_a, "threads"_a,
           Unlocked(), "Kernel of linear.packed.")
      .def_prop_ro("num_bytes", &PackedWeight::num_bytes, "Bytes that the layout takes.");
  nb::class_<NgramIndex>(m, "NgramIndex", "What came after the last tokens of a sequence before.")
      .def("__init__", &InitIndex, "tokens"_a, "Index the tokens of a sequence; copied.")
      .def("extend", &Extend, "tokens"_a, "Append tokens.")
      .def("match", &NgramIndex::Match,
           "Return how many of the last tokens stood before as they stand now; 0: fewer than 3.")
      .def("draft", &NgramIndex::Draft, "count"_a,
           "Return the tokens that came after the match; empty without one.");
  nb::class_<DecodeStep>(m, "DecodeStep", "One step of a cache group, shared by its layers.")
      .def("__init__", &InitStep, "kv_heads"_a, "queries_per_kv"_a, "head_dim"_a, "block_tokens"_a,
           "tables"_a, "firsts"_a, "lasts"_a, "blocks"_a, "offsets"_a, "Copy the step's tables.")
      .def("write", &Write, "cache"_a, "block_stride"_a, "head_stride"_a, "x"_a, "x_stride"_a,
           "Store one token's keys or values after another.")
      .def("attend", &Attend, "out"_a, "q"_a, "q_stride"_a, "k"_a, "v"_a, "block_stride"_a,
           "head_stride"_a, "sinks"_a, "scale"_a, "softcap"_a, "threads"_a, Unlocked(),
           "Attend the decode rows.");
}
