// The language of the transition table and its proofs. Prove<Table>() is a list of static_asserts:
// a table with a missing or doubled cell, an unreachable state, a live state without Abort or
// Timeout, a state that cannot end, or a handle without a disposition does not compile
// (tests/csrc/compile_fail shows each).
// Thread: compile time.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace tokenspeed::fsm {

// Outcomes of a cell.
template <class... Targets>
struct To {};      // moves; of two targets the first while the event's handles are in use
struct Ignore {};  // nothing happens, and that is fine
struct Refuse {};  // nothing happens, and the caller made a mistake

// Dispositions of one handle of the source state.
template <class Handle>
struct Keep {};  // the target owns it
template <class Handle>
struct Release {};  // given back
template <class Handle>
struct Lend {};  // a target that has it owns it while it is in use, others give it back

template <class State, class Event, class Outcome, class... Dispositions>
struct Cell {};

template <class... C>
struct Cells {};

template <class T>
struct Type {
  using type = T;
};

// ---- queries

template <class T>
inline constexpr bool kIsMove = false;
template <class... Targets>
inline constexpr bool kIsMove<To<Targets...>> = true;

template <class Outcome, class State>
inline constexpr bool kTargets = false;
template <class... Targets, class State>
inline constexpr bool kTargets<To<Targets...>, State> = (std::is_same_v<Targets, State> || ...);

template <class State, class Handle>
consteval bool OwnsHandle() {
  return []<class... H>(Type<std::tuple<H...>>) {
    return (std::is_same_v<H, Handle&> || ...);
  }(Type<decltype(std::declval<State&>().Tie())>{});
}

template <class S, class E, class C>
inline constexpr bool kIsCellOf = false;
template <class S, class E, class O, class... D>
inline constexpr bool kIsCellOf<S, E, Cell<S, E, O, D...>> = true;

// The cell of (State, Event) in a table.
template <class State, class Event, class Table>
struct Lookup;
template <class S, class E, class... C>
struct Lookup<S, E, Cells<C...>> {
  static constexpr int kCount = (int{kIsCellOf<S, E, C>} + ... + 0);

  template <class First, class... Rest>
  static auto Search() {
    if constexpr (kIsCellOf<S, E, First>) {
      return Type<First>{};
    } else {
      return Search<Rest...>();
    }
  }
  using type = typename decltype(Search<C...>())::type;
};

template <class T>
struct OutcomeOf;
template <class S, class E, class O, class... D>
struct OutcomeOf<Cell<S, E, O, D...>> {
  using type = O;
};

template <class S, class E, class Table>
using OutcomeIn = typename OutcomeOf<typename Lookup<S, E, Table>::type>::type;

// ---- proofs, one per law

template <class S, class E, class Table>
consteval bool ProveCell() {
  static_assert(Lookup<S, E, Table>::kCount > 0, "missing cell: every (state, event) needs one");
  static_assert(Lookup<S, E, Table>::kCount < 2, "doubled cell: a (state, event) has only one");
  return true;
}

template <class Handle, class Disposition>
inline constexpr bool kDisposes =
    std::is_same_v<Disposition, Keep<Handle>> || std::is_same_v<Disposition, Release<Handle>> ||
    std::is_same_v<Disposition, Lend<Handle>>;

template <class Handle, class... D>
inline constexpr int kNumDispositions = (int{kDisposes<Handle, D>} + ... + 0);

template <class Disposition, class... Targets>
struct IsPossible : std::true_type {};
template <class H, class... Targets>
struct IsPossible<Keep<H>, Targets...> : std::bool_constant<(OwnsHandle<Targets, H>() && ...)> {};
template <class H, class... Targets>
struct IsPossible<Lend<H>, Targets...> : std::bool_constant<(OwnsHandle<Targets, H>() || ...)> {};

template <class S, class E, class O, class... D>
consteval bool ProveHandles(Type<Cell<S, E, O, D...>>) {
  using Handles = decltype(std::declval<S&>().Tie());
  if constexpr (kIsMove<O>) {
    []<class... H>(Type<std::tuple<H...>>) {
      static_assert(((kNumDispositions<std::remove_reference_t<H>, D...> == 1) && ...),
                    "handle without disposition: Keep, Release or Lend each handle of the source");
      static_assert(sizeof...(D) == sizeof...(H), "disposition of a handle the source lacks");
    }(Type<Handles>{});
    []<class... T>(Type<To<T...>>) {
      static_assert((IsPossible<D, T...>::value && ...), "kept or lent handle without an owner");
      static_assert(sizeof...(T) == 1 || (sizeof...(T) == 2 && requires(E event) {
                      { event.is_in_use } -> std::convertible_to<bool>;
                    }), "event that cannot choose its target: two targets need is_in_use");
    }(Type<O>{});
  } else {
    static_assert(sizeof...(D) == 0, "a cell that does not move leaves its handles alone");
  }
  return true;
}

template <class Table, class Events, class... States>
struct Graph;
template <class Table, class... Events, class... States>
struct Graph<Table, std::variant<Events...>, States...> {
  static constexpr size_t kNumStates = sizeof...(States);
  using Row = std::array<bool, kNumStates>;

  template <class From>
  static consteval Row Edges() {
    const auto has_edge = []<class Target>(Type<Target>) {
      return (kTargets<OutcomeIn<From, Events, Table>, Target> || ...);
    };
    return {has_edge(Type<States>{})...};
  }

  // Row i of the result: states that can be reached from state i, itself included.
  static consteval std::array<Row, kNumStates> Reach() {
    std::array<Row, kNumStates> reach{Edges<States>()...};
    for (size_t i = 0; i < kNumStates; ++i) reach[i][i] = true;
    for (size_t via = 0; via < kNumStates; ++via)
      for (size_t from = 0; from < kNumStates; ++from)
        for (size_t to = 0; to < kNumStates; ++to)
          if (reach[from][via] && reach[via][to]) reach[from][to] = true;
    return reach;
  }

  static consteval bool AllReachable() {
    const Row from_first = Reach()[0];
    return std::all_of(from_first.begin(), from_first.end(), [](bool is) { return is; });
  }
  static consteval bool AllCanEnd() {
    const auto reach = Reach();
    return std::all_of(reach.begin(), reach.end(), [](const Row& row) { return row.back(); });
  }
};

// A state is live unless it can do nothing but end by itself: `Ended` lists those that ended.
template <class State, class Table, class... Required>
consteval bool ProveEndable() {
  static_assert((kIsMove<OutcomeIn<State, Required, Table>> && ...),
                "live state without Abort or Timeout");
  return true;
}

template <class States, class Events, class Table, class Ended, class Required>
struct Machine;
// States: first is the initial, last the final one. Ended: not live any more. Required: events that
// every live state must move on.
template <class... S, class... E, class Table, class... Ended, class... Required>
struct Machine<std::variant<S...>, std::variant<E...>, Table, std::tuple<Ended...>,
               std::tuple<Required...>> {
  template <class State>
  static consteval bool ProveRow() {
    (ProveCell<State, E, Table>(), ...);
    (ProveHandles(Type<typename Lookup<State, E, Table>::type>{}), ...);
    if constexpr (!(std::is_same_v<State, Ended> || ...)) {
      ProveEndable<State, Table, Required...>();
    }
    return true;
  }
  static consteval bool Prove() {
    (ProveRow<S>(), ...);
    using G = Graph<Table, std::variant<E...>, S...>;
    static_assert(G::AllReachable(), "unreachable state");
    static_assert(G::AllCanEnd(), "state without a way to the final one");
    return true;
  }
};

}  // namespace tokenspeed::fsm
