// Executes the transition table: Apply(state, event) moves the request, ignores the event or
// refuses it. Handles go where their disposition says; a refused or ignored event touches nothing.
// Thread: scheduler thread only.
#pragma once

#include <utility>

#include "fsm/transitions.h"

namespace tokenspeed::fsm {

enum class Result { kMoved, kIgnored, kRefused };

template <class S, class E>
concept Move = kIsMove<OutcomeIn<S, E, Transitions>>;

// What a move does besides passing on handles. Can be specialized for moves of the table only.
template <class S, class E>
  requires Move<S, E>
struct Handler {
  // Fills the target with what the event brings.
  template <class Target>
  static void Enter(Target&, E&) {}
};

template <class S>
  requires Move<S, Admit>
struct Handler<S, Admit> {
  static void Enter(Prefilling& target, Admit& event) {
    target.slot = std::move(event.slot);
    target.blocks = std::move(event.blocks);
  }
};

template <class S>
  requires Move<S, Load>
struct Handler<S, Load> {
  static void Enter(Loading& target, Load& event) {
    target.slot = std::move(event.slot);
    target.blocks = std::move(event.blocks);
  }
};

namespace internal {

template <class Target, class Source, template <class> class Disposition, class Handle>
void PassOn(Source& source, Target& target, Type<Disposition<Handle>>) {
  constexpr bool kIsRelease = std::is_same_v<Disposition<Handle>, Release<Handle>>;
  if constexpr (!kIsRelease && OwnsHandle<Target, Handle>()) {
    auto mine = source.Tie();
    auto theirs = target.Tie();
    std::get<Handle&>(theirs) = std::move(std::get<Handle&>(mine));
  }
}

template <class Target, class S, class E, class O, class... D>
void MoveTo(State& state, E& event, Type<Cell<S, E, O, D...>>) {
  [[maybe_unused]] S source = std::move(std::get<S>(state));
  Target& target = state.emplace<Target>();
  (PassOn(source, target, Type<D>{}), ...);
  Handler<S, E>::Enter(target, event);
}

template <class S, class E, class... D>
Result Execute(State&, E&, Type<Cell<S, E, Refuse, D...>>) {
  return Result::kRefused;
}
template <class S, class E, class... D>
Result Execute(State&, E&, Type<Cell<S, E, Ignore, D...>>) {
  return Result::kIgnored;
}
template <class S, class E, class T, class... D>
Result Execute(State& state, E& event, Type<Cell<S, E, To<T>, D...>> cell) {
  MoveTo<T>(state, event, cell);
  return Result::kMoved;
}
template <class S, class E, class InUse, class Free, class... D>
Result Execute(State& state, E& event, Type<Cell<S, E, To<InUse, Free>, D...>> cell) {
  if (event.is_in_use) {
    MoveTo<InUse>(state, event, cell);
  } else {
    MoveTo<Free>(state, event, cell);
  }
  return Result::kMoved;
}

}  // namespace internal

template <class E>
Result Apply(State& state, E event) {
  return std::visit(
      [&]<class S>(S&) {
        return internal::Execute(state, event, Type<typename Lookup<S, E, Transitions>::type>{});
      },
      state);
}

}  // namespace tokenspeed::fsm
