// Two GPUs in host memory, behind CUDA's driver API or, with -DHIP, behind HIP's runtime.
//
// A strict model of what the binding relies on. Launches, fills, copies on a stream and event
// records are queued and run only when somebody waits for them. Plain copies do not wait for that,
// as beside a non-blocking stream; one to the device may return before it is done, and here it is
// never done before what is queued by the time somebody waits. Time is the model's own: each kernel takes a known number of
// nanoseconds, a graph has a fixed cost. Kernels are known by name. Addresses outside allocations,
// attribute numbers that do not exist, foreign handles and foreign binaries are refused.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef void *P;

#ifdef HIP
#define API(cuda, hip) int hip
#define MACHINE 224
#define ARCH "gfx90a"  // unless $FAKE_ARCH names another one
#else
#define API(cuda, hip) int cuda
#define MACHINE 190
#endif

enum { OK, INVALID, NO_MEMORY, BAD_DEVICE = 101, BAD_IMAGE = 200, BAD_CONTEXT = 201 };
enum { BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, BAD_ADDRESS = 700, PEER_AGAIN = 704 };
enum { CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901 };

#define DEVICES 2
#define UNITS 4
#define CORE_KHZ 1500000ull
#define WALL_KHZ 100000ull  // HIP's wall clock; CUDA's counts nanoseconds
#define GRAPH_NS 6000ull
#define STAMP_NS 800ull
#define MEMORY (8ull << 30)

// -- failures on demand

// HIP's last error stays, as from ROCm 7 on, until it is asked for. Only failures on demand set it.
static int last_error;
int hipGetLastError(void) {
  const int code = last_error;
  last_error = OK;
  return code;
}

static char fail_name[64];
static int fail_code, fail_times;

void fake_fail(const char *name, int code, int times) {
  snprintf(fail_name, sizeof fail_name, "%s", name);
  fail_code = code;
  fail_times = times;
}

int fake_times(void) { return fail_times; }

static int failing(const char *name) {
  if (!fail_times || strcmp(name, fail_name)) return OK;
  fail_times--;
  last_error = fail_code;
  return fail_code;
}

#define ENTER                       \
  do {                              \
    int code_ = failing(__func__);  \
    if (code_) return code_;        \
  } while (0)

// -- handles

enum { BUFFER, HOST, STREAM, EVENT, GRAPH, EXEC, MODULE, KINDS };
struct handle {
  int kind;
  u64 size;  // of a buffer
  void *data;
  struct handle *next;
};
static struct handle *all;
static int live[KINDS];
static u64 used;

int fake_live(int kind) { return live[kind]; }

static struct handle *add(int kind, void *data, u64 size) {
  struct handle *h = malloc(sizeof *h);
  *h = (struct handle){kind, size, data, all};
  all = h;
  live[kind]++;
  return h;
}

static void *get(int kind, P data) {
  for (struct handle *h = all; h; h = h->next)
    if (h->kind == kind && h->data == data) return data;
  return NULL;
}

static int drop(int kind, P data) {
  for (struct handle **h = &all; *h; h = &(*h)->next)
    if ((*h)->kind == kind && (*h)->data == data) {
      struct handle *gone = *h;
      *h = gone->next;
      used -= kind == BUFFER ? gone->size : 0;
      live[kind]--;
      free(gone);
      return OK;
    }
  return kind <= HOST ? INVALID : BAD_HANDLE;
}

static int inside(const void *start, u64 nbytes) {
  const char *p = start;
  if (!nbytes) return 1;
  for (struct handle *h = all; h; h = h->next)
    if (h->kind <= HOST && p >= (char *)h->data && p + nbytes <= (char *)h->data + h->size)
      return 1;
  return 0;
}

// -- kernels

static u64 now_ns;
static int sticky;  // what the next wait reports

// The host's time for each kernel of a graph, which no kernel can be shorter than unless a gate is
// closed ahead of the graph.
static u64 host_ns;
void fake_host_ns(u64 ns) { host_ns = ns; }
void fake_reset(void) { sticky = fail_times = last_error = 0, host_ns = 0; }

