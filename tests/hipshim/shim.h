// What the four libraries of the shim share: NVIDIA's functions, loaded when they are first used,
// so that the shim builds and loads on a machine that has only NVIDIA's headers.
#pragma once
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define NAME_OF_(f) #f
#define NAME_OF(f) NAME_OF_(f)  // after expansion: cuda.h makes cuMemAlloc a cuMemAlloc_v2

inline const char* variable(const char* name, const char* otherwise) {
  const char* found = getenv(name);
  return found && *found ? found : otherwise;
}

inline void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* found = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return found;
  fprintf(stderr, "hipshim: none of the CUDA libraries found: %s\n", *names.begin());
  return nullptr;
}

inline void* symbol(void* library, const char* name) {
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found && library) {  // an older driver: cuEventElapsedTime_v2 differs in its errors alone
    const std::string text = name;
    found = dlsym(library, text.substr(0, text.rfind("_v")).c_str());
  }
  if (!found) {
    fprintf(stderr, "hipshim: %s is not in the CUDA library\n", name);
    abort();
  }
  return found;
}
#define FROM(library, f) (reinterpret_cast<decltype(&f)>(symbol(library, NAME_OF(f))))
