#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "fsm/describe.h"

namespace nb = nanobind;

namespace tokenspeed {

void BindFsm(nb::module_& m) {
  m.def("transition_table", [] {
    nb::list cells;
    for (const fsm::CellText& text : fsm::DescribeTransitions()) {
      cells.append(nb::make_tuple(text.state, text.event, text.cell));
    }
    return cells;
  });
}

}  // namespace tokenspeed