struct launch {
  u64 argument[8];
  u64 threads, rows, table[128];
};
#define PTR(i) ((void *)(uintptr_t)l->argument[i])
#define NUM(i) (l->argument[i])
#define NEED(p, n) \
  if (!inside(p, n)) { sticky = BAD_ADDRESS; return; }

#define BY_WIDTH(W, T)                                                             \
  static void generate_##W(struct launch *l) {                                     \
    T *out = PTR(0), *pool = PTR(1);                                               \
    NEED(out, NUM(2) * W) NEED(pool, NUM(4) * W)                                   \
    for (u64 i = 0, at = NUM(3) % NUM(4); i < NUM(2); at = 0) {                    \
      u64 left = NUM(2) - i, part = NUM(4) - at < left ? NUM(4) - at : left;       \
      memcpy(out + i, pool + at, part * W), i += part;                             \
    }                                                                              \
    now_ns += NUM(2) * W / 100;                                                    \
  }                                                                                \
  static void generate_all_##W(struct launch *l) {                                 \
    u64 *table = l->table;                                                         \
    for (u64 y = 0; y < l->rows; y++) {                                            \
      struct launch one = {{table[2 * y], NUM(1), NUM(2), table[2 * y + 1], NUM(3)}}; \
      generate_##W(&one);                                                          \
    }                                                                              \
  }                                                                                \
  static void changed_##W(struct launch *l) {                                      \
    u64 *table = l->table, *found = PTR(4);                                        \
    T *pool = PTR(1);                                                              \
    NEED(found, l->rows * 8)                                                       \
    for (u64 y = 0; y < l->rows; y++) {                                            \
      T *data = (T *)(uintptr_t)table[2 * y];                                      \
      NEED(data, NUM(2) * W)                                                       \
      for (u64 i = 0, at = table[2 * y + 1] % NUM(3); i < NUM(2); i++) {           \
        found[y] += data[i] != pool[at];                                           \
        at = at + 1 == NUM(3) ? 0 : at + 1;                                        \
      }                                                                            \
    }                                                                              \
  }                                                                                \
  static void inspect_##W(struct launch *l) {                                      \
    u64 *found = PTR(5), count = NUM(1), nbytes = NUM(2);                          \
    NEED(found, l->rows * 16)                                                      \
    for (u64 y = 0; y < l->rows; y++) {                                            \
      unsigned char *first = (unsigned char *)(uintptr_t)l->table[2 * y];          \
      u64 before = l->table[2 * y + 1] >> 32, after = l->table[2 * y + 1] & 0xffffffff;\
      T *data = (T *)(first + before), wanted;                                     \
      NEED(first, before + nbytes + after)                                         \
      memset(&wanted, NUM(3), W);                                                  \
      for (u64 i = 0; i < count; i++) found[2 * y] += data[i] == wanted;           \
      for (u64 i = 0; i < before; i++) found[2 * y + 1] += first[i] == NUM(4);     \
      for (u64 i = 0; i < after; i++) found[2 * y + 1] += first[before + nbytes + i] == NUM(4);\
    }                                                                              \
  }                                                                                \
  static void gather_##W(struct launch *l) {                                       \
    T *out = PTR(0), *data = PTR(1);                                               \
    u64 *where = PTR(2);                                                           \
    NEED(out, NUM(3) * W) NEED(where, NUM(3) * 8)                                  \
    for (u64 i = 0; i < NUM(3) && i < l->threads; i++) {                           \
      NEED(data + where[i], W)                                                     \
      out[i] = data[where[i]];                                                     \
    }                                                                              \
  }
BY_WIDTH(1, uint8_t)
BY_WIDTH(2, uint16_t)
BY_WIDTH(4, uint32_t)
BY_WIDTH(8, uint64_t)

static u64 core_clock(void) { return now_ns * CORE_KHZ / 1000000; }
static u64 wall_clock(void) {
#ifdef HIP
  return now_ns * WALL_KHZ / 1000000;
#else
  return now_ns;
#endif
}

