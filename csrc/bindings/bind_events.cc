#include <string>
#include <type_traits>

#include "bindings/bind.h"
#include "kv/events.h"
#include "kv/view_wire.h"

namespace nb = nanobind;

namespace tokenspeed {
namespace {

template <auto Member, class Array>
void DefArray(nb::class_<EventBatch>& bound, const char* name, const char* doc) {
  bound.def_prop_ro(
      name,
      [](nb::handle_t<EventBatch> self) {
        const auto& values = nb::cast<const EventBatch&>(self).*Member;
        using T = typename Array::Scalar;
        const size_t shape[2] = {values.size(), 16};
        constexpr size_t kDims = std::is_same_v<Array, Vector<T>> ? 1 : 2;
        return Array(reinterpret_cast<const T*>(values.data()), kDims, shape, self);
      },
      doc);
}

nb::typed<nb::list, nb::bytes> Salts(const EventBatch& self) {
  nb::list salts;
  for (const std::string& salt : self.salts) salts.append(nb::bytes(salt.data(), salt.size()));
  return salts;
}

}  // namespace

void BindEvents(nb::module_& m) {
  nb::class_<EventBatch> batch(m, "EventBatch",
                               "Changes of the prefix cache in order, one entry each.");
  DefArray<&EventBatch::kinds, Vector<uint8_t>>(batch, "kinds", "(E,) index into KV_EVENTS.");
  DefArray<&EventBatch::mediums, Vector<uint8_t>>(batch, "mediums", "(E,) index into KV_MEDIUMS.");
  DefArray<&EventBatch::groups, Vector<int32_t>>(
      batch, "groups", "(E,) cache group of the block: each group's comes and goes by itself.");
  DefArray<&EventBatch::hashes, Matrix<uint8_t, 16>>(
      batch, "hashes", "(E, 16) chain hash of the block's tokens and all before them.");
  DefArray<&EventBatch::parents, Matrix<uint8_t, 16>>(
      batch, "parents", "(E, 16) hash of the block before a stored one; zeros: it is the first.");
  DefArray<&EventBatch::namespaces, Vector<int32_t>>(
      batch, "namespaces",
      "(E,) index into `salts` for stored blocks that begin a prompt, else -1.");
  DefArray<&EventBatch::token_start, Vector<int32_t>>(
      batch, "token_start", "(E + 1,) entry e's tokens are [token_start[e], token_start[e + 1]).");
  DefArray<&EventBatch::tokens, Vector<int32_t>>(batch, "tokens", "Tokens of the stored blocks.");
  batch.def_prop_ro("salts", &Salts, "Salts of the namespaces that occur.");
  batch.def(
      "packed",
      [](const EventBatch& self) {
        const std::string packed = PackChanges(self);
        return nb::bytes(packed.data(), packed.size());
      },
      "Return the changes without their tokens, for `PrefixView.apply`.");
  m.attr("KV_EVENTS") = nb::make_tuple(kKvEvents[0], kKvEvents[1], kKvEvents[2]);
  m.attr("KV_MEDIUMS") = nb::make_tuple(kKvMediums[0], kKvMediums[1], kKvMediums[2]);
}

}  // namespace tokenspeed
