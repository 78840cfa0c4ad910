// libamdhip64 over the CUDA driver: the functions that src/kernelmark/gpu/table.py names, with the
// signatures, enumerators and struct layout of ROCm 6 and 7. HIP's error codes equal CUDA's.
//
//   SHIM_GCN_ARCH      what the GPU calls itself (default gfx942:sramecc+:xnack-)
//   SHIM_NO_CAPTURE=1  refuse to capture streams, as some libraries do
#include <cuda.h>

#include <cstddef>
#include <string>
#include <vector>

#include "shim.h"

static void* libcuda() {
  static void* found = open_first({"libcuda.so.1"});
  return found;
}
#define CU(f) FROM(libcuda(), f)

typedef int hipError_t;
enum { hipErrorInvalidDevice = 101, hipErrorNoDevice = 100, hipErrorStreamCaptureUnsupported = 900 };

// The physical devices that are visible, in HIP's order: HIP_VISIBLE_DEVICES renumbers them.
static const std::vector<int>& visible() {
  static const std::vector<int> found = [] {
    std::vector<int> devices;
    int count = 0;
    if (!libcuda() || CU(cuInit)(0) || CU(cuDeviceGetCount)(&count)) return devices;
    const char* given = getenv("HIP_VISIBLE_DEVICES");
    if (!given) {
      for (int i = 0; i < count; ++i) devices.push_back(i);
      return devices;
    }
    for (const char* at = given; *at;) {
      char* end;
      const long index = strtol(at, &end, 10);
      if (end == at || index < 0 || index >= count) break;  // HIP ends the list there too
      devices.push_back((int)index);
      at = *end == ',' ? end + 1 : end;
      if (*end && *end != ',') break;
    }
    return devices;
  }();
  return found;
}

static thread_local int current = 0;
static thread_local int bound = -1;

static CUcontext context_of(int device) {
  static std::vector<CUcontext> contexts(visible().size(), nullptr);
  CUcontext& context = contexts[device];
  CUdevice physical;
  if (!context && !CU(cuDeviceGet)(&physical, visible()[device]))
    CU(cuDevicePrimaryCtxRetain)(&context, physical);
  return context;
}

static hipError_t bind() {
  if (visible().empty()) return hipErrorNoDevice;
  if (bound == current) return 0;
  const CUresult code = CU(cuCtxSetCurrent)(context_of(current));
  if (!code) bound = current;
  return code;
}
static bool exists(int device) { return device >= 0 && device < (int)visible().size(); }

#define HIP EXPORT hipError_t
#define NEEDS_DEVICE(device) \
  if (!exists(device)) return visible().empty() ? hipErrorNoDevice : hipErrorInvalidDevice
// As from ROCm 7 on, an error stays until it is asked for.
static thread_local hipError_t last_error = 0;
static hipError_t kept(hipError_t code) {
  if (code) last_error = code;
  return code;
}
#define CALL(f, ...)                                       \
  {                                                        \
    if (const hipError_t code = bind()) return kept(code); \
    return kept(CU(f)(__VA_ARGS__));                       \
  }

HIP hipGetLastError() {
  const hipError_t code = last_error;
  last_error = 0;
  return code;
}

HIP hipInit(unsigned) { return visible().empty() ? hipErrorNoDevice : 0; }
HIP hipGetDeviceCount(int* count) {
  *count = (int)visible().size();
  return *count ? 0 : hipErrorNoDevice;
}
HIP hipRuntimeGetVersion(int* version) { return *version = 60443484, 0; }  // ROCm 6.4
HIP hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
HIP hipSetDevice(int device) {
  NEEDS_DEVICE(device);
  current = device;
  return bind();
}
HIP hipGetDevice(int* device) { return *device = current, visible().empty() ? hipErrorNoDevice : 0; }
HIP hipDeviceGetName(char* name, int size, int device) {
  NEEDS_DEVICE(device);
  char own[200] = "";
  const CUresult code = CU(cuDeviceGetName)(own, sizeof own, visible()[device]);
  snprintf(name, size, "%s (HIP shim)", own);
  return code;
}
HIP hipDeviceTotalMem(size_t* bytes, int device) {
  NEEDS_DEVICE(device);
  return CU(cuDeviceTotalMem)(bytes, visible()[device]);
}
HIP hipDeviceGetUuid(CUuuid* uuid, int device) {
  NEEDS_DEVICE(device);
  return FROM(libcuda(), cuDeviceGetUuid)(uuid, visible()[device]);
}
HIP hipDeviceGetPCIBusId(char* text, int size, int device) {
  NEEDS_DEVICE(device);
  return CU(cuDeviceGetPCIBusId)(text, size, visible()[device]);
}
HIP hipDeviceCanAccessPeer(int* can, int device, int peer) {
  NEEDS_DEVICE(device);
  NEEDS_DEVICE(peer);
  return CU(cuDeviceCanAccessPeer)(can, visible()[device], visible()[peer]);
}
HIP hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  NEEDS_DEVICE(peer);
  CALL(cuCtxEnablePeerAccess, context_of(peer), flags)
}

