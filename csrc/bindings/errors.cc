#include "base/errors.h"

#include "bindings/bind.h"

namespace nb = nanobind;

namespace tokenspeed {
namespace {

void Raise(const char* name, const char* message, const char* keyword, const nb::object& value) {
  try {
    nb::object type = nb::module_::import_("tokenspeed.errors").attr(name);
    nb::dict keywords;
    keywords[keyword] = value;
    nb::object error = type(message, **keywords);
    PyErr_SetObject(type.ptr(), error.ptr());
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

void Translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const RequestError& error) {
    const nb::object code =
        error.code().empty() ? nb::none() : nb::object(nb::str(error.code().c_str()));
    Raise("RequestError", error.what(), "code", code);
  } catch (const CapacityError& error) {
    const auto seconds = error.retry_after_s();
    const nb::object value = seconds ? nb::object(nb::int_(*seconds)) : nb::none();
    Raise("CapacityError", error.what(), "retry_after_s", value);
  }
}

}  // namespace

// std::invalid_argument is ValueError and std::logic_error RuntimeError by nanobind itself.
void BindErrors(nb::module_&) { nb::register_exception_translator(Translate); }

}  // namespace tokenspeed
