// One Bind function per topic that Python meets, and the arrays they share. The docstrings are the
// reference that people read: core/tokenspeed/_core.pyi is generated from the built extension.
// Thread: interpreter lock held.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <vector>

namespace tokenspeed {

void BindConfig(nanobind::module_& m);
void BindErrors(nanobind::module_& m);
void BindEvents(nanobind::module_& m);
void BindFsm(nanobind::module_& m);
void BindPlan(nanobind::module_& m);
void BindRanks(nanobind::module_& m);
void BindScheduler(nanobind::module_& m);
void BindView(nanobind::module_& m);

template <class T>
using Vector = nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>, nanobind::c_contig>;
template <class T, size_t Columns>
using Matrix =
    nanobind::ndarray<nanobind::numpy, const T, nanobind::shape<-1, Columns>, nanobind::c_contig>;
template <class T>
using Rows =
    nanobind::ndarray<nanobind::numpy, const T, nanobind::shape<-1, -1>, nanobind::c_contig>;
template <class T>
using Cube = nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<3>, nanobind::c_contig>;

}  // namespace tokenspeed