static void stamp(struct launch *l) {
  u64 *out = PTR(0);
  NEED(out, NUM(1) * 16)
  for (u64 unit = 0; unit < UNITS; unit++) {
#ifdef HIP
    u64 slot = 3 + 64 * unit;  // with gaps, as the hardware numbers them
#else
    u64 slot = unit;
#endif
    if (slot >= NUM(1)) continue;
    out[2 * slot] = core_clock() + 1000 * unit;
    out[2 * slot + 1] = wall_clock();
  }
  now_ns += STAMP_NS;
}

static void gate(struct launch *l) {
  NEED(PTR(0), 4)
  if (!*(volatile u32 *)PTR(0)) now_ns += NUM(1) * 1000000 / CORE_KHZ;  // it gives up by itself
}
static void spin(struct launch *l) { now_ns += NUM(0) * 1000000 / CORE_KHZ; }
static void nothing(struct launch *l) { (void)l; }
static void disturb(struct launch *l) { now_ns += 3000; (void)l; }
static void poison_all(struct launch *l) {
  for (u64 y = 0; y < l->rows; y++) {
    char *first = (char *)(uintptr_t)l->table[2 * y];
    u64 before = l->table[2 * y + 1] >> 32, after = l->table[2 * y + 1] & 0xffffffff;
    NEED(first, before + NUM(1) + after)
    memset(first, NUM(3), before + NUM(1) + after);
    memset(first + before, NUM(2), NUM(1));
  }
}
static void evict(struct launch *l) {
  NEED(PTR(0), NUM(1) * 8) NEED(PTR(2), 8)
  now_ns += 10000;
}
static void strain_bandwidth(struct launch *l) {
  NEED(PTR(0), NUM(1) * 16)
  now_ns += 30000;
}
static void strain_compute(struct launch *l) {
  NEED(PTR(0), 4)
  now_ns += 30000;
}

// The kernels that tests measure: D = A·B in float32, one of them a bad one.
static void product(struct launch *l, u64 left_out) {
  float *a = PTR(0), *b = PTR(1), *restrict d = PTR(2);
  u64 m = NUM(3), n = NUM(4), k = NUM(5);
  NEED(a, m * k * 4) NEED(b, k * n * 4) NEED(d, m * n * 4)
  for (u64 row = 0; row < m; row++, d += n) {
    u64 count = n - (row == m - 1 ? left_out : 0);
    memset(d, 0, count * 4);
    for (u64 i = 0; i < k; i++)
      for (u64 at = 0; at < count; at++) d[at] += a[row * k + i] * b[i * n + at];
  }
  now_ns += 20000;
}
static void gemm(struct launch *l) { product(l, 0); }
static void gemm_short(struct launch *l) { product(l, 1); }

static void signs(struct launch *l) {
  signed char *sign = PTR(0);
  double *weights = PTR(1);
  NEED(sign, NUM(2)) NEED(weights, NUM(2) * 16)
  for (u64 i = 0; i < NUM(2) && i < l->threads; i++) {
    weights[2 * i] = sign[i];
    weights[2 * i + 1] = 1;
  }
}

// Weighted sums of float32 rows, as project.cu has them; the two kernels differ in speed alone.
static void project(struct launch *l) {
  const u64 *size = l->table, *stride = size + 4, *step = size + 8;
  const u64 cols = size[12], col_stride = size[13], group_weight = size[14];
  double factor, square;
  memcpy(&factor, &l->argument[4], 8);
  memcpy(&square, &l->argument[5], 8);
  for (u64 row = 0; row < size[0] * size[1] * size[2] * size[3]; row++) {
    u64 rest = row, group = 0;
    float *data = PTR(1);
    double *weights = PTR(2), *result = PTR(3), sums[2] = {0, 0};
    for (int axis = 3; axis >= 0; axis--) {
      group = rest % size[axis];
      rest /= size[axis];
      data += group * stride[axis];
      result += 2 * group * step[axis];
    }
    weights += 2 * group * group_weight;
    NEED(data, (cols - 1) * col_stride * 4 + 4) NEED(weights, cols * 16) NEED(result, 16)
    for (u64 c = 0; c < cols; c++) {
      const double x = data[c * col_stride];
      sums[0] += weights[2 * c] * x;
      sums[1] += weights[2 * c + 1] * x * x;
    }
    result[0] += factor * sums[0];
    result[1] += square * sums[1];
  }
  now_ns += 3000;
}