static int fact(CUdevice_attribute attribute, int device) {
  int value = 0;
  CU(cuDeviceGetAttribute)(&value, attribute, visible()[device]);
  return value;
}

// hipDeviceAttribute_t as in ROCm 6 and 7: the position in one enumeration, AMD's own from 10000.
HIP hipDeviceGetAttribute(int* value, int attribute, int device) {
  NEEDS_DEVICE(device);
  static const struct {
    int hip;
    CUdevice_attribute cuda;
  } same[] = {
      {0, CU_DEVICE_ATTRIBUTE_ECC_ENABLED},
      {5, CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
      {9, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
      {19, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
      {23, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {24, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
      {57, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
      {59, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
      {60, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
      {61, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {63, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {65, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
      {72, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
      {74, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {87, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
      {10002, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
  };
  for (const auto& one : same)
    if (one.hip == attribute) return *value = fact(one.cuda, device), 0;
  if (attribute == 10017) return *value = 1000000, 0;  // kHz of NVIDIA's %globaltimer
  return CUDA_ERROR_INVALID_VALUE;
}

// hipDeviceProp_tR0600. What lies between the named members is left zero.
struct Properties {
  char name[256];
  CUuuid uuid;
  char luid[8];
  unsigned luid_mask;
  size_t total_bytes, shared_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, threads_dim[3], grid_size[3], clock_khz;
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment[2];
  int overlap, units;
  char between[1160 - 392];
  char arch[256];
  size_t shared_per_unit;
  char rest[1472 - 1424];
};
static_assert(offsetof(Properties, units) == 388, "hipDeviceProp_tR0600.multiProcessorCount");
static_assert(offsetof(Properties, arch) == 1160, "hipDeviceProp_tR0600.gcnArchName");
static_assert(sizeof(Properties) == 1472, "hipDeviceProp_tR0600");

HIP hipGetDevicePropertiesR0600(Properties* found, int device) {
  NEEDS_DEVICE(device);
  memset(found, 0, sizeof *found);
  hipDeviceGetName(found->name, sizeof found->name, device);
  hipDeviceGetUuid(&found->uuid, device);
  hipDeviceTotalMem(&found->total_bytes, device);
  found->shared_per_block = fact(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  found->registers_per_block = fact(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
  found->warp_size = fact(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  found->threads_per_block = fact(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
  found->clock_khz = fact(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
  found->major = fact(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  found->minor = fact(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  found->units = fact(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  found->shared_per_unit =
      fact(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
  snprintf(found->arch, sizeof found->arch, "%s",
           variable("SHIM_GCN_ARCH", "gfx942:sramecc+:xnack-"));
  return 0;
}

// -- memory

HIP hipMemGetInfo(size_t* free, size_t* total) CALL(cuMemGetInfo, free, total)
HIP hipMalloc(CUdeviceptr* at, size_t bytes) CALL(cuMemAlloc, at, bytes)
HIP hipMallocManaged(CUdeviceptr* at, size_t bytes, unsigned flags)
    CALL(cuMemAllocManaged, at, bytes, flags)
HIP hipFree(CUdeviceptr at) {
  if (!at) return 0;
  CALL(cuMemFree, at)
}
HIP hipIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr at) CALL(cuIpcGetMemHandle, handle, at)
HIP hipIpcOpenMemHandle(CUdeviceptr* at, CUipcMemHandle handle, unsigned flags)
    CALL(cuIpcOpenMemHandle, at, handle, flags)
HIP hipHostMalloc(void** at, size_t bytes, unsigned flags) CALL(cuMemHostAlloc, at, bytes, flags)
HIP hipHostFree(void* at) CALL(cuMemFreeHost, at)
HIP hipHostGetDevicePointer(CUdeviceptr* found, void* at, unsigned flags)
    CALL(cuMemHostGetDevicePointer, found, at, flags)
HIP hipMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) CALL(cuMemcpyHtoD, to, from, n)
HIP hipMemcpyDtoH(void* to, CUdeviceptr from, size_t n) CALL(cuMemcpyDtoH, to, from, n)
HIP hipMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t n, CUstream s)
    CALL(cuMemcpyHtoDAsync, to, from, n, s)
HIP hipMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t n, CUstream s)
    CALL(cuMemcpyDtoHAsync, to, from, n, s)
HIP hipMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
    CALL(cuMemcpyDtoDAsync, to, from, n, s)
HIP hipMemsetD8Async(CUdeviceptr at, unsigned char byte, size_t n, CUstream s)
    CALL(cuMemsetD8Async, at, byte, n, s)

// -- streams, events, graphs

HIP hipStreamCreateWithFlags(CUstream* made, unsigned flags) CALL(cuStreamCreate, made, flags)
HIP hipStreamDestroy(CUstream s) CALL(cuStreamDestroy, s)
HIP hipStreamSynchronize(CUstream s) CALL(cuStreamSynchronize, s)
HIP hipDeviceSynchronize() CALL(cuCtxSynchronize)
HIP hipEventCreateWithFlags(CUevent* made, unsigned flags) CALL(cuEventCreate, made, flags)
HIP hipEventDestroy(CUevent e) CALL(cuEventDestroy, e)
HIP hipEventRecord(CUevent e, CUstream s) CALL(cuEventRecord, e, s)
HIP hipEventSynchronize(CUevent e) CALL(cuEventSynchronize, e)
HIP hipEventElapsedTime(float* ms, CUevent a, CUevent b) CALL(cuEventElapsedTime, ms, a, b)
HIP hipStreamBeginCapture(CUstream s, CUstreamCaptureMode mode) {
  if (getenv("SHIM_NO_CAPTURE")) return hipErrorStreamCaptureUnsupported;
  CALL(cuStreamBeginCapture, s, mode)
}
HIP hipStreamEndCapture(CUstream s, CUgraph* graph) CALL(cuStreamEndCapture, s, graph)
HIP hipGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long flags)
    CALL(cuGraphInstantiateWithFlags, made, graph, flags)
HIP hipGraphLaunch(CUgraphExec graph, CUstream s) CALL(cuGraphLaunch, graph, s)
HIP hipGraphExecDestroy(CUgraphExec graph) CALL(cuGraphExecDestroy, graph)
// As ROCm's clr draws kernels without flags.
HIP hipGraphDebugDotPrint(CUgraph graph, const char* path, unsigned flags) {
  if (const hipError_t code = bind()) return code;
  size_t count = 0;
  if (const CUresult code = CU(cuGraphGetNodes)(graph, nullptr, &count)) return code;
  std::vector<CUgraphNode> nodes(count);
  if (const CUresult code = CU(cuGraphGetNodes)(graph, nodes.data(), &count)) return code;
  FILE* file = flags ? nullptr : fopen(path, "w");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  for (size_t i = 0; i < count; ++i) {
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS node = {};
    const char* name = "";
    if (CU(cuGraphNodeGetType)(nodes[i], &type) || type != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    if (CU(cuGraphKernelNodeGetParams)(nodes[i], &node)) continue;
    if (!node.kern || CU(cuKernelGetName)(&name, node.kern)) CU(cuFuncGetName)(&name, node.func);
    fprintf(file, "\"%zu\"[style=\"bold\"shape=\"octagon\"label=\"%zu\n%s\n\"];\n", i, i, name);
  }
  fclose(file);
  return 0;
}
HIP hipGraphDestroy(CUgraph graph) CALL(cuGraphDestroy, graph)

// -- modules

HIP hipModuleLoadData(CUmodule* made, const void* image) CALL(cuModuleLoadData, made, image)
HIP hipModuleUnload(CUmodule module) CALL(cuModuleUnload, module)
HIP hipModuleGetFunction(CUfunction* found, CUmodule module, const char* name)
    CALL(cuModuleGetFunction, found, module, name)
HIP hipFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction f)
    CALL(cuFuncGetAttribute, value, attribute, f)

// CUDA wants to be told before a kernel takes more than 48 KiB of dynamic shared memory; HIP does
// not know such a limit.
static hipError_t allow_shared(CUfunction f, size_t bytes) {
  if (const hipError_t code = bind()) return code;
  if (bytes <= 48 * 1024) return 0;
  return CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes);
}
HIP hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction f, int threads,
                                                       size_t shared) {
  if (const hipError_t code = allow_shared(f, shared)) return code;
  return CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(blocks, f, threads, shared);
}
HIP hipModuleLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, CUstream s, void** arguments,
                          void** extra) {
  if (const hipError_t code = allow_shared(f, shared)) return code;
  return CU(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, s, arguments, extra);
}

// -- errors

static const char* error_text(hipError_t code, bool name) {
  static thread_local std::string text;
  const char* found = nullptr;
  if (libcuda()) {
    if (name)
      CU(cuGetErrorName)((CUresult)code, &found);
    else
      CU(cuGetErrorString)((CUresult)code, &found);
  }
  text = found ? found : "unknown error " + std::to_string(code);
  if (name && text.rfind("CUDA_", 0) == 0) text = "hip" + text.substr(4);  // hip_ERROR_…
  return text.c_str();
}
EXPORT const char* hipGetErrorName(hipError_t code) { return error_text(code, true); }
EXPORT const char* hipGetErrorString(hipError_t code) { return error_text(code, false); }
