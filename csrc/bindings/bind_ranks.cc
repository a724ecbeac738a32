#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "bindings/views.h"
#include "ranks/plan_message.h"
#include "ranks/plan_ring.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

constexpr size_t kPlansInUse = 4;  // one per launched step, one that is read, one that is filled

nb::bytes BytesOf(std::span<const std::byte> bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::span<const std::byte> SpanOf(const nb::bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()};
}

struct BoundDecoder {
  PlanDecoder decoder;
  Ring<StepPlan> plans{kPlansInUse};
  std::vector<int32_t> extra;
};

using PlanAndExtra = nb::typed<nb::tuple, View<StepPlan>, nb::typed<nb::list, int>>;

PlanAndExtra Decode(BoundDecoder& self, const nb::bytes& message) {
  nb::object plan = self.plans.Take();
  self.decoder.Decode(SpanOf(message), *nb::cast<View<StepPlan>&>(plan).data(), self.extra);
  return nb::borrow<PlanAndExtra>(nb::make_tuple(plan, nb::cast(self.extra)));
}

// A ring in a buffer that Python has; holds it for as long as it lives.
class BoundRing {
 public:
  BoundRing(const nb::object& memory, size_t capacity, int num_readers) {
    if (PyObject_GetBuffer(memory.ptr(), &buffer_, PyBUF_WRITABLE) != 0) nb::raise_python_error();
    try {
      ring_.emplace(
          std::span(static_cast<std::byte*>(buffer_.buf), static_cast<size_t>(buffer_.len)),
          capacity, num_readers);
    } catch (...) {
      PyBuffer_Release(&buffer_);
      throw;
    }
  }
  BoundRing(const BoundRing&) = delete;
  ~BoundRing() { PyBuffer_Release(&buffer_); }

  bool Write(const nb::bytes& message, int64_t timeout_us) {
    const auto bytes = SpanOf(message);
    nb::gil_scoped_release released;
    return ring_->Write(bytes, std::chrono::microseconds(timeout_us));
  }
  std::optional<nb::bytes> Read(int reader, int64_t timeout_us) {
    bool is_whole;
    {
      nb::gil_scoped_release released;
      is_whole = ring_->Read(reader, message_, std::chrono::microseconds(timeout_us));
    }
    return is_whole ? std::optional(BytesOf(message_)) : std::nullopt;
  }
  uint64_t Unread(int reader) const { return ring_->Unread(reader); }

 private:
  Py_buffer buffer_{};
  std::optional<PlanRing> ring_;
  std::vector<std::byte> message_;
};

}  // namespace

void BindRanks(nb::module_& m) {
  nb::class_<PlanEncoder>(m, "PlanEncoder", "Turns plans into flat messages, one after another.")
      .def(nb::init<>())
      .def(
          "encode",
          [](PlanEncoder& self, const View<StepPlan>& plan, const Ids& extra) {
            return BytesOf(self.Encode(*plan.data(), extra.span()));
          },
          "plan"_a, "extra"_a,
          "Return the message of a plan and further integers that its readers get with it.")
      .def_prop_ro(
          "sequence", [](const PlanEncoder& self) { return self.chain().sequence; },
          "Number of messages made.")
      .def_prop_ro(
          "digest", [](const PlanEncoder& self) { return self.chain().digest; },
          "Hash over all of them.");
  nb::class_<BoundDecoder>(m, "PlanDecoder",
                           "Reads the messages of one PlanEncoder in their order.")
      .def(nb::init<>())
      .def("decode", &Decode, "message"_a,
           "Return the plan of a message, and the integers that came with it.\n\n"
           "ValueError: it is damaged, or another one was due; the text says which.")
      .def_prop_ro(
          "sequence", [](const BoundDecoder& self) { return self.decoder.chain().sequence; },
          "Number of messages read.")
      .def_prop_ro(
          "digest", [](const BoundDecoder& self) { return self.decoder.chain().digest; },
          "Hash over all of them.");
  nb::class_<BoundRing>(m, "PlanRing",
                        "One writer's messages to several readers in other processes.\n\n"
                        "Lives in shared memory that is all zeros when the writer makes it.")
      .def(nb::init<const nb::object&, size_t, int>(), "memory"_a, "capacity"_a, "num_readers"_a)
      .def_static("memory_bytes", &PlanRing::MemoryBytes, "capacity"_a, "num_readers"_a,
                  "Return the bytes of memory that a ring needs.")
      .def("write", &BoundRing::Write, "message"_a, "timeout_us"_a,
           "Write a message for every reader, in pieces if the ring is shorter.\n\n"
           "False: a reader made no room in time; call it again with the same message.")
      .def("read", &BoundRing::Read, "reader"_a, "timeout_us"_a,
           "Return the next message of a reader; None: it is not there in time.")
      .def("unread", &BoundRing::Unread, "reader"_a,
           "Return how many bytes a reader has not read yet.");
}

}  // namespace tokenspeed