// Sizes of the arguments, one digit each; T is a table of 64 pairs, V a view of 15 numbers.
#define WIDTHS(name, sizes) \
  {#name "_1", sizes, name##_1}, {#name "_2", sizes, name##_2}, {#name "_4", sizes, name##_4}, \
      {#name "_8", sizes, name##_8}
static const struct kernel {
  const char *name, *sizes;
  void (*run)(struct launch *);
} kernels[] = {
    WIDTHS(generate, "88844"), WIDTHS(generate_all, "T884"), WIDTHS(changed, "T8848"), WIDTHS(inspect, "T88448"), WIDTHS(gather, "8884"),
    {"stamp", "84", stamp}, {"gate", "88", gate}, {"spin", "8", spin}, {"nothing", "", nothing},
    {"signs", "884", signs}, {"across_f32", "V888884", project}, {"along_f32", "V888884", project},
    {"disturb", "44", disturb}, {"poison_all", "T844", poison_all},
    {"evict", "888", evict}, {"strain_bandwidth", "88", strain_bandwidth},
    {"strain_compute", "84", strain_compute}, {"gemm", "888444", gemm},
    {"gemm_short", "888444", gemm_short},
};

// -- work in order

struct function {
  const struct kernel *kernel;
  P module;
  int shared_bytes;
};
enum { LAUNCH, RECORD, FILL, COPY, REPLAY };
struct work {
  int kind;
  struct launch launch;
  struct function *function;
  struct event *event;
  struct list *graph;
  char *to, *from;
  u64 nbytes;
  int byte;
};
struct list {
  struct work *items;
  int count, room;
};
struct event { u64 ns; int recorded; };
struct stream { int capturing, invalid; struct list captured; };

static struct list queue, late;

static void append(struct list *list, struct work item) {
  if (list->count == list->room) {
    list->room = list->room ? 2 * list->room : 16;
    list->items = realloc(list->items, list->room * sizeof item);
  }
  list->items[list->count++] = item;
}

static int in_graph, is_gated;

static void run(struct list *list) {
  for (int i = 0; i < list->count; i++) {
    struct work *w = &list->items[i];
    const u64 begun = now_ns;
    if (w->kind == LAUNCH) {
      w->function->kernel->run(&w->launch);
      if (!strcmp(w->function->kernel->name, "gate")) is_gated = 1;
      if (in_graph && !is_gated && now_ns - begun < host_ns) now_ns = begun + host_ns;
    }
    if (w->kind == FILL) memset(w->to, w->byte, w->nbytes);
    if (w->kind == COPY) memmove(w->to, w->from, w->nbytes);
    if (w->kind == RECORD) *w->event = (struct event){now_ns, 1};
    if (w->kind == REPLAY) {
      now_ns += GRAPH_NS;
      in_graph = 1;
      run(w->graph);
      in_graph = is_gated = 0;
    }
  }
}

static void land(void) {
  run(&late);
  for (int i = 0; i < late.count; i++) free(late.items[i].from);
  late.count = 0;
}

static int drain(void) {
  run(&queue);
  queue.count = 0;
  land();
  return sticky;
}

static int enqueue(P stream, struct work item) {
  struct stream *s = get(STREAM, stream);
  if (!s) return BAD_HANDLE;
  append(s->capturing ? &s->captured : &queue, item);
  return OK;
}

// -- devices

#ifdef HIP
static int current = 0;
#else
static int current = -1;
#endif
static int peers[DEVICES][DEVICES];

#define NEED_CONTEXT \
  if (current < 0) return BAD_CONTEXT

API(cuInit, hipInit)(unsigned flags) { ENTER; return flags ? INVALID : OK; }
API(cuDeviceGetCount, hipGetDeviceCount)(int *n) { ENTER; *n = DEVICES; return OK; }
API(cuDeviceGetName, hipDeviceGetName)(char *s, int n, int d) {
  ENTER;
  snprintf(s, n, "Fake GPU %d", d);
  return d < DEVICES ? OK : BAD_DEVICE;
}
API(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *n, int d) {
  ENTER;
  *n = MEMORY;
  return d < DEVICES ? OK : BAD_DEVICE;
}
API(cuDeviceGetUuid_v2, hipDeviceGetUuid)(char *out, int d) {
  ENTER;
  memset(out, 0x10 + d, 16);
  return OK;
}
API(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)(char *s, int n, int d) {
  ENTER;
  snprintf(s, n, "0000:%02x:00.0", 0xc1 + d);
  return n < 13 ? INVALID : d < DEVICES ? OK : BAD_DEVICE;
}
API(cuDriverGetVersion, hipDriverGetVersion)(int *v) {
  ENTER;
#ifdef HIP
  *v = 70253211;
#else
  *v = 13010;
#endif
  return OK;
}
API(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *v, int number, int d) {
  ENTER;
  static const int known[][2] = {
#ifdef HIP
      {87, 64}, {5, CORE_KHZ}, {63, UNITS}, {0, 1}, {60, 1300000}, {59, 8192}, {19, 1 << 20},
      {57, 2048}, {23, 9}, {61, 0}, {10002, 65536}, {72, 131072}, {24, 1}, {65, 0}, {9, 1},
      {74, 65536}, {10017, WALL_KHZ},
#else
      {10, 32}, {13, CORE_KHZ}, {16, UNITS}, {32, 1}, {36, 2619000}, {37, 6144}, {38, 1 << 20},
      {39, 2048}, {75, 9}, {76, 0}, {81, 233472}, {82, 65536}, {83, 1}, {88, 0}, {89, 1},
      {97, 232448},
#endif
  };
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i][0] == number) {
      *v = known[i][1];
      return d < DEVICES ? OK : BAD_DEVICE;
    }
  return INVALID;
}
API(cuDeviceCanAccessPeer, hipDeviceCanAccessPeer)(int *v, int d, int peer) {
  ENTER;
  *v = d != peer;
  return OK;
}
static int enable_peer(int peer) {
  if (peer < 0 || peer >= DEVICES || peer == current) return BAD_DEVICE;
  if (peers[current][peer]++) return PEER_AGAIN;
  return OK;
}
#ifdef HIP
API(, hipSetDevice)(int d) {
  ENTER;
  if (d < 0 || d >= DEVICES) return BAD_DEVICE;
  current = d;
  return OK;
}
API(, hipGetDevicePropertiesR0600)(char *out, int d) {
  ENTER;
  memset(out, 0, 1472);
  snprintf(out, 256, "Fake GPU %d", d);
  snprintf(out + 1160, 256, "%s:sramecc+:xnack-", getenv("FAKE_ARCH") ? getenv("FAKE_ARCH") : ARCH);
  return OK;
}
API(, hipDeviceEnablePeerAccess)(int peer, unsigned flags) {
  ENTER;
  return flags ? INVALID : enable_peer(peer);
}
const char *hipGetErrorName(int code) { return code == NO_MEMORY ? "hipErrorOutOfMemory" : "hipErrorFake"; }
const char *hipGetErrorString(int code) { (void)code; return "a text"; }
#else
API(cuDeviceGet, )(int *d, int ordinal) {
  ENTER;
  *d = ordinal;
  return ordinal < DEVICES ? OK : BAD_DEVICE;
}
API(cuDevicePrimaryCtxRetain, )(P *c, int d) { ENTER; *c = (P)(uintptr_t)(100 + d); return OK; }
API(cuDevicePrimaryCtxRelease_v2, )(int d) { ENTER; (void)d; return OK; }
API(cuCtxSetCurrent, )(P c) {
  ENTER;
  current = (int)(uintptr_t)c - 100;
  return current >= 0 && current < DEVICES ? OK : BAD_CONTEXT;
}
API(cuCtxEnablePeerAccess, )(P c, unsigned flags) {
  ENTER;
  return flags ? INVALID : enable_peer((int)(uintptr_t)c - 100);
}
API(cuGetErrorName, )(int code, const char **s) {
  *s = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return OK;
}
API(cuGetErrorString, )(int code, const char **s) { (void)code; *s = "a text"; return OK; }
#endif

