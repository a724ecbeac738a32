// One Bind function per csrc folder that Python meets, and the arrays they share.
// Thread: interpreter lock held.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <vector>

namespace tokenspeed {

void BindErrors(nanobind::module_& m);
void BindFsm(nanobind::module_& m);
void BindPlan(nanobind::module_& m);
void BindScheduler(nanobind::module_& m);

template <class T>
using Vector = nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>, nanobind::c_contig>;
template <class T>
using Matrix = nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<2>, nanobind::c_contig>;

}  // namespace tokenspeed
