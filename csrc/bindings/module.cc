#include <nanobind/nanobind.h>

#include "base/version.h"

NB_MODULE(_core, m) {
  m.doc() = "TokenSpeed's control plane: request state machine, FlatKV, scheduler.";
  m.attr("__version__") = tokenspeed::kVersion;
}
