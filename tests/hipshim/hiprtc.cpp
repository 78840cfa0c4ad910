// libhiprtc over NVRTC: our HIP sources compiled for the NVIDIA GPU at hand, whichever AMD
// architecture is asked for. The result is a cubin, which the shim's hipModuleLoadData takes.
//
//   SHIM_SM   architecture to compile for (default 90a: an H100 or H200, with its own instructions)
#include <nvrtc.h>

#include <string>
#include <vector>

#include "shim.h"

static void* libnvrtc() {
  static void* found = open_first({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  return found;
}
#define RTC(f) FROM(libnvrtc(), f)

// What HIP sources may use and NVRTC does not have.
static const char* prelude =
    "#define __HIP_PLATFORM_NVIDIA__ 1\n#define __HIPCC_RTC__ 1\n"
    "__device__ inline long long wall_clock64() {\n"
    "  long long t;\n  asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(t));\n  return t;\n}\n"
    "#line 1\n";

EXPORT int hiprtcVersion(int* major, int* minor) { return *major = 9, *minor = 0, 0; }
EXPORT const char* hiprtcGetErrorString(int code) {
  return RTC(nvrtcGetErrorString)((nvrtcResult)code);  // the first eleven codes are the same
}
EXPORT int hiprtcCreateProgram(nvrtcProgram* made, const char* source, const char* name, int count,
                               const char* const* headers, const char* const* names) {
  const std::string whole = std::string(prelude) + source;
  return RTC(nvrtcCreateProgram)(made, whole.c_str(), name, count, headers, names);
}
EXPORT int hiprtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  std::vector<std::string> kept = {std::string("--gpu-architecture=sm_") + variable("SHIM_SM", "90a")};
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    // Names of AMD's targets, and clang's options without a counterpart.
    if (option.rfind("--offload-arch=", 0) == 0 || option.rfind("--gpu-architecture=", 0) == 0)
      continue;
    if (option.rfind("-O", 0) == 0 || option.rfind("-m", 0) == 0) continue;
    kept.push_back(option == "-ffast-math" ? "--use_fast_math" : option);
  }
  std::vector<const char*> plain;
  for (const std::string& option : kept) plain.push_back(option.c_str());
  return RTC(nvrtcCompileProgram)(program, (int)plain.size(), plain.data());
}
EXPORT int hiprtcAddNameExpression(nvrtcProgram program, const char* name) {
  return RTC(nvrtcAddNameExpression)(program, name);
}
EXPORT int hiprtcGetLoweredName(nvrtcProgram program, const char* name, const char** lowered) {
  return RTC(nvrtcGetLoweredName)(program, name, lowered);
}
EXPORT int hiprtcGetProgramLogSize(nvrtcProgram program, size_t* bytes) {
  return RTC(nvrtcGetProgramLogSize)(program, bytes);
}
EXPORT int hiprtcGetProgramLog(nvrtcProgram program, char* text) {
  return RTC(nvrtcGetProgramLog)(program, text);
}
EXPORT int hiprtcGetCodeSize(nvrtcProgram program, size_t* bytes) {
  return RTC(nvrtcGetCUBINSize)(program, bytes);
}
EXPORT int hiprtcGetCode(nvrtcProgram program, char* code) {
  return RTC(nvrtcGetCUBIN)(program, code);
}
EXPORT int hiprtcDestroyProgram(nvrtcProgram* program) {
  return RTC(nvrtcDestroyProgram)(program);
}
