// C++ exceptions as Python exceptions, which are also what a Python programmer would catch without knowing thinwire.
#include <array>
#include <exception>

#include "bindings.h"
#include "thinwire/errors.h"

namespace thinwire::python {
namespace {

PyObject* new_exception(nb::module_& module, const char* name, const char* doc, nb::handle bases) {
  const std::string qualified = std::string("thinwire.") + name;  // where users see it, and where pickle looks for it
  PyObject* const type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (!type) throw nb::python_error();
  module.attr(name) = nb::borrow(type);
  return type;  // never released: the translator needs it as long as the process lives
}

struct ErrorTypes {
  PyObject *error, *argument, *payload, *peer, *state;
};

ErrorTypes types;

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ArgumentError& error) {
    PyErr_SetString(types.argument, error.what());
  } catch (const PayloadError& error) {
    PyErr_SetString(types.payload, error.what());
  } catch (const PeerError& error) {
    PyErr_SetString(types.peer, error.what());
  } catch (const StateError& error) {
    PyErr_SetString(types.state, error.what());
  } catch (const Error& error) {
    PyErr_SetString(types.error, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  types.error = new_exception(module, "Error", "What thinwire raises.", PyExc_Exception);
  const nb::tuple value = nb::make_tuple(nb::borrow(types.error), nb::borrow(PyExc_ValueError));
  const nb::tuple runtime = nb::make_tuple(nb::borrow(types.error), nb::borrow(PyExc_RuntimeError));
  types.argument = new_exception(module, "ArgumentError", "A spec, rule, layout or option is wrong.", value);
  types.payload = new_exception(module, "PayloadError", "Bytes of another worker are not what the format allows.", runtime);
  types.peer = new_exception(module, "PeerError", "A worker is lost, late or has failed.", runtime);
  types.state = new_exception(module, "StateError", "Saved state does not fit, or the object is of no further use.", runtime);
  nb::register_exception_translator(translate);
}

}  // namespace thinwire::python
