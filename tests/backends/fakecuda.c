// The model GPU of tests/devices, with what IREE's CUDA driver asks for beyond our own binding.
//
// IREE finds functions by cuGetProcAddress and calls them from threads of its own, so what it gets
// takes a lock. Its modules are PTX, which nothing here can run: a kernel is known by its name,
// main_dispatch_0_matmul_MxNxK_f32, and is the model's product. What is not needed is refused.
#include "../devices/fakegpu.c"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCKED(call)             \
  do {                           \
    pthread_mutex_lock(&lock);   \
    int code_ = (call);          \
    pthread_mutex_unlock(&lock); \
    return code_;                \
  } while (0)

// What IREE launched, for tests to look at.
#define LOGGED 4096
static u64 logged[LOGGED];
static int launches;
int fake_launches(void) { return launches; }
u64 fake_launched(int i) { return logged[i % LOGGED]; }

struct matmul { struct function function; u64 dims[3]; };

static int attribute(int *v, int number, int d) {
  if (cuDeviceGetAttribute(v, number, d) == OK) return OK;
  *v = number >= 1 && number <= 8 ? 1024 : 0;  // limits of a launch; anything else is absent
  return OK;
}
static int set_current(P context) { LOCKED(cuCtxSetCurrent(context)); }
static int stream_create(P *s, unsigned flags) { LOCKED(cuStreamCreate(s, flags)); }
static int stream_destroy(P s) { LOCKED(cuStreamDestroy_v2(s)); }
static int stream_wait(P s, P e, unsigned flags) {
  (void)flags;
  LOCKED(get(STREAM, s) && get(EVENT, e) ? OK : BAD_HANDLE);  // one queue: in order anyway
}
static int event_create(P *e, unsigned flags) { (void)flags; LOCKED(cuEventCreate(e, 0)); }
static int event_destroy(P e) { LOCKED(cuEventDestroy_v2(e)); }
static int event_record(P e, P s) { LOCKED(cuEventRecord(e, s)); }
static int event_synchronize(P e) { LOCKED(cuEventSynchronize(e)); }
static int module_load(P *module, const char *code, unsigned n, P options, P values) {
  (void)n, (void)options, (void)values;
  if (!strstr(code, ".target sm_89")) return BAD_IMAGE;
  LOCKED((*module = add(MODULE, malloc(1), 0)->data, OK));
}
static int module_unload(P module) { LOCKED(cuModuleUnload(module)); }
static int module_function(P *out, P module, const char *name) {
  struct matmul *f = calloc(1, sizeof *f);
  unsigned long long m, n, k;
  char type[8];
  if (sscanf(name, "main_dispatch_0_matmul_%llux%llux%llu_%7s", &m, &n, &k, type) != 4 ||
      strcmp(type, "f32"))
    return NOT_FOUND;
  f->dims[0] = m, f->dims[1] = n, f->dims[2] = k;
  static const struct kernel kernel = {"matmul", "888", gemm};
  f->function = (struct function){&kernel, module, 49152};
  *out = f;
  return OK;
}
static int launch_locked(struct matmul *f, P stream, void **arguments) {
  struct work item = {.kind = LAUNCH, .function = &f->function};
  if (!get(MODULE, f->function.module)) return BAD_HANDLE;
  for (int i = 0; i < 3; i++) memcpy(&item.launch.argument[i], arguments[i], 8);
  memcpy(&item.launch.argument[3], f->dims, sizeof f->dims);
  logged[launches++ % LOGGED] = item.launch.argument[2];
  return enqueue(stream, item);
}
static int launch(struct matmul *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, P stream, void **arguments, void **extra) {
  if (!gx || !gy || !gz || bx * by * bz > 1024 || extra || shared > 232448) return INVALID;
  LOCKED(launch_locked(f, stream, arguments));
}
static int allow_shared(P f, int number, int value) { (void)f, (void)number, (void)value; return OK; }
static int refused(void) { return 801; }

static const struct { const char *name; P function; } known[] = {
    {"cuGetErrorName", cuGetErrorName}, {"cuGetErrorString", cuGetErrorString},
    {"cuDriverGetVersion", cuDriverGetVersion}, {"cuInit", cuInit},
    {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain},
    {"cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2},
    {"cuCtxSetCurrent", set_current}, {"cuDeviceGet", cuDeviceGet},
    {"cuDeviceGetCount", cuDeviceGetCount}, {"cuDeviceGetName", cuDeviceGetName},
    {"cuDeviceGetAttribute", attribute}, {"cuDeviceGetUuid", cuDeviceGetUuid_v2},
    {"cuEventCreate", event_create}, {"cuEventDestroy", event_destroy},
    {"cuEventRecord", event_record}, {"cuEventSynchronize", event_synchronize},
    {"cuStreamCreate", stream_create}, {"cuStreamDestroy", stream_destroy},
    {"cuStreamWaitEvent", stream_wait}, {"cuModuleLoadDataEx", module_load},
    {"cuModuleUnload", module_unload}, {"cuModuleGetFunction", module_function},
    {"cuFuncSetAttribute", allow_shared}, {"cuLaunchKernel", launch},
};

int cuGetProcAddress(const char *name, P *function, int version, u64 flags) {
  (void)version, (void)flags;
  *function = refused;
  if (!strcmp(name, "cuGetProcAddress")) *function = cuGetProcAddress;
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, name)) *function = known[i].function;
  return OK;
}
