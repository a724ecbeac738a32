#include "fsm/describe.h"

#include "fsm/transitions.h"

namespace tokenspeed::fsm {
namespace {

template <class Handle>
constexpr const char* kHandleName = nullptr;
template <>
constexpr const char* kHandleName<SlotRef> = " slot:";
template <>
constexpr const char* kHandleName<KvTable> = " blocks:";

template <class H>
std::string Text(Type<Keep<H>>) {
  return kHandleName<H> + std::string("Keep");
}
template <class H>
std::string Text(Type<Release<H>>) {
  return kHandleName<H> + std::string("Release");
}
template <class H>
std::string Text(Type<Lend<H>>) {
  return kHandleName<H> + std::string("Lend");
}
std::string Text(Type<Refuse>) { return "Refuse"; }
std::string Text(Type<Ignore>) { return "Ignore"; }
template <class First, class... Rest>
std::string Text(Type<To<First, Rest...>>) {
  return std::string("To<") + First::kName + ((std::string(", ") + Rest::kName) + ... + "") + ">";
}

template <class S, class E, class O, class... D>
CellText Describe(Type<Cell<S, E, O, D...>>) {
  return {S::kName, E::kName, (Text(Type<O>{}) + ... + Text(Type<D>{}))};
}

template <class... C>
std::vector<CellText> DescribeAll(Type<Cells<C...>>) {
  return {Describe(Type<C>{})...};
}

}  // namespace

std::vector<CellText> DescribeTransitions() { return DescribeAll(Type<Transitions>{}); }

}  // namespace tokenspeed::fsm
