// Python's stable ABI: the few functions that override() calls, declared here and found with dlsym, as
// torch's are in torch_abi.h. So nothing of Python is needed to build or to load this library.
#pragma once
#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace python {

using Object = void;  // PyObject
using Function = Object* (*)(Object* self, Object* args, Object* kwargs);

struct MethodDef {  // PyMethodDef
  const char* name;
  Function function;
  int flags;
  const char* doc;
};
inline constexpr int kVarargsAndKeywords = 1 | 2;

struct Api {
  void (*incref)(Object*);
  void (*decref)(Object*);
  int (*gil_ensure)();
  void (*gil_release)(int);
  void* (*save_thread)();
  void (*restore_thread)(void*);
  Object* (*call)(Object* callable, Object* args, Object* kwargs);
  Object* (*call_objects)(Object* callable, ...);  // arguments, then nullptr
  Object* (*get_attr)(Object*, Object* name);
  Object* (*intern)(const char*);
  Object* (*str)(Object*);
  const char* (*utf8)(Object*, void* size);
  void* (*as_pointer)(Object*);
  double (*as_double)(Object*);
  long (*dict_size)(Object*);
  Object* (*dict_get)(Object*, Object* key);  // borrowed
  long (*tuple_size)(Object*);
  Object* (*tuple_get)(Object*, long);  // borrowed
  Object* (*list_new)(long);
  Object* (*list_get)(Object*, long);  // borrowed
  int (*list_set)(Object*, long, Object*);  // takes the reference
  Object* (*capsule)(void* pointer, const char* name, void (*destructor)(Object*));
  Object* (*function)(MethodDef*, Object* self, Object* module);
  void (*set_error)(Object* type, const char* text);
  Object* (*error)();
  void (*fetch_error)(Object** type, Object** value, Object** trace);
  void (*clear_error)();
  Object** runtime_error;
};

inline Api load_api() {
  Api api{};
  auto find = [](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
    if (!function) throw std::runtime_error(std::string("hopgemm: this process has no ") + name);
  };
  find(api.incref, "Py_IncRef");
  find(api.decref, "Py_DecRef");
  find(api.gil_ensure, "PyGILState_Ensure");
  find(api.gil_release, "PyGILState_Release");
  find(api.save_thread, "PyEval_SaveThread");
  find(api.restore_thread, "PyEval_RestoreThread");
  find(api.call, "PyObject_Call");
  find(api.call_objects, "PyObject_CallFunctionObjArgs");
  find(api.get_attr, "PyObject_GetAttr");
  find(api.intern, "PyUnicode_InternFromString");
  find(api.str, "PyObject_Str");
  find(api.utf8, "PyUnicode_AsUTF8AndSize");
  find(api.as_pointer, "PyLong_AsVoidPtr");
  find(api.as_double, "PyFloat_AsDouble");
  find(api.dict_size, "PyDict_Size");
  find(api.dict_get, "PyDict_GetItem");
  find(api.tuple_size, "PyTuple_Size");
  find(api.tuple_get, "PyTuple_GetItem");
  find(api.list_new, "PyList_New");
  find(api.list_get, "PyList_GetItem");
  find(api.list_set, "PyList_SetItem");
  find(api.capsule, "PyCapsule_New");
  find(api.function, "PyCFunction_NewEx");
  find(api.set_error, "PyErr_SetString");
  find(api.error, "PyErr_Occurred");
  find(api.fetch_error, "PyErr_Fetch");
  find(api.clear_error, "PyErr_Clear");
  find(api.runtime_error, "PyExc_RuntimeError");
  return api;
}

inline const Api& api() {
  static const Api loaded = load_api();
  return loaded;
}

class Gil {
 public:
  Gil() : state_(api().gil_ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { api().gil_release(state_); }

 private:
  int state_;
};

class WithoutGil {
 public:
  WithoutGil() : thread_(api().save_thread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { api().restore_thread(thread_); }

 private:
  void* thread_;
};

// The text of the exception that is set, which it clears.
inline std::string take_error() {
  const Api& py = api();
  Object *type = nullptr, *value = nullptr, *trace = nullptr;
  py.fetch_error(&type, &value, &trace);
  Object* text = value ? py.str(value) : nullptr;
  const char* utf8 = text ? py.utf8(text, nullptr) : nullptr;
  std::string message = utf8 ? utf8 : "an exception without a text";
  for (Object* o : {type, value, trace, text})
    if (o) py.decref(o);
  py.clear_error();
  return message;
}

}  // namespace python
