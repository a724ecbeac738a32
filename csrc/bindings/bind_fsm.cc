#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "fsm/describe.h"

namespace nb = nanobind;

namespace tokenspeed {
namespace {

using Cell = nb::typed<nb::tuple, nb::str, nb::str, nb::str>;

nb::typed<nb::list, Cell> TransitionTable() {
  nb::list cells;
  for (const fsm::CellText& text : fsm::DescribeTransitions()) {
    cells.append(nb::make_tuple(text.state, text.event, text.cell));
  }
  return cells;
}

}  // namespace

void BindFsm(nb::module_& m) {
  m.def("transition_table", &TransitionTable,
        R"(Return (state, event, cell) for every cell of the request state machine's table.

A cell is "To<...>", "Ignore" or "Refuse", with what becomes of each handle of the source state
(Keep, Release or Lend). The diagram in the documentation is generated from it.)");
}

}  // namespace tokenspeed