// -- memory

static int allocate(P *p, u64 n, int kind) {
  NEED_CONTEXT;
  if (!n) return INVALID;
  if (n > MEMORY || used + n > MEMORY) return NO_MEMORY;
  if (posix_memalign(p, 256, n)) return NO_MEMORY;
  used += kind == BUFFER ? n : 0;
  add(kind, *p, n);
  return OK;
}
static int release(int kind, P p) {
  drain();
  int code = drop(kind, p);
  if (!code) free(p);
  return code;
}
API(cuMemGetInfo_v2, hipMemGetInfo)(size_t *f, size_t *t) {
  ENTER;
  NEED_CONTEXT;
  *f = MEMORY - used;
  *t = MEMORY;
  return OK;
}
API(cuMemAlloc_v2, hipMalloc)(P *p, size_t n) { ENTER; return allocate(p, n, BUFFER); }
API(cuMemAllocManaged, hipMallocManaged)(P *p, size_t n, unsigned flags) {
  ENTER;
  return flags == 1 ? allocate(p, n, BUFFER) : INVALID;
}
API(cuMemFree_v2, hipFree)(P p) { ENTER; return release(BUFFER, p); }
API(cuMemHostAlloc, hipHostMalloc)(P *p, size_t n, unsigned f) {
  ENTER;
  return f == 2 ? allocate(p, n, HOST) : INVALID;
}
API(cuMemFreeHost, hipHostFree)(P p) { ENTER; return release(HOST, p); }
API(cuMemHostGetDevicePointer_v2, hipHostGetDevicePointer)(P *out, P p, unsigned flags) {
  ENTER;
  *out = p;
  return flags || !get(HOST, p) ? INVALID : OK;
}
API(cuMemcpyHtoD_v2, hipMemcpyHtoD)(P to, const void *from, size_t n) {
  ENTER;
  if (!inside(to, n)) return INVALID;
  char *staged = memcpy(malloc(n + 1), from, n);
  append(&late, (struct work){.kind = COPY, .to = to, .from = staged, .nbytes = n});
  return OK;
}
API(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(P to, const void *from, size_t n, P stream) {
  ENTER;
  if (!inside(to, n)) return INVALID;
  return enqueue(stream, (struct work){.kind = COPY, .to = to, .from = (char *)from, .nbytes = n});
}
API(cuMemcpyDtoH_v2, hipMemcpyDtoH)(P to, P from, size_t n) {
  ENTER;
  if (!inside(from, n)) return INVALID;
  land();
  memcpy(to, from, n);
  return OK;
}
API(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(P to, P from, size_t n, P stream) {
  ENTER;
  if (!get(HOST, to) || !inside(from, n)) return INVALID;
  return enqueue(stream, (struct work){.kind = COPY, .to = to, .from = from, .nbytes = n});
}
API(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(P to, P from, size_t n, P stream) {
  ENTER;
  if (!inside(to, n) || !inside(from, n)) return INVALID;
  return enqueue(stream, (struct work){.kind = COPY, .to = to, .from = from, .nbytes = n});
}
API(cuMemsetD8Async, hipMemsetD8Async)(P to, unsigned char byte, size_t n, P stream) {
  ENTER;
  if (!inside(to, n)) return INVALID;
  return enqueue(stream, (struct work){.kind = FILL, .to = to, .byte = byte, .nbytes = n});
}

// -- streams, events, graphs

API(cuStreamCreate, hipStreamCreateWithFlags)(P *s, unsigned flags) {
  ENTER;
  NEED_CONTEXT;
  if (flags != 1) return INVALID;
  *s = add(STREAM, calloc(1, sizeof(struct stream)), 0)->data;
  return OK;
}
API(cuStreamDestroy_v2, hipStreamDestroy)(P s) { ENTER; drain(); return drop(STREAM, s); }
API(cuStreamSynchronize, hipStreamSynchronize)(P stream) {
  ENTER;
  struct stream *s = get(STREAM, stream);
  if (!s) return BAD_HANDLE;
  if (s->capturing) {
    s->invalid = 1;
    return CAPTURE_UNSUPPORTED;
  }
  return drain();
}
API(cuCtxSynchronize, hipDeviceSynchronize)(void) { ENTER; return drain(); }
API(cuEventCreate, hipEventCreateWithFlags)(P *e, unsigned flags) {
  ENTER;
  *e = add(EVENT, calloc(1, sizeof(struct event)), 0)->data;
  return flags ? INVALID : OK;
}
API(cuEventDestroy_v2, hipEventDestroy)(P e) { ENTER; drain(); return drop(EVENT, e); }
API(cuEventRecord, hipEventRecord)(P e, P s) {
  ENTER;
  if (!get(EVENT, e)) return BAD_HANDLE;
  ((struct event *)e)->recorded = 0;
  return enqueue(s, (struct work){.kind = RECORD, .event = e});
}
API(cuEventSynchronize, hipEventSynchronize)(P e) {
  ENTER;
  return get(EVENT, e) ? drain() : BAD_HANDLE;
}
API(cuEventElapsedTime, hipEventElapsedTime)(float *ms, struct event *a, struct event *b) {
  ENTER;
  if (!get(EVENT, a) || !get(EVENT, b)) return BAD_HANDLE;
  if (!a->recorded || !b->recorded) return NOT_READY;
  *ms = (b->ns - a->ns) * 1e-6;
  return OK;
}
API(cuStreamBeginCapture_v2, hipStreamBeginCapture)(P stream, int mode) {
  ENTER;
  struct stream *s = get(STREAM, stream);
  if (!s) return BAD_HANDLE;
  if (s->capturing || mode != 2) return INVALID;
  *s = (struct stream){.capturing = 1};
  return OK;
}
API(cuStreamEndCapture, hipStreamEndCapture)(P stream, P *graph) {
  ENTER;
  struct stream *s = get(STREAM, stream);
  if (!s) return BAD_HANDLE;
  if (!s->capturing) return INVALID;
  s->capturing = 0;
  *graph = NULL;
  if (s->invalid) return CAPTURE_INVALIDATED;
  struct list *made = malloc(sizeof *made);
  *made = s->captured;
  *graph = add(GRAPH, made, 0)->data;
  return OK;
}
API(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(P *exec, P graph, u64 flags) {
  ENTER;
  if (!get(GRAPH, graph) || flags) return INVALID;
  struct list *made = calloc(1, sizeof *made);
  for (int i = 0; i < ((struct list *)graph)->count; i++)
    append(made, ((struct list *)graph)->items[i]);
  *exec = add(EXEC, made, 0)->data;
  return OK;
}
API(cuGraphLaunch, hipGraphLaunch)(P exec, P stream) {
  ENTER;
  if (!get(EXEC, exec)) return BAD_HANDLE;
  return enqueue(stream, (struct work){.kind = REPLAY, .graph = exec});
}
API(cuGraphExecDestroy, hipGraphExecDestroy)(P exec) { ENTER; drain(); return drop(EXEC, exec); }
API(cuGraphDestroy, hipGraphDestroy)(P graph) { ENTER; return drop(GRAPH, graph); }

#ifdef HIP
// As ROCm's clr writes it without flags.
int hipGraphDebugDotPrint(P graph, const char *path, unsigned flags) {
  ENTER;
  struct list *g = get(GRAPH, graph);
  FILE *file = g && !flags ? fopen(path, "w") : NULL;
  if (!file) return INVALID;
  fprintf(file, "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\"graph[style=\"dashed\"];\n");
  for (int i = 0; i < g->count; i++) {
    fprintf(file, "\n\"graph_1_node_%d\"", i);
    if (g->items[i].kind == LAUNCH)
      fprintf(file, "[style=\"bold\"shape=\"octagon\"label=\"%d\n%s\n\"];\n", i,
              ((struct function *)g->items[i].function)->kernel->name);
    else
      fprintf(file, "[style=\"solid\"shape=\"rectangle\"label=\"%d\nMEMSET\"];\n", i);
  }
  fprintf(file, "\n}\n}\n");
  fclose(file);
  return OK;
}
#else
// What kernel names are read through. A node is the address of the work in its graph.
int cuGraphGetNodes(P graph, P *nodes, size_t *count) {
  ENTER;
  struct list *g = get(GRAPH, graph);
  if (!g) return INVALID;
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = &g->items[i];
  *count = g->count;
  return OK;
}
int cuGraphNodeGetType(struct work *node, int *kind) {
  ENTER;
  *kind = node->kind == LAUNCH ? 0 : 2;
  return OK;
}
int cuGraphKernelNodeGetParams_v2(struct work *node, P *out) {
  ENTER;
  memset(out, 0, 72);
  *out = node->function;
  return OK;
}
int cuFuncGetName(const char **name, struct function *f) {
  ENTER;
  *name = f->kernel->name;
  return OK;
}
#endif

// -- modules

API(cuModuleLoadData, hipModuleLoadData)(P *module, const unsigned char *code) {
  ENTER;
  NEED_CONTEXT;
  if (memcmp(code, "\177ELF", 4) || code[18] + 256 * code[19] != MACHINE) return BAD_IMAGE;
  *module = add(MODULE, malloc(1), 0)->data;
  return OK;
}
API(cuModuleUnload, hipModuleUnload)(P module) { ENTER; drain(); return drop(MODULE, module); }
API(cuModuleGetFunction, hipModuleGetFunction)(P *out, P module, const char *name) {
  ENTER;
  if (!get(MODULE, module)) return BAD_HANDLE;
  for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
    if (!strcmp(kernels[i].name, name)) {
      struct function *f = malloc(sizeof *f);
      *f = (struct function){&kernels[i], module, 49152};
      *out = f;
      return OK;
    }
  return NOT_FOUND;
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessor,
    hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)(int *v, P f, int block, size_t shared) {
  ENTER;
  (void)f;
  *v = shared > 65536 ? 0 : 2048 / block;
  return OK;
}
#ifndef HIP
int cuFuncSetAttribute(struct function *f, int number, int value) {
  ENTER;
  if (number != 8 || value > 232448) return INVALID;
  f->shared_bytes = value;
  return OK;
}
#endif
API(cuLaunchKernel, hipModuleLaunchKernel)(struct function *f, unsigned gx, unsigned gy, unsigned gz,
                                           unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                           P stream, void **arguments, void **extra) {
  ENTER;
  (void)shared;
  if (!f || !get(MODULE, f->module)) return BAD_HANDLE;
  if (!gx || !gy || !gz || !bx || !by || !bz || (u64)bx * by * bz > 1024 || extra) return INVALID;
#ifndef HIP
  if ((int)shared > f->shared_bytes) return INVALID;
#endif
  struct work item = {.kind = LAUNCH, .function = f};
  item.launch.threads = (u64)gx * gy * gz * bx * by * bz;
  item.launch.rows = gy;
  for (int i = 0; f->kernel->sizes[i]; i++)
    if (f->kernel->sizes[i] == 'T') memcpy(item.launch.table, arguments[i], sizeof item.launch.table);
    else if (f->kernel->sizes[i] == 'V') memcpy(item.launch.table, arguments[i], 15 * 8);
    else memcpy(&item.launch.argument[i], arguments[i], f->kernel->sizes[i] - '0');
  return enqueue(stream, item);
}
